"""Reasons in one short line."""

import errno
import os
import socket
import ssl

import pytest

from scaler.signals.failures import LONGEST_TEXT, one_line, system_reason


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\n\tb  c\r", "a b c"),
        ("\x1b[31mred\x07", "[31mred"),
        ("x" * 300, "x" * (LONGEST_TEXT - 1) + "…"),
        ("", ""),
    ],
)
def test_foreign_text_becomes_one_line(text: str, line: str) -> None:
    assert one_line(text) == line


def wrapped(error: BaseException) -> BaseException:
    """As libraries do it."""
    try:
        try:
            raise error
        except type(error) as inner:
            raise RuntimeError("Max retries exceeded with url: /?query=secret") from inner
    except RuntimeError as outer:
        return outer


UNTRUSTED = ssl.SSLCertVerificationError(1, "x")
UNTRUSTED.verify_message = "self-signed certificate"
HANDSHAKE = ssl.SSLError(1, "x")
HANDSHAKE.reason = "WRONG_VERSION_NUMBER"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"), "connection refused"),
        (OSError("Multiple exceptions: [Errno 111] a ('::1', 1), [Errno 113] b"), "connection refused, no route to host"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "name or service not known"),
        (ConnectionResetError("Remote end closed connection"), "remote end closed connection"),
        (UNTRUSTED, "its certificate isn't trusted: self-signed certificate"),
        (HANDSHAKE, "TLS fails: wrong version number"),
    ],
)  # fmt: skip
def test_the_innermost_reason_counts(error: OSError, reason: str) -> None:
    assert system_reason(wrapped(error)) == reason


def test_an_error_that_nobody_beneath_explains_speaks_for_itself() -> None:
    assert system_reason(RuntimeError("no\nidea")) == "no idea"
    assert system_reason(RuntimeError()) == "RuntimeError"
    assert system_reason(RuntimeError("Error 111 connecting to 127.0.0.1:1.")) == os.strerror(111).lower()


def test_errors_that_name_each_other_come_to_an_end() -> None:
    one, two = RuntimeError("one"), RuntimeError("two")
    one.__context__, two.__context__ = two, one
    assert system_reason(one) == "one"

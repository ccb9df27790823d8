"""Why something outside could not be read, in one short line for people.

Libraries wrap the operating system's word two or three times and add addresses, queries and objects to it. What helps is
the innermost reason.
"""

import os
import re
import socket
import ssl
from collections.abc import Iterator
from typing import Final

LONGEST_TEXT: Final = 200
"""Characters of a foreign text that are shown; a page of HTML helps nobody."""

_ERROR_NUMBER: Final = re.compile(r"(?:\[Errno |^Error )(\d+)")
"""How asyncio lists numbers where a name has several addresses and none took the connection, and how redis-py words it."""


def one_line(text: str, longest: int = LONGEST_TEXT) -> str:
    """Make a foreign text fit for a log, a table and a terminal: one line, no control characters, not too long."""
    words = "".join(letter if letter.isprintable() else " " for letter in text).split()
    line = " ".join(words)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def system_reason(error: BaseException) -> str:
    """Return what the operating system, TLS or the resolver said beneath an error; the error's own text if nobody did.

    Args:
        error: what a library raised.
    """
    links = list(_chain(error))
    for link in links:
        if isinstance(link, ssl.SSLCertVerificationError):
            return f"its certificate isn't trusted: {link.verify_message}"
        if isinstance(link, ssl.SSLError):
            return f"TLS fails: {one_line(link.reason or str(link)).replace('_', ' ').lower()}"
    for link in reversed(links):
        if isinstance(link, OSError) and (said := _said_by_system(link)):
            return said.lower()
    return _by_number(str(error)).lower() or one_line(str(error)) or type(error).__name__


def _said_by_system(error: OSError) -> str:
    """Return the text that belongs to an error's number: asyncio puts addresses in its place."""
    if isinstance(error, socket.gaierror):
        return one_line(error.strerror or str(error))
    if error.errno is not None:
        return os.strerror(error.errno)
    return _by_number(str(error)) or one_line(str(error))


def _by_number(text: str) -> str:
    """Return what the numbers in a text mean; empty if there are none."""
    return ", ".join(dict.fromkeys(os.strerror(int(number)) for number in _ERROR_NUMBER.findall(text)))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what lies beneath it, the outermost first."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__

"""Secrets in files: read anew whenever they are needed, so that a rotated one works, and never shown."""

from pathlib import Path
from typing import Final

from scaler.errors import SignalError

_LARGEST: Final = 64 * 1024
"""Bytes of a secret; the largest tokens (of OpenID Connect, with many groups) have a few KiB."""


def read_secret(path: str) -> str:
    """Return what a file holds, without the line end that editors and `echo` leave.

    Args:
        path: the file.

    Raises:
        SignalError: it can't be read, is empty, or holds what can stand in no header and no command. The text names
            the file and nothing of what is in it.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise SignalError(f"{path} can't be read: {reason}") from error
    secret = content.rstrip(b"\r\n")
    if not secret:
        raise SignalError(f"{path} is empty: it must hold a secret")
    if len(content) > _LARGEST or any(byte < ord(" ") for byte in secret):
        raise SignalError(f"{path} holds no secret: one line of at most 64 KiB is wanted")
    try:
        return secret.decode()
    except UnicodeDecodeError:
        raise SignalError(f"{path} holds no secret: it is no UTF-8") from None

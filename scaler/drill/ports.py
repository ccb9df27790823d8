"""Ports of this machine that a person chose, and the one clear sentence when one can't be had."""

import socket
from typing import Final

from scaler.errors import UserError

HOST: Final = "127.0.0.1"
"""A drill and what it starts serve this machine alone."""


def listen(port: int, flag: str) -> socket.socket:
    """Return a listening socket.

    Args:
        port: 0 takes a free one.
        flag: the option that chooses another.

    Raises:
        UserError: the port can't be had.
    """
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise UserError(
            f"can't listen on {HOST}:{port}: {error.strerror or error}",
            hint=f"choose another port with {flag} N, or {flag} 0 for any that is free",
        ) from error


def check_free(port: int, flag: str) -> None:
    """Find out now, not after minutes, that a port is taken that something else will listen on.

    Raises:
        UserError: it can't be had.
    """
    if port:
        listen(port, flag).close()

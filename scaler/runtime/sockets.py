"""Listening sockets, and the one clear sentence when a port can't be had."""

import errno
import socket

from scaler.errors import UserError


def listen(host: str, port: int, flag: str) -> socket.socket:
    """Bind a listening socket.

    Args:
        host: address; an IPv6 one has colons.
        port: 0 takes a free one.
        flag: the option that chooses another port.

    Raises:
        UserError: the port is taken or not ours to take.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=256)
    except OSError as error:
        raise port_taken(host, port, flag, error) from error


def port_taken(host: str, port: int, flag: str, error: OSError) -> UserError:
    """Make the error that says which address or port can't be had, and how to choose another."""
    hint = f"choose another port with {flag} N, or {flag} 0 for any that is free"
    if error.errno == errno.EADDRNOTAVAIL:
        hint = f"{host} is no address of this machine; 127.0.0.1 serves this machine alone, 0.0.0.0 every network"
    return UserError(f"can't listen on {host}:{port}: {error.strerror or error}", hint=hint)


def url_of(listener: socket.socket) -> str:
    """Return the base URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

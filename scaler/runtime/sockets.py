"""Listening sockets, and the one clear sentence when a port can't be had."""

import errno
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from scaler.errors import UserError


@dataclass(frozen=True, slots=True)
class Door:
    """Where a command is asked to listen.

    Attributes:
        host: address.
        port: 0 takes a free one.
        flag: the option that chooses the port.
    """

    host: str
    port: int
    flag: str

    def overlaps(self, other: "Door") -> bool:
        """Whether both would want the same port of the same address."""
        if self.port != other.port or not self.port:
            return False
        here, there = _address(self.host), _address(other.host)
        if isinstance(here, str) or isinstance(there, str):
            return here == there
        return here == there or (
            here.version == there.version and (here.is_unspecified or there.is_unspecified)
        )


def check_apart(doors: Iterable[Door]) -> None:
    """See that no two listeners of one command want the same port.

    Raises:
        UserError: two do.
    """
    for one, other in combinations(doors, 2):
        if one.overlaps(other):
            raise UserError(
                f"{one.flag} and {other.flag} are both {one.port}: one port can't be listened on twice",
                hint=f"choose another port with {one.flag} N or {other.flag} N",
            )


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | str:
    try:
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return host


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

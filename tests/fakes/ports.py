"""Ports on which nobody listens, for servers that are told theirs beforehand.

A port that the system chose for a moment and gave back may be anybody's before its server has bound it: another test's listener, or
the near end of any connection. These lie below the range that the system chooses from, and each process of the tests goes through
them from a place of its own, so that a port which was free stays so.
"""

import itertools
import os
import socket
from pathlib import Path
from typing import Final

_LOWEST: Final = 10_000
_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_STRIDE: Final = 251
"""How far apart processes whose ids follow one another begin; prime, so that they seldom meet."""


def _turns() -> "itertools.cycle[int]":
    beyond = int(_RANGE.read_text("ascii").split()[0]) if _RANGE.exists() else 32_768
    ports = range(_LOWEST, beyond) if beyond > _LOWEST + 1000 else range(61_000, 65_536)
    first = os.getpid() * _STRIDE % len(ports)
    return itertools.cycle([*ports[first:], *ports[:first]])


_NEXT: Final = _turns()


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 on which nobody listens, each once."""
    return list(itertools.islice((port for port in _NEXT if _is_free(port)), count))


def free_port() -> int:
    """Return one of them."""
    (port,) = free_ports(1)
    return port


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True

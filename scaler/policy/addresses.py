"""Addresses of servers in a policy: what is wrong with one, and what was probably meant.

No address may say who asks. Files with policies are read by many and end up in logs; passwords and tokens are in files
of their own.
"""

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

from scaler.policy.base import Misshapen
from scaler.policy.document import show

_MOST_PORT: Final = 65_535
_HOST_PORT: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s/:@\[\]]+):(?P<port>[0-9]+)")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+")
_AUTHORITY_END: Final = re.compile("[/?#]")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def host_and_port(address: str) -> tuple[str, int]:
    """Take apart HOST:PORT, an IPv6 address out of its brackets.

    Raises:
        ValueError: it is none.
    """
    found = _HOST_PORT.fullmatch(address)
    if found is None:
        raise ValueError(f"{address!r} is not HOST:PORT")
    return found["host"].strip("[]"), int(found["port"])


def host_port_problem(address: str) -> Misshapen | None:
    """Say what keeps a text from being HOST:PORT; None for one that is."""
    if "@" in address:
        hint = "write HOST:PORT alone: username and passwordFile say who asks"
        return "must be HOST:PORT, and holds who asks as well", hint
    if found := _HOST_PORT.fullmatch(address):
        return _port_problem(int(found["port"]))
    message = f"must be HOST:PORT, is {show(address)}"
    bare = _SCHEME.sub("", address).partition("/")[0]
    if _HOST_PORT.fullmatch(bare):
        return message, f"write {bare}"
    if bare.count(":") > 1:
        return message, "an IPv6 address stands in brackets before its port: [::1]:6379"
    if _HOST.fullmatch(bare):
        return message, f"add the port: {bare}:6379"
    return message, "for example redis.serving:6379, or [::1]:6379"


def url_problem(address: str) -> Misshapen | None:
    """Say what keeps a text from being the address of an HTTP server; None for one that is."""
    if "@" in _AUTHORITY_END.split(_SCHEME.sub("", address), maxsplit=1)[0]:
        hint = "remove it: authorization says who asks, with the secret in a file"
        return "holds a user name or a password", hint
    parts, message = _split(address), f"must be an http or https address, is {show(address)}"
    if not _SCHEME.match(address) and _split(f"http://{address}") is not None:
        return message, f"write http://{address}"
    if parts is None or parts.scheme not in {"http", "https"} or not parts.netloc:
        return message, "for example http://prometheus.monitoring:9090"
    port = re.search(r":([0-9]+)$", parts.netloc)
    return _port_problem(int(port[1])) if port else None


def _split(address: str) -> SplitResult | None:
    """Take an address apart; None where its brackets are no address."""
    try:
        return urlsplit(address)
    except ValueError:
        return None


def _port_problem(port: int) -> Misshapen | None:
    if 1 <= port <= _MOST_PORT:
        return None
    return f"there is no port {port}", f"a port is a number from 1 to {_MOST_PORT}"

"""Why there is no connection to an external scaler, found out by knocking: gRPC says the same of every failure.

A TCP connection tells whether anybody listens. A handshake that believes every certificate and shows none tells whether TLS is
spoken, and whether a client must show one: a gRPC server speaks first, and one that wants more ends the connection instead.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from scaler.keda.client import Tls
from scaler.keda.room import turned_away

_KNOCK_SECONDS: Final = 2.0
"""For a connection, and for a handshake with the server's first bytes."""
_MOST_PORT: Final = 65_535
_LISTENING: Final = "start one with --keda-port 6000, or name another --address"


@dataclass(frozen=True, slots=True)
class Unreached:
    """Why there is no connection.

    Attributes:
        reason: what was found.
        hint: what to try.
    """

    reason: str
    hint: str


class _Greeting(Enum):
    """How a server takes a handshake."""

    NO_TLS = auto()
    WANTS_CERTIFICATE = auto()
    OPEN = auto()


async def why(address: str, tls: Tls | None) -> Unreached:
    """Find out why gRPC got no connection.

    Args:
        address: host and port.
        tls: what was shown and believed; None: plaintext.
    """
    host, port = _place(address)
    if port is None:
        return Unreached(f"{address!r} is not HOST:PORT", "such as 127.0.0.1:6000")
    closed = await _closed(host, port)
    if closed is not None:
        return closed
    if await turned_away(host, port):
        return Unreached(
            "the connection is taken and closed at once, without a word: the server has as many as it takes, or a"
            " proxy before it reaches no server",
            "see who holds connections to that port (ss -tn); those without a call are ended after a minute",
        )
    greeting = await _greeting(host, port)
    if tls is None:
        return _plaintext(greeting)
    if greeting is _Greeting.NO_TLS:
        return Unreached(
            "somebody listens, and speaks no TLS",
            "leave --tls, --ca-cert, --client-cert and --client-key out",
        )
    unbelieved = await _unbelieved(host, port, tls.root)
    if unbelieved is not None:
        return Unreached(
            f"the server's certificate isn't believed: {unbelieved}",
            f"--ca-cert FILE with the roots of it; it must be for {host}",
        )
    if greeting is _Greeting.WANTS_CERTIFICATE and tls.certificate is None:
        return Unreached(
            "the server wants a client's certificate", "--client-cert FILE and --client-key FILE"
        )
    if greeting is _Greeting.WANTS_CERTIFICATE:
        return Unreached(
            "the server refuses the certificate that is shown",
            "one of the authority in the server's ca.crt, with its key",
        )
    return Unreached("the TLS handshake fails", "see the server's log")


def _plaintext(greeting: _Greeting) -> Unreached:
    match greeting:
        case _Greeting.NO_TLS:
            return Unreached("somebody listens, and speaks no gRPC", "name the port of --keda-port")
        case _Greeting.OPEN:
            return Unreached("the server speaks TLS, and plaintext was tried", "--ca-cert FILE, or --tls")
        case _Greeting.WANTS_CERTIFICATE:
            return Unreached(
                "the server speaks TLS with certificates of clients, and plaintext was tried",
                "--ca-cert FILE, --client-cert FILE and --client-key FILE",
            )


def _place(address: str) -> tuple[str, int | None]:
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    known = host and port.isascii() and port.isdecimal() and int(port[:6]) <= _MOST_PORT
    return host, int(port) if known else None


async def _closed(host: str, port: int) -> Unreached | None:
    """Say why there is no TCP connection to any address that a name has; None: there is one."""
    failures: dict[str, OSError] = {}
    try:
        async with asyncio.timeout(_KNOCK_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
            for family, _, _, _, address in found:
                try:
                    _, writer = await asyncio.open_connection(str(address[0]), port, family=family)
                except OSError as error:
                    failures[str(address[0])] = error
                else:
                    writer.close()
                    return None
    except socket.gaierror as error:
        return Unreached(f"the name {host} leads nowhere: {error.strerror}", "see --address")
    except TimeoutError:
        return Unreached(
            f"no connection within {_KNOCK_SECONDS:g} s",
            "a firewall or a NetworkPolicy may swallow it; see --address",
        )
    return unconnected(failures)


def unconnected(failures: Mapping[str, OSError]) -> Unreached:
    """Say in one sentence why none of the addresses that a name has takes a connection. PURE.

    Where one of them refuses it, that is it: nobody listens, and the others are those that a name often has for nothing.

    Args:
        failures: what came of each address.
    """
    refused = [at for at, error in failures.items() if isinstance(error, ConnectionRefusedError)]
    if refused:
        return Unreached(
            f"the connection is refused, for nobody listens there ({', '.join(refused)})", _LISTENING
        )
    told = [f"{at}: {os.strerror(error.errno) if error.errno else error}" for at, error in failures.items()]
    return Unreached(f"no connection ({'; '.join(told) or 'the name has no address'})", _LISTENING)


async def _greeting(host: str, port: int) -> _Greeting:
    context = _context(None)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(_KNOCK_SECONDS):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as error:
        return _Greeting.WANTS_CERTIFICATE if "ALERT" in (error.reason or "") else _Greeting.NO_TLS
    except OSError:  # a time-out too
        return _Greeting.NO_TLS
    try:
        async with asyncio.timeout(_KNOCK_SECONDS):
            return _Greeting.OPEN if await reader.read(1) else _Greeting.WANTS_CERTIFICATE
    except OSError:
        return _Greeting.WANTS_CERTIFICATE
    finally:
        writer.transport.abort()


async def _unbelieved(host: str, port: int, root: bytes | None) -> str | None:
    """Say why the server's certificate can't be believed; None: it can, or that isn't what fails."""
    try:
        context = _context(root)
    except (ssl.SSLError, ValueError):
        return "the file with its roots holds no certificate"
    try:
        async with asyncio.timeout(_KNOCK_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message or str(error)
    except OSError:
        return None
    writer.transport.abort()
    return None


def _context(root: bytes | None) -> ssl.SSLContext:
    """Return what makes handshakes as gRPC does.

    Raises:
        ssl.SSLError: the roots are none.
    """
    context = ssl.create_default_context(cadata=None if root is None else root.decode("ascii", "ignore"))
    context.set_alpn_protocols(["h2"])
    return context

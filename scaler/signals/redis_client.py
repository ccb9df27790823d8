"""One Redis as several signals use it: standalone, behind sentinels, or a cluster; connected anew after it was away.

Nothing is tried twice within one round, for the next round is the retry. While a server can't be reached one attempt at a
time finds out whether it is back, with growing pauses, and all others fail at once for the same reason.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

from redis import exceptions as redis_errors
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from scaler.errors import SignalError, UserError
from scaler.policy.addresses import host_and_port
from scaler.policy.signals import RedisMode, RedisServer, Tls
from scaler.signals.failures import one_line, system_reason
from scaler.signals.secret_file import read_secret
from scaler.signals.sharing import Shared

T = TypeVar("T")
Commands: TypeAlias = "Redis | RedisCluster"
"""What takes commands."""

LARGEST_IN_FLIGHT: Final = 8
"""Rounds that use one server at once, and so its connections. A command takes microseconds: eight are tens of thousands
of rounds a second."""
FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 2.0
"""An attempt to connect costs a server next to nothing, and signals are wanted back soon after it is up again."""
_DEFAULT_PORT: Final = 6379
_CONNECT_SECONDS: Final = 5.0
"""Bounds what runs outside of a round; a round has its own timeout, which is shorter in general."""
_CLOSE_SECONDS: Final = 0.5


# ------------------------------------------------------------------ which server


def server_of_url(url: str) -> RedisServer:
    """Read an address as command lines have it: `HOST:PORT`, or `redis://[USER@]HOST[:PORT][/DATABASE]`; `rediss` is TLS.

    Raises:
        UserError: it is none, or it holds a password.
    """
    parts = urlsplit(url if "://" in url else f"redis://{url}")
    if parts.password is not None:
        raise UserError("the address of Redis holds a password", hint="give it in a file: it shows in ps")
    database = parts.path.strip("/") or "0"
    try:
        port = _DEFAULT_PORT if parts.port is None else parts.port
        if parts.scheme in {"redis", "rediss"} and port and database.isascii() and database.isdigit():
            return RedisServer(
                addresses=(f"{_in_brackets(parts.hostname or '')}:{port}",),
                database=int(database),
                username=unquote(parts.username) if parts.username else None,
                tls=Tls() if parts.scheme == "rediss" else None,
            )
    except ValueError:  # pydantic's too: a host or a number that a policy may not have either
        pass
    raise UserError(
        f"{one_line(url)!r} is no address of Redis", hint="redis://HOST:PORT/DATABASE, or rediss://… for TLS"
    )


def _in_brackets(host: str) -> str:
    """Write a host as it stands before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def merged(server: RedisServer, default: RedisServer | None) -> RedisServer:
    """Return what a signal's server comes to with the controller's own.

    A server that names addresses stands for itself: the controller's credentials go to no other address. One that names
    none is the controller's, with whatever it does say put over it.

    Raises:
        SignalError: nobody says which server, or the two don't fit together.
    """
    if server.addresses is not None:
        return server
    if default is None or default.addresses is None:
        raise SignalError(
            "nobody says which Redis: give the signal server.addresses, or the controller --redis"
        )
    said = {name: getattr(server, name) for name in server.model_fields_set if name != "addresses"}
    both = default.model_copy(update=said)
    for broken in both.broken_rules():
        raise SignalError(
            f"server.{broken.path[0]} {broken.message} (mode and addresses are the controller's)"
        )
    return both


# ------------------------------------------------------------------ connecting


class NoCredentials(redis_errors.AuthenticationError):
    """The file with the password can't be read. The library closes the connection for errors of its own kind only."""


class _FileCredentials(CredentialProvider):
    """User and password, read whenever a connection is made."""

    def __init__(self, username: str | None, password_file: str | None) -> None:
        self._username = username or "default"
        self._password_file = password_file

    def get_credentials(self) -> tuple[str, str]:
        """Return both.

        Raises:
            NoCredentials: the file can't be read.
        """
        if self._password_file is None:
            return self._username, ""
        try:
            return self._username, read_secret(self._password_file)
        except SignalError as error:
            raise NoCredentials(str(error)) from error

    async def get_credentials_async(self) -> tuple[str, str]:
        """See `get_credentials`; it is a small file."""
        return self.get_credentials()


class _Sentinels(Sentinel):
    """Sentinels that are asked all at once, so that one that hangs delays no answer."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return the address of the master that the first of them names.

        Raises:
            MasterNotFoundError: none names one.
        """
        problems: list[str] = []
        found: list[tuple[str, int]] = []
        answered = asyncio.Event()

        async def ask(sentinel: Redis) -> None:
            try:
                masters: Any = await sentinel.sentinel_masters()
                state = masters.get(service_name)
            except Exception as error:  # noqa: BLE001 - whatever one of them answers, the others are asked
                problems.append(system_reason(error))
            else:
                if state and self.check_master_state(state, service_name):
                    found.append((state["ip"], state["port"]))
                    answered.set()
                    return
                problems.append("it is down" if state else "they don't know it")
            if len(problems) == len(self.sentinels):
                answered.set()

        async with asyncio.TaskGroup() as group:
            asks = [group.create_task(ask(sentinel)) for sentinel in self.sentinels]
            await answered.wait()
            for task in asks:
                task.cancel()
        if not found:
            raise MasterNotFoundError(
                f"no sentinel names a master {service_name!r}: {', '.join(dict.fromkeys(problems))}"
            )
        return found[0]


def open_redis(server: RedisServer, closing: AsyncExitStack) -> Commands:
    """Make a client; it connects with the first command.

    Args:
        server: which server, with its addresses.
        closing: gets what closes the client again.
    """
    addresses = [host_and_port(address) for address in server.addresses or ()]
    options = _options(server)
    client: Commands
    match server.mode:
        case RedisMode.CLUSTER:
            nodes = [ClusterNode(host, port) for host, port in addresses]
            client = RedisCluster(
                startup_nodes=nodes,
                require_full_coverage=False,  # one shard that is down is no reason not to ask the others
                dynamic_startup_nodes=False,  # else a cluster that was down forgets where to look for it
                **options,
            )
        case RedisMode.SENTINEL:
            kept = {name: value for name, value in options.items() if name != "credential_provider"}
            sentinels = _Sentinels(  # type: ignore[no-untyped-call]
                addresses, sentinel_kwargs=kept, db=server.database, **options
            )
            closing.push_async_callback(sentinels.aclose)
            client = sentinels.master_for(server.sentinel_master or "")
        case _:
            client = Redis(host=addresses[0][0], port=addresses[0][1], db=server.database, **options)
    closing.push_async_callback(client.aclose)
    return client


def _options(server: RedisServer) -> dict[str, Any]:
    """Return what all kinds of clients take."""
    options: dict[str, Any] = {
        "protocol": 2,  # all that is asked here reads the same in both, and this one any server and proxy speaks
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,  # the round's timeout holds
        "socket_connect_timeout": _CONNECT_SECONDS,
        "driver_info": None,  # CLIENT SETINFO is one permission more than needed
    }
    if server.username is not None or server.password_file is not None:
        options["credential_provider"] = _FileCredentials(server.username, server.password_file)
    if server.tls is not None:
        options["ssl"] = True
        options["ssl_ca_certs"] = server.tls.ca_file
        options["ssl_cert_reqs"] = "none" if server.tls.skip_verify else "required"
        options["ssl_check_hostname"] = not server.tls.skip_verify
    return options


# ------------------------------------------------------------------ asking


@dataclass(slots=True)
class Gate:
    """Who may try to reach a server that was lost: one attempt after each pause. PURE: time and chance are arguments.

    Attributes:
        problem: why it was lost; None while it is there.
    """

    problem: str | None = None
    _attempt: int = 0
    _failures: int = 0
    _opens_at: float = 0.0
    _pause: float = 0.0

    def admit(self, now: float) -> int:
        """Let an attempt through; while the server is lost none follows it before it has failed or a pause has passed.

        Args:
            now: seconds of any clock.

        Returns:
            The attempt's number. Those that go through together while the server is there share one.

        Raises:
            SignalError: it is not the time.
        """
        if self.problem is None:
            return self._attempt
        if now < self._opens_at:
            raise SignalError(self.problem)
        self._opens_at = now + self._pause
        self._attempt += 1
        return self._attempt

    def lost(self, attempt: int, problem: str, *, now: float, luck: float) -> None:
        """Take note that an attempt has failed; of several that share a number the first counts.

        Args:
            attempt: its number.
            problem: why.
            now: seconds of the same clock.
            luck: a random number from 0 to 1, by which those who wait don't come back all at once.
        """
        if attempt != self._attempt:
            return
        self.problem = problem
        longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(self._failures, 16))
        self._pause = longest * (1 + luck) / 2
        self._opens_at = now + self._pause
        self._failures += 1
        self._attempt += 1

    def reached(self) -> None:
        """Take note that the server answers."""
        self.problem, self._failures = None, 0


class RedisClient:
    """One server, as all signals use it that reach it in the same way.

    Args:
        server: which server, with its addresses.
    """

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._closing = AsyncExitStack()
        self._commands = open_redis(server, self._closing)
        self._slots = asyncio.Semaphore(LARGEST_IN_FLIGHT)
        self._gate = Gate()

    async def ask(self, work: Callable[[Commands], Awaitable[T]], timeout: float) -> T:  # noqa: ASYNC109 - as a policy's
        """Run some commands.

        Args:
            work: runs them.
            timeout: seconds for all of it, connecting included.

        Raises:
            SignalError: it didn't work, in time or at all.
        """
        attempt = self._gate.admit(time.monotonic())
        try:
            async with asyncio.timeout(timeout), self._slots:
                result = await work(self._commands)
        except TimeoutError:
            raise SignalError(f"{self._name}: no answer within {timeout * 1000:.0f} ms") from None
        except Exception as error:
            problem = signal_error(error, self._name)
            if self._is_lost(error):
                self._gate.lost(attempt, str(problem), now=time.monotonic(), luck=random.random())
            else:
                self._gate.reached()  # whatever it said
            raise problem from error
        self._gate.reached()
        return result

    async def close(self) -> None:
        """Close all connections; what hangs is left after half a second."""
        with suppress(TimeoutError, redis_errors.RedisError, OSError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._closing.aclose()

    def _is_lost(self, error: Exception) -> bool:
        """Whether nobody can use the server at present; a cluster with one shard less can be used."""
        if self._server.mode is RedisMode.CLUSTER:
            return isinstance(error, redis_errors.RedisClusterException | NoCredentials)
        return isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError | OSError)

    @property
    def _name(self) -> str:
        """The server as people know it."""
        if self._server.mode is RedisMode.SENTINEL:
            return f"master {self._server.sentinel_master}"
        return (self._server.addresses or ("",))[0]


@dataclass(slots=True)
class RedisServers:
    """All servers that signals read.

    Attributes:
        default: the one that is read where a signal names no addresses (`--redis`); None: there is none.
    """

    default: RedisServer | None = None
    _shared: Shared[RedisServer, RedisClient] = field(default_factory=lambda: Shared(RedisClient))

    def lease(self, server: RedisServer) -> AbstractAsyncContextManager[RedisClient]:
        """Have the client of a server with addresses for as long as the block runs; it is shared."""
        return self._shared.lease(server)


# ------------------------------------------------------------------ what goes wrong


def signal_error(error: Exception, name: str) -> SignalError:
    """Say in a sentence why commands came to nothing: the one place where the library's errors are mapped.

    Args:
        error: what was raised.
        name: the server.
    """
    if isinstance(error, SignalError):
        return error
    text = one_line(str(error)).rstrip(".")
    match error:
        case MasterNotFoundError():
            return SignalError(text)
        case NoCredentials():
            return SignalError(f"{name}: {text}")
        case (
            redis_errors.ResponseError()
            | redis_errors.AuthenticationError()
            | redis_errors.BusyLoadingError()
        ):
            return SignalError(f"{name} answers: {text}{_mend(error, text)}")
        case redis_errors.RedisClusterException():
            reason = system_reason(error).rpartition("reachable node: ")[2].rstrip(".")
            return SignalError(f"{name}: no cluster: {reason}{_mend(error, text)}")
        case redis_errors.ConnectionError() | redis_errors.TimeoutError() | OSError():
            return SignalError(f"{name}: no connection: {system_reason(error).rstrip('.')}")
        case _:
            return SignalError(f"{name}: unexpected {type(error).__name__}: {text}")


def _mend(error: Exception, text: str) -> str:
    """Say what to do about an answer; servers of other versions and makers word theirs differently."""
    if isinstance(error, redis_errors.NoPermissionError):
        return "; the ACL user needs read access to the key"
    if isinstance(error, redis_errors.AuthenticationError) or text.startswith(("NOAUTH", "WRONGPASS")):
        return "; do server.username and server.passwordFile fit?"
    if isinstance(error, redis_errors.MovedError):
        return "; it is part of a cluster: set server.mode: Cluster"
    if "in cluster mode" in text:
        return "; set server.mode: Cluster, and no database"
    if "cluster support disabled" in text or "Cluster mode is not enabled" in text:
        return "; set server.mode: Standalone"
    if "DB index" in text:
        return "; is server.database right?"
    return ""

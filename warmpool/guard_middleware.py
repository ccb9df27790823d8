"""The guard as ASGI middleware: a door inside the engine's own server, in front of everything that the server can do.

    env EMBERPOOL_GUARD_CONTROL=127.0.0.1:8101 EMBERPOOL_GUARD_TOKEN_FILE=/run/emberpool/token \
        vllm serve MODEL --port 8001 --middleware guard_middleware.Guard

It is copied into images that we don't make, so it needs nothing but Python's standard library, 3.9 or newer, and imports nothing
of Emberpool. docs/guard.md describes what it promises. `Settings` says which variables it reads.

The public side is the server's own listener: clients' routes pass while the guard is open, all others don't exist. The control side
is a listener of the guard's own, for the agent alone: `/guard` and its orders, and past the guard whatever the engine answers to.
A guard is born closed, and what it can't be sure of keeps it closed.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hmac
import ipaddress
import json
import logging
import os
import re
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote_to_bytes

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

ROUTES = frozenset(
    {
        *("/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/chat/completions/batch"),
        *("/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings", "/v1/rerank"),
        *("/v1/score", "/v1/classify", "/v1/audio/transcriptions", "/v1/audio/translations"),
        *("/tokenize", "/detokenize"),
    }
)
"""What clients may reach while the guard is open. Everything under `/v1` would be too much: vLLM loads and unloads adapters there."""
SOCKET_ROUTES = frozenset({"/v1/realtime"})
"""Where clients may open web sockets while the guard is open."""
HEALTH = "/health"
"""Passes while the guard is open, and is never in flight: whoever balances load must not be drained."""
METRICS = "/metrics"
"""Passes whether or not the guard is open, and is never in flight: it only tells. `Settings` may keep it to the control side."""

RETRY_SECONDS = 1
"""What a refused client is told to wait."""
SILENCE_SECONDS = 60.0
"""A client that neither sends its body nor takes its answer for so long is cut off. A body that trickles would hold a drain."""
UNWIND_SECONDS = 1.0
"""An app that is told that its client has gone, and hasn't returned by then, is cancelled; and again after each such time."""
ENDING_SECONDS = 1.0
"""A client that doesn't take the end of its answer in this time is cut off without it."""
LONGEST_EVENT_BYTES = 2**20
"""A longer event of a stream passes in pieces; nothing is held without bound."""
SHORTEST_TOKEN = 16
"""Characters."""

_ONE_RESPONSE = re.compile(r"/v1/responses/[A-Za-z0-9_-]+(?:/cancel)?")
_NEVER = re.compile(
    r"/(?:pause|resume|continue|sleep|wake|release|collective|abort|reset|flush|is_|update|init_|destroy|guard)"
)
_LAST_PORT = 65_535
_HEAD_BYTES = 65_536
_HEAD_SECONDS = 10.0
_PIECE_BYTES = 65_536
_LINGER_BYTES = 2**20
_LINGER_SECONDS = 0.5  # less than ENDING_SECONDS, so that what ends has ended by then
_GONE_WHILE_RESTARTING = 1012  # https://www.iana.org/assignments/websocket: the service restarts, come again

_LOG = logging.getLogger("emberpool.guard")


# ---------------------------------------------------------------------- what it says


class Refusal(NamedTuple):
    """Why a request is refused or ended, as its client is told.

    Attributes:
        status: HTTP's status, where one can still be sent.
        message: for people.
        kind: the error's `type`, as OpenAI's clients know it.
        code: the error's `code`, for programs.
    """

    status: int
    message: str
    kind: str
    code: str | int

    @property
    def body(self) -> bytes:
        """The error, as OpenAI's clients know it."""
        error = {"message": self.message, "type": self.kind, "param": None, "code": self.code}
        return json.dumps({"error": error}, separators=(",", ":")).encode()

    @property
    def event(self) -> bytes:
        """The event that ends a stream. No `[DONE]` follows it, for the answer isn't whole."""
        return b"data: " + self.body + b"\n\n"

    @property
    def closes(self) -> bool:
        """Whether the connection ends with it, so that the client's next request finds another way."""
        return self.status in {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.REQUEST_TIMEOUT}


_UNAVAILABLE = "ServiceUnavailableError"
NOT_SERVING = Refusal(
    503, "this resident isn't serving at the moment; another one may be", _UNAVAILABLE, "ResidentNotServing"
)
CUT_OFF = Refusal(
    503, "the request was cut off: its resident stops serving", _UNAVAILABLE, "ResidentNotServing"
)
BROKEN_OFF = Refusal(
    502, "the engine broke off in the middle of its answer", "InternalServerError", "EngineBrokeOff"
)
TOO_SLOW = Refusal(408, "the request wasn't sent in time", "TimeoutError", "RequestTimeout")
NO_ROUTE = Refusal(404, "Not Found", "NotFoundError", 404)


# ---------------------------------------------------------------------- what it is told


class Misconfigured(ValueError):
    """The guard can't be what it has to be; the message says what to change."""


class Routes:
    """What passes on the public side.

    Args:
        also: paths that pass beside `ROUTES`, as a client writes them, without wildcards.
        metrics: whether `/metrics` is there.

    Raises:
        Misconfigured: one of the paths is none, or commands the engine.
    """

    def __init__(self, also: Iterable[str] = (), *, metrics: bool = True) -> None:
        more = frozenset(also)
        for path in sorted(more):
            if not re.fullmatch(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+)+", path):
                raise Misconfigured(f"routes: {path!r} is no plain path")
            if _NEVER.match(path):
                raise Misconfigured(
                    f"routes: {path!r} commands the engine, and clients may not; the agent reaches it on the control side"
                )
        self._guarded = ROUTES | more
        self._metrics = metrics

    def guarded(self, path: str) -> bool:
        """Whether requests for it pass while the guard is open, and are in flight."""
        return path in self._guarded or _ONE_RESPONSE.fullmatch(path) is not None

    def sockets(self, path: str) -> bool:
        """Whether web sockets for it pass while the guard is open, and are in flight."""
        return path in SOCKET_ROUTES

    def tells(self, path: str) -> bool:
        """Whether it passes whether or not the guard is open, and isn't in flight."""
        return path == METRICS and self._metrics


@dataclass(frozen=True)
class Settings:
    """What a guard has to know.

    Attributes:
        control: where the control side listens: `unix:/path/of.sock`, for the user whom the engine runs as, or
            `127.0.0.1:8101`, for whoever has the token. EMBERPOOL_GUARD_CONTROL.
        token: what the agent has to show on a port, as a bearer token or as a password. EMBERPOOL_GUARD_TOKEN, or the content of
            the file EMBERPOOL_GUARD_TOKEN_FILE.
        routes: what passes on the public side. EMBERPOOL_GUARD_ROUTES: more paths, separated by commas.
            EMBERPOOL_GUARD_METRICS: `Public` (default) or `Control`.
        silence_seconds: as `SILENCE_SECONDS`. EMBERPOOL_GUARD_SILENCE_SECONDS.
    """

    control: str
    token: str = ""
    routes: Routes = field(default_factory=Routes)
    silence_seconds: float = SILENCE_SECONDS

    @staticmethod
    def read(environment: Mapping[str, str]) -> Settings:
        """Read them from environment variables.

        Raises:
            Misconfigured: one is missing or wrong.
        """
        try:
            silence = float(environment.get("EMBERPOOL_GUARD_SILENCE_SECONDS", SILENCE_SECONDS))
        except ValueError:
            silence = 0.0
        if not 0 < silence < float("inf"):
            raise Misconfigured("EMBERPOOL_GUARD_SILENCE_SECONDS: a number of seconds above 0 is wanted")
        metrics = environment.get("EMBERPOOL_GUARD_METRICS", "Public")
        if metrics not in {"Public", "Control"}:
            raise Misconfigured(f"EMBERPOOL_GUARD_METRICS: Public or Control is wanted, not {metrics!r}")
        named = environment.get("EMBERPOOL_GUARD_ROUTES", "").split(",")
        routes = Routes([path.strip() for path in named if path.strip()], metrics=metrics == "Public")
        control = environment.get("EMBERPOOL_GUARD_CONTROL", "")
        return Settings(
            control=control, token=read_token(environment), routes=routes, silence_seconds=silence
        )

    def __post_init__(self) -> None:
        """See that the control side stays inside.

        Raises:
            Misconfigured: it wouldn't.
        """
        _check_control(self.control, self.token)


def read_token(environment: Mapping[str, str]) -> str:
    """Return the token that environment variables name; empty if they name none.

    Raises:
        Misconfigured: it lies in a file that can't be read.
    """
    path = environment.get("EMBERPOOL_GUARD_TOKEN_FILE")
    if path is None:
        return environment.get("EMBERPOOL_GUARD_TOKEN", "")
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"EMBERPOOL_GUARD_TOKEN_FILE: {path} can't be read: {error}") from error


def _check_control(control: str, token: str) -> None:
    if not control:
        raise Misconfigured(
            "EMBERPOOL_GUARD_CONTROL: where does the agent reach this guard? unix:/path/of.sock or 127.0.0.1:PORT is wanted"
        )
    if control.startswith("unix:"):
        if not Path(control[5:]).is_absolute():
            raise Misconfigured(f"EMBERPOOL_GUARD_CONTROL: {control}: the path has to begin with /")
        return
    host, _port = _address(control)
    if not ipaddress.ip_address(host).is_loopback:
        raise Misconfigured(
            f"EMBERPOOL_GUARD_CONTROL: {control}: only a loopback address keeps the engine's controls inside"
        )
    if len(token) < SHORTEST_TOKEN:
        raise Misconfigured(
            f"EMBERPOOL_GUARD_TOKEN: a port wants a token of {SHORTEST_TOKEN} characters or more: whoever shares the network "
            "reaches it"
        )


def _address(control: str) -> tuple[str, int]:
    host, _, port = control.rpartition(":")
    try:
        address, number = str(ipaddress.ip_address(host.strip("[]"))), int(port)
        if not 0 <= number <= _LAST_PORT:
            raise ValueError(f"{number} is no port")
    except ValueError as error:
        raise Misconfigured(
            f"EMBERPOOL_GUARD_CONTROL: {control}: unix:/path/of.sock or 127.0.0.1:PORT is wanted"
        ) from error
    return address, number


# ---------------------------------------------------------------------- the door


class Inside(Protocol):
    """A request that was let in."""

    def cut(self, refusal: Refusal = ...) -> None:
        """End it early."""


class Gate:
    """A door for requests, and the set of those inside. It behaves as `warmpool.guard.Gate` does; a test holds both together."""

    def __init__(self) -> None:
        self.is_open = False
        self._inside: dict[Inside, bool] = {}

    @property
    def in_flight(self) -> int:
        """Requests that were let in and whose response hasn't ended."""
        return len(self._inside)

    def open(self) -> None:
        """Let requests in from now on."""
        self.is_open = True

    def close(self) -> None:
        """Let nobody in from now on; those inside go on."""
        self.is_open = False

    def enter(self, request: Inside) -> bool:
        """Let a request in, unless the gate is closed; tell whether it is in."""
        if not self.is_open:
            return False
        self._inside[request] = False
        return True

    def leave(self, request: Inside) -> None:
        """Count a request no longer; twice is once."""
        self._inside.pop(request, None)

    def abort(self) -> int:
        """Ask those inside to end early who haven't been asked; return how many that were."""
        asked = [request for request, already in self._inside.items() if not already]
        for request in asked:
            self._inside[request] = True
            request.cut()
        return len(asked)


class Events:
    """A stream of server-sent events, passed on so that one more can always be put after what has passed.

    The part of an event that hasn't ended yet is held back. What ends an event: https://html.spec.whatwg.org, server-sent events.
    """

    _ENDS = (b"\n\n", b"\n\r\n", b"\r\r")

    def __init__(self) -> None:
        self._held = b""
        self.between = True
        """Whether what has passed ends with an event."""

    def feed(self, piece: bytes) -> bytes:
        """Take a piece, and return what may pass; may be empty."""
        if not self._held and piece[-2:] == b"\n\n":
            self.between = True
            return piece
        data = self._held + piece if self._held else piece
        end = max(data.rfind(mark) + len(mark) if mark in data else 0 for mark in self._ENDS)
        if end:
            self.between = True
        if len(data) - end > LONGEST_EVENT_BYTES or not self.between:
            end, self.between = len(data), False
        self._held = data[end:]
        return data[:end]

    def rest(self) -> bytes:
        """Return what is held back, for a stream that ended by itself."""
        held, self._held = self._held, b""
        return held


# ---------------------------------------------------------------------- the middleware


class Guard:
    """The middleware.

    Args:
        app: what it stands in front of.
        settings: what it has to know; read from the environment if left out. If that fails the server's start fails, with the reason.

    Attributes:
        gate: the door; whoever embeds a guard in an app of their own may turn it as the agent does.
    """

    def __init__(self, app: App, settings: Settings | None = None) -> None:
        self._app = app
        self.gate = Gate()
        self._problem = ""
        self._control: _Control | None = None
        self._routes = Routes()
        self._silence_seconds = SILENCE_SECONDS
        try:
            known = Settings.read(os.environ) if settings is None else settings
        except Misconfigured as error:  # servers take a middleware that raises for one that needs no start
            self._problem = str(error)
            return
        self._routes, self._silence_seconds = known.routes, known.silence_seconds
        self._control = _Control(app, self.gate, known)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one scope, as ASGI has it.

        Raises:
            ValueError: the scope is of a kind that nobody has taught the guard to keep out.
        """
        kind = scope["type"]
        if kind == "http":
            await self._http(scope, receive, send)
        elif kind == "websocket":
            await self._socket(scope, receive, send)
        elif kind == "lifespan":
            await self._lifespan(scope, receive, send)
        else:
            raise ValueError(f"a guard lets http, websocket and lifespan through, not {kind}")

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = _path(scope)
        if self._routes.guarded(path):
            request = _Request(self._app, scope, receive, send)
            if self.gate.enter(request):
                await request.run(self.gate, self._silence_seconds)
            else:
                await _refuse(scope, receive, send, NOT_SERVING)
        elif self._routes.tells(path) or (path == HEALTH and self.gate.is_open):
            await self._app(scope, receive, send)
        else:
            await _refuse(scope, receive, send, NOT_SERVING if path == HEALTH else NO_ROUTE)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._routes.sockets(_path(scope)):
            await _deny(scope, send, NO_ROUTE)
            return
        request = _Socket(self._app, scope, receive, send)
        if self.gate.enter(request):
            await request.run(self.gate, self._silence_seconds)
        else:
            await _deny(scope, send, NOT_SERVING)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the app start and end, and the control side with it."""
        if self._control is None:
            await receive()
            _LOG.error("the guard can't start: %s", self._problem)
            await send({"type": "lifespan.startup.failed", "message": f"guard: {self._problem}"})
            return
        life = _Life(self._control, scope, receive, send)
        try:
            await self._app(scope, life.receive, life.send)
        except Exception:
            if life.told:
                raise
            await life.alone()  # an app without a life of its own


def _path(scope: Scope) -> str:
    """Return the path as routers see it: without the path at which the app is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and path.startswith(root) and path[len(root) : len(root) + 1] in {"", "/"}:
        return path[len(root) :]
    return path


class _Life:
    """The app's start and end, as the server hears of them."""

    def __init__(self, control: _Control, scope: Scope, receive: Receive, send: Send) -> None:
        self._control = control
        self._scope = scope
        self._receive = receive
        self._send = send
        self._asked = False
        self.told = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._asked = True
        return message

    async def send(self, message: Message) -> None:
        self.told = True
        if message["type"] == "lifespan.startup.complete":
            try:
                await self._control.start(self._scope)
            except OSError as error:
                reason = f"guard: {self._control.where} can't be listened on: {error.strerror or error}"
                _LOG.error("%s", reason)
                message = {"type": "lifespan.startup.failed", "message": reason}
        elif message["type"].startswith("lifespan.shutdown."):
            self._control.stop()
        await self._send(message)

    async def alone(self) -> None:
        """Start and end for an app that knows nothing of it."""
        if not self._asked:
            await self._receive()
        await self.send({"type": "lifespan.startup.complete"})
        await self._receive()
        await self.send({"type": "lifespan.shutdown.complete"})


# ---------------------------------------------------------------------- one request


class ClientGone(OSError):
    """The client has gone, as far as the app has to know."""


class _Interrupted(Exception):
    """A wait for the client ends because the request does."""


class _Inside:
    """A request that was let in: the app's call, the client's side of it, and its early end.

    The early end is told to the app as its client's leaving, for that is what apps know how to deal with: vLLM ends the generation,
    and would leave it running if only the call were cancelled. Cancelling comes second.

    Waits for the client are interrupted by cancelling the task that waits and taking that back, as `asyncio.timeout` does: it costs
    nothing while nothing happens, where a task per wait would cost more than the rest of the guard.
    """

    _gone: Message

    def __init__(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        self._app = app
        self._scope = scope
        self._server_receive = receive
        self._server_send = send
        self._refusal: Refusal | None = None
        self._waiting: dict[asyncio.Task[Any], _Cancelling] = {}

    async def run(self, gate: Gate, silence_seconds: float) -> None:
        """Call the app, and see the response to its end."""
        self._loop = asyncio.get_running_loop()
        self._call = _Cancelling(_current_task())
        self._silence_seconds = silence_seconds
        self._timer = self._loop.call_later(silence_seconds, self._look)
        try:
            await self._run_app()
            if self._refusal is not None or not self._over:
                await _shortly(self._end(self._refusal or BROKEN_OFF))
        finally:
            self._timer.cancel()
            gate.leave(self)

    def cut(self, refusal: Refusal = CUT_OFF) -> None:
        """End it early. The first reason stays."""
        if self._refusal is not None:
            return
        self._refusal = refusal
        for wait in self._waiting.values():
            wait.cancel()
        self._timer.cancel()
        self._timer = self._loop.call_later(UNWIND_SECONDS, self._cancel)

    async def receive(self) -> Message:
        """Hand the app its client's next message."""
        if self._refusal is not None:
            return self._gone
        try:
            return await self._from_client()
        except _Interrupted:
            return self._gone

    async def send(self, message: Message) -> None:
        """Take a message from the app to its client.

        Raises:
            ClientGone: the request has been ended.
        """
        if self._refusal is not None:
            raise ClientGone(self._refusal.message)
        try:
            await self._to_client(message)
        except _Interrupted:
            raise ClientGone(CUT_OFF.message) from None

    @property
    def _over(self) -> bool:
        """Whether the app has said all that there is to say."""
        raise NotImplementedError

    async def _from_client(self) -> Message:
        raise NotImplementedError

    async def _to_client(self, message: Message) -> None:
        raise NotImplementedError

    async def _end(self, refusal: Refusal) -> None:
        """Tell the client, as far as it can still be told."""
        raise NotImplementedError

    async def _run_app(self) -> None:
        try:
            await self._app(self._scope, self.receive, self.send)
        except asyncio.CancelledError:
            if not self._call.was_ours():
                raise
        except Exception:
            if self._refusal is None:
                await _shortly(self._end(BROKEN_OFF))
                raise
            _LOG.debug("an app that was told to end complained", exc_info=True)
        finally:
            self._timer.cancel()
        self._call.was_ours()

    async def _interruptibly(self, wait: Awaitable[Any], *, for_ever: bool = False) -> Any:  # noqa: ANN401 (whatever is waited for)
        """Wait for the client, until the request ends.

        Args:
            wait: what comes when the client has done its part.
            for_ever: the client may take as long as it likes.

        Raises:
            _Interrupted: the request has been ended.
        """
        task = _current_task()
        cancelling = self._waiting[task] = _Cancelling(task, None if for_ever else self._loop.time())
        try:
            result = await wait
        except asyncio.CancelledError:
            if cancelling.was_ours():
                raise _Interrupted from None
            raise
        finally:
            del self._waiting[task]
        if cancelling.was_ours():
            raise _Interrupted
        return result

    def _cancel(self) -> None:
        self._call.cancel()
        self._timer = self._loop.call_later(UNWIND_SECONDS, self._cancel)

    def _look(self) -> None:
        """See whether the client has kept the request waiting for too long, and look again when that may be so."""
        now = self._loop.time()
        since = min((wait.since for wait in self._waiting.values() if wait.since is not None), default=now)
        left = since + self._silence_seconds - now
        if left <= 0:
            self.cut(TOO_SLOW)
        else:
            self._timer = self._loop.call_later(left, self._look)


class _Cancelling:
    """Cancels a task in a way that can be told from others' cancelling it, and taken back.

    Before Python 3.11 tasks don't count who cancels them; there, another's cancellation that comes at the same moment is lost.
    """

    __slots__ = ("_before", "_task", "_times", "since")

    def __init__(self, task: asyncio.Task[Any], since: float | None = None) -> None:
        self._task = task
        self.since = since
        self._times = 0
        self._before = 0

    def cancel(self) -> None:
        if self._times == 0:
            self._before = self._task.cancelling() if hasattr(self._task, "cancelling") else 0
        self._times += 1
        self._task.cancel()

    def was_ours(self) -> bool:
        """Take back what was cancelled here; tell whether there was any such, and nobody else cancelled beside."""
        if self._times == 0:
            return False
        left = 0
        for _ in range(self._times):
            left = self._task.uncancel() if hasattr(self._task, "uncancel") else 0
        self._times = 0
        return left <= self._before


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def _shortly(ending: Coroutine[Any, Any, None]) -> None:
    """Let an ending take a moment and no more: a client that doesn't read would hold it."""
    with contextlib.suppress(asyncio.TimeoutError, OSError):
        await asyncio.wait_for(ending, ENDING_SECONDS)


class _Request(_Inside):
    """An HTTP request that was let in. Its response can be ended while it hasn't begun, or between two events."""

    _gone: Message = {"type": "http.disconnect"}  # noqa: RUF012 (nobody changes it)

    def __init__(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(app, scope, receive, send)
        self._all_received = False
        self._begun = False
        self._starting = False
        self._complete = False
        self._events: Events | None = None

    @property
    def _over(self) -> bool:
        return self._complete

    async def _from_client(self) -> Message:
        # After the body comes the client's leaving, if anything.
        message: Message = await self._interruptibly(self._server_receive(), for_ever=self._all_received)
        self._all_received = not message.get("more_body", False)
        return message

    async def _to_client(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.body" and self._events is not None:
            whole = _whole_events(self._events, message)
            if whole is None:
                return
            message = whole
        elif kind == "http.response.start":
            self._starting = True
            if _is_plain_stream(message.get("headers", ())):
                self._events = Events()
        await self._interruptibly(self._server_send(message))
        if kind == "http.response.start":
            self._begun, self._starting = True, False
        elif kind == "http.response.body":
            self._complete = not message.get("more_body", False)

    async def _end(self, refusal: Refusal) -> None:
        # An app that goes without completing its response has its connection cut by the server: nothing else says that it isn't whole.
        if self._complete or self._starting:
            return
        if not self._begun:
            if refusal is not BROKEN_OFF:  # of an app that raises the server has its own to say
                receive = None if self._all_received else self._server_receive
                await _refuse(self._scope, receive, self._server_send, refusal)
        elif self._events is not None and self._events.between and refusal is not TOO_SLOW:
            await self._server_send({"type": "http.response.body", "body": refusal.event, "more_body": False})


class _Socket(_Inside):
    """A web socket that was let in. It may be silent for as long as it likes."""

    _gone: Message = {"type": "websocket.disconnect", "code": _GONE_WHILE_RESTARTING}  # noqa: RUF012 (nobody changes it)

    def __init__(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(app, scope, receive, send)
        self._accepted = False
        self._closed = False

    @property
    def _over(self) -> bool:
        return self._closed

    async def _from_client(self) -> Message:
        message: Message = await self._interruptibly(self._server_receive(), for_ever=True)
        self._closed = self._closed or message["type"] == "websocket.disconnect"
        return message

    async def _to_client(self, message: Message) -> None:
        kind = message["type"]
        self._closed = self._closed or kind not in {"websocket.accept", "websocket.send"}
        await self._interruptibly(self._server_send(message))
        self._accepted = self._accepted or kind == "websocket.accept"

    async def _end(self, refusal: Refusal) -> None:
        if self._closed:
            return
        if self._accepted:
            await self._server_send(
                {"type": "websocket.close", "code": _GONE_WHILE_RESTARTING, "reason": refusal.message}
            )
        elif refusal is not BROKEN_OFF:
            await _deny(self._scope, self._server_send, refusal)


def _is_plain_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a response is a stream of events into which one more can be put."""
    found = False
    for name, value in headers:
        lower = name.lower()
        if lower in {b"content-length", b"content-encoding"}:
            return False
        if lower == b"content-type":
            found = bytes(value).partition(b";")[0].strip().lower() == b"text/event-stream"
    return found


def _whole_events(events: Events, message: Message) -> Message | None:
    """Return the message with what may pass of its body; None if nothing may yet."""
    body = message.get("body", b"")
    piece = body if isinstance(body, bytes) else bytes(body)
    passing = events.feed(piece)
    if not message.get("more_body", False):
        passing += events.rest()
    elif not passing:
        return None
    return message if passing is body else {**message, "body": passing}


async def _refuse(scope: Scope, receive: Receive | None, send: Send, refusal: Refusal) -> None:
    """Answer in the app's stead.

    Closing a connection on which the client still sends resets it, and the answer is lost on the way. So what it sends is read for
    a moment after the answer, unless it waits to be told to send.

    Args:
        scope: the request's.
        receive: what brings the request's body; None if all of it is here.
        send: takes the answer.
        refusal: the answer.
    """
    body = refusal.body
    headers = _headers_of(refusal, body)
    closing = refusal.closes and scope.get("http_version", "1.1").startswith("1")
    if closing:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    if closing and receive is not None and _sends_body(scope.get("headers", ())):
        await send({"type": "http.response.body", "body": body, "more_body": True})
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_read_away(receive), _LINGER_SECONDS)
        body = b""
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _headers_of(refusal: Refusal, body: bytes) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if refusal.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append((b"retry-after", b"%d" % RETRY_SECONDS))
    return headers


def _sends_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    sends = False
    for name, value in headers:
        lower = name.lower()
        if lower == b"expect":
            return False
        sends = sends or lower == b"transfer-encoding" or (lower == b"content-length" and value != b"0")
    return sends


async def _read_away(receive: Receive) -> None:
    read = 0
    while read < _LINGER_BYTES:
        message = await receive()
        read += len(message.get("body", b""))
        if not message.get("more_body", False):
            return


async def _deny(scope: Scope, send: Send, refusal: Refusal) -> None:
    """Refuse a web socket before it is one: with an answer where the server can give one, else with its own 403."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    body = refusal.body
    headers = _headers_of(refusal, body)
    await send({"type": "websocket.http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


# ---------------------------------------------------------------------- the control side


class _BadRequest(Exception):
    """A request on the control side that can't be answered.

    Attributes:
        status: HTTP's status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Control:
    """The control side's listener: the guard's orders, and past the guard the app. One request per connection."""

    def __init__(self, app: App, gate: Gate, settings: Settings) -> None:
        self._app = app
        self._gate = gate
        self._token = settings.token
        self._base: dict[str, Any] = {}
        self._server: asyncio.AbstractServer | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._path = settings.control[5:] if settings.control.startswith("unix:") else ""
        self.where = settings.control

    async def start(self, lifespan: Scope) -> None:
        """Begin to listen.

        Args:
            lifespan: the scope of the app's life; what frameworks keep there belongs to every scope of the app.

        Raises:
            OSError: the address can't be had.
        """
        self._base = {key: value for key, value in lifespan.items() if key not in {"type", "asgi", "state"}}
        self._state = lifespan.get("state")
        if self._path:
            self._server = await asyncio.start_unix_server(
                self._serve, sock=_private_socket(self._path), limit=_HEAD_BYTES
            )
        else:
            host, port = _address(self.where)
            self._server = await asyncio.start_server(self._serve, host, port, limit=_HEAD_BYTES)
        _LOG.info("the guard is closed; its control side listens on %s", self.where)

    def stop(self) -> None:
        """Listen no longer, and cut what is still asked."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for writer in self._writers:
            writer.transport.abort()
        if self._path:
            with contextlib.suppress(OSError):
                Path(self._path).unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._answer(reader, writer)
            await writer.drain()
        except (OSError, EOFError):
            pass  # it has gone
        except Exception:  # noqa: BLE001 (a fault in one request must not end the others)
            _LOG.exception("a request on the control side failed")
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(_read_head(reader), _HEAD_SECONDS)
            self._check_token(head)
        except asyncio.TimeoutError:  # noqa: UP041 (not the builtin before Python 3.11)
            _write_json(writer, 408, {"error": "the request wasn't sent in time"})
        except _BadRequest as error:
            _write_json(writer, error.status, {"error": str(error)})
        else:
            if head.path == "/guard" or head.path.startswith("/guard/"):
                self._order(head, writer)
            else:
                await _Handed(head, reader, writer).run(self._app, self._scope(head, writer))

    def _check_token(self, head: _Head) -> None:
        if not self._token and self._path:
            return  # the file's permissions say who may
        scheme, _, shown = head.first(b"authorization").partition(b" ")
        if scheme.lower() == b"basic":
            try:
                shown = base64.b64decode(shown, validate=True).partition(b":")[2]
            except binascii.Error:
                shown = b""
        if not hmac.compare_digest(shown.strip(), self._token.encode()):
            raise _BadRequest(HTTPStatus.UNAUTHORIZED, "the guard's token is wanted")

    def _order(self, head: _Head, writer: asyncio.StreamWriter) -> None:
        gate, facts = self._gate, {}
        order = f"{head.method} {head.path}"
        if order == "POST /guard/open":
            gate.open()
        elif order == "POST /guard/close":
            gate.close()
        elif order == "POST /guard/abort":
            facts["aborted"] = gate.abort()
        elif order != "GET /guard":
            _write_json(writer, HTTPStatus.NOT_FOUND, {"error": f"the guard knows no {order}"})
            return
        if order != "GET /guard":
            _LOG.info("%s: %d in flight", order, gate.in_flight)
        _write_json(writer, HTTPStatus.OK, {"open": gate.is_open, "inFlight": gate.in_flight, **facts})

    def _scope(self, head: _Head, writer: asyncio.StreamWriter) -> Scope:
        peer, here = (writer.get_extra_info(name) for name in ("peername", "sockname"))
        scope: Scope = {
            **self._base,
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": head.method,
            "scheme": "http",
            "path": head.path,
            "raw_path": head.raw_path,
            "query_string": head.query,
            "root_path": "",
            # The token is the guard's; an app that reads it would take it for its own key.
            "headers": [(name, value) for name, value in head.headers if name != b"authorization"],
            "client": tuple(peer[:2]) if isinstance(peer, tuple) else None,
            "server": tuple(here[:2]) if isinstance(here, tuple) else (self._path, None),
        }
        if self._state is not None:
            scope["state"] = self._state.copy()
        return scope


def _private_socket(path: str) -> socket.socket:
    """Bind a socket that the engine's user alone may connect to. It takes the place of one that nobody listens on any more.

    Raises:
        OSError: it can't be bound, or somebody listens there.
    """
    place = Path(path)
    if place.exists():
        if not place.is_socket():
            raise FileExistsError(f"{path} is there and is no socket")
        with socket.socket(socket.AF_UNIX) as other, contextlib.suppress(ConnectionRefusedError):
            other.connect(path)
            raise FileExistsError(f"somebody listens on {path}")
    listener = socket.socket(socket.AF_UNIX)
    fresh = place.with_name(f"{place.name}.{os.getpid()}")
    try:
        fresh.unlink(missing_ok=True)
        listener.bind(str(fresh))
        fresh.chmod(0o600)
        listener.listen()
        fresh.rename(place)  # nobody ever sees it with other permissions, nor without a listener
    except OSError:
        listener.close()
        raise
    return listener


class _Head(NamedTuple):
    """The head of a request on the control side.

    Attributes:
        method: as it is sent.
        path: decoded.
        raw_path: as it is sent.
        query: as it is sent.
        headers: names in lower case.
        length: bytes of the body.
    """

    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    length: int

    def first(self, name: bytes) -> bytes:
        """Return a header's value; empty if it isn't there."""
        return next((value for each, value in self.headers if each == name), b"")


_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.1")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r\n]*?)[ \t]*")


async def _read_head(reader: asyncio.StreamReader) -> _Head:
    """Read the head of a request.

    Raises:
        _BadRequest: it isn't one, or is too long.
        EOFError: the connection ended before.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise _BadRequest(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a head has {_HEAD_BYTES} bytes at most"
        ) from error
    first, *lines = head[:-4].split(b"\r\n")
    request = _REQUEST_LINE.fullmatch(first)
    fields = [_HEADER.fullmatch(line) for line in lines]
    if request is None or None in fields:
        raise _BadRequest(HTTPStatus.BAD_REQUEST, "this is no request of HTTP/1.1")
    headers = [(field[1].lower(), field[2]) for field in fields if field is not None]
    raw_path, _, query = request[2].partition(b"?")
    length = _length(headers)
    path = unquote_to_bytes(raw_path).decode("utf-8", "replace")
    return _Head(request[1].decode(), path, raw_path, query, headers, length)


def _length(headers: list[tuple[bytes, bytes]]) -> int:
    lengths = {value for name, value in headers if name == b"content-length"}
    if any(name == b"transfer-encoding" for name, _ in headers):
        raise _BadRequest(HTTPStatus.LENGTH_REQUIRED, "a body wants a Content-Length")
    if len(lengths) > 1 or not all(value.isdigit() for value in lengths):
        raise _BadRequest(HTTPStatus.BAD_REQUEST, "the Content-Length is no length")
    return int(lengths.pop()) if lengths else 0


def _write_json(writer: asyncio.StreamWriter, status: int, body: Mapping[str, Any]) -> None:
    data = json.dumps(body).encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + data)


class _Handed:
    """A request of the agent's, handed to the app past the guard."""

    def __init__(self, head: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._head = head
        self._reader = reader
        self._writer = writer
        self._left = head.length
        self._expected = head.length > 0 and head.first(b"expect").lower() == b"100-continue"
        self._received = False
        self._begun = False
        self._chunked = False
        self._bare = head.method == "HEAD"
        self._complete = False

    async def run(self, app: App, scope: Scope) -> None:
        """Call the app, and see that whoever asked learns how it ended."""
        try:
            await app(scope, self.receive, self.send)
        except Exception:  # noqa: BLE001 (whatever the app raises is the app's)
            if self._writer.is_closing():
                return  # whoever asked has gone
            _LOG.exception("%s %s, past the guard, failed", self._head.method, self._head.path)
        if not self._begun:
            _write_json(self._writer, 500, {"error": "the engine's app gave no answer"})
        elif not self._complete:
            self._writer.transport.abort()  # nothing else says that the answer isn't whole

    async def receive(self) -> Message:
        if self._received:
            with contextlib.suppress(OSError):
                while await self._reader.read(_PIECE_BYTES):
                    pass  # one request a connection: what follows is nobody's
            return {"type": "http.disconnect"}
        if self._expected:
            self._expected = False
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        piece = b""
        if self._left:
            with contextlib.suppress(OSError):
                piece = await self._reader.read(min(self._left, _PIECE_BYTES))
            if not piece:
                self._received = True
                return {"type": "http.disconnect"}
        self._left -= len(piece)
        self._received = self._left == 0
        return {"type": "http.request", "body": piece, "more_body": not self._received}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begin(message["status"], list(message.get("headers", ())))
        elif message["type"] == "http.response.body":
            self._body(bytes(message.get("body", b"")), more=message.get("more_body", False))
        await self._writer.drain()

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._begun = True
        self._bare = self._bare or status in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}
        names = {name.lower() for name, _ in headers}
        self._chunked = b"content-length" not in names and not self._bare
        lines = [b"HTTP/1.1 %d" % status]
        lines += [name + b": " + value for name, value in headers if name.lower() not in _FRAMING]
        lines += [b"connection: close"] + [b"transfer-encoding: chunked"] * self._chunked
        self._writer.write(b"\r\n".join(lines) + b"\r\n\r\n")

    def _body(self, body: bytes, *, more: bool) -> None:
        if body and not self._bare:
            self._writer.write(b"%x\r\n%b\r\n" % (len(body), body) if self._chunked else body)
        if not more:
            self._complete = True
            if self._chunked:
                self._writer.write(b"0\r\n\r\n")


_FRAMING = frozenset({b"connection", b"transfer-encoding", b"keep-alive"})

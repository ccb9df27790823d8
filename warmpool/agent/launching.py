"""The agent's end of a launcher's socket: engines that outlive the agent, and are taken up again by the next.

What the launcher keeps, the agent can lose: which engines run, with which ports, and what was known of them. Every request
names the start that it means by its token and may be repeated, so a connection that breaks costs nothing. An engine ends with
its launcher; a launcher at whose socket nobody listens has ended, and so have its engines.
"""

import asyncio
import itertools
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from warmpool.agent.config import untold
from warmpool.agent.processes import Ports, Start, address_in_use, telling
from warmpool.engines.startup_log import MARKS
from warmpool.errors import StartFailed, WarmpoolError
from warmpool.launcher import PROTOCOL, Spec

_LOG = logging.getLogger(__name__)

_HELLO_SECONDS = 10.0
_ANSWER_SECONDS = 10.0
_START_SECONDS = 60.0  # an image's first exec reads its files
_GONE_SECONDS = 10.0  # the launcher says by then that something can't be killed
_RETRY_SECONDS = 0.2
_ATTEMPTS = 3
_MAKE_ROOM_SECONDS = 5.0
_SAY_EVERY_SECONDS = 30.0
_MOST_UNCLAIMED = 200
_OUT_LINES = 3
_ERR_LINES = 6

Message = dict[str, Any]


class LauncherSaidNo(WarmpoolError):
    """The launcher refused a request.

    Attributes:
        code: why, as the protocol names it.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class LauncherLost(WarmpoolError):
    """The launcher doesn't answer; what became of the request is unknown."""


class LaunchedProcess:
    """One engine whose parent is the launcher. `Launcher` makes them."""

    def __init__(self, launcher: "Launcher", identity: Mapping[str, Any], ports: Ports) -> None:
        self._launcher = launcher
        self._ports = ports
        self._end: Message | None = None
        self._gone = False
        self.name: str = identity["engine"]
        self.token: str = identity["token"]
        self.spec: str = identity["spec"]
        self._pid: int = identity["pid"]

    @property
    def pid(self) -> int:
        """Its process id, in the launcher's PID namespace."""
        return self._pid

    @property
    def visible_pid(self) -> int | None:
        """Its process id as this process sees it; None if it can't see it."""
        return self._pid if self._launcher.same_namespace else None

    @property
    def namespace(self) -> str:
        """The launcher's PID namespace; empty where that is this process's own."""
        return "" if self._launcher.same_namespace else self._launcher.namespace

    @property
    def ports(self) -> Ports:
        """Its listeners."""
        return self._ports

    @property
    def exited(self) -> bool:
        """Whether the process has ended."""
        return self._end is not None

    @property
    def status(self) -> int | None:
        """What it exited with; None while it runs, or if a signal ended it."""
        return self._end.get("status") if self._end is not None else None

    async def wait(self) -> str:
        """Wait for its end, and say in words how it ended, with its last log lines."""
        while self._end is None:
            await self._launcher.news()
        return _in_words(self._end)

    async def lost_its_port(self) -> bool:
        """Whether it ended because someone else has one of its ports, as far as can be told afterwards."""
        if self._end is None:
            return False
        return address_in_use(_log(self._end)) or await asyncio.to_thread(self._ports.taken)

    async def owns(self, pid: int) -> bool:
        """Whether `pid`, in the launcher's PID namespace, is this process or one that it started."""
        if pid == self._pid:
            return True
        try:
            answer = await self._launcher.ask("owns", {**self._meant, "pid": pid})
        except LauncherSaidNo:
            return False
        return bool(answer["owns"])

    async def remember(self, note: Mapping[str, Any]) -> None:
        """Have the launcher keep what the next agent has to know of this engine."""
        with suppress(LauncherSaidNo):  # it has ended, and nobody needs to know
            await self._launcher.ask(
                "note", {**self._meant, "note": {**note, "ports": _ports_to_json(self._ports)}}
            )

    async def telling_lines(self) -> Sequence[str]:
        """Return what it has logged of its start; nothing from a launcher that doesn't keep that."""
        try:
            kept = (await self._launcher.ask("kept", self._meant))["lines"]
        except (LauncherSaidNo, LauncherLost):
            return ()
        return [str(line) for line in kept]

    async def stop(self, *, grace_seconds: float) -> None:
        """End the process and all that it started: SIGTERM, and what is left after `grace_seconds` SIGKILL."""
        if self._gone:
            return
        with suppress(LauncherSaidNo, LauncherLost):
            await self._launcher.ask("stop", {**self._meant, "graceSeconds": grace_seconds})
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds + _GONE_SECONDS):
                while not self._gone:
                    await self._launcher.news()

    def ended(self, report: Message) -> None:
        """Take the launcher's report of its process's end."""
        if self._end is None:
            self._end = report

    def gone(self, report: Message) -> None:
        """Take the launcher's report that nothing of it is left, or nothing that can be killed."""
        self.ended(report)
        self._gone = True
        if report.get("left"):
            _LOG.error("engine %s: processes %s can't be killed", self.name, report["left"])

    @property
    def _meant(self) -> Message:
        return {"engine": self.name, "token": self.token}


class Launcher:
    """A launcher, as the agent uses it. Its connection is made when it is first needed, and again whenever it breaks.

    Args:
        path: the launcher's socket.
        secret: what it wants to hear; empty if it asks for none.
        on_draining: called when it has been told to end, with the seconds that are left for draining.
        on_superseded: called when an agent that started later has taken over. Stop acting: two agents of a seat would
            undo each other's work.
        on_change: called when it has come, or is gone.
    """

    def __init__(
        self,
        path: Path,
        *,
        secret: str,
        on_draining: Callable[[float], None],
        on_superseded: Callable[[], None],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._secret = secret
        self._on_draining = on_draining
        self._on_superseded = on_superseded
        self._on_change = on_change
        self._name = f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(4)}"
        self._generation = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)
        self._wire: _Wire | None = None
        self._connecting = asyncio.Lock()
        self._changed = asyncio.Event()
        self._said = -_SAY_EVERY_SECONDS
        self._instance = ""
        self._command: tuple[str, ...] = ()
        self._followed: dict[str, LaunchedProcess] = {}
        self._unclaimed: dict[
            str, list[Message]
        ] = {}  # reports by token, of engines that aren't followed (yet)
        self._draining = False
        self._closed = False
        self.same_namespace = False
        self.namespace = ""

    @property
    def draining(self) -> bool:
        """Whether it has been told to end, and no other has taken its place since."""
        return self._draining

    @property
    def ready(self) -> bool:
        """Whether it is there, and starts engines."""
        return self._wire is not None and not self._wire.lost and not self._draining

    async def attend(self) -> None:
        """Keep in touch with it, and with whichever comes after it, until cancelled."""
        while not self._closed:
            await self._patiently()
            changed, wire = self._changed, self._wire
            if wire is not None and not wire.lost:
                await changed.wait()

    # ------------------------------------------------------------------ engines

    async def start(self, start: Start, ports: Ports) -> LaunchedProcess:
        """Start an engine, after ending another that has its name.

        Raises:
            StartFailed: there is no such program, or the launcher doesn't start it for another reason.
        """
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._patiently()
        except TimeoutError:
            raise StartFailed(f"launcher: nobody listens at {self._path}") from None
        spec = _spec(self._told_how(start), ports)
        request = spec.to_json() | {
            "engine": start.name,
            "token": secrets.token_hex(16),
            "note": {"ports": _ports_to_json(ports)},
            "keep": list(MARKS),
        }
        try:
            return self._follow(await self._start(request), ports)
        except LauncherSaidNo as error:
            ended = self._unclaimed.get(request["token"])
            if error.code == "Ended" and ended:
                return self._follow(ended[0], ports)  # it has run, and the answer that said so was lost
            raise StartFailed(f"launcher: {error}") from error
        except LauncherLost as error:
            raise StartFailed(str(error)) from error

    async def running(self, start: Start) -> tuple[LaunchedProcess, Mapping[str, Any]] | None:
        """Return the engine that an earlier agent has started in this way, and what that noted; None if none runs.

        Engines end with their launcher, so none runs where nobody listens.
        """
        if not await self._answers():
            return None
        try:
            start = self._told_how(start)
        except StartFailed as error:
            _LOG.warning("%s", error)
            return None
        for engine in (await self.ask("list", {}))["engines"]:
            ports = _ports_of(engine["note"])
            if engine["engine"] != start.name or engine["state"] != "Running" or ports is None:
                continue
            if engine["spec"] != _spec(start, ports).digest():
                _LOG.warning(
                    "engine %s runs otherwise than it is configured now; it won't be taken up", start.name
                )
                continue
            return self._follow(engine, ports), engine["note"]
        return None

    async def end_others(self, names: Sequence[str]) -> None:
        """End the engines of other names: an earlier agent's, that nobody needs any more."""
        if not await self._answers():
            return
        for engine in (await self.ask("list", {}))["engines"]:
            if engine["engine"] not in names:
                _LOG.warning("engine %s belongs to no resident; ending it", engine["engine"])
                await self._adopted(engine).stop(grace_seconds=_MAKE_ROOM_SECONDS)

    async def close(self) -> None:
        """Close the connection, and make no other. The engines go on."""
        self._closed = True
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    async def drained(self) -> None:
        """Tell the launcher, which has been told to end, that it need not wait any longer."""
        with suppress(LauncherSaidNo, LauncherLost):
            await self.ask("drained", {})

    def _told_how(self, start: Start) -> Start:
        """Return a start with what the launcher was given for it, where nobody says otherwise.

        Raises:
            StartFailed: it was given nothing either, or nothing that tells the engine its ports.
        """
        if start.command:
            return start
        if not self._command:
            raise StartFailed(
                f"{start.name}: neither the config nor the launcher at {self._path} says how it is started; "
                "give a command in one, or to the other after --"
            )
        if placeholder := untold(start.placeholders, self._command, start.environment):
            raise StartFailed(
                f"{start.name}: the command of the launcher at {self._path} lacks {placeholder}: the agent chooses the "
                "port and has to tell the engine"
            )
        return replace(start, command=self._command)

    async def _start(self, request: Message) -> Message:
        try:
            return dict((await self.ask("start", request, seconds=_START_SECONDS))["engine"])
        except LauncherSaidNo as error:
            if error.code != "Occupied":
                raise
        for engine in (await self.ask("list", {}))["engines"]:
            if engine["engine"] == request["engine"]:
                _LOG.warning("engine %s of an earlier start is in the way; ending it", engine["engine"])
                await self._adopted(engine).stop(grace_seconds=_MAKE_ROOM_SECONDS)
        return dict((await self.ask("start", request, seconds=_START_SECONDS))["engine"])

    def _adopted(self, engine: Message) -> LaunchedProcess:
        return self._follow(engine, _ports_of(engine["note"]) or Ports(host="", public=0, control=0))

    def _follow(self, engine: Mapping[str, Any], ports: Ports) -> LaunchedProcess:
        token = engine["token"]
        process = self._followed.setdefault(token, LaunchedProcess(self, engine, ports))
        # Its end may have been told in one breath with its start, or before it was asked for.
        for report in self._unclaimed.pop(token, ()):
            self._apply(process, report)
        return process

    def _apply(self, process: LaunchedProcess, report: Message) -> None:
        if report["kind"] == "exit":
            process.ended(report)
        else:
            process.gone(report)
            self._forget(process.token)

    # ------------------------------------------------------------------ the connection

    async def news(self) -> None:
        """Return when something has happened to an engine or to the connection, which is made again if it is broken."""
        changed = self._changed
        if self._closed or (self._wire is not None and not self._wire.lost):
            await changed.wait()
            return
        try:
            await self._connect()
        except _NoLauncher:  # its engines have ended with it, and whoever waits for them looks again
            await asyncio.sleep(0)
        except (LauncherLost, LauncherSaidNo) as error:
            _LOG.warning("%s", error)
            await asyncio.sleep(_RETRY_SECONDS)

    async def ask(self, kind: str, fields: Mapping[str, Any], *, seconds: float = _ANSWER_SECONDS) -> Message:
        """Send a request and return its answer; ask again if the connection breaks meanwhile.

        Raises:
            LauncherSaidNo: it was refused.
            LauncherLost: it wasn't answered in time, or there is no launcher.
        """
        for _attempt in range(_ATTEMPTS):
            wire = await self._connect()
            with suppress(ConnectionError):
                return await wire.ask({**fields, "kind": kind}, seconds)
        raise LauncherLost(f"launcher: the connection to {self._path} breaks again and again")

    async def _patiently(self) -> None:
        """Wait until there is a launcher. In Kubernetes the agent, a sidecar, starts before it."""
        while True:
            if await self._answers():
                return
            await asyncio.sleep(_RETRY_SECONDS)

    async def _answers(self) -> bool:
        """Wait until the launcher has answered; return whether there is one at all."""
        while True:
            try:
                await self._connect()
            except (LauncherLost, LauncherSaidNo) as error:
                if time.monotonic() - self._said >= _SAY_EVERY_SECONDS:
                    self._said = time.monotonic()
                    _LOG.warning("waiting for a launcher: %s", error)
                if isinstance(error, _NoLauncher):
                    return False
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return True

    async def _connect(self) -> "_Wire":
        async with self._connecting:
            if self._closed:
                raise LauncherLost(f"launcher: the agent has let go of {self._path}")
            if self._wire is None or self._wire.lost:
                self._wire = await self._introduce()
                self._on_change()
            return self._wire

    async def _introduce(self) -> "_Wire":
        """Connect, be heard, and find out what has happened meanwhile.

        Raises:
            LauncherSaidNo: it doesn't hear this agent.
            LauncherLost: it doesn't answer; `_NoLauncher` if there is none.
        """
        loop = asyncio.get_running_loop()
        try:
            _transport, wire = await loop.create_unix_connection(lambda: _Wire(self._heard), str(self._path))
        except (ConnectionRefusedError, FileNotFoundError) as error:
            self._launcher_ended()
            raise _NoLauncher(f"launcher: nobody listens at {self._path}") from error
        except OSError as error:
            raise LauncherLost(f"launcher: {self._path} can't be connected to: {error}") from error
        try:
            await self._take_up(wire)
        except ConnectionError as error:
            raise LauncherLost(f"launcher: {self._path} closed the connection") from error
        except LauncherSaidNo as error:
            wire.close()
            if error.code == "Superseded":
                self._on_superseded()
            raise
        except BaseException:
            wire.close()
            raise
        return wire

    async def _take_up(self, wire: "_Wire") -> None:
        hello = {"kind": "hello", "protocol": PROTOCOL, "secret": self._secret}
        who = {"agent": self._name, "generation": self._generation}
        welcome = await wire.ask(hello | who, _HELLO_SECONDS)
        launcher = welcome["launcher"]
        if launcher["instance"] != self._instance:
            self._launcher_ended()
            self._instance, self._draining = launcher["instance"], False
        self._command = tuple(launcher.get("command", ()))
        own = await asyncio.to_thread(Path("/proc/self/ns/pid").readlink)
        self.namespace = launcher["pidNamespace"]
        self.same_namespace = self.namespace == str(own)
        running = {each["token"] for each in (await wire.ask({"kind": "list"}, _ANSWER_SECONDS))["engines"]}
        for token, process in tuple(self._followed.items()):
            if token not in running:  # its end would have been reported before the list
                process.gone({"cause": "Forgotten"})
                self._forget(token)
        if welcome["draining"] is not None:
            self._drain(welcome["draining"])

    def _heard(self, wire: "_Wire", message: Message) -> None:
        match message.get("kind"):
            case "exit" | "gone":
                self._take_report(wire, message)
            case "draining":
                self._drain(message)
            case "error" if message.get("code") == "Superseded":
                self._on_superseded()
            case "error":
                _LOG.warning("launcher: %s", message.get("message"))
            case "lost":
                self._touch()
                self._on_change()

    def _take_report(self, wire: "_Wire", report: Message) -> None:
        process = self._followed.get(report["token"])
        if process is not None:
            self._apply(process, report)
        else:
            _LOG.info(
                "engine %s, token %s, which isn't followed: %s",
                report["engine"],
                report["token"],
                report["kind"],
            )
            self._unclaimed.setdefault(report["token"], []).append(report)
            while len(self._unclaimed) > _MOST_UNCLAIMED:
                del self._unclaimed[next(iter(self._unclaimed))]
        wire.tell({"kind": "acknowledge", "sequence": report["sequence"]})
        self._touch()

    def _drain(self, told: Message) -> None:
        if not self._draining:
            self._draining = True
            self._on_draining(float(told["secondsLeft"]))

    def _launcher_ended(self) -> None:
        for token, process in tuple(self._followed.items()):
            process.gone({"cause": "LauncherEnded"})
            self._forget(token)

    def _forget(self, token: str) -> None:
        del self._followed[token]
        self._touch()

    def _touch(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class _NoLauncher(LauncherLost):
    """Nobody listens at its socket."""


class _Wire(asyncio.Protocol):
    """One connection: requests matched with their answers, everything else handed on.

    Args:
        heard: what to do with what is no answer; `{"kind": "lost"}` is the connection's own.
    """

    def __init__(self, heard: Callable[["_Wire", Message], None]) -> None:
        self._heard = heard
        self._transport: asyncio.Transport | None = None
        self._unread = bytearray()
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._refusal: Exception = ConnectionResetError("the connection to the launcher broke")
        self.lost = False

    async def ask(self, message: Message, seconds: float) -> Message:
        """Send a request and return its answer.

        Raises:
            LauncherSaidNo: it was refused.
            LauncherLost: it wasn't answered in time.
            ConnectionError: the connection broke.
        """
        number = next(self._ids)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._send({**message, "id": number})
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise LauncherLost(
                f"launcher: {message['kind']} wasn't answered within {seconds:.0f} s"
            ) from None
        finally:
            del self._waiting[number]

    def tell(self, message: Message) -> None:
        """Send something to which no answer is awaited."""
        with suppress(ConnectionError):
            self._send(message)

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _send(self, message: Message) -> None:
        if self.lost or self._transport is None:
            raise ConnectionResetError("the connection to the launcher is broken")
        self._transport.write(json.dumps(message).encode() + b"\n")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take the messages that are complete."""
        self._unread += data
        while (end := self._unread.find(b"\n") + 1) > 0:
            line = bytes(self._unread[:end])
            del self._unread[:end]
            self._take(json.loads(line))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell all who wait."""
        del exc
        self.lost = True
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._refusal)
        self._heard(self, {"kind": "lost"})

    def _take(self, message: Message) -> None:
        answer = self._waiting.get(message.get("id", 0))
        if message["kind"] == "error" and "id" not in message:  # it closes the connection next
            self._refusal = LauncherSaidNo(message["code"], message["message"])
        if answer is None or answer.done():
            if message["kind"] != "done":
                self._heard(self, message)
        elif message["kind"] == "error":
            answer.set_exception(LauncherSaidNo(message["code"], message["message"]))
        else:
            answer.set_result(message)


def _spec(start: Start, ports: Ports) -> Spec:
    return Spec(
        command=tuple(ports.fill_in(start.command)), environment=ports.fill_in_values(start.environment)
    )


def _ports_to_json(ports: Ports) -> dict[str, Any]:
    return {"host": ports.host, "public": ports.public, "control": ports.control}


def _ports_of(note: Mapping[str, Any]) -> Ports | None:
    """Return the ports that are noted with an engine; None if none are."""
    try:
        noted = note["ports"]
        return Ports(host=str(noted["host"]), public=int(noted["public"]), control=int(noted["control"]))
    except (KeyError, TypeError, ValueError):
        return None


def _in_words(report: Message) -> str:
    """Say how an engine's process ended."""
    match report["cause"]:
        case "LauncherEnded":
            return "the launcher has ended, and the engine with it"
        case "Forgotten":
            return "the engine has ended while the launcher couldn't be asked"
        case "Stuck":
            how = "can't be killed"
        case "OutOfMemory":
            how = "was killed by SIGKILL: its container ran out of memory"
        case _ if report["status"] is not None:
            how = f"exited with status {report['status']}"
        case _:
            how = f"was killed by {report['signal']}"
    told = f"engine process {report['pid']} {how}"
    if report["oomKills"] and report["cause"] != "OutOfMemory":
        told += (
            f"; {report['oomKills']} processes of its container were killed for lack of memory shortly before"
        )
    log = _log(report)
    return f"{told}; log: {log}" if log else told


def _log(report: Message) -> str:
    """Return the last lines of an engine's output, and then those of its errors: nobody knows in which order they were written."""
    tails = ((report.get("outTail", ""), _OUT_LINES), (report.get("errTail", ""), _ERR_LINES))
    last = [telling(tail)[-most:] for tail, most in tails]
    return " | ".join(itertools.chain.from_iterable(last))

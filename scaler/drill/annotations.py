"""The drill's stages, faults and verdict as annotations in Grafana, over whatever dashboards show of the same time.

Whoever drills puts a note into a bounded queue and goes on; one task beside the load sends them, each call under a
timeout. Grafana can be absent, slow or unwilling: that is told once, and never fails a drill.

The calls are those of Grafana's HTTP API: `POST /api/annotations` makes an annotation and answers with its id,
`PATCH /api/annotations/ID` gives it the end that makes it a region.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import aiohttp

from scaler.errors import UserError

TOKEN_VARIABLE: Final = "EMBERPOOL_GRAFANA_TOKEN"  # noqa: S105 - the name of the variable, not a token
"""The environment variable that holds the token; a command line is no place for one: every user can read it."""
CALL_SECONDS: Final = 5.0
"""How long one call may take."""
FLUSH_SECONDS: Final = 8.0
"""How long the end of a drill waits for notes that are not sent yet."""
ABORT_SECONDS: Final = 2.0
"""The same where the drill is broken off: somebody waits for the prompt."""
_MOST_NOTES = 256
"""Notes that may wait; further ones are dropped and counted. A drill has a few dozen."""
_MOST_FAILURES = 3
"""So many calls that fail one after another end the attempts."""
_REFUSALS: Final = frozenset({401, 403})

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grafana:
    """Where annotations go.

    Attributes:
        url: base URL of Grafana, without a slash at its end.
        token: token of a service account that may write annotations; empty for none.
        call_seconds: how long one call may take.
    """

    url: str
    token: str = field(default="", repr=False)
    call_seconds: float = CALL_SECONDS


def grafana(url: str, token: str) -> Grafana:
    """Check what a person gave.

    Raises:
        UserError: the URL or the token can't be used.
    """
    parts = _server(url)
    if parts is None:
        hint = "give it whole, such as http://grafana.example:3000"
        raise UserError(f"--grafana-url {url!r} is not the URL of a server", hint=hint)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        hint = f"put a service account's token into the environment variable {TOKEN_VARIABLE}"
        raise UserError("--grafana-url takes the address alone, without user, password or query", hint=hint)
    token = token.strip()
    if not token.isascii() or not token.isprintable():
        raise UserError(
            f"{TOKEN_VARIABLE} holds characters that no token has", hint="copy the token again, on one line"
        )
    return Grafana(url=url.rstrip("/"), token=token)


def _server(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a broken IPv6 address, or a port that is no number
        return None
    return parts if whole else None


@dataclass(slots=True, eq=False)
class Note:
    """One annotation on its way.

    Attributes:
        text: what it says.
        tags: what dashboards choose it by.
        start: Unix time that it stands at.
        end: Unix time of the end of the region; None while that is open, and for a single moment.
        id: what Grafana calls it; None before it has answered.
    """

    text: str
    tags: tuple[str, ...]
    start: float
    end: float | None = None
    id: int | None = None


class Annotations:
    """Takes notes and never waits.

    Args:
        scenario: name of the scenario, one of the tags.
        wanted: whether anybody sends them; otherwise they are forgotten.
    """

    def __init__(self, scenario: str, *, wanted: bool) -> None:
        self._scenario = scenario
        self._wanted = wanted
        self._queue: asyncio.Queue[Note | None] = asyncio.Queue(_MOST_NOTES + 1)
        self.dropped = 0

    def begin(self, text: str, arm: str, at: float) -> Note:
        """Open a region at a Unix time."""
        note = self._note(text, (arm,), at)
        self._put(note)
        return note

    def end(self, note: Note, at: float) -> None:
        """Close a region."""
        note.end = max(at, note.start)
        self._put(note)

    def mark(self, text: str, arms: Iterable[str], at: float) -> None:
        """Mark a moment."""
        self._put(self._note(text, tuple(arms), at))

    def _note(self, text: str, arms: tuple[str, ...], at: float) -> Note:
        return Note(text=text, tags=("emberpool", "drill", self._scenario, *arms), start=at)

    def _put(self, note: Note) -> None:
        if not self._wanted:
            return
        if self._queue.qsize() >= _MOST_NOTES:
            self.dropped += 1
        else:
            self._queue.put_nowait(note)

    def close(self) -> None:
        """Say that no further note comes; room for this is always left."""
        self._queue.put_nowait(None)

    async def take(self) -> Note | None:
        """Wait for the next note; None once there are no more."""
        return await self._queue.get()


@asynccontextmanager
async def annotating(target: Grafana | None, scenario: str, say: Say) -> AsyncIterator[Annotations]:
    """Send what is noted while the context is open; on leaving it what still waits is sent, for a bounded time.

    Args:
        target: where to; None sends nothing.
        scenario: name of the scenario.
        say: called with what a person should know.
    """
    notes = Annotations(scenario, wanted=target is not None)
    if target is None:
        yield notes
        return
    broken_off: BaseException | None = None
    async with asyncio.TaskGroup() as group:
        sender = group.create_task(_Sender(target, say).run(notes))
        try:
            yield notes
        except BaseException as error:  # noqa: BLE001 - raised again below, once what was noted is sent
            broken_off = error
        notes.close()
        done, _ = await asyncio.wait({sender}, timeout=FLUSH_SECONDS if broken_off is None else ABORT_SECONDS)
        if not done:
            sender.cancel()
            say("warning: Grafana is too slow; not all annotations are there")
    if notes.dropped:
        say(f"warning: {notes.dropped} annotations were dropped: {_MOST_NOTES} waited already")
    if broken_off is not None:
        raise broken_off


class _CallFailed(Exception):
    """A call came to nothing; the message says why."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final
        """Whether further calls are pointless."""


class _Sender:
    """Sends notes one after another."""

    def __init__(self, target: Grafana, say: Say) -> None:
        self._target = target
        self._say = say
        self._told: set[str] = set()
        self._failures = 0
        self._given_up = False

    async def run(self, notes: Annotations) -> None:
        """Send until there are no more."""
        headers = {"Authorization": f"Bearer {self._target.token}"} if self._target.token else {}
        timeout = aiohttp.ClientTimeout(total=self._target.call_seconds)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            while (note := await notes.take()) is not None:
                if not self._given_up:
                    await self._try(session, note)

    async def _try(self, session: aiohttp.ClientSession, note: Note) -> None:
        try:
            await self._send(session, note)
        except _CallFailed as error:
            self._failed(str(error), final=error.final)
        else:
            self._failures = 0

    async def _send(self, session: aiohttp.ClientSession, note: Note) -> None:
        base = f"{self._target.url}/api/annotations"
        if note.id is not None:  # its start is there already
            if note.end is not None:
                await self._call(session, "PATCH", f"{base}/{note.id}", {"timeEnd": _milliseconds(note.end)})
            return
        body: dict[str, Any] = {"time": _milliseconds(note.start), "tags": list(note.tags), "text": note.text}
        if note.end is not None:
            body["timeEnd"] = _milliseconds(note.end)
        answer = await self._call(session, "POST", base, body)
        found = answer.get("id")
        if not isinstance(found, int):
            raise _CallFailed("the answer has no id: is this Grafana?")
        note.id = found

    async def _call(
        self, session: aiohttp.ClientSession, method: str, url: str, body: dict[str, Any]
    ) -> dict[str, Any]:
        try:
            # no redirects: they turn a POST into a GET, and carry the token to wherever they like
            async with session.request(method, url, json=body, allow_redirects=False) as response:
                if response.status != 200:  # noqa: PLR2004 - the one status of success
                    raise self._refused(response.status)
                answer = await response.json(content_type=None)
        except TimeoutError:
            raise _CallFailed(f"no answer within {self._target.call_seconds:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise _CallFailed(f"can't connect: {error.strerror or error}") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _CallFailed(f"{type(error).__name__}: {error}") from error
        return answer if isinstance(answer, dict) else {}

    def _refused(self, status: int) -> _CallFailed:
        if status in _REFUSALS:
            mend = "holds no token with annotations:write" if self._target.token else "holds no token"
            return _CallFailed(f"it answers {status}: {TOKEN_VARIABLE} {mend}", final=True)
        return _CallFailed(f"it answers {status}")

    def _failed(self, reason: str, *, final: bool) -> None:
        self._failures += 1
        self._given_up = final or self._failures >= _MOST_FAILURES
        if reason not in self._told:
            self._told.add(reason)
            self._say(f"warning: Grafana at {self._target.url} didn't take an annotation: {reason}")
        if self._given_up:
            self._say("warning: no further annotations are sent to Grafana; the drill goes on without them")


def _milliseconds(at: float) -> int:
    return round(at * 1000)

"""A copy of a collection that stays current: list it once in pages, then follow its changes.

A watch is believed as little as any answer: it must be JSON with status 200, its lines must be events, it must say
something now and then, and a version that the server no longer holds leads to a new list, never to the same watch again.
"""

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import aiohttp
import structlog

from scaler.cluster.kube.client import KubeClient, Request, error_of
from scaler.cluster.kube.errors import Expired, Throttled
from scaler.cluster.kube.lanes import loop_time
from scaler.cluster.kube.resources import Collection
from scaler.cluster.kube.views import Json
from scaler.cluster.subscribers import Subscribers
from scaler.errors import ClusterError, Unreachable

log = structlog.get_logger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long things may take, in seconds.

    Attributes:
        call: one page of a list, or the beginning of a watch.
        watch: the shortest and the longest time-out of a watch; one is drawn for each, so that not all end at once.
        idle: how long a watch may say nothing. Servers send a bookmark about once a minute.
        backoff: the first wait after a failure, and the longest; it doubles in between, and each is drawn.
        short: a watch that ended sooner than this without a word counts as a failure.
    """

    call: float = 10.0
    watch: tuple[float, float] = (240.0, 300.0)
    idle: float = 90.0
    backoff: tuple[float, float] = (0.2, 5.0)
    short: float = 1.0


_PAGE = 100
"""Objects per page of a list: pods have five to ten kilobytes, so that a page is parsed in some 10 ms."""
_LARGEST_PAGE = 5000
_AT_ONCE = 50
"""Objects that are read before others get a turn."""
_LONGEST_LINE = 2**24
_BELIEVED_AFTER = 8
"""Lists of an older version that are refused in a row, some 20 s of them."""


@dataclass(frozen=True, slots=True)
class _Held(Generic[T]):
    version: int
    value: T


def _ignore(_: str) -> None:
    """Nobody wants to know."""


def _number(version: str) -> int:
    """Read a version; API servers declare them comparable as numbers."""
    return int(version) if version.isdigit() else 0


def _key(metadata: Json) -> str:
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


class Reflector(Generic[T]):
    """The current objects of a collection, each as a value of ours.

    `run` inside a TaskGroup; everything else is instant.

    Args:
        client: reaches the server.
        source: what is reflected.
        read: makes a value of an object's JSON; must not raise for any object that the server may hold.
        timing: how long things may take.
        clock: monotonic seconds.

    Attributes:
        restarts: how often lists and watches began anew, by cause.
    """

    def __init__(
        self,
        client: KubeClient,
        source: Collection,
        read: Callable[[Json], T],
        timing: Timing | None = None,
        clock: Callable[[], float] = loop_time,
    ) -> None:
        self._client = client
        self._source = source
        self._read = read
        self._timing = timing or Timing()
        self._clock = clock
        self._random = random.Random()
        self._held: dict[str, _Held[T]] = {}
        self._version: str | None = None
        self._seen = 0
        self._behind = 0
        # versions have begun anew: nothing that is held is newer than a list, or the same
        self._rewound = False
        self._page = _PAGE
        self._current_at = -math.inf
        self._synced = asyncio.Event()
        self._failures = 0
        self._complaint = ""
        self._subscribers = Subscribers()
        self._touched: Callable[[str], None] = _ignore
        self.restarts: Counter[str] = Counter()

    # ------------------------------------------------------------ what it knows

    @property
    def synced(self) -> bool:
        """Whether the whole collection has been seen once."""
        return self._synced.is_set()

    @property
    def age(self) -> float:
        """Seconds since the server last said something; infinite before the first list."""
        return self._clock() - self._current_at

    async def wait_synced(self) -> None:
        """Wait until the whole collection has been seen once."""
        await self._synced.wait()

    def get(self, name: str) -> T | None:
        """Return one object by name, or by `namespace/name` where it has one."""
        held = self._held.get(name)
        return None if held is None else held.value

    def values(self) -> list[T]:
        """Return all objects."""
        return [held.value for held in self._held.values()]

    def __str__(self) -> str:
        """Say what it reflects, and what keeps it from that at present."""
        return f"{self._source}: {self._complaint}" if self._complaint else str(self._source)

    def __len__(self) -> int:
        """Count the objects."""
        return len(self._held)

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after each change, in the event loop; the returned function ends that."""
        return self._subscribers.add(changed)

    def touch(self, touched: Callable[[str], None]) -> None:
        """Call `touched` with the name of each object that comes, changes or goes, before the subscribers are called."""
        self._touched = touched

    def learn(self, body: Json) -> None:
        """Take over what a write of ours has returned, before the watch tells of it.

        An object that isn't held is not taken in: the watch may have told of its end before the write's answer came.
        """
        if _key(body["metadata"]) in self._held and self._put(body):
            self._subscribers.tell()

    # ------------------------------------------------------------ following

    async def run(self) -> None:
        """List and watch until cancelled; no failure of the server ends it."""
        while True:
            try:
                if self._version is None:
                    await self._list()
                await self._watch()
            except Expired as error:
                self._version = None
                await self._failed("expired", error)
            except ClusterError as error:
                await self._failed(type(error).__name__.lower(), error)

    async def _failed(self, cause: str, error: ClusterError) -> None:
        self.restarts[cause] += 1
        if str(error) != self._complaint:
            self._complaint = str(error)
            log.warning("watching is interrupted", what=str(self._source), cause=cause, error=str(error))
        if cause == "expired" and self._failures == 0:
            self._failures = (
                1  # the usual end of a long interruption: list at once, and wait if that doesn't help
            )
            return
        first, longest = self._timing.backoff
        wait = min(longest, first * 2.0 ** min(self._failures, 16)) * self._random.uniform(0.5, 1.0)
        self._failures += 1
        await asyncio.sleep(max(wait, error.retry_after) if isinstance(error, Throttled) else wait)

    def _heard(self) -> None:
        """Note that a watch works; a list that succeeds is no proof of that, and resets no wait."""
        self._current_at = self._clock()
        self._failures = 0
        self._complaint = ""

    # ------------------------------------------------------------ listing

    async def _list(self) -> None:
        floor, found = self._seen, dict[str, _Held[T]]()
        query = {**self._source.selectors, "limit": str(self._page)}
        while True:
            request = Request(path=self._source.path, query=query)
            try:
                page = await self._client.call(request, seconds=self._timing.call)
            except Expired:
                self._page = min(
                    _LARGEST_PAGE, self._page * 4
                )  # the server forgets faster than we turn pages
                raise
            metadata = self._metadata(page)
            self._check_current(_number(metadata.get("resourceVersion", "")), floor)
            await self._read_page(page, found)
            if not (following := metadata.get("continue")):
                break
            query = {**query, "continue": following}
        self._replace(found, metadata.get("resourceVersion", ""))

    def _metadata(self, page: Any) -> Json:  # noqa: ANN401 - JSON is what it is
        """Return what a page says of its list; JSON that is no list is somebody's in between, and not an empty one."""
        metadata = page.get("metadata") if isinstance(page, dict) else None
        if not isinstance(metadata, dict) or not str(page.get("kind")).endswith("List"):
            raise Unreachable(f"{self._source.path}: the answer is no list")
        return metadata

    def _check_current(self, listed: int, floor: int) -> None:
        """Refuse a list that is older than what we know: one of several servers lags behind.

        One that stays so is believed in the end: the cluster was restored from a backup, and its versions began anew.
        """
        if listed >= floor:
            self._behind = 0
            return
        self._behind += 1
        if self._behind <= _BELIEVED_AFTER:
            raise Unreachable(f"the server lags behind: it lists version {listed}, {floor} is known")
        self._seen, self._behind, self._rewound = listed, 0, True

    async def _read_page(self, page: Json, found: dict[str, _Held[T]]) -> None:
        for number, body in enumerate(page.get("items") or (), start=1):
            metadata = body["metadata"]
            key, version = _key(metadata), _number(metadata.get("resourceVersion", ""))
            known = None if self._rewound else self._held.get(key)
            if known is None or known.version != version:
                known = _Held(version, self._read(body))
            found[key] = known
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def _replace(self, found: dict[str, _Held[T]], version: str) -> None:
        """Take over a list, but for what a write of ours has changed since the list was begun."""
        listed = _number(version)
        if not self._rewound:
            found.update({key: held for key, held in self._held.items() if held.version > listed})
        self._rewound = False
        before, self._held = self._held, found
        touched = [key for key in before.keys() | found.keys() if before.get(key) is not found.get(key)]
        self._version = version
        self._seen = max(self._seen, listed)
        self._current_at = self._clock()
        first = not self.synced
        self._synced.set()
        for key in touched:
            self._touched(key)
        if touched or first:
            self._subscribers.tell()

    # ------------------------------------------------------------ watching

    async def _watch(self) -> None:
        length = self._random.uniform(*self._timing.watch)
        query = {
            **self._source.selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(max(1, round(length))),
        }
        began, before = self._clock(), self._version
        request = Request(path=self._source.path, query=query)
        async with self._client.stream(request, seconds=self._timing.call) as stream:
            await self._follow(stream)
        self.restarts["ended"] += 1
        if self._clock() - began >= self._timing.short:
            self._heard()
        elif self._version == before:
            raise Unreachable("the watch ended as soon as it had begun")

    async def _follow(self, stream: aiohttp.StreamReader) -> None:
        rest = b""
        while True:
            try:
                async with asyncio.timeout(self._timing.idle):
                    read = await stream.readany()
            except TimeoutError as error:
                raise Unreachable(f"the watch has said nothing for {self._timing.idle:g} s") from error
            if not read:
                break
            *lines, rest = (rest + read).split(b"\n")
            if len(rest) > _LONGEST_LINE:
                raise Unreachable("the watch sends a line without an end")
            await self._take(lines)

    async def _take(self, lines: list[bytes]) -> None:
        changed = False
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    changed |= self._event(line)
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        finally:
            if changed:
                self._subscribers.tell()

    def _event(self, line: bytes) -> bool:
        """Take over one event, and say whether anything changed."""
        try:
            event: Mapping[str, Any] = json.loads(line)
            kind, body = event["type"], event["object"]
            if kind == "ERROR":
                raise error_of(body, code=int(body.get("code", 500)))
            metadata = body["metadata"]
            version = metadata["resourceVersion"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unreachable(f"the watch sends what is no event: {line[:100]!r}") from error
        changed = False
        if kind in {"ADDED", "MODIFIED"}:
            changed = self._put(body)
        elif kind == "DELETED":
            changed = self._remove(metadata)
        self._version = version
        self._seen = max(self._seen, _number(version))
        self._heard()
        return changed

    def _put(self, body: Json) -> bool:
        """Take over one object unless it is known in this version or a later one, and say whether it was."""
        metadata = body["metadata"]
        key, version = _key(metadata), _number(metadata.get("resourceVersion", ""))
        known = self._held.get(key)
        if known is not None and known.version >= version:
            return False
        self._held[key] = _Held(version, self._read(body))
        self._touched(key)
        return True

    def _remove(self, metadata: Json) -> bool:
        key = _key(metadata)
        known = self._held.get(key)
        if known is None or known.version > _number(metadata["resourceVersion"]):
            return False
        del self._held[key]
        self._touched(key)
        return True

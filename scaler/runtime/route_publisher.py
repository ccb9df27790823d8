"""`GET /v1/routes`: the stream by which gateways of other processes follow rotation.

Its first line is the whole table. A reader that asks for `?changes=1` gets of each later one what changed since the line before, and
others get the whole table each time. A reader that is slow gets everything that changed meanwhile in one line: nothing is queued for
anybody. Nothing is published before the cluster is synced, and a controller that hears no agent says so, so that one that has just
begun, or that is cut off from its agents, takes no endpoint from any gateway.

A controller that stands by keeps streams open and says nothing on them: once it leads, gateways that read it already have its first
table at once.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from aiohttp import web

from scaler.cluster.port import Cluster
from scaler.gateway.routes import PolicyRoutes
from scaler.runtime.published_routes import HEARTBEAT, HEARTBEAT_SECONDS, PublishedTable, line, say
from scaler.runtime.rotation import Rotation, Routes
from warmpool.seats import PolicyName

GATEWAYS_KNOWN_SECONDS: Final = 2.5
"""Once it has listened for this long a controller has heard every live gateway: they push each second."""
_LOOK_SECONDS: Final = 0.25
"""How often the live gateways are counted, for one that goes away sends no word; and what is on its way is looked at."""
_RETURN_SECONDS: Final = 0.8
"""A gateway whose stream has ended and that isn't back by then has ended itself: its system closed the stream, and it would have
come back. One whose stream stays open is there, whether it is heard or not."""
_WRITE_SECONDS: Final = 5.0
"""A reader that takes nothing for this long is gone."""
_MAX_READERS: Final = 1024
_GONE: Final = "null"


class _Reader:
    """Who reads the stream.

    Attributes:
        instance: the gateway's id; empty: it doesn't say.
    """

    def __init__(self, request: web.Request) -> None:
        self.instance = request.query.get("instance", "")
        self._request = request

    @property
    def connected(self) -> bool:
        """Whether its connection is there; a write would find out too late."""
        return self._request.transport is not None


class RoutePublisher:
    """Publishes one controller's routes; `run` it inside a TaskGroup.

    Args:
        cluster: whose changes are published.
        routes: works out all policies' routes to some seats.
        gateways: returns the ids of the gateways that are heard.
        term: the controller's term; None: it stands by.
        coming: returns in how many seconds one more resident is expected, of the policies of which that is known.
    """

    def __init__(
        self,
        cluster: Cluster,
        routes: Routes,
        gateways: Callable[[], Sequence[str]],
        term: int | None,
        coming: Callable[[], Mapping[PolicyName, float]] = dict,
    ) -> None:
        self._cluster = cluster
        self._rotation = Rotation(routes)
        self._gateways = gateways
        self._term = term
        self._coming = coming
        self._began = time.monotonic()
        self._table: PublishedTable | None = None
        self._version = self._first = 0
        self._said: dict[PolicyName, str] = {}
        self._changed_at: dict[PolicyName, int] = {}
        self._lines: dict[int, bytes] = {}
        self._dirty = asyncio.Event()
        self._changed = asyncio.Event()
        self._readers: set[_Reader] = set()
        self._left_at: dict[str, float] = {}
        self._closing = False

    @property
    def table(self) -> PublishedTable | None:
        """The last table; None before the first."""
        return self._table

    def lead(self, term: int) -> None:
        """Publish from now on, in this term; each reader gets a whole table first."""
        self._term, self._table = term, None
        self._first = self._version + 1
        self._lines.clear()
        self._dirty.set()

    def stand_by(self) -> None:
        """Publish nothing any more; readers keep the last table."""
        self._term = self._table = None

    async def run(self) -> None:
        """Publish each change until cancelled; changes of one moment make one table."""
        unsubscribe = self._cluster.subscribe(self._dirty.set)
        self._dirty.set()
        try:
            while True:
                self._dirty.clear()
                self._publish()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._dirty.wait()
        finally:
            unsubscribe()

    def refresh(self) -> None:
        """Work everything out anew: something else than the cluster has changed."""
        self._rotation.refresh()
        self._dirty.set()

    def close(self) -> None:
        """End all streams; readers keep the last table."""
        self._closing = True
        self._tell()

    def _publish(self) -> None:
        if self._term is None or not self._cluster.synced:
            return
        now = time.monotonic()
        changes = self._rotation.look(self._cluster.stock(), now, self._coming())
        gateways = self._live(now) if now - self._began >= GATEWAYS_KNOWN_SECONDS else None
        last = self._table
        blind = (last is None or last.blind) and not self._heard()
        if last is not None and not changes and (gateways, blind) == (last.gateways, last.blind):
            return
        self._version += 1
        self._table = PublishedTable(
            term=self._term,
            version=self._version,
            gateways=gateways,
            policies=dict(self._rotation.policies),
            blind=blind,
        )
        self._say(changes, self._version)
        self._tell()

    def _live(self, now: float) -> tuple[str, ...]:
        """Return the gateways that are heard or read, but for those that have left."""
        reading = {each.instance for each in self._readers if each.instance and each.connected}
        heard = set(self._gateways())
        for each in self._readers:
            if each.instance and each.instance not in reading:
                self._left_at.setdefault(each.instance, now)
        for name, at in tuple(self._left_at.items()):
            if name in reading or (name not in heard and now - at > _RETURN_SECONDS):
                del self._left_at[name]
            elif now - at > _RETURN_SECONDS:
                heard.discard(name)
        return tuple(sorted(reading | heard))

    def _heard(self) -> bool:
        """Whether any agent is heard; without seats there is none to hear."""
        seats = self._cluster.seats()
        return not seats or any(seat.reachable for seat in seats)

    def _say(self, changes: Mapping[PolicyName, PolicyRoutes | None], version: int) -> None:
        """Render what changed, once for all readers."""
        self._lines.clear()
        for name, routes in changes.items():
            self._changed_at[name] = version
            if routes is None:
                self._said.pop(name, None)
            else:
                self._said[name] = say(routes)

    def _line(self, since: int) -> bytes:
        """Return the line for a reader that has seen a version; 0: none yet, or it wants whole tables."""
        found = self._lines.get(since)
        if found is None:
            assert self._table is not None
            if since:
                names = [name for name, at in self._changed_at.items() if at > since]
                said = {name: self._said.get(name, _GONE) for name in names}
                found = line(self._table, "changes", said, since)
            else:
                found = line(self._table, "policies", self._said)
            self._lines[since] = found
        return found

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # -------------------------------------------------------------- readers

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Answer one reader, for as long as it reads."""
        if self._closing or len(self._readers) >= _MAX_READERS:
            return web.Response(status=503, headers={"Retry-After": "1"}, text="no more readers\n")
        response = web.StreamResponse(
            headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"}
        )
        reader = _Reader(request)
        self._readers.add(reader)
        try:
            await response.prepare(request)
            await self._write(response, changes="changes" in request.query)
        except (ConnectionError, TimeoutError):
            response.force_close()
        finally:
            self._readers.discard(reader)
            if reader.instance:
                self._left_at.setdefault(reader.instance, time.monotonic())
        return response

    async def _write(self, response: web.StreamResponse, *, changes: bool) -> None:
        sent = 0
        while not self._closing:
            # before the table is read, so that a change while it is written isn't missed
            changed, table = self._changed, self._table
            if table is None or table.version == sent:
                text = HEARTBEAT
            else:
                text, sent = self._line(sent if changes and sent >= self._first else 0), table.version
            async with asyncio.timeout(_WRITE_SECONDS):
                await response.write(text)
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await changed.wait()

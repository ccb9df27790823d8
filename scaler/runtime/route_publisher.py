"""`GET /v1/routes`: the stream by which gateways of other processes follow rotation.

A reader that is slow gets the newest table and none of those between: nothing is queued for anybody. Nothing is
published before the cluster is synced, so that a controller that has just begun empties no gateway's table.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from aiohttp import web

from scaler.cluster.port import Cluster
from scaler.gateway.routes import PolicyRoutes
from scaler.runtime.published_routes import HEARTBEAT, HEARTBEAT_SECONDS, PublishedTable
from warmpool.seats import PolicyName, Seat

GATEWAYS_KNOWN_SECONDS = 2.5
"""Once it has listened for this long a controller has heard every live gateway: they push each second."""
_LOOK_SECONDS = 0.5
"""How often the live gateways are counted: one that goes away sends no word."""
_WRITE_SECONDS = 5.0
"""A reader that takes nothing for this long is gone."""
_MAX_READERS = 1024


class RoutePublisher:
    """Publishes one controller's routes; `run` it inside a TaskGroup.

    Args:
        cluster: whose changes are published.
        routes: computes the table from the seats.
        gateways: returns the live gateways' ids.
        term: the controller's term.
    """

    def __init__(
        self,
        cluster: Cluster,
        routes: Callable[[Sequence[Seat]], Mapping[PolicyName, PolicyRoutes]],
        gateways: Callable[[], Sequence[str]],
        term: int,
    ) -> None:
        self._cluster = cluster
        self._routes = routes
        self._gateways = gateways
        self._term = term
        self._began = time.monotonic()
        self._table: PublishedTable | None = None
        self._line = HEARTBEAT
        self._dirty = asyncio.Event()
        self._changed = asyncio.Event()
        self._readers = 0
        self._closing = False

    @property
    def table(self) -> PublishedTable | None:
        """The last table; None before the first."""
        return self._table

    async def run(self) -> None:
        """Publish each change until cancelled; changes of one moment make one table."""
        unsubscribe = self._cluster.subscribe(self._dirty.set)
        self._dirty.set()
        try:
            while True:
                self._publish()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._dirty.wait()
        finally:
            unsubscribe()

    def refresh(self) -> None:
        """Compute the table anew: something else than the cluster has changed."""
        self._dirty.set()

    def close(self) -> None:
        """End all streams; readers keep the last table."""
        self._closing = True
        self._tell()

    def _publish(self) -> None:
        dirty, last = self._dirty.is_set(), self._table
        self._dirty.clear()
        if not self._cluster.synced:
            return
        policies = self._routes(self._cluster.seats()) if dirty or last is None else last.policies
        known = time.monotonic() - self._began >= GATEWAYS_KNOWN_SECONDS
        gateways = tuple(sorted(self._gateways())) if known else None
        if last is not None and policies == last.policies and gateways == last.gateways:
            return
        version = 1 if last is None else last.version + 1
        self._table = PublishedTable(term=self._term, version=version, gateways=gateways, policies=policies)
        self._line = self._table.to_line()
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # -------------------------------------------------------------- readers

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Answer one reader, for as long as it reads."""
        if self._closing or self._readers >= _MAX_READERS:
            return web.Response(status=503, headers={"Retry-After": "1"}, text="no more readers\n")
        response = web.StreamResponse(
            headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"}
        )
        self._readers += 1
        try:
            await response.prepare(request)
            await self._write(response)
        except (ConnectionError, TimeoutError):
            response.force_close()
        finally:
            self._readers -= 1
        return response

    async def _write(self, response: web.StreamResponse) -> None:
        sent = -1
        while not self._closing:
            changed = (
                self._changed
            )  # before the table is read, so that a change while it is written isn't missed
            version = 0 if self._table is None else self._table.version
            line, sent = (HEARTBEAT if version == sent else self._line), version
            async with asyncio.timeout(_WRITE_SECONDS):
                await response.write(line)
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await changed.wait()

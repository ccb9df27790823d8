"""Following the routes that controllers publish: one stream to each, the table of the latest term counts.

What was learned last holds while no controller answers, so that routing outlives them all.
"""

import asyncio
import random
import time
from collections.abc import Callable, Collection, Sequence

import aiohttp
import structlog

from scaler.runtime.published_routes import (
    HEARTBEAT_SECONDS,
    LONGEST_LINE_BYTES,
    Change,
    PublishedTable,
    TableRejected,
    from_line,
)
from warmpool.seats import PolicyName

log = structlog.get_logger(__name__)

SILENT_SECONDS = 3 * HEARTBEAT_SECONDS
"""A stream that brings nothing for this long is broken."""
FORGET_TERM_SECONDS = 15.0
"""When nobody of the term that counts has been heard for this long, an earlier one is believed again (clocks that were
set back; a controller's term is never below the time of its start)."""
_CONNECT_SECONDS = 2.0
_PROBLEMS_SAID = 5
"""Different problems with a controller that are logged until it works again."""
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 0.5
"""A controller that is back may promote at once, and what it promotes is of use with its routes only."""

Take = Callable[[PublishedTable, Collection[PolicyName] | None], None]
"""Gets a table, and the policies whose routes are others than in the one that it got before; None: all may be."""


class RouteFollower:
    """Follows all controllers while `run` runs.

    Args:
        controllers: their base URLs.
        take: gets each table that counts; what it refuses with a ValueError is logged and left.
        connected: told of each stream that begins and ends.
        instance: the gateway's id, by which controllers know that it is there.
    """

    def __init__(
        self,
        controllers: Sequence[str],
        take: Take,
        connected: Callable[[str, bool], None] = lambda _controller, _is: None,
        instance: str = "",
    ) -> None:
        self._controllers = tuple(controller.rstrip("/") for controller in controllers)
        self._take = take
        self._connected = connected
        self._query = {"changes": "1", "instance": instance}
        self._term = 0
        self._heard = 0.0
        self._source: tuple[str, int] | None = None
        """The controller and the version of the table that was taken last."""
        self._open: set[str] = set()

    @property
    def heard(self) -> bool:
        """Whether the controller whose table was taken last is heard."""
        return self._source is not None and self._source[0] in self._open

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            for controller in self._controllers:
                group.create_task(self._follow(session, controller), name=f"routes from {controller}")

    async def _follow(self, session: aiohttp.ClientSession, controller: str) -> None:
        failures, said = 0, set[str]()
        while True:
            began = time.monotonic()
            problem = await self._read(session, controller)
            self._open.discard(controller)
            self._connected(controller, False)
            if time.monotonic() - began > SILENT_SECONDS:
                failures = 0  # it had worked for a while
                said.clear()
            if problem not in said and len(said) < _PROBLEMS_SAID:
                said.add(problem)
                log.warning(
                    "no routes from controller; the last ones hold", controller=controller, problem=problem
                )
            failures += 1
            pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(failures, 8))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    async def _read(self, session: aiohttp.ClientSession, controller: str) -> str:
        """Read one stream to its end; return why it ended."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=SILENT_SECONDS)
        table: PublishedTable | None = None
        try:
            async with session.get(
                f"{controller}/v1/routes",
                params=self._query,
                timeout=timeout,
                read_bufsize=LONGEST_LINE_BYTES,
            ) as response:
                if response.status == 404:  # noqa: PLR2004 - HTTP
                    return "it publishes no routes (`emberpool local` has a gateway of its own)"
                if response.status != 200:  # noqa: PLR2004 - HTTP OK
                    return f"status {response.status}"
                self._open.add(controller)
                self._connected(controller, True)
                while line := await response.content.readline():
                    read = from_line(line)
                    if read is None:
                        continue
                    if table is None:
                        log.info("routes from controller", controller=controller, term=read.term)
                    before = table.version if table is not None else 0
                    table = read.on(table) if isinstance(read, Change) else read
                    follows = self._source == (controller, before) and isinstance(read, Change)
                    self._offer(controller, table, read.policies if follows else None)
        except (aiohttp.ClientError, TimeoutError, OSError, TableRejected, ValueError) as error:
            return str(error) or type(error).__name__
        return "the stream ended"

    def _offer(self, controller: str, table: PublishedTable, changed: Collection[PolicyName] | None) -> None:
        now = time.monotonic()
        if table.term < self._term and now - self._heard < FORGET_TERM_SECONDS:
            return
        self._term, self._heard = table.term, now
        try:
            self._take(table, changed)
            self._source = (controller, table.version)
        except ValueError as error:
            self._source = None
            log.warning("routes can't be used; the last ones hold", error=str(error))

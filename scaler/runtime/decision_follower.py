"""Following the leader's decisions while standing by: one stream, to whoever holds the lease.

What was heard last stays while nobody can be heard, and ages.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

import aiohttp
import structlog

from scaler.cluster.kube.lease import Record
from scaler.runtime.clock import Clock
from scaler.runtime.decision_feed import PATH
from scaler.runtime.told_decisions import (
    LONGEST_LINE_BYTES,
    SILENT_SECONDS,
    Told,
    ToldRejected,
    from_line,
)

log = structlog.get_logger(__name__)

_LOOK_SECONDS: Final = 0.25
"""How often it is looked whether another leads."""
_CONNECT_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = (0.1, 1.0)
"""After a stream that ended: the first pause, and the longest."""


class DecisionFollower:
    """Follows whoever leads while `run` runs.

    Args:
        leader: returns the lease of who leads; None while nobody does.
        identity: who we are: nobody follows themselves.
        take: gets what is told.
        clock: time.

    Attributes:
        heard: whether anything was told yet.
    """

    def __init__(
        self,
        leader: Callable[[], Record | None],
        identity: str,
        take: Callable[[Told], None],
        clock: Clock,
    ) -> None:
        self._leader = leader
        self._identity = identity
        self._take = take
        self._clock = clock
        self._term = 0
        self.heard = False

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Follow until cancelled.

        Args:
            session: shows the token.
        """
        failures, complained = 0, ""
        while True:
            leader = self._other()
            if leader is None:
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            problem = await self._read_from(session, leader)
            if problem and problem != complained:
                log.warning(
                    "no decisions from the leader; the last ones age", leader=leader.holder, problem=problem
                )
            failures, complained = (failures + 1, problem) if problem else (0, "")
            first, longest = _PAUSE_SECONDS
            await asyncio.sleep(min(longest, first * 2.0 ** min(failures, 8)) * random.uniform(0.5, 1.0))

    def _other(self) -> Record | None:
        """Return the lease of who leads, if that is somebody else who can be asked."""
        leader = self._leader()
        return leader if leader is not None and leader.address and leader.holder != self._identity else None

    async def _read_from(self, session: aiohttp.ClientSession, leader: Record) -> str:
        """Read one leader's stream until it ends or another leads; return what went wrong."""
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._read(session, leader))
            while not reading.done():
                await asyncio.wait({reading}, timeout=_LOOK_SECONDS)
                now = self._other()
                if now is None or now.holder != leader.holder:
                    reading.cancel()
                    return ""
        return reading.result()

    async def _read(self, session: aiohttp.ClientSession, leader: Record) -> str:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=SILENT_SECONDS)
        try:
            async with session.get(
                leader.address.rstrip("/") + PATH,
                timeout=timeout,
                read_bufsize=LONGEST_LINE_BYTES,
                allow_redirects=False,
            ) as response:
                if response.status != 200:  # noqa: PLR2004 - HTTP OK
                    return f"{leader.address} answers with status {response.status}"
                log.info("following the leader", leader=leader.holder, address=leader.address)
                while line := await response.content.readline():
                    self._hear(line)
        except (aiohttp.ClientError, TimeoutError, OSError, ToldRejected, ValueError) as error:
            return f"{leader.address}: {str(error) or type(error).__name__}"
        return "the stream ended"

    def _hear(self, line: bytes) -> None:
        told = from_line(line, self._clock.monotonic())
        if told is None or told.term < self._term:
            return
        self._term = told.term
        self._take(told)
        self.heard = True

"""The seat's state to every controller: at once on a change, coalesced, and as a heartbeat.

Each controller has a sender of its own, so that one that is down delays nothing. A sender always sends the state as it is then,
and goes on until the last change has been told.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from warmpool.agent.board import Board

_LOG = logging.getLogger(__name__)

COALESCE_SECONDS = 0.02
"""Changes within this time after a push travel in the next one together."""
HEARTBEAT_SECONDS = 2.0
"""The longest time between two pushes."""
_ANSWER_SECONDS = 1.0
_RETRY_FIRST_SECONDS = 0.1
_RETRY_LAST_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Pusher:
    """Tells controllers.

    Attributes:
        board: whose changes are told.
        state: renders the state as it is now.
        session: the HTTP client.
    """

    board: Board
    state: Callable[[], Mapping[str, Any]]
    session: aiohttp.ClientSession

    async def keep_telling(self, controller: str) -> None:
        """Tell one controller until cancelled."""
        retry = _RETRY_FIRST_SECONDS
        reachable = True
        while True:
            told = self.board.seq
            failure = await self.tell(controller)
            if failure:
                if reachable:
                    _LOG.warning("controller %s can't be told: %s", controller, failure)
                reachable = False
                await asyncio.sleep(retry)
                retry = min(_RETRY_LAST_SECONDS, 2 * retry)
                continue
            if not reachable:
                _LOG.info("controller %s is told again", controller)
            reachable, retry = True, _RETRY_FIRST_SECONDS
            await self._next_change(told)

    async def tell(self, controller: str) -> str:
        """Tell one controller once; return why it failed, or nothing."""
        timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
        try:
            async with self.session.post(
                f"{controller}/v1/agents", json=self.state(), timeout=timeout
            ) as response:
                if response.status < 300:  # noqa: PLR2004 (HTTP's success)
                    return ""
                return f"answered {response.status}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return f"{type(error).__name__}: {error}"

    async def _next_change(self, told: int) -> None:
        await asyncio.sleep(COALESCE_SECONDS)
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS - COALESCE_SECONDS):
                await self.board.change_after(told)
        except TimeoutError:
            return

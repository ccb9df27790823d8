"""What is said of the node's GPUs, to every controller: at once when a verdict changes, and every five seconds.

Each controller has a sender of its own, so that one that is down delays nothing. What is sent is always what is said then, so nothing
is queued. Nothing is told before the GPUs have been read once. Controllers keep a copy of what was found; an agent that remembers
nothing asks for it, and until one has answered nobody takes its word for more than that.
"""

import asyncio
import itertools
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import aiohttp

from warmpool.nodehealth.health_service import HealthService
from warmpool.nodehealth.monitor import HealthMonitor
from warmpool.nodehealth.wire import health_to_json

_LOG = logging.getLogger(__name__)

PATH: Final = "/v1/nodes"
"""Where controllers take it."""
TELL_SECONDS: Final = 5.0
"""The longest time between two words to a controller."""
_ANSWER_SECONDS: Final = 2.0
_RETRY_FIRST_SECONDS: Final = 0.1
_RETRY_LAST_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """Who is told, and of what.

    Attributes:
        node: the node's name, as its cluster calls it.
        controllers: base URLs of all replicas.
        token: what they want to see.
    """

    node: str
    controllers: Sequence[str]
    token: str


class Teller:
    """Tells controllers.

    Args:
        telling: who is told.
        monitor: whose changes are told.
        health: says it.
    """

    def __init__(self, telling: Telling, monitor: HealthMonitor, health: HealthService) -> None:
        self._telling = telling
        self._monitor = monitor
        self._health = health
        self._numbers = itertools.count(1)

    async def run(self) -> None:
        """Tell until cancelled."""
        await self._monitor.settled.wait()
        headers = {"Authorization": f"Bearer {self._telling.token}"}
        async with aiohttp.ClientSession(headers=headers) as session, asyncio.TaskGroup() as tasks:
            for controller in self._telling.controllers:
                tasks.create_task(self._keep_telling(session, controller))

    async def _keep_telling(self, session: aiohttp.ClientSession, controller: str) -> None:
        complaint, retry = "", _RETRY_FIRST_SECONDS
        while True:
            told = self._monitor.epoch
            failure = await self._tell(session, controller)
            if failure != complaint:
                level = logging.WARNING if failure else logging.INFO
                _LOG.log(level, "controller %s %s", controller, failure or "is told again")
            complaint = failure
            if failure:
                await asyncio.sleep(retry)
                retry = min(_RETRY_LAST_SECONDS, 2 * retry)
                continue
            retry = _RETRY_FIRST_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(TELL_SECONDS):
                    await self._monitor.change_after(told)

    async def _tell(self, session: aiohttp.ClientSession, controller: str) -> str:
        """Tell one controller once; return why it failed, or nothing."""
        timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
        try:
            async with session.post(f"{controller}{PATH}", json=self._report(), timeout=timeout) as answer:
                if answer.status >= 300:  # noqa: PLR2004 - HTTP's success
                    return f"refuses what it is told of the GPUs: status {answer.status}"
                if answer.status == HTTPStatus.OK:
                    self._hear(await answer.json())
                return ""
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return f"can't be told of the GPUs: {type(error).__name__}: {error}"

    def _hear(self, answer: object) -> None:
        """Take what a controller has kept."""
        kept = answer.get("kept") if isinstance(answer, dict) else None
        if not isinstance(kept, str):
            raise ValueError("its answer has no text `kept`")  # noqa: TRY004 - it is a value from elsewhere
        self._monitor.restore(kept)

    def _report(self) -> dict[str, Any]:
        copy = {"asks": True} if self._monitor.asks else {"kept": self._monitor.copy}
        return {
            "node": self._telling.node,
            "pid": os.getpid(),
            "seq": next(self._numbers),
            "at": self._monitor.verdict.at,
            "health": health_to_json(self._health.whole()),
            **copy,
        }

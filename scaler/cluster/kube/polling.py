"""Asking agents that tell nothing by themselves: by their pods' addresses, many at once, each by a deadline of its own."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import structlog

from scaler.cluster.kube.roster import Roster
from scaler.cluster.kube.views import Pod
from scaler.cluster.reports import Reader
from scaler.errors import Unreachable
from warmpool.errors import BadOrder

log = structlog.get_logger(__name__)

SILENT_SECONDS: Final = 3.0
"""An agent that hasn't told its state for this long (it does each 2 s) is asked for it."""
ASK_SECONDS: Final = 2.0
"""And again after this long."""
AT_ONCE: Final = 128
"""Agents that are asked at the same time; the others wait for their turn."""
EVERYBODY_SECONDS: Final = 10.0
"""How long a beginning controller asks before it goes on without those that don't answer."""
_LOOK_SECONDS = 0.25
_LIVING = frozenset({"Pending", "Running"})


class Polling:
    """Asks agents.

    Args:
        roster: knows who is silent.
        reader: asks one.
        take: takes what one answers; may raise `BadOrder`.
        clock: monotonic seconds, the roster's.
    """

    def __init__(
        self,
        roster: Roster,
        reader: Reader,
        take: Callable[[Mapping[str, Any]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._roster = roster
        self._reader = reader
        self._take = take
        self._clock = clock
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._asked: dict[str, float] = {}
        self._complained: dict[str, str] = {}

    async def everybody(self) -> None:
        """Ask all agents that haven't been heard yet, once; where many are out of reach, some are left for later."""
        with suppress(TimeoutError):
            async with asyncio.timeout(EVERYBODY_SECONDS), asyncio.TaskGroup() as tasks:
                for pod in self._silent():
                    tasks.create_task(self._ask(pod))

    async def run(self) -> None:
        """Ask agents that are silent, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                for pod in self._silent():
                    tasks.create_task(self._ask(pod))
                self._forget()
                await asyncio.sleep(_LOOK_SECONDS)

    def _silent(self) -> list[Pod]:
        now = self._clock()
        return [
            pod
            for pod in self._roster.silent(SILENT_SECONDS)
            if pod.ip
            and pod.phase in _LIVING
            and now - self._asked.get(pod.seat.uid, -math.inf) >= ASK_SECONDS
        ]

    def _forget(self) -> None:
        if len(self._asked) > 2 * len(self._roster.pods()) + AT_ONCE:
            there = {pod.seat.uid for pod in self._roster.pods()}
            self._asked = {uid: at for uid, at in self._asked.items() if uid in there}
            self._complained = {uid: what for uid, what in self._complained.items() if uid in there}

    async def _ask(self, pod: Pod) -> None:
        uid, agent = pod.seat.uid, self._roster.agent(pod)
        self._asked[uid] = math.inf  # not again before this is over
        try:
            async with self._turns:
                told = await self._reader.read(agent)
            if told.get("uid") != uid:
                raise BadOrder(f"{agent} is the agent of another pod, {told.get('seat')} ({told.get('uid')})")
            self._take(told)
        except (Unreachable, BadOrder) as error:
            if self._complained.get(uid) != str(error):
                self._complained[uid] = str(error)
                log.warning("agent tells nothing", seat=pod.seat.name, error=str(error))
        else:
            self._complained.pop(uid, None)
        finally:
            self._asked[uid] = self._clock()

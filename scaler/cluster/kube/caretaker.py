"""Keeps pods as their seats' lives want them: looks at those that have changed, and does what the rules say.

Runs in the leader alone. What fails is left to the next look; what fails for all waits a little longer each time.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from scaler.cluster.kube.errors import Withheld
from scaler.cluster.kube.life import Admit, Chore, Free, Mark, chores, in_order
from scaler.cluster.kube.roster import Roster
from scaler.cluster.kube.seats import SeatWriter
from scaler.errors import ClusterError, Conflict, NotFound
from warmpool.seats import FleetName, Seat, SeatName

log = structlog.get_logger(__name__)

_COALESCE_SECONDS: Final = 0.1
"""Changes within this time after a look are looked at together."""
_LOOK_SECONDS: Final = 60.0
"""All pods are looked at this often, whatever has changed."""
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.5, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tended:
    """What may be done for a fleet.

    Attributes:
        writes: anything at all.
        admits: its pods may become Ready.
    """

    writes: bool
    admits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What a caretaker takes care of.

    Attributes:
        roster: the seats.
        writer: writes their pods.
        tended: what may be done for a fleet.
        lent: whether a seat is lent at present.
        freed: is told of a seat whose claim nobody could read, and why.
    """

    roster: Roster
    writer: SeatWriter
    tended: Callable[[FleetName], Tended]
    lent: Callable[[SeatName], bool]
    freed: Callable[[Seat, str], None]


class Caretaker:
    """Does chores; `run` inside the leader's TaskGroup.

    Args:
        charge: what it takes care of.
    """

    def __init__(self, charge: Charge) -> None:
        self._charge = charge
        self._changed = asyncio.Event()
        self._tended: dict[FleetName, Tended] = {}
        self._complaint = ""
        self._wait = 0.0

    def changed(self) -> None:
        """Look again soon, at what has changed and at what could not be done."""
        self._changed.set()

    def lent(self, names: Iterable[SeatName]) -> None:
        """Look again soon at seats that are lent from now on, or no more."""
        self._charge.roster.touched.update(names)
        self._changed.set()

    async def run(self) -> None:
        """Do what is to be done, until cancelled."""
        loop, due = asyncio.get_running_loop(), -math.inf
        while True:
            if loop.time() >= due:
                self._look_at_all()
                due = loop.time() + _LOOK_SECONDS
            self._changed.clear()
            await self.look()
            await asyncio.sleep(_COALESCE_SECONDS + self._wait)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._changed.wait()

    def _look_at_all(self) -> None:
        self._charge.roster.touched.update(pod.seat.name for pod in self._charge.roster.pods())
        self._changed.set()

    async def look(self) -> None:
        """Look at the pods that have changed, and do what is to be done now."""
        roster = self._charge.roster
        self._look_at_fleets()
        names, roster.touched = roster.touched, set()
        every = [chore for name in names for chore in self._chores(name)]
        found = in_order(every)
        if len(found) < len(every):
            roster.touched.update(chore.seat.name for chore in every)
            self._changed.set()
        async with asyncio.TaskGroup() as tasks:
            done = [tasks.create_task(self._do(chore)) for chore in found]
        outcomes = [(chore.seat.name, task.result()) for chore, task in zip(found, done, strict=True)]
        self._learn([outcome for outcome in outcomes if outcome[1]], len(found))

    def _learn(self, failed: Sequence[tuple[SeatName, str]], tried: int) -> None:
        """Come back to what failed, after a longer and longer time while nothing succeeds, and complain once."""
        if not failed:
            self._complaint, self._wait = "", 0.0
            return
        self._charge.roster.touched.update(name for name, _ in failed)
        self._changed.set()
        longer = min(_LONGEST_WAIT_SECONDS, 2 * self._wait) if len(failed) == tried else 0.0
        self._wait = max(_FIRST_WAIT_SECONDS, longer)
        _, error = failed[0]
        if error != self._complaint:
            self._complaint = error
            log.warning("pods can't be kept as they should be", failed=len(failed), error=error)

    def _look_at_fleets(self) -> None:
        """Look at all pods of a fleet for which something else may be done than before."""
        roster = self._charge.roster
        for fleet, seats in roster.shelf.stock().items():
            tended = self._charge.tended(fleet)
            if self._tended.get(fleet) != tended:
                self._tended[fleet] = tended
                roster.touched.update(seat.name for seat in seats)

    def _chores(self, name: SeatName) -> Iterable[Chore]:
        charge = self._charge
        pod, seat = charge.roster.pod(name), charge.roster.shelf.get(name)
        if pod is None or seat is None:
            return ()
        tended = self._tended.get(seat.fleet)
        if tended is None or not tended.writes:
            return ()
        if seat.lent != (lent := charge.lent(name)):
            seat = replace(seat, lent=lent)
        return chores(pod, seat, admits=tended.admits)

    async def _do(self, chore: Chore) -> str:
        """Do one; return why it failed, or nothing. A pod that has changed meanwhile is looked at again anyway."""
        try:
            await self._write(chore)
        except Withheld as error:
            return str(error)
        except (Conflict, NotFound):
            return ""
        except ClusterError as error:
            return str(error) or type(error).__name__
        return ""

    def _write(self, chore: Chore) -> Coroutine[Any, Any, object]:
        writer = self._charge.writer
        match chore:
            case Admit(seat=seat, reason=reason):
                return writer.admit(seat, reason=reason)
            case Mark(seat=seat, value=value):
                return writer.mark(seat, value)
            case Free(seat=seat, why=why):
                return self._free(seat, why)
            case _:
                raise AssertionError(chore)

    async def _free(self, seat: Seat, why: str) -> None:
        await self._charge.writer.free(seat)
        self._charge.freed(seat, why)

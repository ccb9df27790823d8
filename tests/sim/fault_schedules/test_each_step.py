"""The leader is killed before each of its steps while it promotes, switches and demotes: the other goes on where it ended.

A step is what runs between two awaits of any of its tasks. So this is every moment at which a process can be killed that anybody else
could tell from another.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import pytest

from tests.fakes.kube_api.kinds import POD
from tests.sim.fault_schedules.processes import Process, run
from tests.sim.fault_schedules.running import settle, wanted
from tests.sim.fault_schedules.schedules import Faulty
from tests.sim.fault_schedules.world import CHAT, CODE, World
from warmpool.seats import PolicyName

LEASE_SECONDS = 6.0
SEED = 5
EACH = 150
"""Of so many steps one is looked at where there is little time."""
_AHEAD, _BEHIND = 60, 10
"""Steps before the first write to a seat, and after the last, which belong to what is done about the load."""
Load = Mapping[PolicyName, int]


@dataclass(frozen=True)
class Death:
    """What came of it when the leader was killed before a step; or of a run in which it wasn't.

    Attributes:
        steps: before which of the leader's steps since the load changed; of those that had to do with seats, the first and the last.
        broken: what was not as it must be.
        served: seconds from then until every policy had what it needed.
        told: what happened.
    """

    steps: tuple[int, int]
    broken: tuple[str, ...]
    served: float
    told: tuple[str, ...]


class _Run:
    """A change of load, and what the leader does about it."""

    def __init__(self, loads: tuple[Load, Load]) -> None:
        self.world = World(SEED)
        self.looking = self.world.looking
        self.loads = loads

    async def whole(self) -> Death:
        """See which steps it takes."""
        async with self._warm() as leader:
            before, writes = leader.steps, list[int]()
            self.world.machines.api.store.listen(POD, lambda _: writes.append(leader.steps - before))
            self.world.load.update(self.loads[1])
            await settle(self.world, 60.0, exact=True)
        return self._death((max(1, writes[0] - _AHEAD), writes[-1] + _BEHIND), 0.0)

    async def killed(self, step: int) -> Death:
        """Kill it before a step."""
        world, loop = self.world, asyncio.get_running_loop()
        async with self._warm() as leader:
            leader.die_before = leader.steps + step
            world.load.update(self.loads[1])
            await world.until("its death", lambda: leader.name not in world.controllers, 60.0)
            self.looking.tell(f"the leader has died before step {step}")
            began = loop.time()
            await self._served()
            served = loop.time() - began
            await settle(world, 60.0)
        return self._death((step, step), served)

    @contextlib.asynccontextmanager
    async def _warm(self) -> AsyncIterator[Process]:
        self.world.load.update(self.loads[0])
        async with self.world.running():
            await settle(self.world, 90.0, exact=True)
            yield self.world.controllers[Faulty(self.world).leader()]

    async def _served(self) -> None:
        need = wanted(self.world.load)
        await self.looking.until(lambda: self.looking.unserved(need), 60.0)

    def _death(self, steps: tuple[int, int], served: float) -> Death:
        return Death(steps, self.world.broken, served, tuple(self.looking.told))


CASES = {
    "a promotion": ({CHAT: 6, CODE: 2}, {CHAT: 12, CODE: 2}),
    "a seat that changes hands": ({CHAT: 9, CODE: 6}, {CHAT: 2, CODE: 10}),
    "a demotion": ({CHAT: 6, CODE: 2}, {CHAT: 2, CODE: 2}),
}


@pytest.mark.long
def test_wherever_the_leader_is_killed_in_a_promotion_the_other_goes_on() -> None:
    for step in _steps(CASES["a promotion"], EACH):
        _check(_killed(CASES["a promotion"], step))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("what", CASES)
def test_wherever_at_all_the_leader_is_killed_the_other_goes_on(what: str) -> None:
    for step in _steps(CASES[what], 1):
        _check(_killed(CASES[what], step))


def _steps(loads: tuple[Load, Load], each: int) -> range:
    whole = run(lambda: _Run(loads).whole(), SEED)
    assert not whole.broken, "\n".join((*whole.told, *whole.broken))
    first, last = whole.steps
    return range(first, last + 1, each)


def _killed(loads: tuple[Load, Load], step: int) -> Death:
    return run(lambda: _Run(loads).killed(step), SEED)


def _check(death: Death) -> None:
    text = "\n".join((f"killed before step {death.steps[0]}", *death.told, *death.broken))
    assert not death.broken, text
    assert death.served <= LEASE_SECONDS + 1.5, text

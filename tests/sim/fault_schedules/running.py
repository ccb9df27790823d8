"""One schedule from beginning to end, and what came of it."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass

from tests.sim.fault_schedules.processes import run
from tests.sim.fault_schedules.schedules import Fault, Faulty, schedule
from tests.sim.fault_schedules.world import IN_FLIGHT, MAX_SEATS, World
from warmpool.seats import PolicyName

WARM_SECONDS = 30.0
SETTLED_SECONDS = 90.0
"""What is waited for in the end: burst windows, back-offs and rollouts included."""
SERVED_SECONDS = 6.0 + 2.0
"""A lease, and what looking, deciding and promoting take, until every policy has what it needs."""
_CALM_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one schedule.

    Attributes:
        seed, faults: which.
        broken: what was not as it must be.
        served: seconds from the end of the last fault until every policy had what it needed.
        settled: seconds from there until everything was as it should be.
        told: what happened.
    """

    seed: int
    faults: tuple[Fault, ...]
    broken: tuple[str, ...]
    served: float
    settled: float
    told: tuple[str, ...]

    @property
    def failure(self) -> str:
        """What was not as it must be, in one line; empty if nothing."""
        if self.broken:
            return " ".join(self.broken[0].split())
        late = f"served {self.served:.2f} s after the last fault, {SERVED_SECONDS:g} are allowed"
        return late if self.served > SERVED_SECONDS else ""

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}, to be run again by EMBERPOOL_FAULT_SEED={self.seed}",
            *map(str, self.faults),
        ]
        return "\n".join([*lines, *self.told, "", *self.broken])


def run_schedule(seed: int, faults: tuple[Fault, ...] | None = None) -> Outcome:
    """Run a schedule, the seed's own unless another is given."""
    faults = schedule(seed) if faults is None else faults

    async def main() -> Outcome:
        world = World(seed)
        looking = world.looking
        async with world.running():
            await settle(world, WARM_SECONDS)
            began = asyncio.get_running_loop().time()
            looking.tell("warm")
            await Faulty(world).carry_out(faults)
            looking.tell(
                f"all faults are over, {asyncio.get_running_loop().time() - began:.2f} s after the first began"
            )
            served = await looking.until(lambda: looking.unserved(wanted(world.load)), SETTLED_SECONDS)
            settled = served + await settle(world, SETTLED_SECONDS)
            looking.tell("settled")
        return Outcome(
            seed=seed,
            faults=faults,
            broken=world.broken,
            served=served,
            settled=settled,
            told=tuple(looking.told),
        )

    return run(main, seed)


def wanted(load: Mapping[PolicyName, int]) -> dict[PolicyName, int]:
    """Return how many seats each policy needs for a load."""
    return {policy: max(1, math.ceil(held / IN_FLIGHT)) for policy, held in load.items()}


def spares_beside(need: Mapping[PolicyName, int]) -> int:
    """Return how many spare seats there should be beside those that policies need."""
    return max(0, min(1, MAX_SEATS - sum(need.values())))


async def settle(world: World, seconds: float, *, exact: bool = False) -> float:
    """Wait until everything is as it should be and stays so, and return how long that took; exactly as many seats if `exact`."""
    need, looking = wanted(world.load), world.looking
    spares = spares_beside(need)

    def lacking() -> str:
        return looking.unsettled(need, spares) or (looking.too_many(need, spares) if exact else "")

    loop = asyncio.get_running_loop()
    began = loop.time()
    while await looking.until(lacking, seconds) < math.inf:
        ended = loop.time()
        while loop.time() - ended < _CALM_SECONDS and not lacking():
            await asyncio.sleep(0.1)
        if loop.time() - ended >= _CALM_SECONDS:
            return ended - began
    return math.inf

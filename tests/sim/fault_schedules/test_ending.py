"""A controller that is asked to end does end, also while its term ends for want of the API server."""

import asyncio
import math

from tests.sim.fault_schedules.processes import run
from tests.sim.fault_schedules.running import settle
from tests.sim.fault_schedules.schedules import Faulty
from tests.sim.fault_schedules.world import World

ENDS_SECONDS = 15.0
"""What a pod has left of its usual grace of 30 s when the drain of what it began is over."""


def test_a_leader_that_reaches_nobody_ends() -> None:
    async def main() -> None:
        world = World(1)
        async with world.running():
            assert await settle(world, 60.0) < math.inf
            leader = world.controllers[Faulty(world).leader()]
            heal = world.network.cut(lambda one, other: leader.name in {one, other})
            await leader.end(ENDS_SECONDS)
            heal()
            await asyncio.sleep(0.0)

    run(main, 1)

"""Nobody who answers is taken out of rotation where nobody can serve in their place: neither by a cordon nor by silence."""

import asyncio
import math
from collections.abc import Callable

import pytest

from tests.fakes.kube_api import patches
from tests.fakes.kube_api.api import Target
from tests.fakes.kube_api.kinds import NODE
from tests.sim.fault_schedules.processes import run
from tests.sim.fault_schedules.running import settle
from tests.sim.fault_schedules.schedules import Faulty
from tests.sim.fault_schedules.world import World

SEED = 3


def cordon(world: World) -> None:
    """All nodes are to be emptied."""
    for name in ("node-a", "node-b"):
        target = Target(kind=NODE, namespace="", name=name)
        world.machines.api.patch(target, patches.MERGE, {"spec": {"unschedulable": True}}, {})


def deafen(world: World) -> None:
    """The leader hears no agent any more, and reaches none."""
    leader = Faulty(world).leader()
    world.network.cut(lambda one, other: {one, other} == {leader, "agents"})


@pytest.mark.parametrize("befalls", [cordon, deafen])
def test_who_cannot_be_replaced_stays_in_rotation(befalls: Callable[[World], None]) -> None:
    async def main() -> None:
        world = World(SEED)
        async with world.running():
            assert await settle(world, 60.0) < math.inf
            befalls(world)
            await asyncio.sleep(20.0)
        assert not world.broken, "\n".join(world.looking.told)

    run(main, SEED)

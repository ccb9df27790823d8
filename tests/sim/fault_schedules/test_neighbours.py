"""Who is reached at a Service doesn't change when something dies beside what serves: another engine of the seat, or the seat's agent."""

import asyncio
import itertools
import json
import math

from tests.fakes.kube_api.kinds import BY_PATH
from tests.sim.fault_schedules.invariants import serving
from tests.sim.fault_schedules.machines import NAMESPACE_NAME
from tests.sim.fault_schedules.processes import run
from tests.sim.fault_schedules.running import settle
from tests.sim.fault_schedules.world import POLICY_NAMES, World
from warmpool.seats import PolicyName, SeatName

SLICES = BY_PATH["discovery.k8s.io", "v1", "endpointslices"]
SEED = 11


def slices(world: World) -> list[str]:
    """The EndpointSlices, with their versions."""
    found = world.machines.api.store.all(SLICES, NAMESPACE_NAME)
    return [json.dumps(each.body, sort_keys=True) for each in found]


def kill_neighbour(world: World, seat: SeatName, idle: PolicyName) -> None:
    world.machines.agents.kill_engine(seat, idle)


def kill_agent(world: World, seat: SeatName, _: PolicyName) -> None:
    world.machines.agents.kill_agent(seat, 3.0)


def test_who_is_reached_stays_the_same() -> None:
    async def main() -> None:
        world = World(SEED)
        async with world.running():
            assert await settle(world, 90.0, exact=True) < math.inf
            before = slices(world)
            assert len(before) == len(POLICY_NAMES)
            for pod, kill in itertools.product(world.machines.pods(), (kill_neighbour, kill_agent)):
                if busy := serving(pod):
                    (idle,) = set(POLICY_NAMES) - busy
                    kill(world, SeatName(pod["metadata"]["name"]), idle)
                    await asyncio.sleep(8.0)
                    assert slices(world) == before, "\n".join(world.looking.told)
        assert not world.broken

    run(main, SEED)

"""While a Service could reach paused residents nothing is promoted, which costs a controller next to nothing; then all goes on."""

import asyncio
import json
import math

from tests.fakes.kube_api import patches
from tests.fakes.kube_api.api import Target
from tests.sim.fault_schedules.invariants import reached
from tests.sim.fault_schedules.machines import DEPLOYMENT, NAMESPACE_NAME, SERVICE
from tests.sim.fault_schedules.processes import run
from tests.sim.fault_schedules.running import settle
from tests.sim.fault_schedules.schedules import Faulty
from tests.sim.fault_schedules.world import CHAT, FLEET, POLICY_NAMES, World
from warmpool.seats import FLEET_LABEL

SEED, PORT = 7, 9001
SECONDS = 10.0
STEPS_A_SECOND = 3000
"""What a leader may do that can't do what it wants; one that is content takes some two hundred."""
EVERYBODY = Target(kind=SERVICE, namespace=NAMESPACE_NAME, name="everybody")


def name_residents(world: World) -> None:
    """Say in the pod template which resident has which port, by which a Service is judged."""
    residents = [{"policy": name, "port": PORT + number} for number, name in enumerate(POLICY_NAMES)]
    annotations = {"emberpool.dev/residents": json.dumps(residents)}
    change = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
    target = Target(kind=DEPLOYMENT, namespace=NAMESPACE_NAME, name=FLEET)
    world.machines.api.patch(target, patches.MERGE, change, {})


def reach_everybody(world: World) -> None:
    spec = {"selector": {FLEET_LABEL: FLEET}, "ports": [{"port": 80, "targetPort": PORT}]}
    body = {"metadata": {"name": EVERYBODY.name}, "spec": spec}
    world.machines.api.create(Target(kind=SERVICE, namespace=NAMESPACE_NAME), body, {})


def test_what_is_withheld_is_asked_for_now_and_then_and_done_once_it_may_be() -> None:
    async def main() -> None:
        world = World(SEED)
        async with world.running():
            name_residents(world)
            assert await settle(world, 120.0, exact=True) < math.inf
            reach_everybody(world)
            await asyncio.sleep(2.0)
            leader = world.controllers[Faulty(world).leader()]
            world.load[CHAT], before = 9, leader.steps
            await asyncio.sleep(SECONDS)
            assert len(reached(world.machines.pods(), CHAT)) == 1
            assert leader.steps - before < STEPS_A_SECOND * SECONDS
            world.machines.api.delete(EVERYBODY, {}, {})
            assert await settle(world, 60.0) < math.inf
            assert len(reached(world.machines.pods(), CHAT)) == 3
        assert not world.broken, "\n".join(world.looking.told)

    run(main, SEED)

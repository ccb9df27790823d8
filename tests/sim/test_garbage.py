"""Long-lived objects are taken out of the garbage collector's sight, and given back at the end."""

import asyncio
import gc

import pytest

from scaler.core.model import FleetShare, FleetSpec, PolicySpec
from scaler.runtime.garbage import keep_garbage_quiet
from tests.sim.world import world
from warmpool.seats import FleetName, PolicyName

pytestmark = pytest.mark.looptime

FLEET = FleetName("spares")


async def test_what_lives_long_is_frozen_from_the_first_decision_on() -> None:
    share = FleetShare(fleet=FLEET, target_in_flight=8)
    policy = PolicySpec(name=PolicyName("chat"), fleets=(share,), serving_min=1)
    async with world([policy], [FleetSpec(name=FLEET, max_seats=2)]) as on:
        task = asyncio.get_running_loop().create_task(keep_garbage_quiet(on.controller))
        await on.until(lambda: on.controller.last is not None)
        await asyncio.sleep(2)
        frozen = gc.get_freeze_count()
        assert frozen > 10_000
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert gc.get_freeze_count() < frozen

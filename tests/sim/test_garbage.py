"""Long-lived objects are taken out of the garbage collector's sight, and given back at the end."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from scaler.core.model import FleetShare, FleetSpec, PolicySpec
from scaler.runtime.garbage import keep_garbage_quiet
from tests.sim.world import world
from warmpool.seats import FleetName, PolicyName

pytestmark = pytest.mark.looptime

FLEET = FleetName("spares")


@asynccontextmanager
async def quiet() -> AsyncIterator[None]:
    """A controller that decides, with quiet garbage, in virtual time."""
    share = FleetShare(fleet=FLEET, target_in_flight=8)
    policy = PolicySpec(name=PolicyName("chat"), fleets=(share,), serving_min=1)
    async with world([policy], [FleetSpec(name=FLEET, max_seats=2)]) as on:
        task = asyncio.get_running_loop().create_task(keep_garbage_quiet(on.controller))
        try:
            await on.until(lambda: on.controller.last is not None)
            await asyncio.sleep(100)  # its burst at the start is over
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_what_lives_long_is_frozen_from_the_first_decision_on() -> None:
    async with quiet():
        frozen = gc.get_freeze_count()
        assert frozen > 10_000
    assert gc.get_freeze_count() < frozen


async def test_a_tick_is_let_through_and_garbage_goes_between_ticks() -> None:
    class Node:
        me: "Node"

    async with quiet():
        nodes = [Node() for _ in range(30_000)]
        for node in nodes:
            node.me = node
        seen = weakref.ref(nodes[0])
        del nodes, node
        assert seen() is not None
        await asyncio.sleep(2)
        assert seen() is None

import asyncio
import gc
from collections.abc import Iterator

import pytest

from scaler.gateway.garbage import keep_garbage_quiet


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """Nothing is frozen but what the test freezes; what was is again afterwards."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("unfrozen")
async def test_what_lives_long_is_out_of_the_collector_s_sight_meanwhile() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(keep_garbage_quiet(lambda: False))
        await asyncio.sleep(0)
        assert gc.get_freeze_count() > frozen
        assert gc.get_threshold()[2] > 100_000
        keeping.cancel()
    assert gc.get_threshold() == before

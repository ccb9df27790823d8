"""Somebody with a token pushes all that he can, from a process of his own; nobody else feels it, nor does the loop."""

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from scaler.signals.sample import MOST_BYTES, Kind
from scaler.signals.throttle import ThrottleLimits
from tests.integration.pushing.rig import CODE, Server, sample, served

FLOODER = Path(__file__).with_name("flood.py")
TOKENS = "queue:flood flooding\nqueue:jobs working\ngateway:gw serving\n"
_SECONDS = 1.0


@asynccontextmanager
async def flooded(on: Server, connections: int) -> AsyncIterator[asyncio.subprocess.Process]:
    host, port = on.url.removeprefix("http://").split(":")
    size = MOST_BYTES[Kind.QUEUE]
    flood = await asyncio.create_subprocess_exec(
        *(sys.executable, str(FLOODER), host, port, "flooding", str(connections), str(_SECONDS), str(size)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert flood.stdout is not None
        assert await flood.stdout.readline() == b"begins\n"
        yield flood
    finally:
        if flood.returncode is None:
            flood.kill()
        await flood.wait()


async def longest_turn(until: asyncio.Event) -> float:
    """Return the longest time that this thread computed between two turns of a task."""
    longest = 0.0
    while not until.is_set():
        before = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - before)
        await asyncio.sleep(0.001)
    return longest


@pytest.fixture
def frozen_heap() -> Iterator[None]:
    """Exempt what there is from garbage collection, as a controller does once it runs: here it is what thousands of tests left."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.wall_clock
@pytest.mark.usefixtures("frozen_heap")
@pytest.mark.parametrize("connections", [4, 200])
@pytest.mark.long
async def test_a_flood_keeps_nobody_else_out_and_the_loop_from_nothing(
    tmp_path: Path, connections: int
) -> None:
    file = tmp_path / "tokens"
    file.write_text(TOKENS, "utf-8")
    async with served(file) as on, flooded(on, connections) as flood:
        began, over = time.monotonic(), asyncio.Event()
        watch = asyncio.get_running_loop().create_task(longest_turn(over))
        pushed, slowest = 0, 0.0
        while flood.returncode is None:
            asked = time.monotonic()
            work = sample("jobs-1", pushed, {"backlog": pushed}, "code")
            assert (await on.post(work, token="working"))[0] == 204
            held = sample("gw-1", pushed, {"queued": pushed}, "code", kind="Gateway")
            assert (await on.post(held, token="serving"))[0] == 204
            load = on.load(CODE)
            assert (load.backlog.value, load.queued.value) == (pushed, pushed)
            slowest, pushed = max(slowest, time.monotonic() - asked), pushed + 1
            await asyncio.sleep(0.02)  # a pace of its own
        over.set()
        seconds, source = time.monotonic() - began, ThrottleLimits().source
        taken = on.counted("Accepted") - 2 * pushed
        assert 0 < taken <= (seconds + 1.0) * source.samples
        assert taken * MOST_BYTES[Kind.QUEUE] <= (seconds + 1.0) * source.bytes
        assert (on.counted("TooMuchOfSource") > 0) == (connections > 100)
        assert pushed >= 5
        assert slowest < 2.0
        assert await watch < 0.15

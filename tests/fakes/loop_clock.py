"""Both clocks from the event loop's time, virtual or not."""

import asyncio

EPOCH = 1_700_000_000.0
"""Unix time of the loop's zero."""


class LoopClock:
    """The `Clock` port on the running loop."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return EPOCH + asyncio.get_running_loop().time()

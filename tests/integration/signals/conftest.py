import asyncio
import time
from collections.abc import Iterator

import pytest

from tests.integration.signals.rig import open_sockets

# pytest-asyncio asks for the main thread's loop, which Python 3.11 then makes and nobody closes; saying that there is
# none prevents it
asyncio.set_event_loop(None)


@pytest.fixture(autouse=True)
def _no_socket_is_left() -> Iterator[None]:
    """Every test closes all its connections and listeners."""
    before = open_sockets()
    yield
    deadline = time.monotonic() + 15  # a query's thread may end last
    while left := open_sockets() - before:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)  # between two looks

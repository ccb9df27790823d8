import asyncio
from collections.abc import Iterator

import psutil
import pytest

# pytest-asyncio asks for the main thread's loop, which Python 3.11 then makes and nobody closes; saying that there is
# none prevents it
asyncio.set_event_loop(None)


@pytest.fixture(autouse=True)
def _no_socket_is_left() -> Iterator[None]:
    """Every test closes all its connections and listeners."""
    process = psutil.Process()
    before = len(process.net_connections(kind="inet"))
    yield
    assert len(process.net_connections(kind="inet")) == before

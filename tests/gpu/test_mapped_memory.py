"""Memory behind a fixed address on a real device."""

import threading
from collections.abc import Iterator

import pytest
import torch

from tests.gpu.rig import filled
from warmpool.reference.arena import MappedArena
from warmpool.reference.bench.device import used_bytes
from warmpool.reference.driver import CudaDriver, OutOfDeviceMemory
from warmpool.reference.errors import NotEnoughMemory
from warmpool.reference.vmm import CudaMapper, FixedRange

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

WAIT_SECONDS = 30.0
GIBIBYTE = 1 << 30
CHUNK = 64 << 20


@pytest.fixture(scope="module", autouse=True)
def _context() -> None:
    torch.cuda.init()
    torch.empty(1, device="cuda")


@pytest.fixture
def memory() -> Iterator[FixedRange]:
    made = FixedRange(CudaMapper(CudaDriver(0)), 4 * GIBIBYTE, chunk_bytes=CHUNK)
    yield made
    made.close()


def _take(memory: FixedRange) -> None:
    memory.take()
    assert memory.wait_complete(WAIT_SECONDS)


def test_an_address_range_alone_takes_no_memory(memory: FixedRange) -> None:
    free = torch.cuda.mem_get_info()[0]
    _take(memory)
    assert free - torch.cuda.mem_get_info()[0] >= 4 * GIBIBYTE
    memory.give_back()
    assert torch.cuda.mem_get_info()[0] == free


def test_the_device_gets_back_all_that_it_gave_each_time(memory: FixedRange) -> None:
    _take(memory)
    memory.give_back()
    before, address = used_bytes(), memory.address
    for _ in range(20):
        _take(memory)
        assert used_bytes() - before >= 4 * GIBIBYTE
        memory.give_back()
    assert (used_bytes(), memory.address) == (before, address)


def test_the_beginning_can_be_used_while_the_rest_is_still_coming(memory: FixedRange) -> None:
    grown = threading.Semaphore(0)
    memory.take(grown.release)
    seen = {memory.taken_bytes}
    for _ in range(4 * GIBIBYTE // CHUNK - 1):
        assert grown.acquire(timeout=WAIT_SECONDS)
        seen.add(memory.taken_bytes)
    assert memory.wait_complete(WAIT_SECONDS)
    assert all(taken % CHUNK == 0 for taken in seen)
    assert memory.taken_bytes == 4 * GIBIBYTE


def test_a_tensor_over_it_holds_what_is_written_and_lives_on_through_giving_back() -> None:
    arena = MappedArena(GIBIBYTE, torch.device("cuda", 0))
    tensor = arena.take(lambda: None)
    for value in (3, 5):
        assert arena.take(lambda: None).data_ptr() == tensor.data_ptr()
        assert arena.wait_taken(WAIT_SECONDS)
        tensor.fill_(value)
        assert int(tensor[::4096].min()) == int(tensor[::4096].max()) == value
        arena.give_back()
        assert arena.taken_bytes == 0


def test_more_than_is_free_is_refused_and_takes_nothing() -> None:
    arena = MappedArena(4 * GIBIBYTE, torch.device("cuda", 0))
    with filled(2 * GIBIBYTE):
        left = torch.cuda.mem_get_info()[0]
        with pytest.raises(NotEnoughMemory, match="MiB"):
            arena.take(lambda: None)
        assert (arena.taken_bytes, torch.cuda.mem_get_info()[0]) == (0, left)
    arena.take(lambda: None)
    assert arena.wait_taken(WAIT_SECONDS)
    arena.give_back()


def test_the_driver_itself_says_when_nothing_is_left() -> None:
    mapper = CudaMapper(CudaDriver(0))
    nbytes = mapper.free_bytes() + GIBIBYTE
    nbytes -= nbytes % mapper.granularity
    address = mapper.reserve(nbytes)
    with pytest.raises(OutOfDeviceMemory, match="cuMemCreate"):
        mapper.map(address, nbytes)
    mapper.unreserve(address, nbytes)

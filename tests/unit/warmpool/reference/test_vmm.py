"""The range over a device that is played: what is mapped when, and what happens when the device refuses."""

import threading
from collections.abc import Callable, Iterator

import pytest

from warmpool.reference.driver import CudaDriver, DriverError, OutOfDeviceMemory, Unsupported
from warmpool.reference.vmm import CudaMapper, FixedRange

WAIT_SECONDS = 10.0
PAGE = 2 << 20
START = 1 << 40


class Device:
    """A device with pages that can be mapped; others may take some of them at any time."""

    granularity = PAGE

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.mapped: dict[int, int] = {}
        self.reserved: dict[int, int] = {}
        self.before_map: Callable[[int], None] = lambda _: None

    def enter(self) -> None:
        pass

    def free_bytes(self) -> int:
        return self.pages * PAGE - sum(self.mapped.values())

    def reserve(self, nbytes: int) -> int:
        self.reserved[START] = nbytes
        return START

    def unreserve(self, address: int, nbytes: int) -> None:
        assert not self.mapped
        assert self.reserved.pop(address) == nbytes

    def map(self, address: int, nbytes: int) -> None:
        self.before_map(address)
        assert address not in self.mapped
        assert address >= START
        assert address + nbytes <= START + self.reserved[START]
        if nbytes > self.free_bytes():
            raise OutOfDeviceMemory("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)")
        self.mapped[address] = nbytes

    def unmap(self, address: int, nbytes: int) -> None:
        while nbytes:
            part = self.mapped.pop(address)
            address, nbytes = address + part, nbytes - part


@pytest.fixture
def device() -> Device:
    return Device(pages=20)


@pytest.fixture
def memory(device: Device) -> Iterator[FixedRange]:
    made = FixedRange(device, 9 * PAGE + 1, chunk_bytes=4 * PAGE)
    yield made
    made.close()
    assert not device.reserved


def test_the_whole_is_mapped_in_order_and_in_chunks(device: Device, memory: FixedRange) -> None:
    memory.take()
    assert memory.wait_complete(WAIT_SECONDS)
    assert device.mapped == {START: 4 * PAGE, START + 4 * PAGE: 4 * PAGE, START + 8 * PAGE: 2 * PAGE}
    assert memory.taken_bytes == memory.nbytes == 10 * PAGE


def test_the_first_chunk_is_there_before_the_rest_is_asked_for(device: Device, memory: FixedRange) -> None:
    may_go_on = threading.Event()
    device.before_map = lambda address: None if address == START else _wait(may_go_on)
    memory.take()
    assert (memory.taken_bytes, memory.wait_complete(0)) == (4 * PAGE, False)
    may_go_on.set()
    assert memory.wait_complete(WAIT_SECONDS)


def _wait(event: threading.Event) -> None:
    assert event.wait(WAIT_SECONDS)


def test_growth_is_told_after_each_further_chunk(memory: FixedRange) -> None:
    seen: list[int] = []
    memory.take(lambda: seen.append(memory.taken_bytes))
    assert memory.wait_complete(WAIT_SECONDS)
    memory.give_back()
    assert seen == [8 * PAGE, 10 * PAGE]


def test_giving_back_returns_everything_and_keeps_the_address(device: Device, memory: FixedRange) -> None:
    for _ in range(3):
        memory.take()
        memory.take()
        assert memory.wait_complete(WAIT_SECONDS)
        memory.give_back()
        memory.give_back()
        assert (device.mapped, memory.taken_bytes, memory.address) == ({}, 0, START)


def test_giving_back_in_the_middle_of_taking_stops_it(device: Device, memory: FixedRange) -> None:
    inside, may_go_on = threading.Event(), threading.Event()

    def hold(address: int) -> None:
        if address != START:
            inside.set()
            _wait(may_go_on)

    device.before_map = hold
    memory.take()
    _wait(inside)
    threading.Timer(0.01, may_go_on.set).start()
    memory.give_back()
    assert (device.mapped, memory.taken_bytes) == ({}, 0)


def test_a_range_that_does_not_fit_takes_nothing(device: Device, memory: FixedRange) -> None:
    device.pages = 9
    with pytest.raises(OutOfDeviceMemory, match="18 MiB are free"):
        memory.take()
    assert (device.mapped, memory.taken_bytes) == ({}, 0)


def test_memory_that_others_take_in_between_is_asked_for_until_it_is_free(
    device: Device, memory: FixedRange
) -> None:
    refused = threading.Event()
    tries = 0

    def others(address: int) -> None:
        nonlocal tries
        if address != START:
            tries += 1
            device.pages = 5 if tries <= 2 else 20
            if tries == 2:
                refused.set()

    device.before_map = others
    memory.take()
    _wait(refused)
    assert memory.taken_bytes == 4 * PAGE
    assert memory.wait_complete(WAIT_SECONDS)
    assert memory.taken_bytes == 10 * PAGE


def test_what_is_mapped_stays_usable_when_the_device_fails(
    device: Device, memory: FixedRange, caplog: pytest.LogCaptureFixture
) -> None:
    failed = threading.Event()

    def fail(address: int) -> None:
        if address != START:
            failed.set()
            raise DriverError("cuMemMap: CUDA_ERROR_UNKNOWN (999)")

    device.before_map = fail
    memory.take()
    _wait(failed)
    assert memory.taken_bytes == 4 * PAGE
    memory.give_back()
    assert device.mapped == {}
    assert "no more will be" in caplog.text


def test_without_a_driver_it_says_what_is_missing() -> None:
    try:
        CudaMapper(CudaDriver(0))
    except Unsupported as error:
        assert "libcuda" in str(error) or "CUDA" in str(error)  # noqa: PT017 (a machine with a driver has none)

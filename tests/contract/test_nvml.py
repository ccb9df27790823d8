"""What whoever reads GPUs may rely on: the adapter over a scripted library, and over the driver's own where a GPU is."""

import re
import time
from collections.abc import Iterator

import pytest

from tests.fakes.nvml_library import CONTEXT_BYTES, FakeGpu, FakeLibrary
from warmpool.nodehealth.nvml import DeviceGone, DriverNvml, Nvml, NvmlAbsent, NvmlClosed, driver
from warmpool.nodehealth.readings import Contact, GpuReading

UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _scripted() -> Nvml:
    first = FakeGpu(
        "GPU-00000000-0000-0000-0000-000000000001",
        processes={455: CONTEXT_BYTES, 456: None},
        graphics={455: CONTEXT_BYTES},
        bus_id="00000000:06:00.0",
    )
    second = FakeGpu("GPU-00000000-0000-0000-0000-000000000002", minor=1, bus_id="00000000:07:00.0")
    return DriverNvml(FakeLibrary(first, second))


def _real() -> Nvml:
    try:
        nvml = driver()
        nvml.start()
    except (NvmlAbsent, NvmlClosed) as absent:
        pytest.skip(f"needs a GPU: {absent}")
    nvml.stop()
    return nvml


@pytest.fixture(
    params=[pytest.param(_scripted, id="scripted"), pytest.param(_real, id="driver", marks=pytest.mark.gpu)]
)
def nvml(request: pytest.FixtureRequest) -> Iterator[Nvml]:
    made = request.param()
    made.start()
    yield made
    made.stop()


def test_devices_have_uuids_and_come_in_the_same_order_each_time(nvml: Nvml) -> None:
    listed = nvml.devices()
    assert listed.devices
    assert all(UUID.fullmatch(device.uuid) for device in listed.devices)
    assert len({device.uuid for device in listed.devices}) == len(listed.devices)
    assert nvml.devices() == listed


def test_a_device_says_where_it_is(nvml: Nvml) -> None:
    for device in nvml.devices().devices:
        assert device.bus_id
        assert device.name
        assert device.minor is not None


def test_memory_adds_up(nvml: Nvml) -> None:
    for device in nvml.devices().devices:
        memory = nvml.memory(device.uuid)
        assert memory.total_bytes == memory.used_bytes + memory.free_bytes + (memory.reserved_bytes or 0)
        assert min(memory.used_bytes, memory.free_bytes) >= 0


def test_a_process_is_listed_once_and_holds_something_or_nobody_knows_what(nvml: Nvml) -> None:
    for device in nvml.devices().devices:
        processes, total = nvml.processes(device.uuid), nvml.memory(device.uuid).total_bytes
        assert len({process.pid for process in processes}) == len(processes)
        assert all(each.held_bytes is None or 0 < each.held_bytes <= total for each in processes)


def _healths(nvml: Nvml) -> list[GpuReading]:
    return [nvml.health(device.uuid) for device in nvml.devices().devices if not device.parent]


def test_a_gpu_tells_how_it_is(nvml: Nvml) -> None:
    for reading in _healths(nvml):
        assert (reading.contact, reading.reason) == (Contact.ANSWERS, "")
        assert reading.bus_id
        assert reading.celsius is not None
        assert 0 < reading.celsius < 130
        assert reading.watts is None or 0 <= reading.watts < 5000


def test_what_a_gpu_tells_is_a_count_or_unknown(nvml: Nvml) -> None:
    for reading in _healths(nvml):
        ecc, pcie = reading.ecc, reading.pcie
        counts = (ecc.corrected, ecc.uncorrected, ecc.corrected_ever, ecc.uncorrected_ever, pcie.replays)
        assert all(count is None or count >= 0 for count in counts)
        assert ecc.enabled or ecc.corrected is None
        if pcie.width is not None and pcie.most_width is not None:
            assert 0 < pcie.width <= pcie.most_width
        if reading.spare_rows is not None:
            spare = reading.spare_rows
            assert spare.all >= spare.high + spare.partial + spare.low + spare.none >= 0


def test_counts_never_fall_between_two_looks(nvml: Nvml) -> None:
    for before, after in zip(_healths(nvml), _healths(nvml), strict=True):
        assert before.uuid == after.uuid
        for name in ("corrected_ever", "uncorrected_ever"):
            assert (getattr(after.ecc, name) or 0) >= (getattr(before.ecc, name) or 0)
        assert (after.millijoules or 0) >= (before.millijoules or 0)


def test_events_are_watched_for_and_none_comes_of_nothing(nvml: Nvml) -> None:
    nvml.devices()
    assert nvml.watch() == ()
    began = time.perf_counter()
    assert nvml.next_events(50) == ()
    assert time.perf_counter() - began >= 0.045
    assert nvml.watch() == ()


def test_events_of_a_closed_library_are_none(nvml: Nvml) -> None:
    nvml.devices()
    nvml.watch()
    nvml.stop()
    with pytest.raises(NvmlClosed):
        nvml.next_events(0)
    with pytest.raises(NvmlClosed):
        nvml.watch()
    nvml.start()
    nvml.devices()
    assert nvml.watch() == ()


@pytest.mark.parametrize("call", ["memory", "processes", "health"])
def test_a_device_that_is_not_there_is_gone(nvml: Nvml, call: str) -> None:
    nvml.devices()
    with pytest.raises(DeviceGone):
        getattr(nvml, call)("GPU-ffffffff-ffff-ffff-ffff-ffffffffffff")


def test_a_library_that_was_closed_says_so_and_can_be_opened_again(nvml: Nvml) -> None:
    uuid = nvml.devices().devices[0].uuid
    nvml.stop()
    with pytest.raises(NvmlClosed):
        nvml.devices()
    with pytest.raises(DeviceGone):
        nvml.memory(uuid)
    nvml.start()
    assert nvml.devices().devices[0].uuid == uuid
    assert nvml.memory(uuid).total_bytes > 0

"""What whoever reads GPUs may rely on: the adapter over a scripted library, and over the driver's own where a GPU is."""

import re
from collections.abc import Iterator

import pytest

from tests.fakes.nvml_library import CONTEXT_BYTES, FakeGpu, FakeLibrary
from warmpool.nodehealth.nvml import DeviceGone, DriverNvml, Nvml, NvmlAbsent, NvmlClosed, driver

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
    nvml = driver()
    try:
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


@pytest.mark.parametrize("call", ["memory", "processes"])
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

"""The adapter over nvidia-ml-py: what NVML's errors, holes and old drivers become."""

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.nvml_library import CONTEXT_BYTES, H200_BYTES, H200_RESERVED, FakeGpu, FakeLibrary
from warmpool.nodehealth.nvml import (
    DeviceGone,
    DriverNvml,
    GpuProcess,
    NvmlAbsent,
    NvmlClosed,
    NvmlError,
    NvmlOutdated,
    NvmlUnsupported,
)

A, B = "GPU-a", "GPU-b"
CODES = {
    name: value
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
}
HELPED_BY_MORE_THAN_TIME = {
    "NVML_ERROR_UNINITIALIZED": NvmlClosed,
    "NVML_ERROR_DRIVER_NOT_LOADED": NvmlClosed,
    "NVML_ERROR_INVALID_ARGUMENT": DeviceGone,
    "NVML_ERROR_NOT_FOUND": DeviceGone,
    "NVML_ERROR_GPU_IS_LOST": DeviceGone,
    "NVML_ERROR_RESET_REQUIRED": DeviceGone,
    "NVML_ERROR_GPU_NOT_FOUND": DeviceGone,
    "NVML_ERROR_NOT_SUPPORTED": NvmlUnsupported,
    "NVML_ERROR_NO_PERMISSION": NvmlUnsupported,
    "NVML_ERROR_FUNCTION_NOT_FOUND": NvmlUnsupported,
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH": NvmlUnsupported,
    "NVML_ERROR_LIBRARY_NOT_FOUND": NvmlAbsent,
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": NvmlOutdated,
}


def opened(*gpus: FakeGpu) -> tuple[DriverNvml, FakeLibrary]:
    library = FakeLibrary(*gpus)
    nvml = DriverNvml(library)
    nvml.start()
    nvml.devices()
    return nvml, library


def test_every_error_of_the_table_is_one_of_nvml() -> None:
    assert set(HELPED_BY_MORE_THAN_TIME) <= set(CODES)
    assert len(CODES) > 25


@pytest.mark.parametrize(("name", "code"), sorted(CODES.items()))
def test_each_error_becomes_the_one_that_says_what_helps(name: str, code: int) -> None:
    nvml, library = opened(FakeGpu(A))
    library.fail("nvmlDeviceGetMemoryInfo", code)
    with pytest.raises(NvmlError) as caught:
        nvml.memory(A)
    assert type(caught.value) is HELPED_BY_MORE_THAN_TIME.get(name, NvmlError)
    assert caught.value.code == code
    assert f"NVML error {code}" in str(caught.value)


def test_used_memory_is_what_processes_use_and_not_what_the_driver_keeps() -> None:
    nvml, _ = opened(FakeGpu(A))
    memory = nvml.memory(A)
    assert (memory.used_bytes, memory.reserved_bytes) == (0, H200_RESERVED)


def test_an_older_driver_says_less_of_memory_and_everything_of_processes() -> None:
    nvml, library = opened(FakeGpu(A, processes={7: CONTEXT_BYTES}))
    library.old = True
    memory = nvml.memory(A)
    assert (memory.used_bytes, memory.reserved_bytes) == (CONTEXT_BYTES + H200_RESERVED, None)
    assert nvml.processes(A) == (GpuProcess(7, CONTEXT_BYTES),)


@pytest.mark.parametrize("size", [None, 2**64 - 1, 2**63])
def test_a_size_that_the_driver_does_not_know_is_unknown_and_not_a_number(size: int | None) -> None:
    nvml, _ = opened(FakeGpu(A, processes={7: size}))
    assert nvml.processes(A) == (GpuProcess(7, None),)


@pytest.mark.parametrize(
    ("compute", "graphics", "held"),
    [(5, 5, 5), (5, 9, 9), (None, 5, 5), (5, None, 5), (None, None, None)],
)
def test_a_process_that_computes_and_draws_holds_its_memory_once(
    compute: int | None, graphics: int | None, held: int | None
) -> None:
    nvml, _ = opened(FakeGpu(A, processes={7: compute}, graphics={7: graphics}))
    assert nvml.processes(A) == (GpuProcess(7, held),)


@pytest.mark.parametrize("kind", ["Graphics", "MPSCompute"])
def test_a_device_that_knows_no_drawing_still_tells_who_computes(kind: str) -> None:
    nvml, library = opened(FakeGpu(A, processes={7: 1}))
    library.fail(f"nvmlDeviceGet{kind}RunningProcesses_v3", pynvml.NVML_ERROR_NOT_SUPPORTED)
    library.fail(f"nvmlDeviceGet{kind}RunningProcesses_v2", pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert nvml.processes(A) == (GpuProcess(7, 1),)


def test_a_device_that_does_not_tell_who_computes_tells_nothing() -> None:
    nvml, library = opened(FakeGpu(A, graphics={7: 1}))
    library.fail("nvmlDeviceGetComputeRunningProcesses_v3", pynvml.NVML_ERROR_NO_PERMISSION)
    library.fail("nvmlDeviceGetComputeRunningProcesses_v2", pynvml.NVML_ERROR_NO_PERMISSION)
    with pytest.raises(NvmlUnsupported):
        nvml.processes(A)


def test_a_list_that_grew_while_it_was_read_is_read_again() -> None:
    nvml, library = opened(FakeGpu(A, processes={7: 1}))
    library.fail(
        "nvmlDeviceGetComputeRunningProcesses_v3", pynvml.NVML_ERROR_INSUFFICIENT_SIZE, uuid=A, times=3
    )
    assert nvml.processes(A) == (GpuProcess(7, 1),)


def test_a_list_that_never_stops_growing_is_given_up() -> None:
    nvml, library = opened(FakeGpu(A))
    library.fail("nvmlDeviceGetComputeRunningProcesses_v3", pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    with pytest.raises(NvmlError, match="grew faster"):
        nvml.processes(A)


@given(
    st.permutations(
        [("GPU-1", "00000000:07:00.0"), ("GPU-2", "00000000:17:00.0"), ("GPU-3", "00000001:07:00.0")]
    )
)
def test_devices_are_in_the_order_of_their_addresses(order: list[tuple[str, str]]) -> None:
    nvml, _ = opened(*(FakeGpu(uuid, bus_id=bus) for uuid, bus in order))
    assert [device.uuid for device in nvml.devices().devices] == ["GPU-1", "GPU-2", "GPU-3"]


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"])
def test_a_lost_gpu_leaves_the_others_readable(function: str) -> None:
    nvml, library = opened(FakeGpu(A), FakeGpu(B))
    library.fail(function, pynvml.NVML_ERROR_GPU_IS_LOST, uuid=A)
    listing = nvml.devices()
    assert [device.uuid for device in listing.devices] == [B]
    assert listing.unreadable == ("GPU 0: GPU is lost (NVML error 15)",)


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetName", "nvmlDeviceGetPciInfo", "nvmlDeviceGetMinorNumber"]
)
def test_what_a_device_does_not_tell_of_itself_is_left_out(function: str) -> None:
    nvml, library = opened(FakeGpu(A))
    library.fail(function, pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert [device.uuid for device in nvml.devices().devices] == [A]


def test_a_gpu_in_mig_mode_comes_before_its_parts_in_the_order_of_instances() -> None:
    parts = {
        0: FakeGpu("MIG-2", instance=(2, 0)),
        3: FakeGpu("MIG-1", instance=(1, 1)),
        5: FakeGpu("MIG-0", instance=(1, 0)),
    }
    nvml, _ = opened(FakeGpu(A, mig=True, parts=parts))
    devices = nvml.devices().devices
    assert [(device.uuid, device.parent) for device in devices] == [
        (A, ""),
        ("MIG-0", A),
        ("MIG-1", A),
        ("MIG-2", A),
    ]
    assert [device.partitioned for device in devices] == [True, False, False, False]


def test_a_mig_device_has_memory_and_processes_of_its_own() -> None:
    part = FakeGpu("MIG-0", processes={7: 5}, total=1000, reserved=10)
    nvml, _ = opened(FakeGpu(A, mig=True, parts={0: part}))
    assert nvml.memory("MIG-0").total_bytes == 1000
    assert nvml.processes("MIG-0") == (GpuProcess(7, 5),)
    assert nvml.memory(A).total_bytes == H200_BYTES


def test_a_handle_of_before_a_restart_is_not_used_again() -> None:
    nvml, library = opened(FakeGpu(A))
    library.nvmlInit()
    with pytest.raises(DeviceGone):
        nvml.memory(A)
    nvml.devices()
    assert nvml.memory(A).total_bytes == H200_BYTES

"""GPUs that are kept initialised on a real driver: by open device files, which are no context; and probes that make none either."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from warmpool.nodehealth.keeping import DeviceKeeper, kept_open
from warmpool.nodehealth.lanes import Lane
from warmpool.nodehealth.nvml import NvmlError, driver

_CONTEXT = """
import ctypes, time
driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
began = time.monotonic()
assert driver.cuInit(0) == 0
initialised = time.monotonic()
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
print(initialised - began, time.monotonic() - initialised)
"""


def _no_gpu() -> str:
    try:
        nvml = driver()
        nvml.start()
    except NvmlError as error:
        return str(error)
    nvml.stop()
    return "" if list(Path("/dev").glob("nvidia[0-9]*")) else "there is no device file in /dev"


REASON = _no_gpu()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(REASON), reason=f"needs a GPU: {REASON}")]


def contexts() -> dict[str, tuple[int, frozenset[int]]]:
    """Each GPU's used memory, and the processes that have a context there."""
    nvml = driver()
    nvml.start()
    try:
        return {
            device.uuid: (
                nvml.memory(device.uuid).used_bytes,
                frozenset(each.pid for each in nvml.processes(device.uuid)),
            )
            for device in nvml.devices().devices
        }
    finally:
        nvml.stop()


def say(text: str) -> None:
    sys.stdout.write(f"\n  {text}")
    sys.stdout.flush()


def test_an_open_device_file_makes_no_context_and_takes_no_memory() -> None:
    before = contexts()
    with kept_open() as paths:
        assert paths
        during = contexts()
    for uuid, (used, processes) in during.items():
        assert processes == before[uuid][1]
        assert used <= before[uuid][0] + 2**20


async def test_the_keeper_holds_every_listed_gpu_and_makes_no_context() -> None:
    nvml = driver()
    nvml.start()
    listed = nvml.devices().devices
    nvml.stop()
    before = contexts()
    keeper = DeviceKeeper(lambda: listed, lambda name: Lane(name, lambda: None), lambda lane: lane.close())
    await keeper.look()
    try:
        assert list(keeper.held) == sorted(
            each.minor for each in listed if each.minor is not None and not each.parent
        )
        during = contexts()
        assert {uuid: processes for uuid, (_, processes) in during.items()} == {
            uuid: processes for uuid, (_, processes) in before.items()
        }
    finally:
        keeper.let_go()


def test_the_probe_of_a_cold_start_makes_no_context() -> None:
    from warmpool.coldstart.measure import INITIALISE  # noqa: PLC0415 (collected where there is no GPU, too)

    waiting = INITIALISE.replace("sys.exit(4 if failed else 0)", "input()")
    assert waiting != INITIALISE
    before = contexts()
    with subprocess.Popen(
        [sys.executable, "-u", "-c", waiting], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert float(process.stdout.readline()) >= 0.0
        during = contexts()
        process.communicate("\n")
    for uuid, (used, processes) in during.items():
        assert processes == before[uuid][1]
        assert used <= before[uuid][0] + 16 * 2**20


def test_the_ids_of_devices_are_told_without_a_context() -> None:
    script = (
        "from loader.cuda.driver import device_uuids; import ctypes; uuids = device_uuids(); flags = ctypes.c_uint();"
        "active = ctypes.c_int(); ctypes.CDLL('libcuda.so.1').cuDevicePrimaryCtxGetState("
        "0, ctypes.byref(flags), ctypes.byref(active)); print(len(uuids), active.value)"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    count, active = told.stdout.split()
    assert int(count) >= 1
    assert active == "0"


def test_what_keeping_gives_is_shown() -> None:
    """A figure, and no limit: with persistence mode, or with another process on the GPU, nothing is gained."""
    for kept in (False, True, False, True):
        with kept_open() if kept else nullcontext():
            time_of = subprocess.run(
                [sys.executable, "-c", _CONTEXT], capture_output=True, text=True, check=True
            ).stdout.split()
        initialised, context = map(float, time_of)
        say(f"held open {kept!s:5}: cuInit {initialised:.3f} s, context {context:.3f} s")
        assert context > 0.0

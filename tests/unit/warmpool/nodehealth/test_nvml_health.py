"""A GPU's health through the adapter: what each part of NVML becomes, and that nothing unknown is a number."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest
from pynvml import NVMLError

from tests.fakes.nvml_library import FakeGpu, FakeHealth, FakeLibrary
from warmpool.nodehealth.nvml import DeviceGone, DriverEvent, DriverNvml, NvmlClosed
from warmpool.nodehealth.nvml_health import EVENTS, FIELDS, WANTED
from warmpool.nodehealth.readings import (
    Clocks,
    Contact,
    Ecc,
    Fabric,
    FabricState,
    GpuReading,
    Links,
    Pages,
    Pcie,
    Rows,
    SpareRows,
    Told,
)

A, B = "GPU-a", "GPU-b"
RECORDED = json.loads((Path(__file__).resolve().parents[3] / "data/nvml/h200-driver-580.json").read_text())
CODES = {
    name: value
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
}
HEALTH = [name for name in vars(FakeLibrary) if name.startswith("nvmlDeviceGet") and "Process" not in name]
NONE = FakeHealth(
    ecc_mode=None,
    ecc=None,
    located={},
    sram_exceeded=None,
    rows=None,
    histogram=None,
    repair=None,
    reasons=None,
    celsius=None,
    thresholds={},
    milliwatts=None,
    limit_milliwatts=None,
    pcie=None,
    replays=None,
    fields={},
    events=0,
)
"""A GPU that tells nothing."""


def opened(*gpus: FakeGpu) -> tuple[DriverNvml, FakeLibrary]:
    library = FakeLibrary(*gpus)
    nvml = DriverNvml(library)
    nvml.start()
    nvml.devices()
    return nvml, library


def read(health: FakeHealth) -> GpuReading:
    nvml, _ = opened(FakeGpu(A, health=health))
    return nvml.health(A)


# ---------------------------------------------------------------------- as a real GPU did


def _plain(value: Any) -> Any:
    return {name: getattr(value, name) for name in vars(value)} if hasattr(value, "__dict__") else value


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(each, id=f"{each['name']}{each['args'][1:]}")
        for each in RECORDED["calls"]
        if each["name"] in HEALTH
        and each["args"][:1] == ["device"]
        and each["name"]
        not in {
            "nvmlDeviceGetUUID",
            "nvmlDeviceGetPciInfo",
            "nvmlDeviceGetMemoryInfo",
            "nvmlDeviceGetSramEccErrorStatus",
        }
    ],
)
def test_the_fake_answers_as_a_real_gpu_did(call: dict[str, Any]) -> None:
    library = FakeLibrary(FakeGpu(A))
    library.nvmlInit()
    handle = library.nvmlDeviceGetHandleByIndex(0)
    function = getattr(library, call["name"])
    if "code" in call:
        with pytest.raises(NVMLError) as caught:
            function(handle, *call["args"][1:])
        assert caught.value.value == call["code"]
        return
    found = _plain(function(handle, *call["args"][1:]))
    assert (list(found) if isinstance(found, tuple) else found) == call["value"]


@pytest.mark.parametrize("number", sorted(FIELDS.values()))
def test_the_fakes_fields_are_those_of_a_real_gpu(number: int) -> None:
    library = FakeLibrary(FakeGpu(A))
    library.nvmlInit()
    (found,) = library.nvmlDeviceGetFieldValues(library.nvmlDeviceGetHandleByIndex(0), [number])
    recorded = next(each for each in RECORDED["fields"] if each["id"] == number)
    assert found.nvmlReturn == recorded["nvmlReturn"]
    if not found.nvmlReturn:
        assert found.valueType == recorded["valueType"]


def test_a_healthy_h200_reads_as_one() -> None:
    found = read(FakeHealth())
    assert found == GpuReading(
        uuid=A,
        bus_id="00000000:00:06.0",
        recovery=0,
        ecc=Ecc(
            enabled=True,
            corrected=0,
            uncorrected=0,
            corrected_ever=0,
            uncorrected_ever=0,
            dram_uncorrected=0,
            sram_uncorrected=0,
            sram_threshold_exceeded=False,
        ),
        rows=Rows(correctable=0, uncorrectable=0, pending=False, failure=False),
        spare_rows=SpareRows(all=3072, high=0, partial=0, low=0, none=0),
        repair_pending=False,
        clocks=Clocks.IDLE,
        celsius=31,
        memory_celsius=31,
        slowdown_celsius=89,
        watts=117.994,
        limit_watts=700.0,
        pcie=Pcie(width=16, most_width=16, generation=5, most_generation=5, replays=1),
        millijoules=3_186_864,
    )


# ---------------------------------------------------------------------- parts


def test_a_gpu_that_tells_nothing_is_unknown_in_everything_and_answers() -> None:
    assert read(NONE) == GpuReading(uuid=A, bus_id="00000000:00:06.0")


@pytest.mark.parametrize(
    ("health", "found", "expected"),
    [
        (FakeHealth(rows=(7, 5, 1, 0)), lambda r: r.rows, Rows(correctable=7, uncorrectable=5, pending=True, failure=False)),
        (FakeHealth(rows=(0, 0, 0, 1)), lambda r: r.rows, Rows(correctable=0, uncorrectable=0, pending=False, failure=True)),
        (
            FakeHealth(histogram=(60, 1, 1, 1, 1)),
            lambda r: r.spare_rows,
            SpareRows(all=64, high=1, partial=1, low=1, none=1),
        ),
        (FakeHealth(sram_exceeded=1), lambda r: r.ecc.sram_threshold_exceeded, True),
        (FakeHealth(ecc_mode=[0, 1]), lambda r: r.ecc.enabled, False),
        (
            FakeHealth(ecc={(0, 0): 1, (1, 0): 2, (0, 1): 3, (1, 1): 4}),
            lambda r: (r.ecc.corrected, r.ecc.uncorrected, r.ecc.corrected_ever, r.ecc.uncorrected_ever),
            (1, 2, 3, 4),
        ),
        (FakeHealth(repair=[0, 1]), lambda r: r.repair_pending, True),
        (FakeHealth(reasons=0x1C4), lambda r: r.clocks, Clocks.POWER_CAP | Clocks.HARDWARE_THERMAL | Clocks.POWER_BRAKE),
        (FakeHealth(pcie=(4, 5, 8, 16), replays=None), lambda r: r.pcie, Pcie(width=8, most_width=16, generation=4, most_generation=5)),
        (FakeHealth(fields={230: (1, 2)}), lambda r: r.recovery, 2),
        (FakeHealth(fields={83: (3, 2**64 - 1)}), lambda r: r.millijoules, None),
        (FakeHealth(fields={82: (5, -1)}), lambda r: r.memory_celsius, None),
        (
            FakeHealth(fields={29: (3, 3), 30: (3, 1), 31: (3, 1)}),
            lambda r: r.pages,
            Pages(corrected=3, uncorrected=1, pending=True),
        ),
        (FakeHealth(links=[1] * 17 + [0], link_errors=2), lambda r: r.links, Links(active=17, inactive=1, errors=36)),
        (
            FakeHealth(links=[1] * 36, fields={214: (1, 3)}),
            lambda r: r.links,
            Links(active=36, inactive=0, failed_recoveries=3),
        ),
        (FakeHealth(links=[]), lambda r: r.links, None),
        (FakeHealth(fabric=(3, 0, 0)), lambda r: r.fabric, Fabric(state=FabricState.COMPLETED)),
        (FakeHealth(fabric=(2, 0, 0)), lambda r: r.fabric, Fabric(state=FabricState.IN_PROGRESS)),
        (FakeHealth(fabric=(9, 0, 0)), lambda r: r.fabric, None),
        (FakeHealth(fabric=(3, 0, 0b10_10_10_10)), lambda r: r.fabric, Fabric(state=FabricState.COMPLETED)),
        (
            FakeHealth(fabric=(3, 5, 0b101_01_01_01_01)),
            lambda r: r.fabric.ailments,
            (
                "degraded bandwidth",
                "a route is being recovered",
                "a route is unhealthy",
                "accesses time out",
                "it is configured wrongly (kind 5)",
                "joining ended with error 5",
            ),
        ),
    ],
)  # fmt: skip
def test_each_part_is_read(health: FakeHealth, found: Callable[[GpuReading], Any], expected: object) -> None:
    reading = read(health)
    assert found(reading) == expected
    assert (reading.contact, reading.reason) == (Contact.ANSWERS, "")


def test_an_older_driver_tells_of_throttling_by_its_older_name() -> None:
    nvml, library = opened(FakeGpu(A))
    library.old = True
    assert nvml.health(A).clocks is Clocks.IDLE


def test_an_older_library_lacks_structures_and_reads_the_rest() -> None:
    nvml, library = opened(FakeGpu(A, health=FakeHealth(fabric=(3, 0, 0))))
    del library.__class__.nvmlGpuFabricInfo_v2
    try:
        found = nvml.health(A)
    finally:
        library.__class__.nvmlGpuFabricInfo_v2 = pynvml.nvmlGpuFabricInfo_v2
    assert (found.fabric, found.celsius) == (None, 31)


# ---------------------------------------------------------------------- failures

PARTS = sorted(name for name in HEALTH if name not in {
    *("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMinorNumber"),
    *("nvmlDeviceGetPciInfo", "nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"),
    *("nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetSupportedEventTypes"),
    "nvmlDeviceGetCurrentClocksThrottleReasons",  # only older drivers are asked
    "nvmlDeviceGetNvLinkErrorCounter",  # only GPUs with links
})  # fmt: skip


@pytest.mark.parametrize("function", PARTS)
@pytest.mark.parametrize(("name", "code"), sorted(CODES.items()))
def test_a_part_that_fails_with_any_error_leaves_the_others_readable(
    function: str, name: str, code: int
) -> None:
    nvml, library = opened(FakeGpu(A))
    library.fail(function, code)
    found = nvml.health(A)
    gone = {"NVML_ERROR_GPU_IS_LOST": Contact.LOST, "NVML_ERROR_RESET_REQUIRED": Contact.RESET_REQUIRED}
    assert found.contact is gone.get(name, Contact.ANSWERS)
    quiet = {"NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_NO_PERMISSION", "NVML_ERROR_FUNCTION_NOT_FOUND"}
    if name not in {*quiet, *gone, "NVML_ERROR_ARGUMENT_VERSION_MISMATCH", "NVML_ERROR_INVALID_ARGUMENT"}:
        assert f"NVML error {code}" in found.reason


@pytest.mark.parametrize(
    ("code", "contact"),
    [
        (pynvml.NVML_ERROR_UNKNOWN, Contact.SILENT),
        (pynvml.NVML_ERROR_GPU_IS_LOST, Contact.LOST),
        (pynvml.NVML_ERROR_RESET_REQUIRED, Contact.RESET_REQUIRED),
        (pynvml.NVML_ERROR_INVALID_ARGUMENT, Contact.SILENT),
    ],
)
def test_a_gpu_of_which_every_call_fails_is_silent_or_lost(code: int, contact: Contact) -> None:
    nvml, library = opened(FakeGpu(A))
    for function in PARTS:
        library.fail(function, code)
    library.fail("nvmlDeviceGetCurrentClocksThrottleReasons", code)
    found = nvml.health(A)
    assert found.contact is contact
    assert found == GpuReading(uuid=A, bus_id=found.bus_id, contact=contact, reason=found.reason)


def test_a_gpu_that_is_not_listed_is_gone() -> None:
    nvml, _ = opened(FakeGpu(A))
    with pytest.raises(DeviceGone):
        nvml.health(B)


def test_a_gpu_in_mig_mode_is_read_as_a_whole() -> None:
    nvml, _ = opened(FakeGpu(A, mig=True, parts={0: FakeGpu("MIG-0")}))
    assert nvml.health(A).celsius == 31


@pytest.mark.parametrize(
    ("code", "silent"), [(pynvml.NVML_ERROR_UNKNOWN, 1), (pynvml.NVML_ERROR_GPU_IS_LOST, 0)]
)
def test_a_listing_says_how_many_gpus_are_there_and_do_not_say_who_they_are(code: int, silent: int) -> None:
    nvml, library = opened(FakeGpu(A), FakeGpu(B))
    library.fail("nvmlDeviceGetUUID", code, uuid=A)
    assert nvml.devices().silent == silent


# ---------------------------------------------------------------------- events


@pytest.mark.parametrize(("kind", "told"), sorted(EVENTS.items()))
def test_events_are_told_with_their_gpu(kind: int, told: Told) -> None:
    first, second = FakeGpu(A), FakeGpu(B)
    nvml, library = opened(first, second)
    assert nvml.watch() == ()
    assert library.emit(second, kind, 79) == 1
    assert nvml.next_events(1000) == (DriverEvent(B, told, 79 if told is Told.XID else 0),)
    assert nvml.next_events(0) == ()


def test_an_older_driver_is_asked_for_the_events_that_it_has() -> None:
    nvml, library = opened(FakeGpu(A, health=replace(FakeHealth(), events=0xF)), FakeGpu(B, health=NONE))
    assert nvml.watch() == (f"{B}: its driver tells of no events",)
    assert library.watched == {A}
    assert library.emit(library.gpus[0], 0x8000) == 0
    assert library.emit(library.gpus[0], 0x8, 13) == 1


def test_a_gpu_that_cannot_be_watched_leaves_the_others_watched() -> None:
    nvml, library = opened(FakeGpu(A), FakeGpu(B))
    library.fail("nvmlDeviceRegisterEvents", pynvml.NVML_ERROR_GPU_IS_LOST, uuid=A)
    assert nvml.watch() == (f"{A}: GPU is lost (NVML error 15)",)
    assert library.watched == {B}


def test_watching_again_ends_what_was_watched_before() -> None:
    nvml, library = opened(FakeGpu(A))
    nvml.watch()
    nvml.watch()
    assert library.emit(library.gpus[0], 0x8, 79) == 1


def test_an_event_of_a_gpu_that_cannot_be_named_is_about_none() -> None:
    nvml, library = opened(FakeGpu(A))
    nvml.watch()
    library.emit(library.gpus[0], 0x8, 79)
    library.fail("nvmlDeviceGetUUID", pynvml.NVML_ERROR_GPU_IS_LOST)
    assert nvml.next_events(0) == (DriverEvent("", Told.XID, 79),)


def test_a_reloaded_driver_has_to_be_watched_anew() -> None:
    nvml, library = opened(FakeGpu(A))
    with pytest.raises(NvmlClosed):
        nvml.next_events(0)
    nvml.watch()
    library.reload()
    with pytest.raises(NvmlClosed):
        nvml.next_events(0)
    with pytest.raises(NvmlClosed):
        nvml.watch()
    nvml.start()
    nvml.devices()
    nvml.watch()
    assert library.watched == {A}


def test_what_is_asked_to_be_told_is_what_is_understood() -> None:
    assert WANTED == 0xFE0A
    assert set(EVENTS.values()) == set(Told)

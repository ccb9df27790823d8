"""One reading for all who ask, a driver that hangs, dies and comes back. In real time: NVML's threads know no other."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pynvml
import pytest

from tests.fakes.nvml_library import FakeGpu, FakeLibrary
from tests.fakes.proc_tree import ProcTree
from warmpool.nodehealth.account import Reading
from warmpool.nodehealth.nvml import DriverNvml
from warmpool.nodehealth.proc_files import ProcFiles
from warmpool.nodehealth.processes import Identity
from warmpool.nodehealth.reader import DriverState, Limits, Outcome, Reader, TooSlow

A, B = "GPU-a", "GPU-b"
WAIT_SECONDS = 10.0
PATIENT = Limits(answer_seconds=WAIT_SECONDS)
"""No machine is so busy that what isn't scripted to hang would look as if it did."""
QUICK = Limits(hang_seconds=0.01)
MEMORY = "nvmlDeviceGetMemoryInfo"
LIST = "nvmlDeviceGetComputeRunningProcesses_v3"


class Tally:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def read(self, seconds: float) -> None:
        assert seconds >= 0
        self.counts["read"] += 1

    def called(self, outcome: Outcome) -> None:
        self.counts[outcome] += 1

    def hung(self) -> None:
        self.counts["hung"] += 1

    def started(self) -> None:
        self.counts["started"] += 1


class Rig:
    """A reader over a scripted library, running."""

    def __init__(self, reader: Reader, library: FakeLibrary, tally: Tally) -> None:
        self.reader = reader
        self.library = library
        self.counts = tally.counts

    async def read(self, *, oldest: float = 0.0, seconds: float = WAIT_SECONDS) -> Reading:
        return await self.reader.read(max_age_seconds=oldest, seconds=seconds)

    async def until(self, found: Callable[[Reading], bool]) -> Reading:
        async with asyncio.timeout(WAIT_SECONDS):
            while not found(reading := await self.read()):
                await asyncio.sleep(0.005)
        return reading


@asynccontextmanager
async def running(
    tree: ProcTree, *gpus: FakeGpu, limits: Limits = PATIENT, library: FakeLibrary | None = None
) -> AsyncIterator[Rig]:
    tally, library = Tally(), library or FakeLibrary(*gpus)
    reader = Reader(DriverNvml(library), ProcFiles(tree.root), tally, limits)
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(reader.run())
        await asyncio.wait_for(reader.settled.wait(), WAIT_SECONDS)
        try:
            yield Rig(reader, library, tally)
        finally:
            run.cancel()


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path / "proc")


def is_known(reading: Reading, uuid: str) -> bool:
    return any(each.device.uuid == uuid and each.memory is not None for each in reading.devices)


async def test_a_reading_has_all_devices_and_knows_their_processes(tree: ProcTree) -> None:
    tree.add(7)
    async with running(tree, FakeGpu(A, processes={7: 5}), FakeGpu(B)) as rig:
        reading = await rig.read()
    assert [each.device.uuid for each in reading.devices] == [A, B]
    assert isinstance(reading.look[7], Identity)
    assert (reading.sees_all, reading.reason) == (True, "")
    assert rig.counts == {"started": 1, "read": 1, Outcome.DONE: 2}


async def test_all_who_ask_at_once_share_one_reading(tree: ProcTree) -> None:
    async with running(tree, FakeGpu(A)) as rig:
        readings = await asyncio.gather(*(rig.read() for _ in range(50)))
        assert len({id(reading) for reading in readings}) == 1
        assert rig.library.calls.count(MEMORY) == 1


async def test_a_reading_that_is_young_enough_is_used_again(tree: ProcTree) -> None:
    async with running(tree, FakeGpu(A)) as rig:
        first = await rig.read()
        assert await rig.read(oldest=60) is first
        assert await rig.read() is not first


async def test_whoever_asks_during_a_reading_and_wants_it_younger_gets_the_next(tree: ProcTree) -> None:
    async with running(tree, FakeGpu(A)) as rig:
        with rig.library.hanging(MEMORY) as release:
            first = asyncio.gather(rig.read())
            while MEMORY not in rig.library.calls:
                await asyncio.sleep(0.001)
            asked_at = asyncio.get_running_loop().time()
            second = asyncio.gather(rig.read())
            await asyncio.sleep(0)
            release()
            (early,), (late,) = await first, await second
    assert early.began_at < asked_at <= late.began_at


@pytest.mark.wall_clock
async def test_a_gpu_that_hangs_is_unknown_and_delays_nobody(tree: ProcTree) -> None:
    async with running(tree, FakeGpu(A), FakeGpu(B), limits=Limits()) as rig:
        with rig.library.hanging(MEMORY, uuid=A):
            reading = await rig.read()
            assert not is_known(reading, A)
            assert is_known(reading, B)
            assert f"{A}: a call has not returned" in reading.devices[0].reason
            began = time.perf_counter()
            for _ in range(10):
                assert is_known(await rig.read(), B)
            assert time.perf_counter() - began < 0.25  # one that hangs is not waited for again
            assert rig.library.most_at_once[A] == 1
            assert rig.counts[Outcome.BUSY] == 11


async def test_a_gpu_that_hung_and_returned_is_known_again(tree: ProcTree) -> None:
    async with running(tree, FakeGpu(A), limits=QUICK) as rig:
        with rig.library.hanging(LIST, uuid=A):
            await rig.read()
            async with asyncio.timeout(WAIT_SECONDS):
                while not rig.reader.hanging:
                    await asyncio.sleep(0.005)
            assert rig.reader.hanging == [A]
        await rig.until(lambda reading: is_known(reading, A))
        assert rig.reader.hanging == []
        assert rig.counts["hung"] == 1


async def test_who_cannot_wait_any_longer_is_told_what_is_waited_for(tree: ProcTree) -> None:
    library = FakeLibrary(FakeGpu(A))
    tally = Tally()
    reader = Reader(DriverNvml(library), ProcFiles(tree.root), tally, PATIENT)
    with library.hanging("nvmlInit"):
        async with asyncio.TaskGroup() as tasks:
            run = tasks.create_task(reader.run())
            with pytest.raises(TooSlow, match="being initialised"):
                await reader.read(max_age_seconds=0, seconds=0.01)
            assert not reader.settled.is_set()
            run.cancel()


@pytest.mark.parametrize(
    ("code", "state", "without"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, DriverState.CLOSED, True),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, DriverState.CLOSED, True),
        (pynvml.NVML_ERROR_UNKNOWN, DriverState.CLOSED, False),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, DriverState.OUTDATED, False),
    ],
)
async def test_a_driver_that_does_not_open_says_why(
    tree: ProcTree, code: int, state: DriverState, *, without: bool
) -> None:
    library = FakeLibrary(FakeGpu(A))
    library.fail("nvmlInit", code)
    async with running(tree, library=library) as rig:
        reading = await rig.read()
        assert (reading.devices, rig.reader.state) == ((), state)
        assert f"NVML error {code}" in reading.reason
        assert rig.reader.without_gpu is without


async def test_a_machine_whose_driver_lists_no_gpu_has_none(tree: ProcTree) -> None:
    async with running(tree) as rig:
        assert rig.reader.state is DriverState.OPEN
        assert rig.reader.without_gpu


async def test_a_machine_whose_only_gpu_is_lost_is_not_one_without(tree: ProcTree) -> None:
    library = FakeLibrary(FakeGpu(A))
    library.fail("nvmlDeviceGetHandleByIndex", pynvml.NVML_ERROR_GPU_IS_LOST)
    async with running(tree, library=library) as rig:
        assert not rig.reader.without_gpu
        assert rig.reader.listing.unreadable == ("GPU 0: GPU is lost (NVML error 15)",)


async def test_a_reloaded_driver_is_opened_again(tree: ProcTree) -> None:
    async with running(tree, FakeGpu(A)) as rig:
        assert is_known(await rig.read(), A)
        rig.library.reload()
        closed = await rig.read()
        assert not is_known(closed, A)
        assert "Uninitialized" in closed.reason
        await rig.until(lambda reading: is_known(reading, A))
        assert rig.counts["started"] == 2
        assert not rig.reader.reason


async def test_a_driver_is_not_opened_again_while_a_call_hangs_in_it(tree: ProcTree) -> None:
    async with running(tree, FakeGpu(A), FakeGpu(B), limits=QUICK) as rig:
        with rig.library.hanging(MEMORY, uuid=A):
            await rig.read()
            rig.library.reload()
            await rig.read()
            loop = asyncio.get_running_loop()
            after_the_pause = loop.time() + 0.3
            while loop.time() < after_the_pause:
                assert not is_known(await rig.read(), B)
                assert rig.library.calls.count("nvmlInit") == 1
                assert "nvmlShutdown" not in rig.library.calls
        await rig.until(lambda reading: is_known(reading, A))


async def test_an_outdated_library_is_not_asked_any_more(tree: ProcTree) -> None:
    async with running(tree, FakeGpu(A)) as rig:
        rig.library.fail(MEMORY, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
        await rig.read()
        asked = len(rig.library.calls)
        reading = await rig.read()
        assert rig.reader.state is DriverState.OUTDATED
        assert ([each.memory for each in reading.devices], len(rig.library.calls)) == ([None], asked)


async def test_a_lost_gpu_is_unknown_and_the_devices_are_listed_again(tree: ProcTree) -> None:
    async with running(tree, FakeGpu(A), FakeGpu(B)) as rig:
        for function in (MEMORY, "nvmlDeviceGetHandleByIndex"):
            rig.library.fail(function, pynvml.NVML_ERROR_GPU_IS_LOST, uuid=A)
        reading = await rig.read()
        assert not is_known(reading, A)
        assert is_known(reading, B)
        await rig.until(lambda _: bool(rig.reader.listing.unreadable))
        assert [each.device.uuid for each in (await rig.read()).devices] == [B]


async def test_a_listing_that_hangs_keeps_nobody_from_reading_the_devices_that_are_known(
    tree: ProcTree,
) -> None:
    async with running(tree, FakeGpu(A), FakeGpu(B)) as rig:
        with rig.library.hanging("nvmlDeviceGetCount"):
            rig.library.fail(MEMORY, pynvml.NVML_ERROR_GPU_IS_LOST, uuid=A, times=1)
            await rig.read()
            await rig.until(lambda _: rig.library.calls.count("nvmlDeviceGetCount") == 2)
            for _ in range(3):
                assert is_known(await rig.read(), B)
            assert rig.library.calls.count("nvmlDeviceGetCount") == 2


async def test_totals_are_told_where_processes_are_not(tree: ProcTree) -> None:
    async with running(tree, FakeGpu(A)) as rig:
        for version in ("v2", "v3"):
            rig.library.fail(
                f"nvmlDeviceGetComputeRunningProcesses_{version}", pynvml.NVML_ERROR_NOT_SUPPORTED
            )
        (read,) = (await rig.read()).devices
        assert read.memory is not None
        assert read.processes is None
        assert "Not Supported" in read.reason


async def test_a_gpu_in_mig_mode_has_the_processes_of_its_parts(tree: ProcTree) -> None:
    for pid in (7, 8):
        tree.add(pid)
    parts = {
        0: FakeGpu("MIG-0", processes={7: 5}),
        1: FakeGpu("MIG-1", processes={7: 3, 8: None}, instance=(2, 0)),
    }
    async with running(tree, FakeGpu(A, mig=True, parts=parts)) as rig:
        whole, *_ = (await rig.read()).devices
    assert whole.processes is not None
    assert {each.pid: each.held_bytes for each in whole.processes} == {7: 8, 8: None}


async def test_a_part_that_fails_makes_its_gpu_unknown_and_no_other_part(tree: ProcTree) -> None:
    parts = {0: FakeGpu("MIG-0"), 1: FakeGpu("MIG-1", instance=(2, 0))}
    async with running(tree, FakeGpu(A, mig=True, parts=parts)) as rig:
        rig.library.fail(LIST, pynvml.NVML_ERROR_UNKNOWN, uuid="MIG-0")
        whole, first, second = (await rig.read()).devices
    assert (whole.processes, first.processes, second.processes) == (None, None, ())
    assert whole.reason == first.reason != ""


async def test_threads_are_as_many_as_gpus_and_two(tree: ProcTree) -> None:
    before = set(threading.enumerate())  # others' threads may end meanwhile
    async with running(tree, FakeGpu(A), FakeGpu(B)) as rig:
        for _ in range(20):
            await rig.read()
        assert len(set(threading.enumerate()) - before) == 4

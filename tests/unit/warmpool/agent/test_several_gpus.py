"""A seat with several GPUs: what its residents take is budgeted on each of them, for one can't take what another has too much of."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.unit.warmpool.agent.rig import GIB, FakeEngine, Machine, config, live, paused, resident
from warmpool.agent.equipment import Equipment
from warmpool.engines.deadline import Deadline
from warmpool.errors import NoRoom
from warmpool.nodehealth.client import GpuMemory, SeatMemory
from warmpool.states import Depth

pytestmark = pytest.mark.looptime
GPUS = ("GPU-0", "GPU-1")


@dataclass
class TwoGpus(Machine):
    """A device of two equal halves, each with what others hold there, over which each engine is spread: evenly, unless told otherwise."""

    others: tuple[int, int] = (0, 0)
    uneven: dict[str, int] = field(default_factory=dict)
    """Bytes that an engine holds on the first GPU more than on the second, by name."""

    async def read(self, gpus: Sequence[str], *, deadline: Deadline) -> SeatMemory:
        whole = await super().read(gpus, deadline=deadline)
        now, half = asyncio.get_running_loop().time(), self.total // 2
        alive = [each for each in self.processes if not each.exited]
        found = []
        for place, (gpu, others) in enumerate(zip(GPUS, self.others, strict=True)):
            held = {}
            for each in alive:
                more = self.uneven.get(each.name, 0) * (1 if place == 0 else -1)
                held["", each.pid] = (each.engine.held(now) + more) // 2
            free = half - others - sum(held.values())
            told = held if self.measures else {}
            found.append(GpuMemory(uuid=gpu, total_bytes=half, free_bytes=free, by_namespace=told))
        free_bytes = 2 * min(each.free_bytes or 0 for each in found)
        return replace(whole, free_bytes=free_bytes, gpus=tuple(found))


@pytest.mark.parametrize(
    ("memory", "device", "free"),
    [
        pytest.param({}, [50, 50], 2 * (50 - 1), id="all of each"),
        pytest.param(
            {"deviceMiB": 60 * 1024}, [30, 30], 2 * 30 * 0.98, id="what is configured is in equal parts"
        ),
        pytest.param({"deviceMiB": 300 * 1024}, [50, 50], 2 * (50 - 1), id="no more than there is"),
    ],
)
async def test_each_gpu_has_a_budget_of_its_own(
    tmp_path: Path, memory: dict[str, int], device: list[int], free: float
) -> None:
    settings = config(tmp_path, [resident("a")], gpus=GPUS, memory=memory)
    equipment = Equipment.of(settings, TwoGpus(total=100 * GIB))
    await equipment.reader.read()
    budget = equipment.room.budget
    assert [each.gpu for each in budget.gpus] == list(GPUS)
    assert [each.device_bytes for each in budget.gpus] == [size * GIB for size in device]
    assert budget.free_bytes == pytest.approx(free * GIB, abs=4)


async def test_what_a_tensor_parallel_resident_holds_is_measured_on_each(tmp_path: Path) -> None:
    machine = TwoGpus(total=100 * GIB, uneven={"a": 2 * GIB})
    async with live(config(tmp_path, [resident("a")], gpus=GPUS), machine) as rig:
        await rig.until(**paused("a"))
        assert rig.record("a").held[Depth.KV_RELEASED] == 11 * GIB
        assert rig.record("a").spread[Depth.KV_RELEASED] == (6.5 * GIB, 4.5 * GIB)
        budget = rig.seat.state()["memory"]
        first, second = budget["gpus"]
        assert (first["pausedBytes"], second["pausedBytes"]) == (6.5 * GIB, 4.5 * GIB)
        assert first["freeBytes"] < second["freeBytes"]
        assert budget["freeBytes"] == 2 * first["freeBytes"]


@pytest.mark.parametrize(
    ("uneven", "states"),
    [
        pytest.param({}, {"a": "Paused", "b": "Paused"}, id="both fit on each"),
        pytest.param(
            {"a": 30 * GIB}, {"a": "Paused", "b": "Starting"}, id="together they fit, on one they don't"
        ),
    ],
)
async def test_who_fits_in_the_sum_and_on_one_gpu_does_not_waits(
    tmp_path: Path, uneven: dict[str, int], states: dict[str, str]
) -> None:
    """Each takes 31 GiB paused and 11 more while it computes, of 100: 73 in all."""
    engines = {each: [FakeEngine(weights=30 * GIB, kv=10 * GIB)] for each in "ab"}
    machine = TwoGpus(total=100 * GIB, uneven=uneven, engines=engines)
    settings = config(
        tmp_path,
        [resident(each, paused=31, kv=10) for each in "ab"],
        gpus=GPUS,
        memory={"hostMiB": 0},
    )
    async with live(settings, machine) as rig:
        await rig.calm()
        assert rig.states() == states
        if "Starting" in states.values():
            assert "and of GPU GPU-0" in rig.told("b")["waiting"]


@pytest.mark.parametrize(
    ("others", "said"),
    [
        pytest.param((0, 0), "", id="nobody else is there"),
        pytest.param((0, 40 * GIB), "of GPU GPU-1 are free", id="somebody else is on one"),
    ],
)
async def test_a_promotion_looks_at_what_is_free_on_each(
    tmp_path: Path, others: tuple[int, int], said: str
) -> None:
    machine = TwoGpus(total=100 * GIB)
    async with live(config(tmp_path, [resident("a")], gpus=GPUS), machine) as rig:
        await rig.until(**paused("a"))
        machine.others = others
        if not said:
            assert (await rig.order("resume", "a")).state == "Serving"
            return
        with pytest.raises(NoRoom, match=said):
            await rig.order("resume", "a")
        assert rig.states() == {"a": "Paused"}


async def test_what_was_measured_on_each_outlives_the_agent(tmp_path: Path) -> None:
    machine = TwoGpus(total=100 * GIB, uneven={"a": 2 * GIB})
    settings = config(tmp_path, [resident("a")], gpus=GPUS)
    async with live(settings, machine) as rig:
        await rig.until(**paused("a"))
        await rig.calm()
    async with live(settings, machine) as rig:
        await rig.until(**paused("a"))
        assert rig.record("a").spread == {Depth.KV_RELEASED: (6.5 * GIB, 4.5 * GIB)}

"""What the node's stage daemon takes of the seat's GPUs, and what is left of them for residents."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
import safetensors.torch
import torch

from loader.cuda.nvml import Basis, ContextCost
from loader.cuda.opening import Opened
from loader.stage.client import StageClient
from loader.stage.daemon import Daemon
from loader.stage.device import Devices
from loader.stage.holder import Holder
from loader.stage.pool import Pool
from tests.unit.loader.stage_device import GRANULARITY, UUID, MemoryFileDevice
from tests.unit.warmpool.agent.rig import GIB, FakeEngine, Machine, config, live, paused, resident
from warmpool.agent.equipment import Equipment
from warmpool.agent.metrics import AgentMetrics
from warmpool.agent.seat import MEASURE_SECONDS
from warmpool.agent.staging import StageDaemon

CONTEXT = 3 * GIB
"""What the daemon's context is said to take: the stand-in has none."""
GPU = f"GPU-{UUID[:8]}-{UUID[8:12]}-{UUID[12:16]}-{UUID[16:20]}-{UUID[20:]}"
SECONDS = 30.0


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m").mkdir()
    safetensors.torch.save_file({"w": torch.arange(9000)}, tmp_path / "m" / "model.safetensors")
    return tmp_path / "m"


@contextmanager
def daemon_at(path: Path, model: Path) -> Iterator[None]:
    """A stage daemon on one device, which says that its context takes `CONTEXT`."""
    cost = ContextCost(nbytes=CONTEXT, basis=Basis.PROCESS)
    devices = Devices([Opened(device=MemoryFileDevice(), ordinal=0, context=cost)])
    holder = Holder(Pool(2**24, (str(model),), ready=devices.lock), devices, GRANULARITY)
    daemon = Daemon(holder.pool, path, holder=holder)
    thread = Thread(target=daemon.serve)
    thread.start()
    try:
        yield
    finally:
        daemon.close()
        thread.join()


async def test_contexts_and_held_copies_of_the_seat_s_gpus_are_taken(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with daemon_at(path, model):
        stage = StageDaemon(path)
        await asyncio.wait_for(_until(stage, lambda: not stage.reason), SECONDS)
        assert stage.taken_bytes([GPU]) == CONTEXT
        with StageClient(path) as client:
            client.hold(str(model), "0")
        await stage.ask(seconds=SECONDS)
        assert stage.taken_bytes([GPU]) == CONTEXT + GRANULARITY
        assert stage.taken_bytes([GPU, GPU]) == CONTEXT + GRANULARITY  # told twice, taken once
        assert stage.taken_bytes(["GPU-another"]) == 0
        assert stage.reason == ""


async def test_where_no_daemon_listens_nothing_is_taken(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    stage = StageDaemon(path)
    await stage.ask(seconds=SECONDS)
    assert (stage.taken_bytes([GPU]), stage.reason) == (0, "")
    with daemon_at(path, model):
        await stage.ask(seconds=SECONDS)
        assert stage.taken_bytes([GPU]) == CONTEXT
    await stage.ask(seconds=SECONDS)
    assert (stage.taken_bytes([GPU]), stage.reason) == (0, "")


async def test_what_a_daemon_said_last_counts_until_it_answers_again(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    stage = StageDaemon(path)
    with daemon_at(path, model):
        await asyncio.wait_for(_until(stage, lambda: not stage.reason), SECONDS)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(path))
        deaf.listen()
        await stage.ask(seconds=0.01)
        assert "doesn't answer" in stage.reason
        assert stage.taken_bytes([GPU]) == CONTEXT
        await asyncio.wait_for(_until(stage, lambda: "said last" in stage.reason), SECONDS)
        assert stage.taken_bytes([GPU]) == CONTEXT
    path.unlink()
    await asyncio.wait_for(_until(stage, lambda: not stage.reason), SECONDS)
    assert stage.taken_bytes([GPU]) == 0


async def test_a_copy_that_is_gone_is_known_to_be_and_nothing_is_known_of_a_daemon_that_is_silent(
    model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "s.sock"
    stage, m = StageDaemon(path), str(model)
    with daemon_at(path, model):
        assert not stage.lacks(m, [GPU])  # it wasn't asked yet
        await asyncio.wait_for(_until(stage, lambda: not stage.reason), SECONDS)
        assert stage.lacks(m, [GPU])
        with StageClient(path) as client:
            client.hold(m, "0")
            await stage.ask(seconds=SECONDS)
            found = [
                stage.lacks(*each)
                for each in (
                    *((m, [GPU]), (m, []), ("", [GPU]), ("/x", [GPU]), (m, ["x"])),
                    (m, [GPU, "x"]),  # an engine on several is attached on each of them
                )
            ]
            assert found == [False, False, False, True, True, True]
            client.release(m, "0")
        await stage.ask(seconds=SECONDS)
        assert stage.lacks("", [GPU])
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(path))
        deaf.listen()
        await stage.ask(seconds=0.01)
        assert not stage.lacks(m, [GPU])


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("tier", "states"),
    [
        pytest.param("Attached", {"a": "Paused"}, id="attached-weights-went-with-it"),
        pytest.param("Staged", {"a": "Parked"}, id="others-are-the-engine-s-own"),
    ],
)
async def test_a_parked_engine_that_was_attached_is_started_anew_when_the_daemon_is_gone(
    tier: str, states: dict[str, str], tmp_path: Path
) -> None:
    engines = {"a": [FakeEngine(tier=tier), FakeEngine(tier="Disk")], "b": [FakeEngine()]}
    settings = config(
        tmp_path, [resident("a"), resident("b")], gpus=[GPU], stageDaemon=f"unix://{tmp_path / 's.sock'}"
    )
    async with live(settings, Machine(engines=engines)) as rig:
        await rig.until(**paused("ab"))
        await rig.order("park", "a")
        await asyncio.sleep(4 * MEASURE_SECONDS)  # some questions to the daemon, of which nobody listens
        assert {"a": rig.states()["a"]} == states
        restarts = int(tier == "Attached")
        assert (rig.told("a")["restarts"], rig.told("a")["failure"]) == (restarts, "")
        assert (await rig.order("resume", "a")).state == "Serving"


async def _until(stage: StageDaemon, seen: Callable[[], bool]) -> None:
    while not seen():
        await stage.ask(seconds=SECONDS)
        await asyncio.sleep(0)  # while a question is out, asking returns at once


@pytest.mark.parametrize(
    ("memory", "left"),
    [
        pytest.param({}, 97, id="of all that is there"),
        pytest.param({"deviceMiB": 100 * 1024}, 97, id="of all, which is configured"),
        pytest.param({"deviceMiB": 98 * 1024}, 97, id="what the config leaves goes first"),
        pytest.param({"deviceMiB": 50 * 1024}, 50, id="the config leaves enough"),
    ],
)
async def test_residents_have_what_the_stage_daemon_leaves(
    memory: dict[str, int], left: int, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "s.sock"
    settings = config(tmp_path, [resident("a")], memory=memory, gpus=[GPU], stageDaemon=f"unix://{path}")
    equipment = Equipment.of(settings, Machine(total=100 * GIB))
    with daemon_at(path, model):
        await equipment.reader.read(seconds=SECONDS)
    budget = equipment.room.budget
    assert budget.device_bytes is not None
    assert budget.device_bytes - budget.stage_bytes == left * GIB
    assert budget.free_bytes == left * GIB - budget.reserve_bytes
    assert budget.stage_reason == ""
    assert dict(sampled(equipment))["Stage"] == budget.stage_bytes


async def test_gpus_that_nobody_has_named_can_t_be_compared_and_that_is_told(
    model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "s.sock"
    settings = config(tmp_path, [resident("a")], gpus=["0"], stageDaemon=f"unix://{path}")
    equipment = Equipment.of(settings, Machine(total=100 * GIB))
    with daemon_at(path, model):
        await equipment.reader.read(seconds=SECONDS)
    assert equipment.room.budget.stage_bytes == 0
    assert "UUIDs" in equipment.room.budget.stage_reason


def sampled(equipment: Equipment) -> Iterator[tuple[str, float]]:
    """The parts of the seat's device memory as the agent's metrics tell them."""
    for family in AgentMetrics(equipment.board, equipment.room).registry.collect():
        if family.name == "emberpool_agent_device_memory_bytes":
            yield from ((sample.labels["part"], sample.value) for sample in family.samples)

"""What engines hold after each change, as the node tells it: a leak fails the step, and nothing is guessed."""

import asyncio
from pathlib import Path

import pytest

from tests.unit.warmpool.agent.rig import FakeEngine, Machine, Rig, config, live, paused, resident
from warmpool.errors import EngineContradicted
from warmpool.nodehealth.client import SeatMemory

pytestmark = pytest.mark.looptime
GIB = 2**30


def checks(rig: Rig, policy: str) -> dict[tuple[str, str], float]:
    """Judgements so far, by change and verdict."""
    name = "emberpool_agent_memory_checks_total"
    samples = [each for metric in rig.seat.metrics.registry.collect() for each in metric.samples]
    return {
        (sample.labels["change"], sample.labels["verdict"]): sample.value
        for sample in samples
        if sample.name == name and sample.labels["policy"] == policy and sample.value
    }


async def run_through(rig: Rig) -> None:
    """Every change once: the start has released its KV memory already."""
    await rig.until(**paused("a"))
    rig.machine.engine("a").takes["complete"] = 0.01  # long enough for a look at its memory
    for kind in ("park", "unpark", "resume", "drain", "pause"):
        await rig.order(kind, "a")


async def test_every_change_is_verified_by_what_the_device_tells(tmp_path: Path) -> None:
    async with live(config(tmp_path, [resident("a")]), Machine()) as rig:
        await run_through(rig)
        assert checks(rig, "a") == {
            ("Release", "Verified"): 2.0,
            ("Park", "Verified"): 1.0,
            ("Unpark", "Verified"): 1.0,
            ("Resume", "Verified"): 1.0,
        }
        assert rig.record("a").held == {"KvReleased": 11 * GIB, "Parked": 1 * GIB}
        assert rig.told("a")["verification"]["verdict"] == "Verified"
        assert rig.told("a")["verification"]["evidence"] == [
            "it says so",
            "11264 MiB held, usual are 11264 MiB",
        ]
        assert rig.told("a")["memoryBytes"] == 11 * GIB


async def test_without_a_node_agent_the_engine_s_word_counts_and_is_unverified(tmp_path: Path) -> None:
    async with live(config(tmp_path, [resident("a")]), Machine(measures=False)) as rig:
        await run_through(rig)
        assert {verdict for _, verdict in checks(rig, "a")} == {"Unverified"}
        told = rig.told("a")
        assert told["verification"]["verdict"] == "Unverified"
        assert (
            told["verification"]["evidence"][-1] == "without a node agent the devices' totals alone are known"
        )
        assert (told["memoryBytes"], told["state"]) == (None, "Paused")


@pytest.mark.parametrize("kind", ["park", "unpark", "pause", "prove"])
async def test_a_leak_fails_the_step_and_the_engine_is_replaced(tmp_path: Path, kind: str) -> None:
    async with live(config(tmp_path, [resident("a")]), Machine()) as rig:
        await run_through(rig)
        for before in {"unpark": ["park"], "pause": ["resume", "drain"]}.get(kind, []):
            await rig.order(before, "a")
        process = rig.machine.process("a")
        process.engine.leaks = 3 * GIB
        with pytest.raises(EngineContradicted, match=r"3072 MiB more than the usual .*: memory leaks"):
            await rig.order(kind, "a")
        assert process.exited
        assert "memory leaks" in rig.told("a")["failure"]
        await rig.until(a="Paused")
        assert rig.told("a")["restarts"] == 1
        assert rig.machine.used() == 11 * GIB


async def test_a_promotion_that_takes_more_than_it_may_fails(tmp_path: Path) -> None:
    machine = Machine(engines={"a": [FakeEngine(takes={})]})
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await run_through(rig)
        machine.engine("a").leaks = 6 * GIB
        machine.engine("a").takes["complete"] = 0.01
        with pytest.raises(EngineContradicted, match="and computing takes 32768 MiB at most"):
            await rig.order("resume", "a")
        assert rig.states() == {"a": "Failed"}


async def test_weights_that_do_not_come_back_fail_the_unparking(tmp_path: Path) -> None:
    async with live(config(tmp_path, [resident("a")]), Machine()) as rig:
        await run_through(rig)
        await rig.order("park", "a")
        rig.machine.engine("a").weights = 2 * GIB
        with pytest.raises(EngineContradicted, match=r"less than the usual .*: its weights aren't there"):
            await rig.order("unpark", "a")


async def test_an_engine_that_keeps_its_kv_memory_is_never_paused(tmp_path: Path) -> None:
    class Liar(FakeEngine):
        def held(self, now: float) -> int:
            return super().held(now) + (0 if self.kv_held else self.kv)

    machine = Machine(engines={"a": [Liar() for _ in range(9)]})
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await rig.until(a="Failed")
        assert "answered that 20480 MiB of KV memory were released" in rig.told("a")["failure"]
        assert "Paused" not in rig.seen["a"]


async def test_memory_that_is_given_back_a_little_later_is_no_leak(tmp_path: Path) -> None:
    machine = Machine(engines={"a": [FakeEngine(lazy_seconds=0.4)]})
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await run_through(rig)
        assert {verdict for _, verdict in checks(rig, "a")} == {"Verified"}


async def test_a_switch_waits_until_the_neighbour_s_memory_is_free(tmp_path: Path) -> None:
    machine = Machine(total=50 * GIB)
    async with live(config(tmp_path, [resident("a"), resident("b", paused=10)]), machine) as rig:
        await rig.until(**paused("ab"))
        machine.engine("a").freed.append((asyncio.get_running_loop().time() + 0.3, 20 * GIB))
        began = asyncio.get_running_loop().time()
        assert (await rig.order("resume", "b")).state == "Serving"
        assert 0.25 < asyncio.get_running_loop().time() - began < 0.5


async def test_a_node_agent_that_hangs_delays_a_promotion_once_and_never_fails_it(tmp_path: Path) -> None:
    class Hanging(Machine):
        hangs = False

        async def read(self, gpus: object, *, deadline: object) -> SeatMemory:
            if self.hangs:
                await asyncio.sleep(deadline.left_seconds)  # type: ignore[attr-defined]
                return SeatMemory(None, None, None, None, verified=False, reason="it hangs")
            return await super().read(gpus, deadline=deadline)  # type: ignore[arg-type]

    machine = Hanging()
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await run_through(rig)
        machine.hangs = True
        took = []
        for _ in range(2):
            began = asyncio.get_running_loop().time()
            await rig.order("resume", "a")
            took.append(asyncio.get_running_loop().time() - began)
            await rig.order("drain", "a")
            await rig.order("pause", "a")
        assert took[0] < 0.15
        assert took[1] < 0.02
        assert rig.told("a")["memoryReason"] == "it hangs"
        assert rig.seat.state()["memory"]["deviceBytes"] == 100 * GIB  # what was known once
        assert not rig.seat.state()["memory"]["verified"]


async def test_host_memory_is_what_is_measured_where_there_are_no_gpus(tmp_path: Path) -> None:
    """And no step fails for its sake."""
    async with live(config(tmp_path, [resident("a")], gpus=[]), Machine()) as rig:
        await run_through(rig)
        assert {verdict for _, verdict in checks(rig, "a")} <= {"Unverified"}
        memory = rig.seat.state()["memory"]
        assert (memory["deviceBytes"], memory["verified"]) == (None, False)
        assert rig.told("a")["memoryReason"] == "its engine runs in another PID namespace"


async def test_configured_device_memory_is_a_limit_without_gpus_too(tmp_path: Path) -> None:
    memory = {"deviceMiB": 40 * 1024}
    async with live(
        config(tmp_path, [resident("a"), resident("b")], gpus=[], memory=memory), Machine()
    ) as rig:
        await rig.calm()
        assert rig.states() == {"a": "Paused", "b": "Starting"}
        assert "no room for b: with it 22528 MiB held" in rig.told("b")["waiting"]

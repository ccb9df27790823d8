"""What the node says of a seat's GPUs: nobody is promoted onto one that is Suspect or Bad, and what serves may finish."""

import asyncio
from pathlib import Path

import pytest

from tests.unit.warmpool.agent.rig import Machine, config, live, paused, resident
from warmpool.errors import GpuUnfit
from warmpool.nodehealth.client import SeatHealth
from warmpool.seats import GpuWord, Verdict

pytestmark = pytest.mark.looptime
WORD = "GPU-a is Bad: Xid 79"


@pytest.mark.parametrize("verdict", [Verdict.SUSPECT, Verdict.BAD])
async def test_nobody_is_promoted_onto_an_unfit_gpu_and_somebody_is_when_it_is_well(
    tmp_path: Path, verdict: Verdict
) -> None:
    machine = Machine()
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await rig.until(**paused("a"))
        machine.gpu_health = SeatHealth(verdict, known=True, reason=WORD)
        calls = list(machine.engine("a").calls)
        with pytest.raises(GpuUnfit, match=WORD):
            await rig.order("resume", "a")
        assert (rig.told("a")["state"], machine.engine("a").calls) == ("Paused", calls)
        machine.gpu_health = SeatHealth(Verdict.OK, known=True)
        await rig.order("resume", "a")
        assert rig.told("a")["state"] == "Serving"


async def test_unknown_is_no_reason(tmp_path: Path) -> None:
    machine = Machine()
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await rig.until(**paused("a"))
        machine.gpu_health = SeatHealth(Verdict.OK, known=False, reason="it hangs")
        await rig.order("resume", "a")
        assert rig.told("a")["state"] == "Serving"


async def test_what_serves_may_finish_and_pause(tmp_path: Path) -> None:
    machine = Machine()
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await rig.until(**paused("a"))
        await rig.order("resume", "a")
        machine.gpu_health = SeatHealth(Verdict.BAD, known=True, reason=WORD)
        await rig.order("resume", "a")
        for kind in ("drain", "pause"):
            await rig.order(kind, "a")
        assert rig.told("a")["state"] == "Paused"


async def test_a_seat_that_only_observes_promotes_all_the_same(tmp_path: Path) -> None:
    machine = Machine(gpu_health=SeatHealth(Verdict.BAD, known=True, reason=WORD))
    async with live(config(tmp_path, [resident("a")], gpuHealth="Observe"), machine) as rig:
        await rig.until(**paused("a"))
        await rig.order("resume", "a")
        assert rig.told("a")["state"] == "Serving"


async def test_proofs_are_told_the_node_as_canaries(tmp_path: Path) -> None:
    machine = Machine()
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await rig.until(**paused("a"))
        assert machine.canaries == [True]
        await rig.order("prove", "a")
        assert machine.canaries == [True, True]


def bad() -> SeatHealth:
    word = GpuWord(uuid="GPU-a", word="Bad", reason="Xid 79")
    return SeatHealth(Verdict.BAD, known=True, reason=WORD, words=(word,))


async def test_what_the_node_says_is_told_within_a_second_and_unknown_once_it_is_silent(
    tmp_path: Path,
) -> None:
    machine = Machine()
    settings = config(tmp_path, [resident("a")], nodeAgent="unix:///run/node.sock")
    async with live(settings, machine) as rig:
        await rig.until(**paused("a"))
        machine.gpu_health = bad()
        before = rig.seat.board.seq
        await asyncio.sleep(1.5)
        (word,) = rig.seat.state()["gpuHealth"]
        assert (word["uuid"], word["verdict"], word["reason"]) == ("GPU-a", "Bad", "Xid 79")
        assert word["ageMilliseconds"] <= 1500
        assert rig.seat.board.seq > before
        machine.gpu_health = SeatHealth(Verdict.OK, known=False, reason="no answer")
        await asyncio.sleep(12)
        assert [each["verdict"] for each in rig.seat.state()["gpuHealth"]] == ["Unknown"]


async def test_an_order_of_a_fleet_that_observes_promotes_all_the_same(tmp_path: Path) -> None:
    machine = Machine()
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await rig.until(**paused("a"))
        machine.gpu_health = bad()
        await rig.order("resume", "a", gpuHealth="Observe")
        assert rig.told("a")["state"] == "Serving"

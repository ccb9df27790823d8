"""Which of a seat's residents starts first: the one that is needed most, as far as anybody has told; in virtual time."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.unit.warmpool.agent.rig import FakeEngine, Machine, Rig, config, live, resident
from warmpool.agent.orders import StartOrder, parse_start_order
from warmpool.agent.turns import YOUNG_SECONDS
from warmpool.errors import BadOrder, StaleEpoch
from warmpool.states import ResidentState

pytestmark = pytest.mark.looptime
LOAD = 60.0
ALL = ("a", "b", "c")
REST = dict.fromkeys(ALL, "Paused")


def machine() -> Machine:
    engines = {name: [FakeEngine(load_seconds=LOAD) for _ in range(3)] for name in ALL}
    return Machine(engines=engines, total=1000 * 2**30)


def tell(rig: Rig, *policies: str, wanted: tuple[str, ...] = (), epoch: int = 1) -> dict[str, Any]:
    return rig.seat.take_start_order(StartOrder(epoch=epoch, policies=list(policies), wanted=list(wanted)))


def proven(rig: Rig) -> list[str]:
    """Residents in the order in which their start ended."""
    records = [each for each in rig.seat.board.records if each.state is ResidentState.PAUSED]
    return [each.policy for each in sorted(records, key=lambda each: each.since)]


def started(on: Machine) -> list[str]:
    return [each.name for each in on.processes]


@pytest.mark.parametrize(
    ("told", "order"),
    [
        pytest.param((), "abc", id="nobody says anything"),
        pytest.param(("c", "b", "a"), "cba", id="the other way round"),
        pytest.param(("b",), "bac", id="those that aren't named come last, in the config's order"),
        pytest.param(("x", "c", "c"), "cab", id="who isn't there, or is named twice"),
    ],
)
@pytest.mark.long
async def test_residents_start_in_the_order_in_which_they_are_needed(
    tmp_path: Path, told: tuple[str, ...], order: str
) -> None:
    on = machine()
    on.absent = set(ALL)  # their launchers aren't there yet
    async with live(config(tmp_path, [resident(name) for name in ALL]), on) as rig:
        answer = tell(rig, *told) if told else rig.seat.state()["starts"]
        assert "".join(answer["policies"]) == order
        on.absent.clear()
        rig.seat.board.touch()
        await rig.until(**REST)
        assert proven(rig) == list(order)
        assert started(on) == list(order)


async def test_a_seat_that_is_being_born_starts_first_what_a_burst_wants(tmp_path: Path) -> None:
    """The word comes while another is being started already: that has only begun, and gives way."""
    on = machine()
    async with live(config(tmp_path, [resident(name) for name in ALL]), on) as rig:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(3)
        assert started(on) == ["a"]
        assert tell(rig, "b", "a", "c", wanted=("b",)) == {"policies": ["b", "a", "c"], "wanted": ["b"]}
        await rig.until(b="Paused")
        took = asyncio.get_running_loop().time() - began
        assert took == pytest.approx(3 + LOAD, abs=2)
        assert (await rig.order("resume", "b")).state == "Serving"
        await rig.order("drain", "b")
        await rig.order("pause", "b")
        await rig.until(**REST)
        assert started(on) == ["a", "b", "a", "c"]
        assert (rig.told("a")["restarts"], rig.told("a")["failure"]) == (1, "")


@pytest.mark.parametrize(
    ("after", "wanted"),
    [
        pytest.param(YOUNG_SECONDS + 1, ("b",), id="it has gone on for a while"),
        pytest.param(3, (), id="nobody waits for the other"),
        pytest.param(3, ("a", "b"), id="it is wanted as well"),
    ],
)
async def test_a_start_up_goes_on_where_giving_way_would_gain_little(
    tmp_path: Path, after: float, wanted: tuple[str, ...]
) -> None:
    on = machine()
    async with live(config(tmp_path, [resident(name) for name in ALL]), on) as rig:
        await asyncio.sleep(after)
        tell(rig, "c", "b", "a", wanted=wanted)
        await rig.until(**REST)
        assert started(on) == (["a", "c", "b"])


async def test_a_start_up_gives_way_once_and_is_ended_by_no_change_of_mind(tmp_path: Path) -> None:
    on = machine()
    async with live(config(tmp_path, [resident(name) for name in ALL]), on) as rig:
        for wanted in ("b", "a", "b", "a", "c"):
            await asyncio.sleep(3)
            tell(rig, wanted, wanted=(wanted,))
        await rig.until(**REST)
        assert started(on) == ["a", "b", "a", "c", "b"]


async def test_the_word_of_a_term_that_is_over_changes_nothing(tmp_path: Path) -> None:
    async with live(config(tmp_path, [resident(name) for name in ALL]), machine()) as rig:
        tell(rig, "c", epoch=5)
        with pytest.raises(StaleEpoch, match="term 5 has begun"):
            tell(rig, "b", epoch=4)
        assert rig.seat.state()["starts"]["policies"] == ["c", "a", "b"]
        assert rig.seat.state()["epoch"] == 5


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {"policies": ["a"]},
        {"epoch": 1},
        {"epoch": -1, "policies": []},
        {"epoch": 1, "policies": "a"},
        {"epoch": 1, "policies": [1]},
        {"epoch": 1, "policies": ["a"] * 101},
    ],
)
def test_a_body_that_says_no_order_is_refused(body: object) -> None:
    with pytest.raises(BadOrder):
        parse_start_order(body)


async def test_a_resident_whose_launcher_is_missing_keeps_no_neighbour_waiting(tmp_path: Path) -> None:
    on = machine()
    on.absent = {"a"}
    async with live(config(tmp_path, [resident(name) for name in ALL]), on) as rig:
        await rig.until(b="Paused", c="Paused")
        assert rig.states()["a"] == "Starting"
        on.absent.clear()
        rig.seat.board.touch()
        await rig.until(**REST)
        assert rig.told("a")["restarts"] == 0

"""What a seat that is born starts first: what the law finds missing, told to its agent; with a whole agent in virtual time."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from scaler.core.islands import Island
from scaler.core.model import Decision, PolicySpec
from scaler.runtime.controller import Tick
from scaler.runtime.start_orders import AGAIN_SECONDS, StartOrders, start_order
from tests.unit.scaler.core.world import SPARES, Run, fleet, load, policy, view
from tests.unit.warmpool.agent.rig import FakeEngine, Machine, Rig, config, live, resident
from warmpool.agent.orders import StartOrder
from warmpool.claim import Term
from warmpool.errors import EngineLost
from warmpool.plan import Plan
from warmpool.seats import FleetName, PolicyName, Resident, Seat, SeatName
from warmpool.states import ResidentState as S

TERM = Term(holder="c", epoch=4)
A, B, C = (PolicyName(name) for name in "abc")


def decided(
    policies: Sequence[PolicySpec], in_flight: Mapping[str, float], queued: Mapping[str, float]
) -> Decision:
    """What the law makes of loads while the one seat of the fleet is being born."""
    run = Run(policies, [fleet(max_seats=40)])
    loads = {each.name: load(in_flight.get(each.name, 0.0), queued.get(each.name, 0.0)) for each in policies}
    return run.hold(loads, {"spares": view(starting=1)}, 3.0)


@pytest.mark.parametrize(
    ("more", "queued", "order", "wanted"),
    [
        pytest.param({}, {}, "abc", "", id="nobody wants anything"),
        pytest.param({}, {"b": 20}, "bac", "b", id="a burst for one"),
        pytest.param({}, {"b": 20, "c": 60}, "cba", "cb", id="the one that lacks more"),
        pytest.param({"b": {"priority": 9}}, {"b": 20, "c": 60}, "bca", "bc", id="priority before that"),
        pytest.param({"c": {"priority": 9}}, {"b": 20}, "bca", "b", id="what is wanted before priority"),
        pytest.param({"b": {"preemptible": True}}, {"b": 20}, "acb", "", id="what can wait for spare seats"),
    ],
)
def test_the_law_says_who_is_needed_first(
    more: Mapping[str, Mapping[str, object]], queued: Mapping[str, float], order: str, wanted: str
) -> None:
    policies = [policy(name, serving_min=0, **more.get(name, {})) for name in "abc"]
    found = start_order(SPARES, policies, decided(policies, {}, queued).policies)
    assert ("".join(found.policies), "".join(found.wanted)) == (order, wanted)


def test_equals_keep_the_order_of_the_seats_template() -> None:
    policies = [policy(name, serving_min=0) for name in "cab"]
    assert start_order(SPARES, policies, decided(policies, {}, {}).policies).policies == (C, A, B)


def test_a_policy_of_which_nothing_was_decided_is_not_wanted() -> None:
    found = start_order(SPARES, [policy("a"), policy("b")], {})
    assert (found.policies, found.wanted) == ((A, B), ())


# -------------------------------------------------------------------- telling


@dataclass
class Agents:
    """Takes what is told, and passes it on to a live seat if there is one."""

    rig: Rig | None = None
    told: list[tuple[SeatName, str, str, int]] = field(default_factory=list)
    fails: bool = False

    async def order_starts(
        self,
        seat: Seat,
        policies: Sequence[PolicyName],
        wanted: Sequence[PolicyName],
        *,
        epoch: int,
        deadline: float,
    ) -> None:
        assert deadline > 0
        self.told.append((seat.name, "".join(policies), "".join(wanted), epoch))
        if self.fails:
            raise EngineLost("nobody answers")
        if self.rig is not None:
            order = StartOrder(epoch=epoch, policies=list(policies), wanted=list(wanted))
            self.rig.seat.take_start_order(order)


def seat(name: str = "s", *states: S) -> Seat:
    residents = tuple(
        Resident(policy=each, state=state, since=0.0)
        for each, state in zip((A, B, C), states or (S.STARTING,) * 3, strict=False)
    )
    return Seat(
        name=SeatName(name),
        uid=f"uid-{name}",
        version="1",
        fleet=SPARES,
        agent="http://x",
        residents=residents,
    )


def tick(*seats: Seat, queued: Mapping[str, float] | None = None, observe: bool = False) -> Tick:
    policies = tuple(policy(name, serving_min=0) for name in "abc")
    return Tick(
        number=1,
        at=0.0,
        causes={},
        looked=Island(policies=policies, fleets=(fleet(observe=observe),)),
        snapshot=None,  # type: ignore[arg-type]  # nobody looks at it here
        decision=decided(policies, {}, queued or {}),
        plan=Plan(),
        stock={FleetName("spares"): list(seats)},
    )


@pytest.mark.looptime
async def test_under_a_burst_a_seat_that_is_born_starts_first_what_it_asks_for(tmp_path: Path) -> None:
    """The whole way: a burst for `b`, the law, the word to the agent, and the engine that runs first."""
    loading = {name: [FakeEngine(load_seconds=60.0) for _ in range(3)] for name in "abc"}
    machine = Machine(engines=loading, total=1000 * 2**30)
    async with live(config(tmp_path, [resident(name) for name in "abc"]), machine) as rig:
        began = asyncio.get_running_loop().time()
        starts = StartOrders(Agents(rig))
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(starts.run(TERM))
            await asyncio.sleep(2.0)  # the agent is found, and has begun with somebody
            starts.published(tick(seat(), queued={"b": 20}))
            await rig.until(b="Paused")
            assert asyncio.get_running_loop().time() - began == pytest.approx(2 + 60, abs=2)
            assert rig.states()["a"] == rig.states()["c"] == "Starting"
            telling.cancel()


@pytest.mark.looptime
async def test_an_agent_is_told_what_has_changed_and_after_a_while_all_of_it_again() -> None:
    agents = Agents()
    starts = StartOrders(agents)
    async with asyncio.TaskGroup() as tasks:
        telling = tasks.create_task(starts.run(TERM))
        await asyncio.sleep(0)
        for _ in range(3):
            starts.published(tick(seat()))
            await asyncio.sleep(1)
        assert agents.told == [("s", "abc", "", 4)]
        starts.published(tick(seat(), queued={"b": 20}))
        await asyncio.sleep(1)
        assert agents.told[1:] == [("s", "bac", "b", 4)]
        await asyncio.sleep(AGAIN_SECONDS)
        starts.published(tick(seat(), queued={"b": 20}))
        await asyncio.sleep(1)
        assert agents.told[2:] == [("s", "bac", "b", 4)]
        telling.cancel()


@pytest.mark.looptime
async def test_an_agent_that_does_not_answer_is_told_again() -> None:
    agents = Agents(fails=True)
    starts = StartOrders(agents)
    async with asyncio.TaskGroup() as tasks:
        telling = tasks.create_task(starts.run(TERM))
        await asyncio.sleep(0)
        for _ in range(6):
            starts.published(tick(seat()))
            await asyncio.sleep(1)
        assert len(agents.told) == 3
        telling.cancel()


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("seats", "observe"),
    [
        pytest.param([seat("s", S.PAUSED, S.PAUSED, S.STARTING)], False, id="one is left, in no order"),
        pytest.param([seat("s", S.STARTING)], False, id="there is but one"),
        pytest.param([replace(seat(), agent="")], False, id="no agent yet"),
        pytest.param([seat("s", S.PAUSED, S.SERVING, S.PAUSED)], False, id="all are up"),
        pytest.param([seat()], True, id="a fleet that is only observed"),
    ],
)
async def test_nobody_is_told_what_makes_no_difference(seats: list[Seat], *, observe: bool) -> None:
    agents = Agents()
    starts = StartOrders(agents)
    async with asyncio.TaskGroup() as tasks:
        telling = tasks.create_task(starts.run(TERM))
        await asyncio.sleep(0)
        starts.published(tick(*seats, queued={"b": 20}, observe=observe))
        await asyncio.sleep(1)
        assert agents.told == []
        telling.cancel()


@pytest.mark.looptime
async def test_a_later_term_begins_with_nothing() -> None:
    """What an earlier one was about to tell, and what it had told, count no more."""
    agents = Agents()
    starts = StartOrders(agents)
    async with asyncio.TaskGroup() as tasks:
        telling = tasks.create_task(starts.run(TERM))
        await asyncio.sleep(0)
        starts.published(tick(seat()))
        await asyncio.sleep(0.1)
        assert agents.told == [("s", "abc", "", 4)]
        telling.cancel()
        starts.published(tick(seat("other"), queued={"b": 20}))
        telling = tasks.create_task(starts.run(Term(holder="c", epoch=6)))
        await asyncio.sleep(1)
        assert len(agents.told) == 1
        starts.published(tick(seat()))
        await asyncio.sleep(1)
        assert agents.told[1:] == [("s", "abc", "", 6)]
        telling.cancel()

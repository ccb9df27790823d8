"""Rules that show only when all parts work together; one policy at 4 in flight on one of three seats, unless said."""

import math
from itertools import pairwise

import pytest

from scaler.core.memory import Memory
from scaler.core.model import Mode, ReasonCode, Supply
from tests.unit.scaler.core.world import Run, fleet, load, policy, served, simple, view, wanted

ONE = {"spares": simple({"a": 1}, 2)}
TWO = {"spares": simple({"a": 2}, 1)}
SHARED = {"spares": simple({"a": 1, "b": 1}, 1)}


def settled() -> Run:
    run = Run([policy()], [fleet()])
    run.hold({"a": load(4)}, ONE, 15.0)
    return run


def codes(run: Run, name: str = "a") -> list[ReasonCode]:
    return [reason.code for reason in run.decision.policies[name].reasons]


def test_demand_beyond_what_serves_takes_an_idle_seat_without_a_burst() -> None:
    run = settled()
    run.step({"a": load(8)}, ONE, after=0.25)
    assert served(run.decision) == 1
    run.step({"a": load(9)}, ONE, after=0.25)
    assert served(run.decision) == 2
    assert run.decision.policies["a"].mode is Mode.STABLE
    assert run.decision.policies["a"].needed == 9


def test_without_an_idle_seat_a_short_excess_asks_for_no_new_one() -> None:
    run = Run([policy()], [fleet(max_seats=9)])
    full = {"spares": simple({"a": 1}, 0)}
    run.hold({"a": load(4)}, full, 15.0)
    run.step({"a": load(9)}, full, after=0.25)
    assert wanted(run.decision) == 1
    run.hold({"a": load(9)}, full, 12.0)
    assert wanted(run.decision) == 2


def test_the_extra_seat_goes_back_after_the_smaller_answer_has_lasted() -> None:
    run = settled()
    run.step({"a": load(9)}, ONE, after=0.25)
    began = run.now
    while served(run.decision) == 2:
        run.step({"a": load(4)}, TWO, after=0.25)
    assert (
        2.0 + 3.0 <= run.now - began <= 3.0 + 3.0 + 0.5
    )  # the burst window, up to 1 s more, and demote_after
    assert served(run.decision) == 1


@pytest.mark.parametrize(
    ("demand", "code"),
    [
        pytest.param(4, ReasonCode.DEMOTE_DELAYED, id="later"),
        pytest.param(9, ReasonCode.SURVIVORS_TOO_FEW, id="not at all"),
    ],
)
def test_why_a_seat_is_kept(demand: float, code: ReasonCode) -> None:
    run = settled()
    run.hold({"a": load(9)}, TWO, 3.0)
    run.hold({"a": load(demand)}, TWO, 4.0)
    assert served(run.decision) == 2
    assert code in codes(run)


def test_noise_around_one_seats_capacity_does_not_flap() -> None:
    run = settled()
    given = []
    for tick in range(400):
        seats = TWO if given and given[-1] == 2 else ONE
        run.step({"a": load(9 if tick % 8 == 0 else 7)}, seats, after=0.25)
        given.append(served(run.decision))
    assert sum(before != after for before, after in pairwise(given)) <= 1


def test_what_is_kept_longest_leaves_first_when_an_equal_needs_it() -> None:
    run = Run([policy("a"), policy("b")], [fleet()])
    run.hold({"a": load(4), "b": load(4)}, SHARED, 12.0)
    taken = {"spares": simple({"a": 2, "b": 1}, 0)}
    run.hold({"a": load(9), "b": load(4)}, taken, 1.0)
    run.hold({"a": load(4), "b": load(4)}, taken, 4.0)
    assert served(run.decision, "a") == 2
    run.step({"a": load(4), "b": load(13)}, taken, after=0.25)
    assert (served(run.decision, "a"), served(run.decision, "b")) == (1, 2)
    assert ReasonCode.PREEMPTED in codes(run, "a")


def test_a_seat_in_use_is_not_taken_by_an_equal() -> None:
    run = Run([policy("a"), policy("b")], [fleet()])
    taken = {"spares": simple({"a": 2, "b": 1}, 0)}
    run.hold({"a": load(14), "b": load(4)}, taken, 12.0)
    run.hold({"a": load(14), "b": load(14)}, taken, 20.0)
    assert (served(run.decision, "a"), served(run.decision, "b")) == (2, 1)
    assert ReasonCode.SPARES_EXHAUSTED in codes(run, "b")


def test_a_higher_priority_takes_down_to_the_floor_and_no_further() -> None:
    run = Run([policy("a", priority=1), policy("b", serving_min=1)], [fleet(max_seats=5)])
    seats = {"spares": simple({"a": 1, "b": 3}, 0)}
    run.hold({"a": load(4), "b": load(20)}, seats, 12.0)
    assert (served(run.decision, "a"), served(run.decision, "b")) == (1, 3)
    run.step({"a": load(60), "b": load(20)}, seats, after=0.25)
    assert (served(run.decision, "a"), served(run.decision, "b")) == (3, 1)


def test_two_that_want_the_only_seat_take_turns() -> None:
    run = Run([policy("a", serving_min=0), policy("b", serving_min=0)], [fleet(max_seats=1, spare_target=0)])
    turns = []
    holder = "a"
    for _ in range(400):
        one = {"a": Supply(serving=holder == "a", switchable=holder == "b")} | {
            "b": Supply(serving=holder == "b", switchable=holder == "a")
        }
        run.step({"a": load(3), "b": load(3)}, {"spares": view(one, serving=1)}, after=0.25)
        now = next((name for name in "ab" if served(run.decision, name)), holder)
        if now != holder:
            turns.append(run.now)
        holder = now
    lengths = [after - before for before, after in pairwise(turns)]
    assert len(turns) >= 6
    assert all(9.0 <= length <= 11.0 for length in lengths)


def test_a_seat_changes_hands_when_a_turn_ends_and_not_with_the_next_signal() -> None:
    """Nothing happens but that time passes: each look comes when the one before has asked for it."""
    run = Run([policy("a", serving_min=0), policy("b", serving_min=0)], [fleet(max_seats=1, spare_target=0)])
    loads, holder, comes = {"a": load(3), "b": load(3)}, "a", None
    ends: list[float] = []
    while len(ends) < 4 and run.now < 1300.0:
        if comes is not None and run.now >= comes:
            comes = None  # it is in rotation
        serving = {name: comes is None and name == holder for name in "ab"}
        one = {
            name: Supply(
                serving=serving[name],
                promoting=comes is not None and name == holder,
                switchable=name != holder,
                paused_wake=3.37,
            )
            for name in "ab"
        }
        run.step(loads, {"spares": view(one, serving=1)})
        given = next(name for name in "ab" if served(run.decision, name))
        if given != holder:
            holder, comes = given, run.now + 3.37
            ends.append(run.now)
        wakeup = run.decision.next_wakeup
        assert wakeup is not None
        run.now = wakeup if comes is None else min(wakeup, comes)
    turns = [after - before for before, after in pairwise(ends)]
    assert turns == [pytest.approx(10 * 3.37, abs=0.01)] * 3


def test_draining_residents_are_recalled() -> None:
    run = settled()
    draining = {"spares": view({"a": Supply(serving=1, draining=1)}, serving=1, draining=1)}
    run.step({"a": load(12)}, draining, after=0.25)
    assert served(run.decision) == 2


@pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf, 0.0, -5.0])
def test_time_never_goes_back(now: float) -> None:
    run = settled()
    before = run.now
    run.now = now
    run.step({"a": load(4)}, ONE)
    assert run.decision.at == before
    assert run.memory.at == before


def test_memory_begins_at_a_number() -> None:
    assert Memory.initial(math.nan).at == 0.0
    assert Memory.initial(7.0).at == 7.0


def test_a_name_that_comes_twice_counts_once() -> None:
    run = Run([policy("a"), policy("a", serving_min=3)], [fleet(), fleet(max_seats=99)])
    run.hold({"a": load(4)}, ONE, 1.0)
    assert wanted(run.decision) == 1
    assert run.decision.fleets["spares"].total == 3


def test_a_policy_that_is_added_later_begins_in_burst_and_a_removed_one_is_forgotten() -> None:
    run = settled()
    run.policies = [policy("b")]
    run.step({"b": load(1)}, {"spares": simple({"b": 2}, 1)}, after=1.0)
    assert run.decision.policies["b"].mode is Mode.BURST
    assert served(run.decision, "b") == 2
    assert set(run.memory.policies) == {"b"}


def test_what_only_the_floor_keeps_is_no_delayed_demotion() -> None:
    run = Run([policy(serving_min=3)], [fleet(max_seats=5)])
    run.hold({"a": load(1)}, {"spares": simple({"a": 3}, 1)}, 60.0)
    assert [reason.code for reason in run.decision.policies["a"].reasons] == [ReasonCode.FLOOR]


def test_an_answer_that_only_burst_keeps_up_says_so_first() -> None:
    run = Run([policy(serving_max=3)], [fleet(max_seats=5, spare_target=2)])
    run.hold({"a": load(6)}, {"spares": simple({"a": 1}, 2)}, 15.0)
    run.step({"a": load(8, 12)}, {"spares": simple({"a": 1}, 2)}, after=0.25)
    run.hold({"a": load(1)}, {"spares": simple({"a": 3})}, 4.0)
    decided = run.decision.policies["a"]
    assert decided.needed >= 20
    assert decided.reasons[0].code is ReasonCode.BURST_HELD

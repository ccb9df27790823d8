"""Seats whose engines don't start as they should are replaced, and a fault that all share doesn't burn the fleet."""

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.healing import (
    BUDGET,
    CALM_SECONDS,
    FORGIVEN_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Cause,
    Found,
    History,
    Rule,
    look,
    pause_seconds,
)
from warmpool.seats import Claim, Crash, FleetName, Operation, PolicyName, Resident, Seat, SeatName
from warmpool.states import ResidentState
from warmpool.timeline import StartFacts

CHAT = PolicyName("chat")
RULE = Rule(init_seconds=60.0, consecutive=3)


def started(at: float, took: float = 10.0, state: ResidentState = ResidentState.PAUSED) -> Resident:
    phases = {"waiting": 500.0, "weights": took, "proof": 100.0}
    return Resident(policy=CHAT, state=state, since=at + took, phases=phases, start=StartFacts(at=at))


def failed(since: float, why: str = "exited with status 1") -> Resident:
    return Resident(policy=CHAT, state=ResidentState.FAILED, since=since, failure=why)


def refused(since: float, why: str = "pre-flight: NoGpu: there is no GPU") -> Resident:
    return replace(failed(since, why), refused=True)


def loading(since: float) -> Resident:
    return Resident(policy=CHAT, state=ResidentState.LOADING, since=since)


def seat(name: str, *residents: Resident, created: float = -1000.0, **others: object) -> Seat:
    facts = {"name": SeatName(name), "uid": f"uid-{name}", "version": "1", "fleet": FleetName("f")}
    return Seat(residents=residents, created_at=created, **facts, **others)  # type: ignore[arg-type]


class Fleet:
    """Looks again and again."""

    def __init__(self, rule: Rule = RULE) -> None:
        self.rule = rule
        self.history = History()

    def look(self, now: float, *seats: Seat) -> Found:
        found, self.history = look(self.history, self.rule, seats, now)
        return found

    def fails(self, name: str, times: Iterable[float], **others: object) -> Found:
        """Let a seat's resident fail at these times, with a start in between."""
        found = Found()
        for at in times:
            self.look(at - 0.5, seat(name, loading(at - 1.0), **others))
            found = self.look(at, seat(name, failed(at), **others))
        return found


def test_three_failures_in_a_row_make_a_seat_ailing_and_it_is_replaced() -> None:
    fleet = Fleet()
    assert fleet.fails("s-0", [10.0, 20.0]) == Found()
    found = fleet.fails("s-0", [30.0])
    why = "3 starts of chat in a row were bad, the last one because exited with status 1"
    assert (found.ailing, found.replace) == ({"s-0": why}, {"s-0": why})


def test_a_failure_is_counted_once_however_often_it_is_looked_at() -> None:
    fleet = Fleet()
    for now in (10.0, 11.0, 12.0, 13.0):
        assert fleet.look(now, seat("s-0", failed(10.0))) == Found()


def test_starts_that_take_too_long_count_without_their_waiting() -> None:
    fleet = Fleet()
    for at in (0.0, 1000.0):
        assert not fleet.look(at + 900, seat("s-0", started(at, took=61.0))).ailing
    found = fleet.look(2900.0, seat("s-0", started(2000.0, took=61.0)))
    assert found.ailing == {
        "s-0": "3 starts of chat in a row were bad, the last one because its engine took 61 s to be ready, "
        "more than the 60 s that it may"
    }
    for at in (0.0, 1000.0, 2000.0, 3000.0):
        assert Fleet().look(at, seat("s-0", started(at, took=60.0))) == Found()


def test_a_sound_start_makes_all_of_them_forgotten() -> None:
    fleet = Fleet()
    fleet.fails("s-0", [10.0, 20.0])
    fleet.look(30.0, seat("s-0", started(21.0)))
    assert not fleet.fails("s-0", [40.0, 50.0]).ailing
    assert fleet.fails("s-0", [60.0]).ailing


def test_another_pod_of_the_same_name_begins_anew() -> None:
    fleet = Fleet()
    fleet.fails("s-0", [10.0, 20.0])
    assert not fleet.look(30.0, replace(seat("s-0", failed(30.0)), uid="another")).ailing


CLAIM = Claim(
    id="c", policy=CHAT, operation=Operation.PROMOTE, holder="h", epoch=1, since=0.0, deadline=math.inf
)


@pytest.mark.parametrize(
    "others",
    [
        pytest.param({"serving": frozenset({CHAT})}, id="in-rotation"),
        pytest.param({"claim": CLAIM}, id="claimed"),
        pytest.param({"terminating": True}, id="going-anyway"),
        pytest.param({"reachable": False}, id="nobody-knows"),
    ],
)
def test_only_a_seat_on_which_nobody_computes_is_replaced(others: dict[str, object]) -> None:
    assert not Fleet().fails("s-0", [10.0, 20.0, 30.0], **others).ailing


def test_one_that_is_claimed_or_silent_for_a_moment_stays_chosen() -> None:
    fleet = Fleet()
    assert fleet.fails("s-0", [10.0, 20.0, 30.0]).replace
    assert not fleet.look(31.0, seat("s-0", failed(30.0), claim=CLAIM)).replace
    assert not fleet.look(32.0, seat("s-0", failed(30.0), reachable=False)).replace
    assert fleet.look(33.0, seat("s-0", failed(30.0))).replace.keys() == {"s-0"}


def test_one_that_has_come_up_is_no_longer_chosen() -> None:
    fleet = Fleet()
    assert fleet.fails("s-0", [10.0, 20.0, 30.0]).replace
    fleet.look(40.0, seat("s-0", started(31.0)))
    assert not fleet.fails("s-0", [50.0, 60.0, 70.0]).replace


def test_a_seat_on_which_a_neighbour_serves_is_left_alone() -> None:
    fleet = Fleet()
    fleet.fails("s-0", [10.0, 20.0])
    neighbour = replace(started(0.0, state=ResidentState.DRAINING), policy=PolicyName("code"))
    assert not fleet.look(30.0, seat("s-0", failed(30.0), neighbour)).ailing
    assert fleet.look(31.0, seat("s-0", failed(30.0), replace(neighbour, state=ResidentState.PAUSED))).ailing


def test_what_is_only_reported_is_not_replaced() -> None:
    found = Fleet(replace(RULE, replaces=False)).fails("s-0", [10.0, 20.0, 30.0])
    assert found.ailing
    assert not found.replace


def test_one_is_replaced_at_a_time_and_stays_chosen_until_it_is_gone() -> None:
    fleet = Fleet()
    for at in (10.0, 20.0):
        fleet.look(at, seat("b", failed(at)), seat("a", failed(at)))
    found = fleet.look(30.0, seat("b", failed(30.0)), seat("a", failed(30.0)))
    assert (found.replace.keys(), found.ailing.keys()) == ({"a"}, {"a", "b"})
    assert fleet.look(31.0, seat("b", failed(30.0)), seat("a", failed(30.0))).replace.keys() == {"a"}
    ending = seat("a", failed(30.0), terminating=True)
    found = fleet.look(32.0, seat("b", failed(30.0)), ending)
    assert (found.replace, found.held_back) == ({}, "another seat is ending")


# -------------------------------------------------------------------- pre-flights


def test_a_pre_flight_that_keeps_an_engine_from_starting_is_told_and_no_reason_to_replace_its_seat() -> None:
    fleet = Fleet()
    for at in range(100, 3100, 300):
        fleet.look(at - 0.5, seat("s-0", loading(at - 1.0)))
        found = fleet.look(at, seat("s-0", refused(at)))
        assert (found.causes, found.replace, found.held_back) == ({"s-0": Cause.PRE_FLIGHT}, {}, "")
    why = "a pre-flight keeps chat from starting: pre-flight: NoGpu: there is no GPU"
    assert found.ailing == {"s-0": why}
    assert fleet.look(3100.0, seat("s-0", loading(3099.0))).ailing == {"s-0": why}, "its next try has begun"


def test_it_is_told_no_more_once_an_engine_has_started() -> None:
    fleet = Fleet()
    fleet.look(10.0, seat("s-0", refused(10.0)))
    assert fleet.look(50.0, seat("s-0", started(20.0))) == Found()


def test_pre_flights_between_bad_starts_neither_count_nor_hide_them() -> None:
    fleet = Fleet()
    fleet.fails("s-0", [10.0, 20.0])
    for at in (30.0, 60.0, 120.0):
        assert fleet.look(at, seat("s-0", refused(at))).causes == {"s-0": Cause.PRE_FLIGHT}
    found = fleet.fails("s-0", [200.0])
    assert (found.causes, found.replace.keys()) == ({"s-0": Cause.CRASH_LOOP}, {"s-0"})


def test_a_seat_that_fails_is_replaced_beside_one_that_a_pre_flight_keeps_from_starting() -> None:
    fleet = Fleet()
    for at in (10.0, 20.0, 30.0):
        found = fleet.look(at, seat("a", refused(at)), seat("b", failed(at)))
    assert found.causes == {"a": Cause.PRE_FLIGHT, "b": Cause.CRASH_LOOP}
    assert found.replace.keys() == {"b"}


# -------------------------------------------------------------------- containers


def loops(restarts: int, reason: str = "CrashLoopBackOff") -> Crash:
    return Crash(container="agent", reason=reason, restarts=restarts, how="it exited with status 2")


def test_a_container_that_ends_again_and_again_makes_a_seat_ailing_before_anybody_has_heard_its_agent() -> (
    None
):
    fleet = Fleet()
    assert fleet.look(1000.0, seat("s-0", crash=loops(2))) == Found()
    found = fleet.look(1010.0, seat("s-0", crash=loops(3), reachable=False))
    why = "container agent is in CrashLoopBackOff after 3 restarts: it exited with status 2"
    assert (found.ailing, found.causes) == ({"s-0": why}, {"s-0": Cause.CRASH_LOOP})
    assert found.replace == {"s-0": why}


def test_while_it_runs_for_a_moment_it_still_ails_and_when_it_goes_on_running_no_more() -> None:
    fleet = Fleet()
    fleet.look(1000.0, seat("s-0", crash=loops(3)))
    assert fleet.look(1001.0, seat("s-0")).replace
    assert fleet.look(1000.0 + CALM_SECONDS, seat("s-0")) == Found()
    assert not fleet.history.streaks


def test_restarts_of_a_container_that_a_pre_flight_ended_count_for_nothing_then_or_later() -> None:
    fleet = Fleet()
    for now, restarts in ((1000.0, 3), (1300.0, 9)):
        found = fleet.look(now, seat("s-0", crash=replace(loops(restarts), refused=True), reachable=False))
        assert (found.causes, found.replace) == ({"s-0": Cause.PRE_FLIGHT}, {})
    assert fleet.look(1310.0, seat("s-0", crash=loops(11))) == Found()
    assert fleet.look(1310.0 + CALM_SECONDS, seat("s-0")) == Found()
    assert fleet.look(2000.0, seat("s-0", crash=loops(11))) == Found()
    assert fleet.look(2010.0, seat("s-0", crash=loops(12))).replace.keys() == {"s-0"}


def test_what_a_pre_flight_ended_spares_no_other_container() -> None:
    fleet = Fleet()
    fleet.look(1000.0, seat("s-0", crash=replace(loops(9), container="chat", refused=True)))
    assert fleet.look(1010.0, seat("s-0", crash=loops(3))).causes == {"s-0": Cause.CRASH_LOOP}


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "CreateContainerConfigError"])
def test_one_that_cannot_be_started_is_told_of_at_once_and_left_for_another_would_fare_no_better(
    reason: str,
) -> None:
    fleet = Fleet()
    found = fleet.look(1000.0, seat("s-0", crash=loops(0, reason)))
    assert found.ailing == {"s-0": f"container agent is in {reason}: it exited with status 2"}
    assert (found.causes, found.replace, found.held_back) == ({"s-0": Cause.CANNOT_START}, {}, "")
    assert fleet.look(1001.0, seat("s-0")) == Found()


@pytest.mark.parametrize(
    "others",
    [
        pytest.param({"serving": frozenset({CHAT})}, id="in-rotation"),
        pytest.param({"claim": CLAIM}, id="claimed"),
        pytest.param({"terminating": True}, id="going-anyway"),
    ],
)
def test_containers_too_are_no_reason_to_take_a_seat_from_anyone(others: dict[str, object]) -> None:
    assert not Fleet().look(1000.0, seat("s-0", crash=loops(9), **others)).ailing
    neighbour = started(0.0, state=ResidentState.SERVING)
    assert not Fleet().look(1000.0, seat("s-0", neighbour, crash=loops(9))).ailing


def test_a_bad_image_ends_with_the_budget() -> None:
    fleet, replaced, now = Fleet(), 0, 0.0
    for number in range(2 * BUDGET):
        made = now
        for _ in range(1000):
            now += 10.0
            found = fleet.look(now, seat(f"s-{number}", created=made, crash=loops(9)))
            if found.replace:
                replaced += 1
                break
        else:
            break
    assert replaced == BUDGET
    assert found.held_back.startswith(f"{BUDGET} seats were replaced and none has started soundly since")


def test_what_is_wrong_is_told_apart() -> None:
    fleet = Fleet(replace(RULE, consecutive=1))
    slow, dead = seat("slow", started(0.0, took=61.0)), seat("dead", failed(10.0))
    assert fleet.look(900.0, slow, dead).causes == {"slow": Cause.SLOW_START, "dead": Cause.CRASH_LOOP}


def burn(fleet: Fleet, now: float, number: int) -> tuple[float, Found]:
    """Let one more seat fail as all do; return when it was replaced, and what was found just before that."""
    before = Found()
    for step in range(100_000):
        at = now + 10.0 * step
        found = fleet.look(at, seat(f"s-{number}", failed(at), created=now))
        if found.replace or found.held_back.startswith(str(BUDGET)):
            return at, found
        before = found
    return math.inf, before


def test_a_fault_that_all_share_is_met_with_longer_and_longer_pauses_and_then_with_none() -> None:
    fleet, now, times = Fleet(), 0.0, []
    for number in range(BUDGET):
        now, found = burn(fleet, now, number)
        assert found.replace
        times.append(now)
    gaps = [round(after - before) for before, after in pairwise(times)]
    assert gaps == [60, 120, 240, 480]
    now, found = burn(fleet, now, BUDGET)
    assert found.held_back == (
        f"{BUDGET} seats were replaced and none has started soundly since: what is wrong is the same everywhere"
    )
    assert found.look_again == times[-1] + FORGIVEN_SECONDS
    late = fleet.look(times[-1] + FORGIVEN_SECONDS, seat("s-5", failed(now)))
    assert late.replace, "by then it may have been mended"


def test_a_sound_start_of_a_younger_seat_justifies_what_was_replaced() -> None:
    fleet = Fleet()
    now, _ = burn(fleet, 0.0, 0)
    other = seat("s-1", failed(now + 1), created=1.0)
    young = seat("s-2", started(now + 2.0), created=now + 1.0)
    found = fleet.look(now + 3.0, other, young)
    assert fleet.history.replaced == ()
    assert not found.held_back
    for at in (now + 4.0, now + 5.0):
        found = fleet.look(at, replace(other, residents=(failed(at),)), young)
    assert found.replace.keys() == {"s-1"}


def test_where_nothing_has_ever_started_the_first_replacement_waits_too() -> None:
    fleet = Fleet()
    found = fleet.fails("s-0", [10.0, 20.0, 30.0], created=0.0)
    assert (found.replace, found.look_again) == ({}, 60.0)
    assert found.held_back == "the last new seat was made 30 s ago, and nothing has started soundly since"
    assert fleet.look(60.0, seat("s-0", failed(30.0), created=0.0)).replace
    other = Fleet()
    other.look(5.0, seat("s-0", started(1.0), created=0.0))
    assert other.fails("s-0", [10.0, 20.0, 30.0], created=0.0).replace, "it has started before"


def test_an_older_seat_that_starts_justifies_nothing() -> None:
    fleet = Fleet()
    now, _ = burn(fleet, 0.0, 0)
    fleet.look(now + 5.0, seat("old", started(now + 1.0), created=0.0))
    assert len(fleet.history.replaced) == 1


@given(st.integers(0, 30))
def test_pauses_only_grow_and_end(replacements: int) -> None:
    assert pause_seconds(replacements) <= pause_seconds(replacements + 1)
    assert pause_seconds(replacements) <= LONGEST_PAUSE_SECONDS or replacements >= BUDGET


residents = st.one_of(
    st.builds(failed, st.integers(0, 5).map(float)),
    st.builds(refused, st.integers(0, 5).map(float)),
    st.builds(started, st.integers(0, 5).map(float), st.sampled_from([10.0, 100.0])),
    st.builds(loading, st.just(0.0)),
    st.builds(started, st.just(1.0), st.just(100.0), st.sampled_from(ResidentState)),
)
looks = st.lists(
    st.lists(
        st.tuples(st.sampled_from("abc"), residents, st.booleans()),
        max_size=3,
        unique_by=lambda each: each[0],
    ),
    max_size=30,
)


@given(looks)
def test_whatever_happens_nothing_that_serves_is_replaced_and_never_more_than_the_budget(
    told: list[list[tuple[str, Resident, bool]]],
) -> None:
    fleet, begun = Fleet(replace(RULE, consecutive=1)), 0
    for number, row in enumerate(told):
        seats = [
            replace(
                seat(name, resident, serving=frozenset({CHAT}) if serves else frozenset()),
                uid=f"{name}-{number // 5}",
            )
            for name, resident, serves in row
        ]
        before = fleet.history.replaced
        found = fleet.look(number * 10.0, *seats)
        begun += fleet.history.replaced != before and len(fleet.history.replaced) > len(before)
        serving = {each.name for each in seats if each.serving}
        assert not serving & found.ailing.keys()
        assert found.replace.keys() <= found.ailing.keys()
        assert len(found.replace) <= 1
        assert len(fleet.history.replaced) <= BUDGET
    assert begun <= len(told)

"""Phases of a start add up to the whole of it, whatever engines and clocks say."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.sources.port import Tier
from warmpool.timeline import (
    OF_ENGINE,
    OTHER_TIER,
    TIERS,
    Account,
    Phase,
    Stamps,
    WeightLoad,
    in_phases,
    init_seconds,
    phase_of,
    resident_timeline,
    seat_timeline,
)

seconds = st.floats(0.0, 1e5)
steps = st.lists(st.tuples(st.sampled_from(Phase), seconds), max_size=12)
told = st.dictionaries(st.sampled_from(OF_ENGINE), seconds, max_size=7)


@given(steps, told, st.sampled_from([Phase.PROCESS, Phase.OTHER]), seconds)
def test_what_was_counted_and_explained_adds_up_to_what_has_passed(
    steps: list[tuple[Phase, float]], told: dict[Phase, float], rest: Phase, last: float
) -> None:
    account, now = Account(100.0), 100.0
    for phase, took in steps:
        account.enter(phase, now)
        now += took
    account.enter(Phase.WAITING, now)
    account.explain(told, rest)
    found = account.seconds(now + last)
    assert sum(found.values()) == pytest.approx(now + last - 100.0, abs=1e-6)
    assert all(each >= 0.0 for each in found.values())
    assert list(found) == [phase for phase in Phase if phase in found]


def test_time_before_the_first_phase_is_waiting_and_a_phase_that_comes_again_adds_up() -> None:
    account = Account(0.0)
    account.enter(Phase.OTHER, 2.0)
    account.enter(Phase.WAITING, 5.0)
    account.enter(Phase.WARM_UP, 6.0)
    account.enter(Phase.WAITING, 7.0)
    account.enter(Phase.WARM_UP, 9.0)
    assert account.seconds(9.5) == {Phase.WAITING: 5.0, Phase.OTHER: 3.0, Phase.WARM_UP: 1.5}


@pytest.mark.parametrize(
    ("told", "rest", "found"),
    [
        pytest.param({}, Phase.OTHER, {Phase.OTHER: 10.0}, id="nothing-told"),
        pytest.param({}, Phase.PROCESS, {Phase.PROCESS: 10.0}, id="a-start-that-failed-for-its-port"),
        pytest.param(
            {Phase.WEIGHTS: 4.0}, Phase.OTHER, {Phase.WEIGHTS: 4.0, Phase.OTHER: 6.0}, id="a-part-is-told"
        ),
        pytest.param(
            {Phase.PROCESS: 1.0, Phase.IMPORT: 8.5},
            Phase.PROCESS,
            {Phase.PROCESS: 1.5, Phase.IMPORT: 8.5},
            id="all-but-the-order-and-the-noticing",
        ),
        pytest.param(
            {Phase.WEIGHTS: 15.0, Phase.CAPTURE: 5.0},
            Phase.OTHER,
            {Phase.WEIGHTS: 7.5, Phase.CAPTURE: 2.5},
            id="more-than-there-was",
        ),
    ],
)
def test_what_an_engine_did_is_explained_by_what_it_tells(
    told: dict[Phase, float], rest: Phase, found: dict[Phase, float]
) -> None:
    account = Account(0.0)
    account.enter(Phase.OTHER, 0.0)
    account.enter(Phase.WAITING, 10.0)
    account.explain(told, rest)
    assert account.seconds(10.0) == found


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("fork", Phase.PROCESS),
        ("ready", Phase.PROCESS),
        ("weights", Phase.WEIGHTS),
        ("load", Phase.WEIGHTS),
        ("capture", Phase.CAPTURE),
        ("graph capture 17", Phase.OTHER),
        ("paused", Phase.OTHER),
    ],
)
def test_engines_names_are_put_into_phases(name: str, phase: Phase) -> None:
    assert phase_of(name) is phase


def test_what_is_no_time_is_not_counted() -> None:
    told = {"import": 1.0, "weights": math.nan, "compile": math.inf, "capture": -1.0, "x": 2.0, "y": 3.0}
    assert in_phases(told) == {Phase.IMPORT: 1.0, Phase.OTHER: 5.0}


def test_what_an_engine_took_leaves_out_waiting_and_what_comes_after_its_readiness() -> None:
    phases = {"scheduled": 64.0, "image": 32.0, "waiting": 16.0, "process": 8.0, "weights": 4.0, "proof": 2.0}
    assert init_seconds(phases) == 12.0


def test_every_tier_of_the_loader_is_listed() -> None:
    assert {str(tier) for tier in Tier} <= set(TIERS)
    assert WeightLoad(tier="Staged", nbytes=8, seconds=2.0).listed_tier == "Staged"
    assert WeightLoad(tier="Carrier pigeon", seconds=2.0).listed_tier == OTHER_TIER
    assert WeightLoad(tier="Disk", nbytes=8, seconds=2.0).rate == 4.0
    assert WeightLoad(tier="Disk", seconds=2.0).rate is None
    assert WeightLoad(tier="Attached", nbytes=8, seconds=0.0).rate is None


def test_a_residents_timeline_has_its_phases_one_after_the_other() -> None:
    timeline = resident_timeline(50.0, {"proof": 1.0, "waiting": 2.0, "a newer one": 0.5})
    assert [(each.phase, each.begin, each.seconds) for each in timeline.spans] == [
        ("waiting", 0.0, 2.0),
        ("proof", 2.0, 1.0),
        ("a newer one", 3.0, 0.5),
    ]
    assert (timeline.at, timeline.total, timeline.uncertain) == (50.0, 3.5, 0.0)


def test_a_seats_timeline_begins_with_its_pod_and_says_how_exact_it_is() -> None:
    stamps = Stamps(created=100.0, scheduled=102.0, running=130.0, whole=True)
    timeline = seat_timeline(stamps, 133.5, {"waiting": 1.0, "process": 0.5, "weights": 4.0})
    assert [(each.phase, each.begin, each.seconds, each.uncertain) for each in timeline.spans] == [
        ("scheduled", 0.0, 2.0, 1.0),
        ("image", 2.0, 28.0, 1.0),
        ("waiting", 30.0, 4.5, 1.0),
        ("process", 34.5, 0.5, 0.0),
        ("weights", 35.0, 4.0, 0.0),
    ]
    assert (timeline.total, timeline.uncertain, timeline.of_seat) == (39.0, 1.0, True)


def test_a_seat_without_a_scheduler_only_waits_before_its_resident_starts() -> None:
    timeline = seat_timeline(Stamps(created=10.0), 10.25, {"process": 1.0})
    assert [(each.phase, each.seconds, each.uncertain) for each in timeline.spans] == [
        ("waiting", 0.25, 0.0),
        ("process", 1.0, 0.0),
    ]


moment = st.none() | st.floats(0.0, 1e6)


@given(
    st.floats(0.0, 1e6),
    moment,
    moment,
    st.floats(0.0, 1e6),
    st.dictionaries(st.sampled_from([*map(str, Phase), "newer"]), seconds),
)
def test_a_seats_phases_add_up_to_its_whole_start_whatever_its_clocks_say(
    created: float,
    scheduled: float | None,
    running: float | None,
    at: float,
    phases: dict[str, float],
) -> None:
    phases = {name: each for name, each in phases.items() if name not in {"scheduled", "image"}}
    stamps = Stamps(created=created, scheduled=scheduled, running=running, whole=True)
    timeline = seat_timeline(stamps, at, phases)
    began = max(each for each in (created, scheduled, running, at) if each is not None)
    assert timeline.total == pytest.approx(began - created + sum(phases.values()), abs=1e-3)
    ends = [each.begin + each.seconds for each in timeline.spans]
    begins = [each.begin for each in timeline.spans]
    assert begins[0] == 0.0
    assert begins[1:] == pytest.approx(ends[:-1])
    assert all(each.seconds >= 0.0 for each in timeline.spans)

"""Pods, reports and nodes kept joined, in a time of the test's own."""

import contextlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.cluster.kube.joining import STUCK_SECONDS
from scaler.cluster.kube.roster import REPORT_MAX_AGE_SECONDS, Roster
from scaler.cluster.kube.views import Node, Taint
from tests.unit.scaler.cluster.kube.pods import FLEET, pod, report, seat
from warmpool.errors import BadOrder
from warmpool.nodehealth.others import Heeded
from warmpool.seats import Seat, SeatName, SeatValue, Verdict

NAME = SeatName("seat-0")


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def roster(time: Time) -> Roster:
    made = Roster(time, time)
    made.take_pod(NAME, pod())
    return made


def only(roster: Roster) -> Seat:
    (found,) = roster.shelf
    return found


def test_a_report_makes_a_pod_a_seat(roster: Roster) -> None:
    assert only(roster).value is SeatValue.HELD
    assert roster.report(report())
    assert only(roster).value is SeatValue.SPARE
    assert not roster.report(report(at=101.0))
    assert roster.term.epoch == 3


@pytest.mark.parametrize(
    ("change", "what"),
    [
        pytest.param({"uid": "another"}, "no pod", id="another pod of the name"),
        pytest.param({"fleet": "others"}, "mend either", id="another fleet"),
        pytest.param({"residents": 5}, "not an agent's", id="no report"),
    ],
)
def test_a_report_that_is_not_its_pods_is_refused(roster: Roster, change: dict[str, Any], what: str) -> None:
    with pytest.raises(BadOrder, match=what):
        roster.report(report(**change))
    assert only(roster).residents == ()


def test_a_report_of_a_pod_without_an_address_is_refused_for_now(roster: Roster) -> None:
    roster.take_pod(NAME, pod(ip=""))
    with pytest.raises(BadOrder, match="no address"):
        roster.report(report())


def test_an_overtaken_report_shows_that_the_agent_lives_and_nothing_else(roster: Roster, time: Time) -> None:
    roster.report(report(seq=5, at=200.0))
    time.now += REPORT_MAX_AGE_SECONDS + 1
    assert roster.pass_time()
    assert not only(roster).reachable
    assert roster.report(report(seq=4, at=199.0, residents=[]))
    assert only(roster).reachable
    assert len(only(roster).residents) == 1


def test_an_agent_that_is_silent_is_out_of_reach(roster: Roster, time: Time) -> None:
    roster.report(report())
    time.now += REPORT_MAX_AGE_SECONDS
    assert not roster.pass_time()
    time.now += 0.1
    assert roster.pass_time()
    assert only(roster).value is SeatValue.HELD
    assert roster.report(report(at=101.0))
    assert only(roster).value is SeatValue.SPARE


def test_a_new_pod_of_the_same_name_has_nothing_of_the_old_one(roster: Roster) -> None:
    roster.report(report())
    fresh = replace(seat(), uid="another", admitted=False)
    assert roster.take_pod(NAME, pod(fresh))
    assert (only(roster).uid, only(roster).residents) == ("another", ())
    with pytest.raises(BadOrder):
        roster.report(report())


def test_a_new_pod_of_the_same_name_is_on_its_node(roster: Roster) -> None:
    roster.take_pod(NAME, pod(replace(seat(), uid="another")))
    assert roster.take_node("a", Node(name="a", version="1", cordoned=True))
    assert only(roster).node_leaving == "cordoned"


def test_what_others_say_of_a_node_counts_where_it_is_to_be_heeded(roster: Roster) -> None:
    taint = Taint(key="example.com/gpu-fault", effect="PreferNoSchedule")
    said = Node(name="a", version="1", taints=(taint,), conditions={"GpuFault": "True", "Ready": "True"})
    assert not roster.take_node("a", said)
    assert only(roster).node_leaving == ""
    heeded = Heeded(taints=frozenset({"example.com/gpu-fault"}), conditions={"GpuFault": "True"})
    assert roster.heed(heeded)
    assert not roster.heed(heeded)
    assert only(roster).node_leaving == "example.com/gpu-fault"
    assert roster.take_node("a", replace(said, taints=()))
    assert only(roster).node_leaving == "GpuFault=True"
    assert roster.take_node("a", replace(said, taints=(), conditions={"GpuFault": "False"}))
    assert only(roster).node_leaving == ""


def test_a_version_alone_is_kept_and_no_news(roster: Roster) -> None:
    roster.report(report())
    before = roster.shelf.stock()[FLEET]
    assert not roster.take_pod(NAME, pod(replace(seat(), version="2")))
    assert only(roster).version == "2"
    assert roster.shelf.stock()[FLEET] is not before


def test_a_fleet_is_the_same_object_until_something_changes(roster: Roster) -> None:
    roster.report(report())
    before = roster.shelf.stock()[FLEET]
    roster.report(report(at=101.0))
    roster.take_node("b", Node(name="b", version="1", cordoned=True))
    roster.pass_time()
    assert roster.shelf.stock()[FLEET] is before


def test_a_node_concerns_the_seats_that_are_on_it(roster: Roster) -> None:
    roster.report(report())
    assert not roster.take_node("a", Node(name="a", version="1"))
    assert roster.take_node("a", Node(name="a", version="2", cordoned=True))
    assert only(roster).node_leaving == "cordoned"
    assert not roster.take_node("a", Node(name="a", version="3", cordoned=True, ready=True))
    assert roster.take_node("a", None)
    assert only(roster).node_leaving == ""


def test_a_seat_is_fenced_as_soon_as_its_node_has_our_taint(roster: Roster) -> None:
    roster.report(report())
    taint = Taint(key="emberpool.dev/gpu-unhealthy", effect="NoSchedule", value="Xid79")
    assert roster.take_node("a", Node(name="a", version="2", taints=(taint,)))
    assert (only(roster).fenced, only(roster).node_leaving) == (True, "")
    assert roster.take_node("a", Node(name="a", version="3"))
    assert not only(roster).fenced


def test_a_seat_is_fenced_where_its_gpu_alone_is(roster: Roster) -> None:
    roster.report(report())
    assert roster.fence({"GPU-1"})
    assert not roster.fence({"GPU-1"})
    assert only(roster).fenced
    assert roster.fence(())
    assert not only(roster).fenced


def test_what_is_thought_of_gpus_is_joined_and_taken_back(roster: Roster) -> None:
    roster.report(report())
    assert roster.judge({"GPU-1": Verdict.BAD})
    assert not roster.judge({"GPU-1": Verdict.BAD})
    assert only(roster).verdict is Verdict.BAD
    assert roster.judge({})
    assert only(roster).verdict is Verdict.OK


def test_a_pod_that_is_stuck_stops_being_a_seat(roster: Roster, time: Time) -> None:
    leaving = pod(seat(terminating=True, leaves_by=time.now))
    roster.take_pod(NAME, leaving)
    assert only(roster).value is SeatValue.DOOMED
    time.now += STUCK_SECONDS
    assert roster.pass_time()
    assert list(roster.shelf) == []
    assert roster.take_pod(NAME, None) is False


def test_a_mark_is_as_old_as_its_last_change(roster: Roster, time: Time) -> None:
    roster.take_pod(NAME, pod(cost="0"))
    time.now += 5
    roster.take_pod(NAME, pod(replace(seat(), version="2"), cost="0"))
    (standing,) = roster.standings(FLEET)
    assert standing.marked_at == 1000.0
    roster.take_pod(NAME, pod(replace(seat(), version="3"), cost="100"))
    (standing,) = roster.standings(FLEET)
    assert standing.marked_at == 1005.0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
RESIDENT_KEYS = ["policy", "state", "address", "since", "provenAt", "inFlight", "phases", "wakeSeconds"]


@given(
    st.dictionaries(st.sampled_from([*report(), "memory"]), JSON, max_size=4),
    st.dictionaries(st.sampled_from(RESIDENT_KEYS), JSON | st.just("http://[") | st.just("Serving")),
)
def test_no_report_does_more_than_being_refused(changes: dict[str, Any], resident: dict[str, Any]) -> None:
    made = Roster(Time(), Time())
    made.take_pod(NAME, pod())
    made.report(report())
    body = report(seq=2)
    body["residents"][0].update(resident)
    for told in (body, {**body, **changes}, {**report(), **changes}):
        with contextlib.suppress(BadOrder):
            made.report(told)
        (seat,) = made.shelf
        assert seat.value in SeatValue

"""Seat objects in memory: exactly one winner, and reports that never disturb a claim."""

from dataclasses import replace

import pytest

from scaler.cluster.objects import SeatObjects, ToldSeat
from scaler.errors import Conflict, NotFound
from warmpool.seats import (
    Claim,
    FleetName,
    GpuWord,
    Operation,
    PolicyName,
    Resident,
    Seat,
    SeatName,
    Verdict,
)
from warmpool.states import ResidentState

CHAT, CODE = PolicyName("chat"), PolicyName("code")
NOW = 1000.0


def resident(policy: PolicyName, state: ResidentState = ResidentState.PAUSED) -> Resident:
    return Resident(policy=policy, state=state, since=NOW, proven_at=NOW, address=f"http://{policy}")


def claim(operation: Operation = Operation.PROMOTE, policy: PolicyName = CHAT, **changes: object) -> Claim:
    base = Claim(
        id="c1",
        policy=policy,
        operation=operation,
        holder="h",
        epoch=1,
        since=NOW,
        deadline=NOW + 10,
        leaving=None,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.fixture
def objects() -> SeatObjects:
    store = SeatObjects(wall=lambda: NOW)
    store.add(
        Seat(
            name=SeatName("s-0"),
            uid="u-0",
            version="",
            fleet=FleetName("spares"),
            residents=(resident(CHAT), resident(CODE)),
        )
    )
    return store


def seat(objects: SeatObjects) -> Seat:
    return objects.get(SeatName("s-0"))


def test_of_two_claims_made_with_one_version_the_first_wins(objects: SeatObjects) -> None:
    read = seat(objects)
    objects.claim(read, claim())
    with pytest.raises(Conflict, match="changed since"):
        objects.claim(read, claim(id="c2", policy=CODE))


def test_a_report_leaves_the_version_alone(objects: SeatObjects) -> None:
    read = seat(objects)
    assert objects.report(
        read.name, "u-0", 7, "http://agent", [replace(resident(CHAT), in_flight=3), resident(CODE)]
    )
    assert objects.claim(read, claim()).claim is not None


def test_an_older_report_than_the_last_is_ignored(objects: SeatObjects) -> None:
    name = SeatName("s-0")
    objects.report(name, "u-0", 5, "http://agent", [resident(CHAT, ResidentState.SERVING), resident(CODE)])
    assert not objects.report(name, "u-0", 4, "http://agent", [resident(CHAT), resident(CODE)])
    assert seat(objects).residents[0].state is ResidentState.SERVING


def test_a_report_of_a_replaced_seat_is_ignored(objects: SeatObjects) -> None:
    assert not objects.report(SeatName("s-0"), "another", 1, "http://agent", [])


@pytest.mark.parametrize(
    ("waiting", "admitted"),
    [
        pytest.param((), True, id="all-are-proven"),
        pytest.param((CODE,), True, id="one-waits-for-room"),
        pytest.param((CHAT, CODE), False, id="all-do"),
    ],
)
def test_one_that_waits_for_room_keeps_its_seat_from_nothing(
    objects: SeatObjects,
    waiting: tuple[PolicyName, ...],
    admitted: bool,  # noqa: FBT001 -- a column of the table
) -> None:
    residents = [
        replace(resident(policy), state=ResidentState.STARTING, proven_at=None, waiting="no room")
        if policy in waiting
        else resident(policy)
        for policy in (CHAT, CODE)
    ]
    objects.report(SeatName("s-0"), "u-0", 1, "http://agent", residents)
    assert seat(objects).admitted is admitted


def test_a_promotion_ends_in_rotation_and_can_be_settled_twice(objects: SeatObjects) -> None:
    order = claim()
    objects.claim(seat(objects), order)
    objects.settle(SeatName("s-0"), order, CHAT)
    again = objects.settle(SeatName("s-0"), order, CHAT)
    assert (again.serving, again.claim, again.admitted) == (frozenset({CHAT}), None, True)


def test_a_switch_takes_the_leaving_resident_out_of_rotation_with_the_claim(objects: SeatObjects) -> None:
    first = claim()
    objects.claim(seat(objects), first)
    objects.settle(SeatName("s-0"), first, CHAT)
    switch = claim(Operation.SWITCH, CODE, id="c2", leaving=CHAT)
    assert objects.claim(seat(objects), switch).serving == frozenset()


def test_settling_another_claim_is_a_conflict(objects: SeatObjects) -> None:
    objects.claim(seat(objects), claim())
    with pytest.raises(Conflict, match="no longer held"):
        objects.settle(SeatName("s-0"), claim(id="c9"), CHAT)


def test_a_recall_overtakes_the_demotion_of_the_same_resident(objects: SeatObjects) -> None:
    first = claim()
    objects.claim(seat(objects), first)
    objects.settle(SeatName("s-0"), first, CHAT)
    objects.claim(seat(objects), claim(Operation.DEMOTE, id="c2"))
    recalled = objects.claim(seat(objects), claim(Operation.RECALL, id="c3"))
    assert recalled.claim is not None
    assert recalled.claim.operation is Operation.RECALL


def test_a_terminating_seat_is_out_of_rotation_and_takes_no_promotion(objects: SeatObjects) -> None:
    objects.mark_terminating(SeatName("s-0"))
    with pytest.raises(Conflict, match="terminating"):
        objects.claim(seat(objects), claim())


def test_a_silent_agent_makes_its_seat_unreachable_until_it_reports_again() -> None:
    time = [NOW]
    objects = SeatObjects(wall=lambda: time[0])
    objects.add(Seat(name=SeatName("s-0"), uid="u-0", version="", fleet=FleetName("f")))
    objects.report(SeatName("s-0"), "u-0", 1, "http://agent", [resident(CHAT)])
    time[0] += 10
    objects.expire_reports(5.0)
    assert not seat(objects).reachable
    objects.report(SeatName("s-0"), "u-0", 2, "http://agent", [resident(CHAT)])
    assert seat(objects).reachable


def test_subscribers_hear_of_changes_until_they_end(objects: SeatObjects) -> None:
    heard: list[int] = []
    end = objects.subscribe(lambda: heard.append(1))
    objects.claim(seat(objects), claim())
    end()
    objects.remove(SeatName("s-0"))
    assert heard == [1]


def test_a_seat_that_is_gone_says_so(objects: SeatObjects) -> None:
    read = seat(objects)
    objects.remove(read.name)
    with pytest.raises(NotFound, match="s-0 is gone"):
        objects.claim(read, claim())


def test_what_is_said_of_gpus_is_acted_on_unless_the_fleet_observes(objects: SeatObjects) -> None:
    words = (GpuWord(uuid="GPU-a", word="Bad", reason="Xid 79"),)
    name, residents = SeatName("s-0"), [resident(CHAT), resident(CODE)]
    verdicts = []
    for number, told in enumerate(
        (ToldSeat(words=words), ToldSeat(words=words, observed=True), None, ToldSeat(verdict=Verdict.SUSPECT))
    ):
        objects.report(name, "u-0", number, "http://agent", residents, told)
        verdicts.append((seat(objects).verdict, len(seat(objects).gpu_words)))
    assert verdicts == [(Verdict.BAD, 1), (Verdict.OK, 1), (Verdict.OK, 1), (Verdict.SUSPECT, 0)]

"""Which orders are refused, with what reason and which mend."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.core.model import Decision, FleetView, Floor, Load, Mode, PolicyDecision, Snapshot, Supply
from scaler.runtime.order_rules import Order, OrderRefused, Sight, judge, parse
from scaler.store.standing_orders import MOST_DRAINED, Freeze
from tests.unit.scaler.core.world import fleet, policy
from warmpool.claim import Errand, Term, new_claim
from warmpool.seats import FleetName, Operation, PolicyName, Resident, Seat, SeatName, Verdict
from warmpool.states import ResidentState

CHAT, CODE, FLEET = PolicyName("chat"), PolicyName("code"), FleetName("spares")
WALL = 1_800_000_000.0


def seat(name: str, serving: PolicyName | None = None, **changed: Any) -> Seat:
    residents = tuple(
        Resident(
            policy=each,
            state=ResidentState.SERVING if each == serving else ResidentState.PAUSED,
            since=0.0,
            proven_at=0.0,
        )
        for each in (CHAT, CODE)
    )
    made = Seat(name=SeatName(name), uid=f"uid-{name}", version="1", fleet=FLEET, residents=residents)
    return replace(made, serving=frozenset({serving} if serving else ()), **changed)


def state(of: Seat, policy: PolicyName, state: ResidentState, **changed: Any) -> Seat:
    return replace(
        of,
        residents=tuple(
            replace(each, state=state, **changed) if each.policy == policy else each for each in of.residents
        ),
    )


def decided(name: PolicyName, serving: int, **changed: Any) -> PolicyDecision:
    made = PolicyDecision(
        policy=name,
        mode=Mode.STABLE,
        demand=0.0,
        needed=0.0,
        capacity=8.0 * serving,
        wanted={FLEET: serving},
        serving={FLEET: serving},
    )
    return replace(made, **changed)


def sight(*seats: Seat, serving: tuple[int, int] = (1, 0), **changed: Any) -> Sight:
    """Two policies on a fleet, of which so many serve; by default b serves chat and a is spare."""
    there = seats or (seat("a"), seat("b", CHAT))
    supplies = {CHAT: Supply(serving=serving[0]), CODE: Supply(serving=serving[1])}
    made = Sight(
        wall=WALL,
        policies={CHAT: policy(CHAT), CODE: policy(CODE, serving_min=0)},
        fleets={FLEET: fleet()},
        namespaces={FLEET: "serving"},
        snapshot=Snapshot(
            loads={CHAT: Load(), CODE: Load()}, fleets={FLEET: FleetView(supply=supplies, replicas=2)}
        ),
        decision=Decision(
            at=0.0, policies={CHAT: decided(CHAT, serving[0]), CODE: decided(CODE, serving[1])}, fleets={}
        ),
        seats={each.name: each for each in there},
    )
    return replace(made, **changed)


def order(operation: str, **facts: Any) -> Order:
    return parse({"id": "1", "operation": operation, **facts})


def refused(given: Order, by: Sight) -> OrderRefused:
    with pytest.raises(OrderRefused) as caught:
        judge(given, by)
    return caught.value


CLAIM = new_claim(
    Errand(operation=Operation.PROVE, policy=CODE), Term(holder="c", epoch=1), number=1, now=WALL, seconds=9.0
)
PROMOTE = order("Promote", seat="a", policy="chat")
TWO = (2, 0)


def test_an_order_that_can_be_carried_out_is_said_in_one_sentence() -> None:
    assert judge(PROMOTE, sight()) == (
        "promotes chat on a and keeps it for 10 s at least; then the load decides again"
    )
    switch = order("Switch", seat="b", policy="code", leaving="chat")
    assert judge(switch, sight(serving=TWO)) == (
        "drains chat on b, promotes code there and keeps it for 10 s at least; then the load decides again"
    )
    demote = order("Demote", seat="b", policy="chat")
    assert judge(demote, sight(serving=TWO)) == (
        "drains chat on b and pauses it; then the load decides again"
    )


@pytest.mark.parametrize(
    ("there", "code", "said"),
    [
        (seat("a", claim=CLAIM), "Claimed", "seat a is claimed for Prove of code"),
        (seat("a", terminating=True), "Terminating", "seat a is going"),
        (seat("a", reachable=False), "Unreachable", "the agent of seat a is silent"),
        (seat("a", verdict=Verdict.BAD), "UnhealthyGpu", "seat a is on a Bad GPU"),
        (seat("a", verdict=Verdict.SUSPECT), "UnhealthyGpu", "seat a is on a Suspect GPU"),
        (
            replace(seat("a"), node="n1", node_leaving="cordoned"),
            "NodeLeaving",
            "node n1 of seat a is being emptied (cordoned)",
        ),
        (seat("a", CHAT), "Serving", "seat a serves chat already"),
        (seat("a", CODE), "Occupied", "seat a serves code"),
        (replace(seat("a"), residents=()), "NotResident", "seat a has no resident of chat"),
        (
            state(seat("a"), CHAT, ResidentState.STARTING, waiting="room"),
            "NotPromotable",
            "chat is Starting on seat a: room",
        ),
        (
            state(seat("a"), CHAT, ResidentState.FAILED, failure="exit 1"),
            "NotPromotable",
            "chat is Failed on seat a: exit 1",
        ),
        (state(seat("a"), CODE, ResidentState.WARMING), "Occupied", "code is Warming on seat a"),
        (state(seat("a"), CHAT, ResidentState.DRAINING), "NotPromotable", "chat is Draining on seat a"),
    ],
)
def test_an_unfit_seat_gets_no_promotion(there: Seat, code: str, said: str) -> None:
    why = refused(PROMOTE, sight(there, seat("b", CHAT)))
    assert (why.code, str(why), why.status) == (code, said, 409)


@pytest.mark.parametrize(
    ("given", "by", "code", "said"),
    [
        (order("Promote", seat="z", policy="chat"), sight(), "NotFound", "there is no seat z"),
        (
            order("Promote", seat="a", policy="chat", uid="old"),
            sight(),
            "AnotherSeat",
            "seat a is another one by now: its uid is uid-a",
        ),
        (
            order("Promote", seat="a", policy="chat", namespace="elsewhere"),
            sight(),
            "OtherNamespace",
            "fleet spares of this controller is in namespace serving, and not in elsewhere",
        ),
        (
            PROMOTE,
            sight(fleets={FLEET: fleet(observe=True)}),
            "Observed",
            "fleet spares is in mode Observe: nothing is done on its seats",
        ),
        (
            PROMOTE,
            sight(policies={CODE: policy(CODE)}),
            "NotFound",
            "there is no policy chat in force",
        ),
        (
            PROMOTE,
            sight(policies={CHAT: policy(CHAT, fleets=[("own", 8)])}),
            "NotOnFleet",
            "policy chat doesn't name fleet spares",
        ),
        (
            PROMOTE,
            sight(occupied={"a"}),
            "Occupied",
            "an action is under way on seat a, or it rests after a failed promotion",
        ),
        (
            PROMOTE,
            sight(policies={CHAT: policy(CHAT, serving_max=1)}),
            "AtMax",
            "1 residents of chat serve, and serving.max is 1",
        ),
        (
            order("Promote", seat="a", policy="code"),
            sight(serving=(0, 0)),
            "OthersFloor",
            "chat is below its floor of 1, and could serve on seat a",
        ),
        (
            order("Switch", seat="b", policy="code"),
            sight(),
            "BelowFloor",
            "0 residents of chat would serve, and its floor is 1",
        ),
        (order("Switch", seat="a", policy="code"), sight(), "NotServing", "seat a serves nobody"),
        (
            order("Switch", seat="b", policy="code", leaving="code"),
            sight(),
            "NotServing",
            "seat b serves chat, and not code",
        ),
        (
            order("Demote", seat="a", policy="chat"),
            sight(serving=TWO),
            "NotServing",
            "seat a serves nobody, and not chat",
        ),
        (order("Drain", seat="a"), sight(seat("a", drained=True)), "Drained", "seat a is drained already"),
        (
            order("Drain", seat="a"),
            sight(drained={FLEET: MOST_DRAINED}),
            "TooManyDrained",
            f"{MOST_DRAINED} seats of fleet spares are drained already",
        ),
        (order("Thaw", fleet="spares"), sight(), "NotFrozen", "nobody has ordered a freeze of spares"),
        (
            order("Thaw", fleet="z"),
            sight(),
            "NotFound",
            "there is no fleet z in the policies in force",
        ),
    ],
)
def test_what_is_refused_says_why_and_what_to_do(given: Order, by: Sight, code: str, said: str) -> None:
    why = refused(given, by)
    assert (why.code, str(why)) == (code, said)
    assert 400 <= why.status < 500


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"needed": 9.0}, "Needed"),
        ({"demand": 9.0}, "Needed"),
        ({"demand": None}, "LoadUnknown"),
        ({"mode": Mode.HOLD}, "LoadUnknown"),
        ({"needed": 8.0, "demand": 8.0}, ""),
    ],
)
def test_nobody_is_demoted_whom_the_load_needs(changed: dict[str, Any], code: str) -> None:
    by = sight(serving=TWO)
    by = replace(by, decision=replace(by.decision, policies={CHAT: decided(CHAT, 2, **changed)}))
    demote = order("Demote", seat="b", policy="chat")
    if code:
        assert refused(demote, by).code == code
    else:
        judge(demote, by)


def test_a_schedules_floor_is_a_floor() -> None:
    by = sight(serving=TWO)
    by = replace(by, snapshot=replace(by.snapshot, serving_floors={CHAT: Floor(value=2, schedule="day")}))
    assert refused(order("Demote", seat="b", policy="chat"), by).code == "BelowFloor"


def test_a_promotion_onto_a_drained_seat_ends_its_drain() -> None:
    by = sight(seat("a", drained=True), seat("b", CHAT))
    assert judge(PROMOTE, by).endswith("; that ends its drain")


def test_a_drain_says_where_nobody_could_take_over() -> None:
    assert judge(order("Drain", seat="b"), sight()).endswith("chat leaves it once others serve in its place")
    alone = judge(order("Drain", seat="b"), sight(seat("b", CHAT)))
    assert alone.endswith("at present no other seat is free for chat, which serves on until one is")


def rfc(seconds: float) -> str:
    return datetime.fromtimestamp(WALL + seconds, UTC).isoformat()


@pytest.mark.parametrize(
    ("until", "said"),
    [
        (rfc(-1.0), "is over already"),
        (rfc(7 * 86_400 + 61.0), "is more than 7 days ahead"),
        ("9999-12-31T23:59:59Z", "is more than 7 days ahead"),
        ("tomorrow", "'tomorrow' is no time"),
        ("2027-01-01T00:00:00", "is no time"),
        ("", "is no time"),
    ],
)
def test_a_freeze_has_an_end_that_is_near(until: str, said: str) -> None:
    with pytest.raises(OrderRefused, match=said) as caught:
        judge(order("Freeze", fleet="spares", until=until, reason="x"), sight())
    assert (caught.value.code, caught.value.status) == ("BadOrder", 400)


def test_a_freeze_says_what_it_takes_the_place_of() -> None:
    freeze = order("Freeze", fleet="spares", until=rfc(7 * 86_400), reason="x")
    assert "before" not in judge(freeze, sight())
    known = Freeze(until=WALL + 9, reason="y", by="b", since=WALL)
    assert "instead of the freeze that was ordered before" in judge(freeze, sight(freezes={FLEET: known}))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "an order is a JSON object"),
        ({"operation": "Dance", "id": "1"}, "operation 'Dance' is not known"),
        ({"operation": "Drain", "seat": "a"}, "id is missing"),
        ({"operation": "Drain", "id": "1"}, "seat is missing"),
        ({"operation": "Drain", "id": "1", "seat": "a", "fleet": "f"}, "no fleet goes with it"),
        ({"operation": "Promote", "id": "1", "seat": "a"}, "policy is missing"),
        ({"operation": "Thaw", "id": "1"}, "fleet is missing"),
        ({"operation": "Freeze", "id": "1", "fleet": "f", "until": rfc(9)}, "reason is missing"),
        ({"operation": "Drain", "id": "1", "seat": "a", "dryRun": "no"}, "dryRun is true or false"),
        ({"operation": "Drain", "id": 7, "seat": "a"}, "id is a text"),
        ({"operation": "Drain", "id": "x" * 129, "seat": "a"}, "id is longer than 128"),
        ({"operation": "Drain", "id": "1", "seat": "a", "reason": "a\nb"}, "can't be printed"),
    ],
)
def test_what_is_no_order_is_refused_with_its_place(body: Any, said: str) -> None:
    with pytest.raises(OrderRefused, match=said) as caught:
        parse(body)
    assert (caught.value.code, caught.value.status) == ("BadOrder", 400)


KEYS = ("id", "operation", "seat", "fleet", "uid", "policy", "leaving", "until", "reason", "by", "dryRun")
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(max_size=20),
    st.sampled_from(["Promote", "Freeze", "a", "b", "chat", "code", "spares", rfc(60.0)]),
)


@given(st.one_of(st.dictionaries(st.sampled_from(KEYS), VALUES), VALUES, st.lists(VALUES)))
def test_whatever_comes_is_an_order_with_a_sentence_or_a_refusal_with_a_code(body: object) -> None:
    said, code = "", ""
    try:
        said = judge(parse(body), sight())
    except OrderRefused as why:
        said, code = str(why), why.code
    assert said
    assert code or any(part in said for part in ("load decides", "no promotion", "the size of"))

"""Laws of one plan, over seats as nobody would build them."""

import math
from collections import Counter
from collections.abc import Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from warmpool.claim import Errand, Term, in_force, new_claim, refusal
from warmpool.plan import (
    Action,
    Demote,
    Limits,
    Plan,
    Promote,
    Prove,
    Recall,
    Release,
    Replace,
    Resize,
    SeatAction,
    Switch,
    Wants,
    plan,
)
from warmpool.seats import Claim, FleetName, Operation, PolicyName, Resident, Seat, SeatName, Verdict
from warmpool.states import COMPUTING, ResidentState

NOW = 1000.0
KINDS = [Release, Recall, Promote, Switch, Demote, Replace, Resize, Prove]
FLEETS = [FleetName("f"), FleetName("g")]
POLICIES = [PolicyName(name) for name in "abcd"]
policies = st.sampled_from(POLICIES)
fleets = st.sampled_from(FLEETS)
times = st.floats(min_value=0, max_value=2 * NOW) | st.sampled_from([math.nan, math.inf, -math.inf])
residents = st.builds(
    Resident,
    policy=policies,
    state=st.sampled_from(ResidentState) | st.sampled_from([ResidentState.PAUSED, ResidentState.SERVING]),
    since=times,
    proven_at=st.none() | times,
    kv_released=st.booleans(),
    in_flight=st.integers(0, 5),
)
claims = st.builds(
    Claim,
    id=st.text(max_size=3),
    policy=policies,
    operation=st.sampled_from(Operation),
    holder=st.just("h"),
    epoch=st.integers(0, 3),
    since=times,
    deadline=times,
    leaving=st.none() | policies,
)


def pods(names: st.SearchStrategy[str]) -> st.SearchStrategy[Seat]:
    return st.builds(
        Seat,
        name=names.map(SeatName),
        uid=st.just("u"),
        version=st.just("1"),
        fleet=fleets | st.just(FleetName("another")),
        node=st.sampled_from(["x", "y"]),
        residents=st.lists(residents, max_size=4).map(tuple),
        serving=st.frozensets(policies, max_size=1) | st.frozensets(policies),
        claim=st.none() | claims,
        verdict=st.just(Verdict.OK) | st.sampled_from(Verdict),
        ready=st.booleans(),
        reachable=st.just(True) | st.booleans(),
        terminating=st.just(False) | st.booleans(),
        lent=st.booleans(),
    )


any_seats = st.lists(pods(st.text(max_size=1)), max_size=8)
distinct_seats = st.lists(pods(st.text(max_size=3)), max_size=8, unique_by=lambda seat: seat.name)
any_wants = st.builds(
    Wants,
    serving=st.dictionaries(fleets, st.dictionaries(policies, st.integers(-1, 5))),
    order=st.permutations(POLICIES).map(lambda order: order[:3]),
    totals=st.dictionaries(fleets, st.integers(0, 9)),
    replicas=st.dictionaries(fleets, st.integers(0, 9)),
)
any_limits = st.builds(
    Limits,
    max_promotions=st.integers(0, 9),
    max_demotions=st.integers(0, 9),
    proof_interval_seconds=st.sampled_from([0.0, 100.0, math.inf]),
)
any_settled = st.none() | st.dictionaries(st.text(max_size=1).map(SeatName), times)
UNLIMITED = Limits(max_promotions=1000, max_demotions=1000, proof_interval_seconds=100.0)


def told(action: Action) -> tuple[str, ...]:
    if isinstance(action, SeatAction):
        return (type(action).__name__, action.seat.name, str(getattr(action, "policy", "")))
    assert isinstance(action, Resize)
    return ("Resize", action.fleet, str(action.total))


def taken(given_plan: Plan, seats: Sequence[Seat]) -> list[int]:
    """Return the positions of the seats that the plan uses."""
    at = {id(seat): position for position, seat in enumerate(seats)}
    return [at[id(action.seat)] for action in given_plan.actions if isinstance(action, SeatAction)]


@given(any_wants, any_seats, any_limits, times, any_settled)
@settings(max_examples=300)
def test_any_seats_give_a_plan_that_uses_each_once(
    wants: Wants, seats: list[Seat], limits: Limits, now: float, settled: dict[SeatName, float] | None
) -> None:
    answer = plan(wants, seats, limits, now, settled=settled)
    used = taken(answer, seats)
    assert len(used) == len(set(used))
    kinds = [KINDS.index(type(action)) for action in answer.actions]
    assert kinds == sorted(kinds)
    assert all(action.why for action in answer.actions)
    assert all(count > 0 for count in answer.unfilled.values())


@given(any_wants, any_seats, any_settled)
def test_claims_in_force_are_left_alone_but_for_recalls(
    wants: Wants, seats: list[Seat], settled: dict[SeatName, float] | None
) -> None:
    for action in plan(wants, seats, UNLIMITED, NOW, settled=settled).actions:
        if isinstance(action, SeatAction) and in_force(action.seat.claim, NOW):
            assert isinstance(action, Recall)
            assert action.seat.claim is not None
            assert (action.seat.claim.operation, action.seat.claim.policy) == (
                Operation.DEMOTE,
                action.policy,
            )


@given(any_wants, any_seats, any_settled)
def test_whoever_goes_into_rotation_is_alone_on_a_usable_seat(
    wants: Wants, seats: list[Seat], settled: dict[SeatName, float] | None
) -> None:
    for action in plan(wants, seats, UNLIMITED, NOW, settled=settled).actions:
        if not isinstance(action, Promote | Switch | Recall | Prove):
            continue
        seat = action.seat
        assert seat.usable
        computing = [resident.policy for resident in seat.residents if resident.state in COMPUTING]
        match action:
            case Promote() | Prove():
                assert not computing
                assert not seat.serving
                assert any(
                    r.policy == action.policy and r.state is ResidentState.PAUSED for r in seat.residents
                )
            case Switch():
                assert set(computing) | seat.serving == {action.leaving}
                assert any(
                    r.policy == action.policy and r.state is ResidentState.PAUSED for r in seat.residents
                )
            case Recall():
                assert computing == [action.policy]
                assert not seat.serving


@given(any_wants, any_seats, any_settled)
def test_the_store_would_refuse_nothing_that_is_planned(
    wants: Wants, seats: list[Seat], settled: dict[SeatName, float] | None
) -> None:
    operations = {
        Promote: Operation.PROMOTE,
        Recall: Operation.RECALL,
        Switch: Operation.SWITCH,
        Demote: Operation.DEMOTE,
        Release: Operation.DEMOTE,
        Prove: Operation.PROVE,
    }
    for action in plan(wants, seats, UNLIMITED, NOW, settled=settled).actions:
        if isinstance(action, Promote | Recall | Switch | Demote | Release | Prove):
            leaving = action.leaving if isinstance(action, Switch) else None
            errand = Errand(operation=operations[type(action)], policy=action.policy, leaving=leaving)
            claim = new_claim(errand, Term(holder="h", epoch=9), number=1, now=NOW, seconds=5)
            assert refusal(action.seat, claim, NOW) is None


def in_rotation(seat: Seat, policy: PolicyName) -> bool:
    """Say independently of the planner whether a label on a usable seat stands for a serving resident."""
    resident = seat.resident(policy)
    return (
        policy in seat.serving
        and seat.usable
        and resident is not None
        and resident.state is ResidentState.SERVING
    )


@given(any_wants, any_seats)
@settings(max_examples=200)
def test_nobody_falls_below_what_is_wanted_and_nobody_gets_more(wants: Wants, seats: list[Seat]) -> None:
    # `settled={}`: no report can be late, so that what serves is what is Serving
    answer = plan(wants, seats, UNLIMITED, NOW, settled={})
    for fleet, counts in wants.serving.items():
        own = [
            action
            for action in answer.actions
            if isinstance(action, SeatAction) and action.seat.fleet == fleet
        ]
        for policy, count in counts.items():
            firm = sum(in_rotation(seat, policy) for seat in seats if seat.fleet == fleet)
            gained = sum(isinstance(a, Promote | Switch | Recall) and a.policy == policy for a in own)
            lost = sum(
                in_rotation(a.seat, policy)
                and (
                    (isinstance(a, Demote | Release) and a.policy == policy)
                    or (isinstance(a, Switch) and a.leaving == policy)
                )
                for a in own
            )
            assert firm - lost >= min(firm, count)
            assert not (gained and lost)
            if gained:
                assert firm + gained <= count
            assert firm + gained + answer.unfilled.get((fleet, policy), 0) <= max(count, firm)


@given(any_wants, distinct_seats, st.randoms(use_true_random=False))
def test_the_order_in_which_seats_are_listed_is_of_no_account(
    wants: Wants, seats: list[Seat], random: Random
) -> None:
    shuffled = list(seats)
    random.shuffle(shuffled)
    answers = [plan(wants, listed, UNLIMITED, NOW, settled={}) for listed in (seats, shuffled)]
    assert Counter(map(told, answers[0].actions)) == Counter(map(told, answers[1].actions))
    assert answers[0].unfilled == answers[1].unfilled


@given(
    st.lists(st.frozensets(policies, min_size=1), max_size=7),
    st.dictionaries(policies, st.integers(0, 4)),
)
@settings(max_examples=200)
def test_spares_are_handed_out_as_far_as_they_go(
    lives: list[frozenset[PolicyName]], counts: dict[PolicyName, int]
) -> None:
    seats = [
        Seat(
            name=SeatName(str(n)),
            uid="u",
            version="1",
            fleet=FLEETS[0],
            residents=tuple(Resident(policy=p, state=ResidentState.PAUSED, since=0.0) for p in sorted(live)),
        )
        for n, live in enumerate(lives)
    ]
    answer = plan(Wants(serving={FLEETS[0]: counts}, order=POLICIES), seats, UNLIMITED, NOW)
    assert sum(isinstance(action, Promote) for action in answer.actions) == _most(lives, counts)


def _most(lives: list[frozenset[PolicyName]], counts: dict[PolicyName, int]) -> int:
    """Return how many wants the seats could fill at best, by Hall's theorem (König's form) over sets of policies."""
    wanted = [policy for policy, count in counts.items() if count > 0]
    deficits = [0]
    for chosen in range(1, 2 ** len(wanted)):
        subset = {policy for bit, policy in enumerate(wanted) if chosen >> bit & 1}
        deficits.append(sum(counts[policy] for policy in subset) - sum(bool(live & subset) for live in lives))
    return sum(counts[policy] for policy in wanted) - max(deficits)

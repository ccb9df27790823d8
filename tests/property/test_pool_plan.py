"""Laws of one plan, over seats as nobody would build them."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from warmpool.claim import Errand, Term, in_force, new_claim, refusal
from warmpool.plan import (
    Action,
    Demote,
    Limits,
    Park,
    Plan,
    Promote,
    Prove,
    Recall,
    Release,
    Replace,
    Resize,
    SeatAction,
    Switch,
    Unpark,
    Wants,
    plan,
)
from warmpool.seats import Claim, FleetName, Operation, PolicyName, Resident, Seat, SeatName, Verdict
from warmpool.states import COMPUTING, ResidentState

NOW = 1000.0
KINDS = [Release, Recall, Promote, Switch, Demote, Replace, Resize, Unpark, Park, Prove]
FLEETS = [FleetName("f"), FleetName("g")]
POLICIES = [PolicyName(name) for name in "abcd"]
policies = st.sampled_from(POLICIES)
fleets = st.sampled_from(FLEETS)
times = st.floats(min_value=0, max_value=2 * NOW) | st.sampled_from([math.nan, math.inf, -math.inf])
residents = st.builds(
    Resident,
    policy=policies,
    state=st.sampled_from(ResidentState)
    | st.sampled_from([ResidentState.PAUSED, ResidentState.PARKED, ResidentState.SERVING]),
    since=times,
    proven_at=st.none() | times,
    kv_released=st.booleans(),
    in_flight=st.integers(0, 5),
    waiting=st.just("") | st.sampled_from(["", "no room"]),
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
    displace=st.none() | st.lists(policies, unique=True).map(tuple),
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
        leaves_by=st.none() | times,
        node_leaving=st.just("") | st.sampled_from(["", "cordoned"]),
        lent=st.booleans(),
        created_at=times,
        template=st.sampled_from(["", "t", "u"]),
    )


any_seats = st.lists(pods(st.text(max_size=1)), max_size=8)
distinct_seats = st.lists(pods(st.text(max_size=3)), max_size=8, unique_by=lambda seat: seat.name)
any_wants = st.builds(
    Wants,
    serving=st.dictionaries(fleets, st.dictionaries(policies, st.integers(-1, 5))),
    order=st.permutations(POLICIES).map(lambda order: order[:3]),
    totals=st.dictionaries(fleets, st.integers(0, 9)),
    replicas=st.dictionaries(fleets, st.integers(0, 9)),
    warm=st.dictionaries(fleets, st.dictionaries(policies, st.integers(-1, 5))),
    starting=st.dictionaries(fleets, st.dictionaries(policies, st.integers(-1, 3))),
    ended_at_once=st.frozensets(policies),
)
any_limits = st.builds(
    Limits,
    max_promotions=st.integers(0, 9),
    max_demotions=st.integers(0, 9),
    max_moves=st.integers(0, 9),
    proof_interval_seconds=st.sampled_from([0.0, 100.0, math.inf]),
)
any_settled = st.none() | st.dictionaries(st.text(max_size=1).map(SeatName), times)
any_left_alone = st.frozensets(st.tuples(st.text(max_size=1).map(SeatName), policies), max_size=3)
UNLIMITED = Limits(max_promotions=1000, max_demotions=1000, max_moves=1000, proof_interval_seconds=100.0)
PROMOTABLE = {ResidentState.PAUSED, ResidentState.PARKED}


def numbered(lives: Iterable[tuple[Resident, ...]]) -> list[Seat]:
    """Make seats of one fleet with these residents, named by their place."""
    return [
        Seat(name=SeatName(str(n)), uid="u", version="1", fleet=FLEETS[0], residents=residents)
        for n, residents in enumerate(lives)
    ]


def told(action: Action) -> tuple[str, ...]:
    if isinstance(action, SeatAction):
        return (type(action).__name__, action.seat.name, str(getattr(action, "policy", "")))
    assert isinstance(action, Resize)
    return ("Resize", action.fleet, str(action.total))


def taken(given_plan: Plan, seats: Sequence[Seat]) -> list[int]:
    """Return the positions of the seats that the plan uses."""
    at = {id(seat): position for position, seat in enumerate(seats)}
    return [at[id(action.seat)] for action in given_plan.actions if isinstance(action, SeatAction)]


@given(any_wants, any_seats, any_limits, times, any_settled, any_left_alone)
@settings(max_examples=40)
def test_any_seats_give_a_plan_that_uses_each_once(
    wants: Wants,
    seats: list[Seat],
    limits: Limits,
    now: float,
    settled: dict[SeatName, float] | None,
    left_alone: frozenset[tuple[SeatName, PolicyName]],
) -> None:
    answer = plan(wants, seats, limits, now, settled=settled, left_alone=left_alone)
    used = taken(answer, seats)
    assert len(used) == len(set(used))
    kinds = [KINDS.index(type(action)) for action in answer.actions]
    assert kinds == sorted(kinds)
    assert all(action.why for action in answer.actions)
    assert all(count > 0 for count in answer.unfilled.values())


@given(any_wants, any_seats, any_settled)
def test_claims_in_force_are_left_alone_but_for_what_may_overtake_them(
    wants: Wants, seats: list[Seat], settled: dict[SeatName, float] | None
) -> None:
    for action in plan(wants, seats, UNLIMITED, NOW, settled=settled).actions:
        if isinstance(action, SeatAction) and in_force(action.seat.claim, NOW):
            assert isinstance(action, Recall | Promote | Switch)
            held = action.seat.claim
            assert held is not None
            assert held.policy == (action.leaving if isinstance(action, Switch) else action.policy)
            overtaken = {Operation.PARK, Operation.UNPARK}
            assert held.operation in (overtaken if isinstance(action, Promote) else {Operation.DEMOTE})
            if isinstance(action, Switch):
                assert action.at_once
                assert action.seat.lent
                assert action.leaving in wants.ended_at_once


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
                from_where = {ResidentState.PAUSED} if isinstance(action, Prove) else PROMOTABLE
                if in_force(seat.claim, NOW):  # a promotion that follows a move
                    from_where = PROMOTABLE | {ResidentState.PARKING, ResidentState.UNPARKING}
                assert not computing
                assert not seat.serving
                assert any(r.policy == action.policy and r.state in from_where for r in seat.residents)
            case Switch():
                assert set(computing) | seat.serving == {action.leaving}
                assert any(r.policy == action.policy and r.state in PROMOTABLE for r in seat.residents)
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
        Park: Operation.PARK,
        Unpark: Operation.UNPARK,
    }
    for action in plan(wants, seats, UNLIMITED, NOW, settled=settled).actions:
        if isinstance(action, Promote | Recall | Switch | Demote | Release | Prove | Park | Unpark):
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
@settings(max_examples=30)
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
            helps = sum(
                isinstance(a, Promote) and a.policy == policy and a.why.startswith(f"{policy} makes room")
                for a in own
            )
            assert helps <= (firm == count > 0)  # it leaves another seat once it has this one
            assert firm + gained - helps <= max(count, firm)
            assert firm + gained - helps + answer.unfilled.get((fleet, policy), 0) <= max(count, firm)


@given(any_wants, any_seats, any_settled)
@settings(max_examples=30)
def test_what_is_done_for_a_start_takes_nothing_that_others_shall_have(
    wants: Wants, seats: list[Seat], settled: dict[SeatName, float] | None
) -> None:
    """As many leave as without it, and no more are without a seat than there are seats kept."""
    answers = [
        plan(each, seats, UNLIMITED, NOW, settled=settled) for each in (wants, replace(wants, starting={}))
    ]
    for fleet in wants.serving:
        leaving = [
            Counter(
                action.leaving if isinstance(action, Switch) else action.policy
                for action in answer.actions
                if isinstance(action, Demote | Switch) and action.seat.fleet == fleet and action.seat.serving
            )
            for answer in answers
        ]
        assert leaving[0] == leaving[1]
        kept = sum(max(0, count) for count in wants.starting.get(fleet, {}).values())
        lost = [
            sum(missing for (name, _), missing in answer.unfilled.items() if name == fleet)
            for answer in answers
        ]
        assert lost[0] <= lost[1] + kept


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
    st.lists(st.sampled_from(sorted(PROMOTABLE)), max_size=28),
)
@settings(max_examples=40)
def test_spares_are_handed_out_as_far_as_they_go(
    lives: list[frozenset[PolicyName]], counts: dict[PolicyName, int], states: list[ResidentState]
) -> None:
    seats = numbered(
        tuple(
            Resident(policy=p, state=states.pop() if states else ResidentState.PAUSED, since=0.0)
            for p in sorted(live)
        )
        for live in lives
    )
    answer = plan(Wants(serving={FLEETS[0]: counts}, order=POLICIES), seats, UNLIMITED, NOW)
    promoted = [action for action in answer.actions if isinstance(action, Promote)]
    assert len(promoted) == _most(lives, counts)
    got = Counter(action.policy for action in promoted)
    awake = [frozenset(r.policy for r in seat.residents if r.state is ResidentState.PAUSED) for seat in seats]
    if _most(awake, got) == len(promoted):  # the paused ones would do
        assert all(action.policy in awake[int(action.seat.name)] for action in promoted)


@given(
    st.lists(residents, min_size=1, max_size=3, unique_by=lambda resident: resident.policy).map(tuple),
    st.lists(st.sampled_from(["r", "s", "t"]), min_size=1, max_size=8),
    st.dictionaries(policies, st.integers(0, 4)),
    st.frozensets(policies, max_size=1),
)
@settings(max_examples=40)
def test_of_equals_none_of_an_older_template_is_promoted_while_one_of_the_newest_could_be(
    lives: tuple[Resident, ...],
    templates: list[str],
    counts: dict[PolicyName, int],
    serving: frozenset[PolicyName],
) -> None:
    seats = [
        replace(seat, template=template, created_at=float(n), serving=serving)
        for n, (seat, template) in enumerate(zip(numbered([lives] * len(templates)), templates, strict=True))
    ]
    answer = plan(Wants(serving={FLEETS[0]: counts}, order=POLICIES), seats, UNLIMITED, NOW)
    used = {
        (type(action), action.seat.name): action
        for action in answer.actions
        if isinstance(action, Recall | Promote | Switch)
    }
    for kind, name in used:
        if templates[int(name)] != templates[-1]:
            newest = [seat.name for seat in seats if seat.template == templates[-1]]
            busy = {action.seat.name for action in answer.actions if isinstance(action, SeatAction)}
            assert busy.issuperset(newest), kind


# ------------------------------------------------------------------ depths

sleepers = st.dictionaries(
    policies,
    st.sampled_from(
        [ResidentState.PAUSED, ResidentState.PARKED, ResidentState.PARKED, ResidentState.STARTING]
    ),
    min_size=1,
)
resting_fleet = st.lists(sleepers, min_size=1, max_size=6)
warmths = st.dictionaries(policies, st.integers(0, 4))


def resting(lives: list[dict[PolicyName, ResidentState]]) -> list[Seat]:
    """Make spare seats; whoever is Starting waits for room."""
    return numbered(
        tuple(
            Resident(
                policy=policy,
                state=state,
                since=0.0,
                proven_at=NOW,
                waiting="no room" if state is ResidentState.STARTING else "",
            )
            for policy, state in live.items()
        )
        for live in lives
    )


def lacks(seats: Sequence[Seat], warm: Mapping[PolicyName, int]) -> Counter[PolicyName]:
    """Return how many paused residents each policy lacks, negative for those that it could do without."""
    paused = Counter(r.policy for seat in seats for r in seat.residents if r.state is ResidentState.PAUSED)
    return Counter({policy: count - paused[policy] for policy, count in warm.items()})


@given(any_wants, any_seats, any_settled)
@settings(max_examples=30)
def test_nobody_is_parked_who_is_wanted_paused(
    wants: Wants, seats: list[Seat], settled: dict[SeatName, float] | None
) -> None:
    answer = plan(wants, seats, UNLIMITED, NOW, settled=settled)
    for fleet, warm in wants.warm.items():
        own = [a for a in answer.actions if isinstance(a, Park | Unpark) and a.seat.fleet == fleet]
        parked = Counter(
            policy
            for action in own
            for policy in ((action.policy,) if isinstance(action, Park) else action.displace)
        )
        there = lacks([seat for seat in seats if seat.fleet == fleet], warm)
        for policy, count in parked.items():
            assert policy in warm
            assert there[policy] + count <= 0


@given(any_wants, any_seats, any_settled)
@settings(max_examples=30)
def test_nothing_moves_while_a_promotion_waits_or_runs(
    wants: Wants, seats: list[Seat], settled: dict[SeatName, float] | None
) -> None:
    answer = plan(wants, seats, UNLIMITED, NOW, settled=settled)
    busy = {fleet for fleet, _ in answer.unfilled} | {
        fleet for fleet, flight in answer.in_flight.items() if flight.promotions
    }
    busy |= {a.seat.fleet for a in answer.actions if isinstance(a, Promote | Recall | Switch)}
    assert not [a for a in answer.actions if isinstance(a, Park | Unpark) and a.seat.fleet in busy]


@given(resting_fleet, warmths, st.integers(1, 4), st.data())
@settings(max_examples=30)
def test_moves_come_to_an_end_and_bring_what_can_be_had(
    lives: list[dict[PolicyName, ResidentState]], warm: dict[PolicyName, int], room: int, data: st.DataObject
) -> None:
    """Seats hold `room` paused residents and park as many of those offered as they must; one without room refuses."""
    seats, refused = resting(lives), set[tuple[SeatName, PolicyName]]()
    limits = Limits(proof_interval_seconds=math.inf)
    before = lacks(seats, warm)
    for _ in range(100):
        wants = Wants(serving={FLEETS[0]: {}}, warm={FLEETS[0]: warm}, order=POLICIES)
        actions = plan(wants, seats, limits, NOW, left_alone=refused).actions
        if not actions:
            break
        for action in actions:
            assert isinstance(action, Park | Unpark)
            at = seats.index(action.seat)
            moved = _moved(action, room, data.draw(st.booleans()))
            if moved is None:
                refused.add((action.seat.name, action.policy))
            else:
                seats[at] = moved
        after = lacks(seats, warm)
        for policy in warm:
            assert max(0, after[policy]) <= max(0, before[policy])
        before = after
    else:
        raise AssertionError("to and fro")
    for policy in POLICIES:
        if before[policy] > 0:
            asleep = [s for s in seats if (r := s.resident(policy)) and r.state is ResidentState.PARKED]
            assert all((seat.name, policy) in refused for seat in asleep)


def _moved(action: Park | Unpark, room: int, willing: bool) -> Seat | None:  # noqa: FBT001 -- drawn
    """Carry a move out as an agent would; None where it refuses."""
    states = {r.policy: r.state for r in action.seat.residents}
    if isinstance(action, Park):
        states[action.policy] = ResidentState.PARKED
    else:
        states[action.policy] = ResidentState.PAUSED
        displaced = list(action.displace)
        while sum(state is ResidentState.PAUSED for state in states.values()) > room:
            if not displaced or not willing:
                return None
            states[displaced.pop(0)] = ResidentState.PARKED
    waiting = [p for p, state in states.items() if state is ResidentState.STARTING]
    while waiting and sum(state is ResidentState.PAUSED for state in states.values()) < room:
        states[waiting.pop()] = ResidentState.PAUSED  # it finds room and starts
    residents = tuple(
        replace(r, state=states[r.policy], waiting=r.waiting if r.policy in waiting else "")
        for r in action.seat.residents
    )
    return replace(action.seat, residents=residents)


def _most(lives: list[frozenset[PolicyName]], counts: dict[PolicyName, int]) -> int:
    """Return how many wants the seats could fill at best, by Hall's theorem (König's form) over sets of policies."""
    wanted = [policy for policy, count in counts.items() if count > 0]
    deficits = [0]
    for chosen in range(1, 2 ** len(wanted)):
        subset = {policy for bit, policy in enumerate(wanted) if chosen >> bit & 1}
        deficits.append(sum(counts[policy] for policy in subset) - sum(bool(live & subset) for live in lives))
    return sum(counts[policy] for policy in wanted) - max(deficits)

"""Residents that aren't up come up in their turn: what is counted, decided and planned, over seats in virtual time.

A resident starts only while nothing serves on its seat, one at a time, as agents have it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.core.decide import decide
from scaler.core.memory import Memory
from scaler.core.model import Decision, Load, PolicySpec, ReasonCode
from scaler.runtime.observer import Views, observe
from tests.unit.scaler.core.world import SPARES, fleet, load, policy
from warmpool.claim import Errand, Term, apply_claim, apply_settlement, new_claim, refusal
from warmpool.plan import Action, Demote, Limits, Promote, Recall, Release, Switch, Wants, plan
from warmpool.seats import Claim, Operation, PolicyName, Resident, Seat, SeatName
from warmpool.states import COMPUTING, ResidentState

S = ResidentState
STEP = 0.5
STABLE = 10.0
STEPS = (S.STARTING, S.LOADING, S.WARMING, S.PROVING, S.PAUSED)
TERM = Term(holder="h", epoch=1)
NEVER = Limits(proof_interval_seconds=float("inf"))
PROMOTE_SECONDS = 0.5


class Yard:
    """Seats in virtual time under the law and the planner; a start passes through its steps in equal times.

    Args:
        policies: what serves here.
        residents: per seat, who lives there and in which state; who is Serving has the seat.
        start: seconds of one start.
        drain: seconds of a drain.
    """

    def __init__(
        self,
        policies: Sequence[PolicySpec],
        residents: Sequence[Mapping[str, ResidentState]],
        *,
        start: float = 20.0,
        drain: float = 3.0,
    ) -> None:
        self.policies, self.start, self.drain = policies, start, drain
        self.now, self.number = 0.0, 0
        self.seats = {SeatName(str(n)): _seat(str(n), states) for n, states in enumerate(residents)}
        self.due: list[tuple[float, SeatName, Claim]] = []
        self.counts: Counter[str] = Counter()
        self.memory, self.views = Memory.initial(0.0), Views()
        self.order = [p.name for p in sorted(policies, key=lambda p: (-p.priority, p.name))]
        self.decision: Decision

    def step(self, loads: Mapping[str, Load]) -> None:
        self.now += STEP
        for due in [one for one in self.due if one[0] <= self.now]:
            self.due.remove(due)
            self._end(due[1], due[2])
        for seat in list(self.seats.values()):
            self._start(seat)
        self._decide(loads)

    def serving(self, name: str) -> int:
        return sum(name in seat.serving for seat in self.seats.values())

    def state(self, seat: str, name: str) -> ResidentState:
        resident = self.seats[SeatName(seat)].resident(PolicyName(name))
        assert resident is not None
        return resident.state

    def _decide(self, loads: Mapping[str, Load]) -> None:
        stock, shape = {SPARES: tuple(self.seats.values())}, fleet(max_seats=len(self.seats), spare_target=0)
        snapshot = observe(
            self.policies, [shape], stock, lambda _: len(self.seats), lambda name: loads[name], self.views
        )
        decision, self.memory = decide(self.policies, [shape], snapshot, self.memory, self.now)
        self.decision = decision
        wants = Wants(
            serving={SPARES: {n: one.serving[SPARES] for n, one in decision.policies.items()}},
            starting={SPARES: {n: one.starting.get(SPARES, 0) for n, one in decision.policies.items()}},
            order=self.order,
        )
        for action in plan(wants, stock[SPARES], NEVER, self.now, settled={}).actions:
            self._begin(action)

    def _begin(self, action: Action) -> None:
        match action:
            case Promote(seat=seat, policy=name):
                self._claim(seat, Errand(operation=Operation.PROMOTE, policy=name), PROMOTE_SECONDS)
                self._move(seat.name, name, S.PROMOTING)
            case Recall(seat=seat, policy=name):
                self._claim(seat, Errand(operation=Operation.RECALL, policy=name), PROMOTE_SECONDS)
            case Switch(seat=seat, policy=name, leaving=leaving):
                errand = Errand(operation=Operation.SWITCH, policy=name, leaving=leaving)
                self._claim(seat, errand, self.drain + PROMOTE_SECONDS)
                self._move(seat.name, leaving, S.DRAINING)
            case Demote(seat=seat, policy=name):
                self._claim(seat, Errand(operation=Operation.DEMOTE, policy=name), self.drain)
                self._move(seat.name, name, S.DRAINING)
            case Release(seat=seat, policy=name):
                self._put(replace(seat, serving=seat.serving - {name}))
            case _:
                raise AssertionError(action)
        self.counts[type(action).__name__] += 1

    def _claim(self, seat: Seat, errand: Errand, seconds: float) -> None:
        self.number += 1
        claim = new_claim(errand, TERM, number=self.number, now=self.now, seconds=600.0)
        assert refusal(self.seats[seat.name], claim, self.now) is None
        self._put(apply_claim(seat, claim))
        self.due.append((self.now + seconds, seat.name, claim))

    def _end(self, name: SeatName, claim: Claim) -> None:
        seat = self.seats[name]
        if seat.claim != claim:
            return  # another has taken it over
        serving = None if claim.operation is Operation.DEMOTE else claim.policy
        gone = claim.leaving if claim.operation is Operation.SWITCH else claim.policy
        if gone is not None and serving != gone:
            self._move(name, gone, S.PAUSED)
        if serving is not None:
            self._move(name, serving, S.SERVING)
        self._put(apply_settlement(self.seats[name], claim, serving))

    def _start(self, seat: Seat) -> None:
        busy = any(r.state in {S.SERVING, S.DRAINING, S.PROMOTING} for r in seat.residents)
        if busy or seat.serving or seat.claim is not None:
            return
        for resident in seat.residents:
            if resident.state is S.FAILED:
                self._move(seat.name, resident.policy, S.STARTING)
                return
            if resident.state in STEPS[:-1]:
                if self.now - resident.since >= self.start / (len(STEPS) - 1):
                    self._move(seat.name, resident.policy, STEPS[STEPS.index(resident.state) + 1])
                return

    def _move(self, name: SeatName, policy: PolicyName, state: ResidentState) -> None:
        seat = self.seats[name]
        residents = tuple(
            replace(r, state=state, since=self.now) if r.policy == policy else r for r in seat.residents
        )
        computing = [r for r in residents if r.state in COMPUTING]
        assert len(computing) <= 1, computing
        self._put(replace(seat, residents=residents))

    def _put(self, seat: Seat) -> None:
        self.seats[seat.name] = seat


def _seat(name: str, states: Mapping[str, ResidentState]) -> Seat:
    residents = [Resident(policy=PolicyName(p), state=state, since=-60.0) for p, state in states.items()]
    return Seat(
        name=SeatName(name),
        uid=name,
        version="1",
        fleet=SPARES,
        residents=tuple(residents),
        serving=frozenset(r.policy for r in residents if r.state is S.SERVING),
        ready=True,
        admitted=True,
    )


def named(name: str, **more: Any) -> PolicySpec:
    return policy(name, **({"serving_min": 0} | more))


def told(yard: Yard, name: str) -> set[ReasonCode]:
    return {reason.code for reason in yard.decision.policies[PolicyName(name)].reasons}


# ------------------------------------------------------------------ one at a time


def test_one_of_a_higher_priority_has_the_seat_as_soon_as_it_is_drained() -> None:
    yard = Yard(
        [named("low"), named("high", priority=9)],
        [{"low": S.SERVING, "high": S.FAILED}, {"low": S.SERVING, "high": S.FAILED}],
    )
    seen: set[ReasonCode] = set()
    for _ in range(int((yard.drain + yard.start + 5.0) / STEP)):
        yard.step({"low": load(16, 90), "high": load(0, 3)})
        assert yard.serving("low") >= 1
        seen |= told(yard, "high")
    assert yard.serving("high") == 1
    assert yard.counts == {"Demote": 1, "Promote": 1}
    assert ReasonCode.RESIDENT_STARTING in seen


def test_one_that_crashes_in_rotation_comes_back_on_its_seat() -> None:
    yard = Yard([named("a"), named("b")], [{"a": S.PAUSED, "b": S.SERVING}])
    loads = {"a": load(0, 5), "b": load(8)}
    yard.step(loads)
    yard._move(SeatName("0"), PolicyName("b"), S.FAILED)
    for _ in range(int(6 * (STABLE + yard.start) / STEP)):
        yard.step(loads)
        if yard.serving("b"):
            break
    assert yard.serving("b") == 1


def test_it_leaves_the_seat_on_which_alone_another_can_start() -> None:
    yard = Yard([named("a"), named("b")], [{"a": S.SERVING, "b": S.FAILED}, {"a": S.PAUSED}])
    for _ in range(int((STABLE + yard.drain + yard.start + 15.0) / STEP)):
        yard.step({"a": load(4), "b": load(0, 3)})
        assert yard.serving("a") >= 1
    assert (yard.serving("a"), yard.serving("b")) == (1, 1)
    assert "b" in yard.seats[SeatName("0")].serving


def test_without_memory_it_takes_the_seat_from_others_once_and_not_again() -> None:
    """It was given the seat whenever others had it, found no room there, and gave it back: for ever."""
    yard = Yard([named("a"), named("b", priority=9)], [{"a": S.SERVING, "b": S.FAILED}])
    loads = {"a": load(8, 20), "b": load(0, 3)}
    for _ in range(int(400.0 / STEP)):
        yard.step(loads)
        seat = yard.seats[SeatName("0")]
        free = seat.claim is None and not seat.serving
        waiting = "no room" if free and yard.state("0", "b") in STEPS else ""
        residents = tuple(replace(r, waiting=waiting) if r.policy == "b" else r for r in seat.residents)
        yard._put(replace(seat, residents=residents))
    assert yard.counts["Demote"] == 1
    assert yard.serving("a") == 1
    assert ReasonCode.RESIDENT_WAITING in told(yard, "b")


@pytest.mark.parametrize("spare", [0, 1])
def test_nobody_changes_seats_while_it_starts(spare: int) -> None:
    lives = [{"a": S.SERVING, "b": S.FAILED}] * 3 + [{"a": S.PAUSED, "b": S.FAILED}] * spare
    yard = Yard([named("a"), named("b", priority=1)], lives, start=120.0)
    seats = []
    for _ in range(int(110.0 / STEP)):
        yard.step({"a": load(24, 90), "b": load(0, 3)})
        seats.append([seat.name for seat in yard.seats.values() if "a" in seat.serving])
    assert len({tuple(names) for names in seats[-200:]}) == 1
    assert yard.counts["Demote"] <= 1


# ------------------------------------------------------------------ whatever there is


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(0, 2),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(1, 60)), min_size=1, max_size=3),
    st.data(),
)
def test_whoever_is_down_serves_in_bounded_time_and_nobody_falls_below_its_floor(
    only: int, more: int, others: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """Its seats are full of equals' and lower ones' surplus; each seat may lack some of the others' residents."""
    names = [f"p{number}" for number in range(len(others))]
    floors = dict(zip(names, (floor for floor, _, _ in others), strict=True))
    seats, room = only + more, max(0, only + more - 1)
    for name in names:  # there is a seat beside the floors
        floors[name] = min(floors[name], room)
        room -= floors[name]
    specs = [
        named(name, serving_min=floors[name], priority=lower)
        for name, (_, lower, _) in zip(names, others, strict=True)
    ]
    lives: list[dict[str, ResidentState]] = []
    for number in range(seats):
        there = dict.fromkeys(names, S.PAUSED)
        there[data.draw(st.sampled_from(names))] = S.SERVING
        lives.append(there | ({"z": S.FAILED} if number < only else {}))
    start, drain = data.draw(st.sampled_from([5.0, 30.0])), data.draw(st.sampled_from([0.5, 5.0]))
    yard = Yard([*specs, named("z", priority=1)], lives, start=start, drain=drain)
    loads = {name: load(8, queue) for name, (_, _, queue) in zip(names, others, strict=True)} | {
        "z": load(0, 5)
    }
    longest = (len(names) + 1) * (STABLE + drain + 12.0) + start
    reached = dict.fromkeys(names, 0)
    for _ in range(int(longest / STEP)):
        yard.step(loads)
        for name in names:
            reached[name] = max(reached[name], yard.serving(name))
            assert yard.serving(name) >= min(floors[name], reached[name])
        if yard.serving("z"):
            break
    assert yard.serving("z") == 1

"""A policy of which nothing is up gets a seat to start on in its turn, and keeps none for good."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.core.decide import decide
from scaler.core.explain import explain_policy
from scaler.core.memory import Memory, Start
from scaler.core.model import Decision, FleetView, Load, PolicySpec, ReasonCode, Snapshot, Supply
from scaler.core.placement import Place, place_of, pool_of
from scaler.core.starting import SHORTEST_PATIENCE_SECONDS, attempt, turn_of
from tests.unit.scaler.core.world import SPARES, Run, fleet, load, policy, served, view
from warmpool.seats import PolicyName

PATIENCE = SHORTEST_PATIENCE_SECONDS


def starting(decision: Decision, name: str = "b") -> int:
    return decision.policies[PolicyName(name)].starting.get(SPARES, 0)


def codes(decision: Decision, name: str = "b") -> list[ReasonCode]:
    return [reason.code for reason in decision.policies[PolicyName(name)].reasons]


# ------------------------------------------------------------------ whose turn it is


def place(start_seconds: float = 0.0, **supply: int) -> Place:
    pool = pool_of(SPARES, fleet(max_seats=9), view(serving=3, spare=3, start_seconds=start_seconds))  # type: ignore[arg-type]
    return place_of(pool, 8, Supply(**supply))


@pytest.mark.parametrize(
    ("supply", "down"),
    [
        pytest.param({"startable": 1}, True, id="a free seat to start on"),
        pytest.param({"blocked": 1}, True, id="a seat behind another"),
        pytest.param({}, False, id="no seat that has a resident of its"),
        pytest.param({"serving": 1, "blocked": 2}, False, id="one serves"),
        pytest.param({"promoting": 1, "blocked": 2}, False, id="one is on its way"),
        pytest.param({"draining": 1, "startable": 2}, False, id="one could be recalled"),
        pytest.param({"promotable": 1, "startable": 2}, False, id="one could be promoted"),
        pytest.param({"switchable": 1, "blocked": 2}, False, id="one is up behind another"),
    ],
)
def test_a_policy_is_down_while_nothing_of_it_is_up(supply: dict[str, int], *, down: bool) -> None:
    assert (turn_of([place(**supply)], None, 0.0) is not None) is down


def test_one_that_waits_for_memory_on_a_free_seat_leaves_the_others_to_others() -> None:
    cramped = [place(cramped=1, blocked=2)]
    turn = turn_of(cramped, None, 100.0)
    assert turn == (False, 100.0 + PATIENCE)
    before = attempt(cramped, turn, None, 0, 100.0)
    assert before == Start(100.0 - PATIENCE, 0)
    assert turn_of([place(blocked=3)], before, 101.0) == (False, 100.0 + PATIENCE)
    assert turn_of([place(blocked=3)], before, 100.0 + PATIENCE) == (True, 100.0 + 2 * PATIENCE)
    assert turn_of([place(cramped=1, promotable=1, blocked=2)], None, 100.0) is None


@pytest.mark.parametrize(
    ("start_seconds", "now", "stands", "until"),
    [
        pytest.param(0.0, 100.0, True, 100.0 + PATIENCE, id="it has just got a seat"),
        pytest.param(0.0, 99.0 + PATIENCE, True, 100.0 + PATIENCE, id="it may take so long"),
        pytest.param(
            0.0, 100.0 + PATIENCE, False, 100.0 + 2 * PATIENCE, id="then others may have it for as long"
        ),
        pytest.param(0.0, 100.0 + 2 * PATIENCE, True, 100.0 + 3 * PATIENCE, id="and it tries again"),
        pytest.param(300.0, 100.0 + PATIENCE, True, 1000.0, id="starts take long on this fleet"),
        pytest.param(math.inf, 100.0 + PATIENCE, False, 100.0 + 2 * PATIENCE, id="no number"),
    ],
)
def test_it_stands_in_line_for_as_long_as_a_start_may_take_and_steps_aside_for_as_long(
    start_seconds: float, now: float, *, stands: bool, until: float
) -> None:
    turn = turn_of([place(start_seconds, startable=1)], Start(100.0, 1), now)
    assert turn is not None
    assert turn == (stands, until)


# ------------------------------------------------------------------ one decision


def fixed(serving: int, *, spare: int = 0) -> dict[str, FleetView]:
    """`a` serves on so many seats; of `b` nothing is up anywhere."""
    supply = {"a": Supply(serving=serving, promotable=spare), "b": Supply(startable=spare, blocked=serving)}
    return {"spares": view(supply, serving=serving, spare=spare)}


@pytest.mark.parametrize(
    ("priority", "demand", "spare", "seats", "left"),
    [
        pytest.param(1, 24, 0, 1, 2, id="from a lower priority, which needs them all"),
        pytest.param(0, 24, 0, 1, 2, id="from an equal, by fair shares"),
        pytest.param(-1, 24, 0, 0, 3, id="nothing from a higher one that needs them"),
        pytest.param(-1, 8, 0, 0, 3, id="nor that only keeps them"),
        pytest.param(-1, 24, 1, 1, 3, id="a spare seat that nobody else needs"),
        pytest.param(-1, 32, 1, 0, 4, id="which somebody of a higher priority does"),
    ],
)
def test_a_seat_to_start_on_is_had_as_a_seat_to_serve_on_would_be(
    priority: int, demand: int, spare: int, seats: int, left: int
) -> None:
    two = [policy("a", serving_min=0), policy("b", serving_min=0, priority=priority)]
    run = Run(two, [fleet(max_seats=4)])
    run.hold({"a": load(24), "b": load(0)}, fixed(3, spare=spare), 15.0)
    run.step({"a": load(demand), "b": load(0, 90)}, fixed(3, spare=spare), after=0.5)
    assert starting(run.decision) == seats
    assert served(run.decision, "a") == left
    assert served(run.decision, "b") == 0


def test_a_floor_is_enough_and_one_seat_is_all_it_asks_for() -> None:
    run = Run([policy("a", serving_min=0), policy("b", serving_min=3)], [fleet()])
    run.step({"a": load(24), "b": load(0)}, fixed(3))
    assert starting(run.decision) == 1


def test_whoever_wants_nothing_takes_no_seat() -> None:
    run = Run([policy("a"), policy("b", serving_min=0, priority=9)], [fleet()])
    run.hold({"a": load(24), "b": load(0)}, fixed(3), 20.0)
    assert starting(run.decision) == 0
    assert served(run.decision, "a") == 3


def test_a_policy_with_one_resident_up_takes_no_seat_to_start_another() -> None:
    supply = {"a": Supply(serving=2, switchable=1), "b": Supply(serving=1, blocked=2)}
    run = Run([policy("a"), policy("b", priority=9)], [fleet()])
    run.step({"a": load(16), "b": load(80)}, {"spares": view(supply, serving=3)})
    assert starting(run.decision) == 0
    assert served(run.decision, "a") == 2


def test_what_it_starts_on_is_no_capacity_and_its_order_goes_on() -> None:
    run = Run([policy("a", serving_min=0), policy("b", serving_min=0, priority=1)], [fleet(max_seats=9)])
    run.step({"a": load(24), "b": load(0, 20)}, fixed(3))
    assert run.decision.policies[PolicyName("b")].capacity == 0.0
    assert run.decision.policies[PolicyName("b")].wanted[SPARES] == 3


def test_it_is_said_why() -> None:
    run = Run([policy("a"), policy("b", priority=1)], [fleet()])
    run.step({"a": load(24), "b": load(0, 8)}, fixed(3))
    assert ReasonCode.RESIDENT_STARTING in codes(run.decision)
    assert any("1 seat on spares is kept free" in line for line in explain_policy(run.decision.policies["b"]))
    run = Run([policy("a", priority=1), policy("b", serving_min=0)], [fleet()])
    run.step({"a": load(24), "b": load(0, 8)}, fixed(3))
    assert ReasonCode.RESIDENT_WAITING in codes(run.decision)
    assert any("whose turn it is" in line for line in explain_policy(run.decision.policies["b"]))


# ------------------------------------------------------------------ in a closed loop


@dataclass(eq=False)
class Seat:
    """A seat on which one resident starts at a time, while nothing serves."""

    up: set[str] = field(default_factory=set)
    serves: str | None = None
    comes: str | None = None
    left: float = 0.0


@dataclass
class House:
    """Seats whose residents start while nothing serves on them; decisions are carried out at once.

    Attributes:
        starts: seconds that a resident takes; infinity if it never comes up.
    """

    policies: Sequence[PolicySpec]
    seats: list[Seat]
    starts: Mapping[str, float]
    now: float = 0.0
    decision: Decision = field(init=False)

    def __post_init__(self) -> None:
        self.memory = Memory.initial(self.now)

    def step(self, loads: Mapping[str, Load], after: float = 1.0) -> Decision:
        self.now += after
        for seat in self.seats:
            self._start(seat, after)
        snapshot = Snapshot(
            loads={PolicyName(name): one for name, one in loads.items()}, fleets={SPARES: self._view()}
        )
        shape = fleet(max_seats=len(self.seats), spare_target=0)
        self.decision, self.memory = decide(self.policies, [shape], snapshot, self.memory, self.now)
        self._apply()
        return self.decision

    def serving(self, name: str) -> int:
        return sum(seat.serves == name for seat in self.seats)

    def _start(self, seat: Seat, after: float) -> None:
        if seat.serves is not None:
            return
        if seat.comes is None:
            waiting = [spec.name for spec in self.policies if spec.name not in seat.up]
            seat.comes = next(iter(waiting), None)
            seat.left = self.starts.get(seat.comes or "", 0.0)
        seat.left -= after
        if seat.comes is not None and seat.left <= 0.0:
            seat.up.add(seat.comes)
            seat.comes = None

    def _view(self) -> FleetView:
        free = [seat for seat in self.seats if seat.serves is None]
        supply = {}
        for name in (spec.name for spec in self.policies):
            others = [seat for seat in self.seats if seat.serves not in (None, name)]
            supply[name] = Supply(
                serving=self.serving(name),
                promotable=sum(name in seat.up for seat in free),
                switchable=sum(name in seat.up for seat in others),
                startable=sum(name not in seat.up for seat in free),
                blocked=sum(name not in seat.up for seat in others),
            )
        return view(supply, serving=len(self.seats) - len(free), spare=len(free))

    def _apply(self) -> None:
        """What a planner does: keep free the seats that residents start on, demote, promote, switch."""
        for one in self.decision.policies.values():
            own = [seat for seat in self.seats if seat.serves == one.policy]
            for seat in own[one.serving[SPARES] :]:
                seat.serves = None
        kept: list[Seat] = []
        for one in self.decision.policies.values():
            free = [s for s in self.seats if s.serves is None and s not in kept and one.policy not in s.up]
            free.sort(key=lambda seat: (seat.comes != one.policy, seat.left))
            kept += free[: one.starting.get(SPARES, 0)]
        for one in self.decision.policies.values():
            lacking = one.serving[SPARES] - self.serving(one.policy)
            free = [s for s in self.seats if s.serves is None and s not in kept and one.policy in s.up]
            for seat in free[: max(0, lacking)]:
                seat.serves = one.policy


def test_a_resident_that_crashed_behind_a_lower_priority_comes_back() -> None:
    """It starved for ever: on its only seat somebody of a low priority served, and nothing else could start there."""
    two = [policy("a", serving_min=0), policy("b", serving_min=0, priority=9)]
    house = House(two, [Seat(up={"a"}, serves="a")], {"b": 30.0})
    for _ in range(40):
        house.step({"a": load(8, 90), "b": load(0, 3)})
    assert house.serving("b") == 1


def test_an_equal_waits_for_its_turn_and_keeps_the_seat_until_it_is_up() -> None:
    """A start takes longer than a turn: whoever has to make room meanwhile doesn't take the seat back."""
    two = [policy("a", serving_min=0), policy("b", serving_min=0)]
    house = House(two, [Seat(up={"a"}, serves="a")], {"b": 45.0})
    began = []
    for second in range(120):
        decision = house.step({"a": load(8, 90), "b": load(0, 3)})
        if starting(decision):
            began.append(second)
        if house.serving("b"):
            break
    assert house.serving("b") == 1
    assert began == list(range(began[0], began[0] + len(began))), "without a break"
    assert 9 <= began[0] <= 12, "after one stable window"


def test_with_the_seats_free_a_start_goes_on_whatever_others_would_like() -> None:
    two = [policy("a", serving_min=0), policy("b", serving_min=1, priority=1)]
    house = House(two, [Seat(up={"a"}), Seat(up={"a"})], {"b": 60.0})
    for _ in range(65):
        house.step({"a": load(40), "b": load(0)})
        assert house.serving("a") == 1
    assert house.serving("b") == 1


def test_a_resident_that_never_comes_up_leaves_the_seat_to_others_half_of_the_time() -> None:
    two = [policy("a", serving_min=0), policy("b", serving_min=1, priority=9)]
    house = House(two, [Seat(up={"a"}, serves="a")], {"b": math.inf})
    busy = 0
    for _ in range(int(4 * PATIENCE)):
        decision = house.step({"a": load(8), "b": load(0, 3)})
        busy += house.serving("a")
        if not starting(decision):
            assert "leaves seats to others" in " ".join(explain_policy(decision.policies["b"]))
    assert busy == pytest.approx(2 * PATIENCE, rel=0.02)


@settings(max_examples=6, deadline=None)
@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40), st.booleans()), min_size=2, max_size=4),
)
def test_under_equal_priority_nobody_starves_however_few_are_up(
    seats: int, policies: list[tuple[int, int, bool]]
) -> None:
    """Each serves within a turn and a start of each of the others."""
    names = [f"p{number}" for number in range(len(policies))]
    house = House(
        [policy(name, serving_min=0) for name in names],
        [Seat(up={name for name, one in zip(names, policies, strict=True) if one[2]}) for _ in range(seats)],
        {name: float(one[1]) for name, one in zip(names, policies, strict=True)},
    )
    longest = sum(one[1] + 2 * 10.0 for one in policies)
    fed = dict.fromkeys(names, 0.0)
    for _ in range(int(3 * longest)):
        house.step({name: load(0, one[0]) for name, one in zip(names, policies, strict=True)})
        for name in names:
            if house.serving(name):
                fed[name] = house.now
            assert house.now - fed[name] <= longest + 10.0


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), st.integers(0, 90), st.integers(0, 90), st.integers(1, 40))
def test_a_lower_priority_takes_nothing_that_a_higher_one_needs(
    seats: int, high: int, low: int, start: int
) -> None:
    two = [policy("a", serving_min=0, priority=1), policy("b", serving_min=0)]
    alone = House(two[:1], [Seat(up={"a"}) for _ in range(seats)], {})
    both = House(two, [Seat(up={"a"}) for _ in range(seats)], {"b": float(start)})
    for _ in range(60):
        alone.step({"a": load(0, high)})
        both.step({"a": load(0, high), "b": load(0, low)})
        assert both.serving("a") >= alone.serving("a")

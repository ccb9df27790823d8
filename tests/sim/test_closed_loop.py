"""An hour in closed loop with KEDA's and the HPA's rules: what we publish comes back as seats, and constant demand moves none.

The law publishes a fleet's total; KEDA hands it to the HPA as an `AverageValue` of target 1; the HPA, at each of its syncs,
writes the workload's replicas by its own tolerance, rates and windows; seats come up after a start-up; and the law looks at
them. The demand is a number of requests at once, of which those that no seat takes wait.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from scaler.core.decide import decide
from scaler.core.explain import explain_decision
from scaler.core.memory import Memory
from scaler.core.model import (
    Decision,
    FleetDecision,
    FleetShare,
    FleetSpec,
    FleetView,
    Load,
    PolicySpec,
    Quality,
    Reading,
    ReasonCode,
    Snapshot,
    Supply,
)
from scaler.policy.lint import Code
from scaler.runtime.bench.law.hpa import (
    DEFAULT_DOWN,
    DEFAULT_UP,
    SYNC_SECONDS,
    Hpa,
    HpaMemory,
    average_value,
    sync,
)
from tests.unit.scaler.policy.lint import sets
from warmpool.seats import FleetName, PolicyName

FLEET, CHAT = FleetName("spares"), PolicyName("chat")
TARGET = 8
SERVICE_SECONDS, START_SECONDS = 1.5, 90.0
HOUR = 3600.0
STABLE, DEMOTE, DOWN, HPA_DOWN = 60.0, 60.0, 300.0, 300.0
"""The windows that a step down waits for, one after the other: the mean's, a resident's, the total's, the HPA's."""
SLACK = 2 * SYNC_SECONDS + 10.0
"""What syncs and whole seconds may add to them."""
NO_TOLERANCE = Hpa(
    max_replicas=100,
    up=replace(DEFAULT_UP, tolerance=0.0),
    down=replace(DEFAULT_DOWN, tolerance=0.0),
)

Demand = Callable[[float], int]


def fresh(value: float) -> Reading:
    return Reading(value=value, age=0.1, quality=Quality.FRESH)


@dataclass
class Cluster:
    """A workload that an HPA sizes by what the law publishes.

    Attributes:
        demand: requests at once, by the time.
        other: seats that another trigger of the same ScaledObject asks for, by the time; 0 where there is none.
        started: when each seat was started.
        moves: when the replicas changed, and what they became.
        totals: when what is published changed, and what it became.
        waiting: when any request waited.
    """

    demand: Demand
    replicas: int
    spare: int = 2
    serving_min: int = 1
    other: Demand = lambda _: 0
    hpa: Hpa = field(default_factory=lambda: Hpa(max_replicas=100))
    now: float = 0.0
    started: list[float] = field(default_factory=list)
    serving: int = 0
    moves: list[tuple[float, int]] = field(default_factory=list)
    totals: list[tuple[float, int]] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    decision: Decision | None = None

    def __post_init__(self) -> None:
        self.policy = PolicySpec(
            name=CHAT,
            fleets=(FleetShare(fleet=FLEET, target_in_flight=TARGET),),
            serving_min=self.serving_min,
        )
        self.fleet = FleetSpec(name=FLEET, max_seats=60, spare_target=self.spare, resized=False)
        self.started = [-START_SECONDS] * self.replicas
        self.serving = min(self.replicas, max(self.serving_min, -(-self.demand(0.0) // TARGET)))
        self.hpa_memory = HpaMemory()
        self.synced_at = -SYNC_SECONDS / 2  # the HPA's clock is nobody else's
        self.waits_since: float | None = None
        self.restart()

    @property
    def last(self) -> FleetDecision:
        assert self.decision is not None
        return self.decision.fleets[FLEET]

    def restart(self) -> None:
        """Let another controller begin, which knows nothing of the past."""
        self.memory = Memory.initial(self.now)

    def run(self, seconds: float, *, controller: bool = True) -> None:
        """Let time pass, a second at a time, with or without a controller that answers."""
        end = self.now + seconds
        while self.now < end:
            self.now += 1.0
            if controller:
                self._decide()
            if self.now >= self.synced_at + SYNC_SECONDS:
                self.synced_at += SYNC_SECONDS
                self._sync(float(self.last.total) if controller else None)

    def scale(self, replicas: int) -> None:
        """Make the workload as large as somebody wants it."""
        if replicas != self.replicas:
            self.moves.append((self.now, replicas))
        self.replicas = replicas
        self.started = self.started[:replicas]
        self.started += [self.now] * (replicas - len(self.started))

    def moves_since(self, time: float) -> list[tuple[float, int]]:
        return [move for move in self.moves if move[0] > time]

    def _sync(self, total: float | None) -> None:
        """KEDA says what the law published, or that nothing is known of it."""
        metrics = [total, float(self.other(self.now))]
        proposals = [
            None if each is None else average_value(self.hpa, self.replicas, round(each, 3), 1.0)
            for each in metrics
        ]
        replicas, self.hpa_memory = sync(self.hpa, self.replicas, proposals, self.hpa_memory, self.now)
        self.scale(replicas)

    def _decide(self) -> None:
        ready = sum(self.now >= at + START_SECONDS for at in self.started)
        self.serving = min(self.serving, ready)
        snapshot = Snapshot(loads={CHAT: self._load()}, fleets={FLEET: self._view(ready)})
        self.decision, self.memory = decide([self.policy], [self.fleet], snapshot, self.memory, self.now)
        self.serving = self.decision.policies[CHAT].serving[FLEET]
        if not self.totals or self.totals[-1][1] != self.last.total:
            self.totals.append((self.now, self.last.total))

    def _view(self, ready: int) -> FleetView:
        spare = ready - self.serving
        return FleetView(
            serving=self.serving,
            spare=spare,
            starting=len(self.started) - ready,
            replicas=self.replicas,
            start_seconds=START_SECONDS,
            supply={CHAT: Supply(serving=self.serving, promotable=spare)},
        )

    def _load(self) -> Load:
        requests = self.demand(self.now)
        held = min(requests, self.serving * TARGET)
        queued = requests - held
        if queued:
            self.waiting.append(self.now)
        self.waits_since = (self.waits_since or self.now) if queued else None
        return Load(
            queued=fresh(queued),
            in_flight=fresh(held),
            peak=fresh(requests),
            oldest_wait=fresh(0.0 if self.waits_since is None else self.now - self.waits_since),
            completions=fresh(held / SERVICE_SECONDS),
            arrivals=fresh(requests / SERVICE_SECONDS),
        )


def constant(requests: int) -> Demand:
    return lambda _: requests


def steps(*changes: tuple[float, int]) -> Demand:
    """Demand that becomes so many requests at each time."""
    return lambda now: [requests for since, requests in changes if now >= since][-1]


def codes(decision: FleetDecision) -> set[ReasonCode]:
    return {reason.code for reason in decision.reasons}


# ------------------------------------------------------------------ constant demand


@pytest.mark.parametrize(
    ("requests", "hpa"),
    [
        pytest.param(0, Hpa(max_replicas=100), id="idle", marks=pytest.mark.long),
        pytest.param(8, Hpa(max_replicas=100), id="a seat to its last place"),
        pytest.param(20, Hpa(max_replicas=100), id="some", marks=pytest.mark.long),
        pytest.param(150, Hpa(max_replicas=100), id="in the dead zone"),
        pytest.param(150, NO_TOLERANCE, id="without a tolerance"),
    ],
)
def test_constant_demand_moves_nothing_for_an_hour(requests: int, hpa: Hpa) -> None:
    wanted = max(1, -(-requests // TARGET)) + 2
    on = Cluster(constant(requests), replicas=wanted, hpa=hpa)
    on.run(HOUR)
    assert on.moves == []
    assert [total for _, total in on.totals] == [wanted]
    assert on.serving == wanted - 2


@pytest.mark.parametrize(
    ("noise", "wanted"),
    [
        pytest.param(lambda now: 20 + round(now) % 5, 5, id="a saw inside one seat", marks=pytest.mark.long),
        pytest.param(lambda now: 17 + (round(now) * 7919) % 8, 5, id="from one end of a seat to the other"),
        pytest.param(
            lambda now: 24 if round(now) % 60 < 2 else 17,
            5,
            id="short peaks up to its end",
            marks=pytest.mark.long,
        ),
        pytest.param(lambda now: 17 if round(now) % 60 < 30 else 23, 5, id="half a minute each"),
    ],
)
def test_noise_inside_one_seat_moves_nothing_for_an_hour(noise: Demand, wanted: int) -> None:
    on = Cluster(noise, replicas=wanted)
    on.run(HOUR)
    assert on.moves == []
    assert [total for _, total in on.totals] == [wanted]


@pytest.mark.parametrize("found", [1, pytest.param(3, marks=pytest.mark.long), 9])
def test_from_whatever_it_is_found_with_a_fleet_settles_once_and_then_never_moves(found: int) -> None:
    on = Cluster(constant(20), replicas=found)
    on.run(HOUR)
    replicas = [found, *(each for _, each in on.moves)]
    assert replicas == sorted(replicas, reverse=found > 5), "it goes one way"
    assert on.replicas == 5
    assert on.moves_since(STABLE + DOWN + HPA_DOWN + SLACK) == []


# ------------------------------------------------------------------ steps


@pytest.mark.parametrize(
    ("before", "after"), [(20, 30), pytest.param(20, 60, marks=pytest.mark.long), (4, 100)]
)
def test_a_step_up_settles_once_and_then_never_moves(before: int, after: int) -> None:
    at, wanted = 600.0, -(-after // TARGET) + 2
    on = Cluster(steps((0.0, before), (at, after)), replicas=-(-before // TARGET) + 2)
    on.run(at + HOUR)
    assert on.moves_since(0.0) == on.moves_since(at - 1.0)
    replicas = [each for _, each in on.moves]
    assert replicas == sorted(replicas), "it never turns back"
    assert replicas[-1] == wanted
    assert on.moves[-1][0] <= at + 200.0, (
        "spares grow back four at a time, and a start takes a minute and a half"
    )
    assert max(on.waiting, default=0.0) < at + 2 * START_SECONDS + SLACK
    assert on.serving == wanted - 2


def test_a_step_down_goes_down_one_flight_of_stairs_after_the_windows_and_then_never_moves() -> None:
    """The mean over the stable window falls from one level to the other, and replicas as it did, all windows later."""
    at = 600.0
    on = Cluster(steps((0.0, 60), (at, 20)), replicas=10)
    on.run(at + HOUR)
    replicas = [10, *(each for _, each in on.moves)]
    assert replicas == sorted(replicas, reverse=True)
    assert replicas[-1] == 5
    first, last = on.moves[0][0] - at, on.moves[-1][0] - at
    assert first >= DOWN + HPA_DOWN
    assert last - first <= STABLE + SYNC_SECONDS
    assert last <= STABLE + DEMOTE + DOWN + HPA_DOWN + SLACK
    assert on.waiting == []


def test_two_peaks_within_the_windows_are_one_way_up_and_one_way_down() -> None:
    on = Cluster(steps((0.0, 20), (600.0, 60), (700.0, 20), (900.0, 60), (1000.0, 20)), replicas=5)
    on.run(600.0 + HOUR)
    rises = [after > before for (_, before), (_, after) in pairwise([(0.0, 5), *on.moves])]
    assert rises == sorted(rises, reverse=True)
    assert on.replicas == 5


# ------------------------------------------------------------------ the HPA's dead zone


def test_a_step_within_the_hpas_tolerance_is_served_from_the_spares_that_it_swallows() -> None:
    """At 20 seats a tenth are two: the total says 22, and the HPA stays at 20. What serves has what it needs."""
    at = 600.0
    on = Cluster(steps((0.0, 18 * TARGET), (at, 20 * TARGET)), replicas=20)
    on.run(at + HOUR)
    assert on.moves == []
    assert (on.last.total, on.replicas) == (22, 20)
    assert on.serving == 20
    assert on.waiting == [at], "until the decision of that second was carried out"


def test_a_step_that_takes_the_total_out_of_the_dead_zone_moves_at_once() -> None:
    at = 600.0
    on = Cluster(steps((0.0, 18 * TARGET), (at, 21 * TARGET)), replicas=20)
    on.run(at + HOUR)
    assert on.moves[0][1] >= 21
    assert on.moves[0][0] <= at + SYNC_SECONDS + 1.0
    assert on.serving == 21
    assert max(on.waiting) < at + SYNC_SECONDS + START_SECONDS + 5.0


def test_without_spares_the_dead_zone_costs_requests_and_the_reasons_and_lint_say_so() -> None:
    at = 600.0
    on = Cluster(steps((0.0, 20 * TARGET), (at, 22 * TARGET)), replicas=20, spare=0)
    on.run(at + HOUR)
    assert on.moves == []
    assert (on.last.total, on.serving) == (22, 20)
    assert on.decision is not None
    assert ReasonCode.SPARES_EXHAUSTED in {each.code for each in on.decision.policies[CHAT].reasons}
    assert any("20 of 22 residents" in line for line in explain_decision(on.decision))
    fleet = sets.fleet(maxSeats=20, resizedBy="Keda")
    (found,) = sets.findings(Code.HPA_DEAD_ZONE, fleet, sets.policy())
    assert "ignores a change of one seat from 10 seats on, at 20 seats one of up to 2" in found.message
    assert "tolerance: 0" in found.hint


def test_without_the_tolerance_there_is_no_dead_zone() -> None:
    at = 600.0
    on = Cluster(steps((0.0, 20 * TARGET), (at, 22 * TARGET)), replicas=20, spare=0, hpa=NO_TOLERANCE)
    on.run(at + HOUR)
    assert on.replicas == 22
    assert max(on.waiting) < at + SYNC_SECONDS + START_SECONDS + 5.0


def test_a_floor_within_the_dead_zone_is_served_from_the_spares() -> None:
    on = Cluster(constant(4), replicas=20, serving_min=20)
    on.run(HOUR)
    assert (on.serving, on.last.total, on.replicas) == (20, 22, 20)


def test_seats_that_the_tolerance_keeps_are_not_taken_for_a_wish_and_the_total_stands_still() -> None:
    at = 600.0
    on = Cluster(steps((0.0, 18 * TARGET), (at, 16 * TARGET)), replicas=20)
    on.run(at + HOUR)
    assert on.moves == []
    assert [total for _, total in on.totals] == [20, 19, 18]
    assert codes(on.last) == {ReasonCode.KEPT_ABOVE}


# ------------------------------------------------------------------ others' wishes, and a controller that is away


def test_a_persons_wish_holds_for_the_windows_and_goes_once() -> None:
    at = 1200.0
    on = Cluster(constant(20), replicas=5)
    on.run(at)
    on.scale(12)
    on.run(HOUR)
    assert [replicas for _, replicas in on.moves] == [12, 5]
    back = on.moves[-1][0] - at
    assert abs(back - (DOWN + HPA_DOWN)) <= SYNC_SECONDS, (
        "the HPA's window begins with the last sync that read the wish"
    )
    assert [total for _, total in on.totals] == [5, 12, 5]
    assert on.serving == 3, "it serves nobody"


def test_a_persons_wish_for_less_than_is_needed_is_undone_at_the_next_sync() -> None:
    on = Cluster(constant(20), replicas=5)
    on.run(1200.0)
    on.scale(4)
    on.run(HOUR)
    assert [replicas for _, replicas in on.moves] == [4, 5]
    assert on.moves[-1][0] <= 1200.0 + SYNC_SECONDS + 1.0


def test_an_hpas_minimum_above_us_moves_nothing_and_the_total_stands_still() -> None:
    on = Cluster(constant(20), replicas=12, hpa=Hpa(min_replicas=12, max_replicas=100))
    on.run(2 * HOUR)
    assert on.moves == []
    assert [total for _, total in on.totals] == [12, 5]
    assert codes(on.last) == {ReasonCode.KEPT_ABOVE}


def test_a_minimum_that_is_raised_is_a_wish_that_lapses_and_the_seats_stay() -> None:
    on = Cluster(constant(20), replicas=5)
    on.run(1200.0)
    on.hpa = replace(on.hpa, min_replicas=12)
    on.run(2 * HOUR)
    assert [replicas for _, replicas in on.moves] == [12]
    assert [total for _, total in on.totals] == [5, 12, 5]


def test_another_trigger_has_its_seats_for_as_long_as_it_wants_them_and_they_go_once() -> None:
    begins, ends = 1200.0, 3000.0
    on = Cluster(constant(20), replicas=5, other=steps((0.0, 0), (begins, 12), (ends, 0)))
    on.run(ends + HOUR)
    (*_, up, down) = on.moves
    assert [replicas for _, replicas in on.moves] == [10, 12, 5], "as fast as the HPA's rates let it"
    assert up[0] <= begins + 2 * SYNC_SECONDS + 1.0
    assert ends + HPA_DOWN - SYNC_SECONDS <= down[0] <= ends + HPA_DOWN + SLACK
    assert [total for _, total in on.totals] == [5, 10, 12, 5]
    assert on.totals[-1][0] <= up[0] + DOWN + 1.0, "it needs our help for one window only"


@pytest.mark.parametrize("window", [600.0, pytest.param(1800.0, marks=pytest.mark.long)])
def test_an_hpa_that_follows_later_than_by_default_gets_there_all_the_same(window: float) -> None:
    """Taken for wishes, the replicas that it still keeps would keep the total up, and that the replicas."""
    at = 600.0
    slow = Hpa(max_replicas=100, down=replace(DEFAULT_DOWN, window=window))
    on = Cluster(steps((0.0, 60), (at, 20)), replicas=10, hpa=slow)
    on.run(at + 2 * HOUR)
    assert on.replicas == 5
    assert on.moves[-1][0] - at <= STABLE + DEMOTE + DOWN + window + SLACK
    assert [total for _, total in on.totals] == [10, 9, 8, 7, 6, 5]


def test_a_controller_that_is_away_and_comes_back_without_its_past_moves_nothing() -> None:
    on = Cluster(constant(20), replicas=5)
    on.run(1200.0)
    on.run(600.0, controller=False)
    on.restart()
    on.run(HOUR)
    assert on.moves == []

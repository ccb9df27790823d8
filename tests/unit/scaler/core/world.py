"""Builders and a toy world in virtual time for the law's tests: pure, no asyncio, no clock."""

import heapq
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scaler.core.decide import decide
from scaler.core.memory import Memory
from scaler.core.model import (
    Burst,
    Decision,
    FleetShare,
    FleetSpec,
    FleetView,
    Load,
    Pace,
    PolicySpec,
    Quality,
    Reading,
    Snapshot,
    Supply,
)
from warmpool.seats import FleetName, PolicyName

SPARES = FleetName("spares")


def fresh(value: float) -> Reading:
    return Reading(value=float(value), age=0.1, quality=Quality.FRESH)


def stale(value: float) -> Reading:
    return Reading(value=value, age=30.0, quality=Quality.STALE)


def load(in_flight: float, queued: float = 0.0, **more: float) -> Load:
    """What a gateway says, all fresh."""
    return Load(
        queued=fresh(queued),
        in_flight=fresh(in_flight),
        **{name: fresh(value) for name, value in more.items()},
    )


def policy(
    name: str = "a", *, fleets: Sequence[tuple[str, int]] = (("spares", 8),), **more: object
) -> PolicySpec:
    options: dict[str, object] = {
        "serving_min": 1,
        "ttft_objective": 0.5,
        "burst": Burst(window=2.0, stable_window=10.0, demote_after=3.0),
    }
    shares = tuple(FleetShare(fleet=FleetName(fleet), target_in_flight=target) for fleet, target in fleets)
    return PolicySpec(name=PolicyName(name), fleets=shares, **(options | more))  # type: ignore[arg-type]


def fleet(name: str = "spares", max_seats: int = 3, spare_target: int = 1, **more: object) -> FleetSpec:
    return FleetSpec(
        name=FleetName(name),
        max_seats=max_seats,
        spare_target=spare_target,
        **({"scale_down": Pace(window=20.0)} | more),
    )  # type: ignore[arg-type]


def view(supply: Mapping[str, Supply] | None = None, **seats: int) -> FleetView:
    return FleetView(
        **({"replicas": sum(seats.values())} | seats),
        supply={PolicyName(name): one for name, one in (supply or {}).items()},
    )


def simple(serving: Mapping[str, int], spare: int = 0, *, starting: int = 0, held: int = 0) -> FleetView:
    """A fleet on which every policy is resident on every seat."""
    total = sum(serving.values())
    supply = {
        name: Supply(serving=count, promotable=spare, switchable=total - count)
        for name, count in serving.items()
    }
    return view(supply, serving=total, spare=spare, starting=starting, held=held)


@dataclass
class Run:
    """A policy or several, stepped through time by hand."""

    policies: Sequence[PolicySpec]
    fleets: Sequence[FleetSpec]
    now: float = 1000.0
    memory: Memory = field(init=False)
    decision: Decision = field(init=False)

    def __post_init__(self) -> None:
        self.memory = Memory.initial(self.now)

    def step(
        self,
        loads: Mapping[str, Load],
        fleets: Mapping[str, FleetView],
        *,
        after: float = 0.0,
        budget: int | None = None,
        **more: object,
    ) -> Decision:
        """Decide once; `more` is what else the snapshot says."""
        self.now += after
        snapshot = Snapshot(
            loads={PolicyName(name): one for name, one in loads.items()},
            fleets={FleetName(name): one for name, one in fleets.items()},
            seat_budget=budget,
            **more,  # type: ignore[arg-type]
        )
        self.decision, self.memory = decide(self.policies, self.fleets, snapshot, self.memory, self.now)
        return self.decision

    def hold(self, loads: Mapping[str, Load], fleets: Mapping[str, FleetView], seconds: float) -> Decision:
        """Step through `seconds` with the same world, four times a second."""
        for _ in range(round(seconds * 4)):
            self.step(loads, fleets, after=0.25)
        return self.decision


def served(decision: Decision, name: str = "a", where: str = "spares") -> int:
    return decision.policies[PolicyName(name)].serving[FleetName(where)]


def wanted(decision: Decision, name: str = "a", where: str = "spares") -> int:
    return decision.policies[PolicyName(name)].wanted[FleetName(where)]


# ------------------------------------------------------------------ the toy world


@dataclass
class Request:
    policy: str
    arrived: float
    service: float
    started: float | None = None


@dataclass
class Seat:
    serves: str | None = None
    draining: str | None = None
    promoted_at: float = 0.0
    in_flight: int = 0


@dataclass
class World:
    """One fleet, several models, gateways that hold what exceeds the target, seats that promote in 0.15 s.

    A promotion of a spare seat takes `promotion` seconds; a demotion drains first. The law is asked on every change, at
    most each 50 ms, and when its own wake-up is due.
    """

    policies: Sequence[PolicySpec]
    fleet_spec: FleetSpec
    rates: Mapping[str, Sequence[tuple[float, float]]]
    seats: list[Seat]
    seed: int = 1
    service: float = 1.5
    promotion: float = 0.15
    now: float = 0.0
    target: int = 8
    queues: dict[str, deque[Request]] = field(default_factory=dict)
    done: list[Request] = field(default_factory=list)
    history: list[tuple[float, dict[str, int], Decision]] = field(default_factory=list)

    def run(self, until: float) -> None:
        rng = random.Random(self.seed)
        self.events: list[tuple[float, int, str, object]] = []
        self.number = 0
        self.finished: dict[str, deque[float]] = {p.name: deque() for p in self.policies}
        self.came: dict[str, deque[float]] = {p.name: deque() for p in self.policies}
        self.peaks = {str(p.name): 0 for p in self.policies}
        self.queues = {p.name: deque() for p in self.policies}
        self.memory = Memory.initial(0.0)
        self.due = 0.0
        self.last = -1.0
        for name, steps in self.rates.items():
            for arrival in _arrivals(steps, until, rng):
                self._at(arrival, "arrive", Request(name, arrival, rng.expovariate(1 / self.service)))
        while self.events and self.events[0][0] <= until:
            self.now, _, kind, what = heapq.heappop(self.events)
            getattr(self, f"_{kind}")(what)
            self._dispatch()
            if kind != "tick":
                self._ask(self.now)
        assert self.now <= until

    def _at(self, when: float, kind: str, what: object) -> None:
        self.number += 1
        heapq.heappush(self.events, (when, self.number, kind, what))

    def _ask(self, when: float) -> None:
        """Have the law asked soon: at once, or 50 ms after the last time."""
        when = max(when, self.last + 0.05)
        if self.due <= self.now or when < self.due:
            self.due = when
            self._at(when, "tick", when)

    def _arrive(self, request: Request) -> None:
        self.queues[request.policy].append(request)
        self.came[request.policy].append(self.now)

    def _finish(self, job: tuple[Seat, Request]) -> None:
        seat, request = job
        seat.in_flight -= 1
        self.done.append(request)
        self.finished[request.policy].append(self.now)
        if seat.draining is not None and seat.in_flight == 0:
            seat.draining = None

    def _ready(self, seat: Seat) -> None:
        del seat

    def _dispatch(self) -> None:
        for name, queue in self.queues.items():
            ready = [s for s in self.seats if s.serves == name and s.promoted_at <= self.now]
            self.peaks[name] = max(self.peaks[name], len(queue) + self._in_flight(name))
            for seat in ready:
                while queue and seat.in_flight < self.target:
                    request = queue.popleft()
                    request.started = self.now
                    seat.in_flight += 1
                    self._at(self.now + request.service, "finish", (seat, request))

    def _in_flight(self, name: str) -> int:
        return sum(s.in_flight for s in self.seats if name in (s.serves, s.draining))

    def _tick(self, when: float) -> None:
        if when != self.due:
            return
        self.last = self.now
        decision, self.memory = decide(
            self.policies, [self.fleet_spec], self.snapshot(), self.memory, self.now
        )
        self.history.append((self.now, self.serving(), decision))
        self._apply(decision)
        wake = min(decision.next_wakeup or self.now + 1.0, self.now + 1.0)
        self.due = wake
        self._at(wake, "tick", wake)

    def serving(self) -> dict[str, int]:
        return {str(p.name): sum(s.serves == p.name for s in self.seats) for p in self.policies}

    def snapshot(self) -> Snapshot:
        loads = {}
        for spec in self.policies:
            name = spec.name
            queue = self.queues[name]
            loads[name] = load(
                self._in_flight(name),
                len(queue),
                oldest_wait=self.now - queue[0].arrived if queue else 0.0,
                peak=self.peaks[name],
                completions=_rate(self.finished[name], self.now),
                arrivals=_rate(self.came[name], self.now),
            )
            self.peaks[name] = 0
        return Snapshot(loads=loads, fleets={SPARES: self._view()})

    def _view(self) -> FleetView:
        serving = sum(s.serves is not None for s in self.seats)
        draining = sum(s.draining is not None for s in self.seats)
        spare = len(self.seats) - serving - draining
        supply = {}
        for spec in self.policies:
            own = [s for s in self.seats if s.serves == spec.name]
            supply[spec.name] = Supply(
                serving=sum(s.promoted_at <= self.now for s in own),
                promoting=sum(s.promoted_at > self.now for s in own),
                draining=sum(s.draining == spec.name for s in self.seats),
                promotable=spare,
                switchable=sum(
                    s.serves not in (None, spec.name) or s.draining not in (None, spec.name)
                    for s in self.seats
                ),
            )
        return FleetView(
            serving=serving, draining=draining, spare=spare, replicas=len(self.seats), supply=supply
        )

    def _apply(self, decision: Decision) -> None:
        """What a planner does with the counts: demotions and recalls first, then promotions of what is free."""
        for name, given in ((p.name, decision.policies[p.name].serving[SPARES]) for p in self.policies):
            own = [s for s in self.seats if s.serves == name and s.promoted_at <= self.now]
            surplus = sum(s.serves == name for s in self.seats) - given
            for seat in sorted(own, key=lambda s: s.in_flight)[: max(0, surplus)]:
                seat.serves, seat.draining = None, name if seat.in_flight else None
        for name, given in ((p.name, decision.policies[p.name].serving[SPARES]) for p in self.policies):
            lacking = given - sum(s.serves == name for s in self.seats)
            recalled = [s for s in self.seats if s.draining == name][: max(0, lacking)]
            for seat in recalled:
                seat.serves, seat.draining = name, None
            free = [s for s in self.seats if s.serves is None and s.draining is None]
            for seat in free[: max(0, lacking - len(recalled))]:
                seat.serves, seat.promoted_at = name, self.now + self.promotion
                self._at(seat.promoted_at, "ready", seat)


def _arrivals(steps: Sequence[tuple[float, float]], until: float, rng: random.Random) -> list[float]:
    """Poisson arrivals at a rate that changes in steps of (from, per second)."""
    arrivals = []
    ends = [start for start, _ in steps[1:]] + [until]
    for (start, rate), end in zip(steps, ends, strict=True):
        at = start + rng.expovariate(rate)
        while at < end:
            arrivals.append(at)
            at += rng.expovariate(rate)
    return arrivals


def _rate(times: deque[float], now: float, seconds: float = 3.0) -> float:
    while times and times[0] <= now - seconds:
        times.popleft()
    return len(times) / seconds

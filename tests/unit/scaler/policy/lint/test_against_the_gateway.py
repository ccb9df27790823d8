"""The gateway's queue itself, in virtual time, refuses where refusals are foretold, and only there."""

import heapq
from dataclasses import dataclass, field

import pytest

from scaler.gateway.queue import Dispatcher, Lease, Refusal, Ticket
from scaler.gateway.routes import Endpoint, PolicyLimits, PolicyRoutes, RouteTable
from scaler.policy.lint import Assumptions, Code
from tests.unit.scaler.policy.lint.sets import findings, fleet, policy
from warmpool.seats import PolicyName, SeatName

CHAT = PolicyName("chat")
SLOTS = 4
SERVICE_SECONDS = 1.0
STEP_SECONDS = 0.25


@dataclass
class Burst:
    """As much load as `most` residents bear, on `at_once` of them until all serve after `seats_after` seconds."""

    at_once: int
    most: int
    seats_after: float
    refused: int = 0
    now: float = 0.0
    _due: list[tuple[float, int, Lease]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._routes = RouteTable()
        self._dispatcher = Dispatcher(self._routes, changed=lambda _policy, _beyond: None)

    def run(self) -> int:
        """Return how many requests were refused for having waited too long."""
        self._serve(self.at_once)
        per_step = self.most * SLOTS * STEP_SECONDS / SERVICE_SECONDS
        sent = 0.0
        while self.now < self.seats_after + 5.0:
            if self.now == self.seats_after:
                self._serve(self.most)
            while self._due and self._due[0][0] <= self.now:
                self._dispatcher.release(heapq.heappop(self._due)[2], self.now)
            self._dispatcher.advance(self.now)
            sent += per_step
            for _ in range(int(sent)):
                self._arrive()
            sent %= 1.0
            self.now += STEP_SECONDS
        return self.refused

    def _serve(self, residents: int) -> None:
        endpoints = tuple(
            Endpoint(seat=SeatName(f"s{n}"), uid=str(n), policy=CHAT, url=f"http://s{n}", slots=SLOTS)
            for n in range(residents)
        )
        limits = PolicyLimits(
            max_requests=1_000_000, max_age_seconds=float(Assumptions().gateway_queue_seconds)
        )
        self._routes.replace({CHAT: PolicyRoutes(models=("chat",), endpoints=endpoints, limits=limits)})

    def _arrive(self) -> None:
        ticket = Ticket(
            policy=CHAT, size_bytes=1, arrived_at=self.now, granted=self._begin, refused=self._refuse
        )
        given = self._dispatcher.submit(ticket, self.now)
        if isinstance(given, Lease):
            self._begin(given)

    def _begin(self, lease: Lease) -> bool:
        heapq.heappush(self._due, (self.now + SERVICE_SECONDS, id(lease), lease))
        return True

    def _refuse(self, refusal: Refusal) -> None:
        assert refusal is Refusal.TOO_OLD
        self.refused += 1


def foretold(spares: int, start: int) -> bool:
    trees = (fleet(maxSeats=4, spare={"min": spares}), policy(engine={"startSeconds": start}))
    return bool(findings(Code.COLD_START_REFUSED, *trees, pod_start_seconds=0))


@pytest.mark.parametrize(
    ("spares", "start"),
    [
        pytest.param(0, 76, id="none ready, just in time"),
        pytest.param(0, 84, id="none ready, too late"),
        pytest.param(1, 115, id="half ready, just in time"),
        pytest.param(1, 125, id="half ready, too late"),
        pytest.param(2, 230, id="most ready, just in time"),
        pytest.param(2, 250, id="most ready, too late"),
    ],
)
def test_a_burst_is_refused_where_it_is_said_to_be(spares: int, start: int) -> None:
    """1 − 1/4, 1 − 2/4 and 1 − 3/4 of the seats' start are 60 s at 80, 120 and 240 s."""
    burst = Burst(at_once=1 + spares, most=4, seats_after=float(start))
    assert (burst.run() > 0) == foretold(spares, start)


@pytest.mark.parametrize(("start", "late"), [(58, False), (90, True)])
def test_with_nothing_serving_all_that_comes_too_early_is_refused(start: int, *, late: bool) -> None:
    trees = (fleet(maxSeats=1, spare={"min": 0}), policy(serving={"min": 0}, engine={"startSeconds": start}))
    found = findings(Code.COLD_START_REFUSED, *trees, pod_start_seconds=0)
    burst = Burst(at_once=0, most=1, seats_after=float(start))
    per_second = SLOTS / SERVICE_SECONDS
    assert burst.run() == pytest.approx(per_second * max(0, start - 60), abs=2 * per_second)
    assert bool(found) is late

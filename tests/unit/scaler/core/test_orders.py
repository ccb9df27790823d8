"""What new seats are made for: never less than waits at first, and no more because seats take long to start."""

import math
import random
from collections import deque

import pytest

from scaler.core.demand import Demand, measure
from scaler.core.memory import NEVER_SEEN, Order, Service
from scaler.core.model import Burst, Pace
from scaler.core.orders import fluid, follow, horizon, most
from tests.reports.site import Site
from tests.unit.scaler.core.world import fleet, load, policy

SPEC = policy()  # burst window 2 s


def flow(queued: float, busy: float, arrivals: float, completions: float = 0.0) -> dict[str, object]:
    return {"a": load(busy, queued, oldest_wait=1.0, arrivals=arrivals, completions=completions)}


# ------------------------------------------------------------------ the rule


FIRST = Order(10.0, 9.0, 8.0)


@pytest.mark.parametrize(
    ("before", "asked", "there", "now", "after"),
    [
        pytest.param(None, 8.0, 8.0, 10.0, None, id="not short"),
        pytest.param(None, 9.0, 8.0, 10.0, FIRST, id="short from now on"),
        pytest.param(FIRST, 30.0, 8.0, 11.9, Order(10.0, 30.0, 8.0), id="more in the first window"),
        pytest.param(FIRST, 5.0, 4.0, 11.0, FIRST, id="the most of the first window"),
        pytest.param(FIRST, 30.0, 8.0, 12.0, Order(10.0, 20.0, 8.0), id="then what the model says"),
        pytest.param(FIRST, 15.0, 8.0, 12.0, Order(10.0, 15.0, 8.0), id="and no more than is asked for"),
        pytest.param(
            Order(10.0, 25.0, 8.0), 30.0, 8.0, 12.0, Order(10.0, 25.0, 8.0), id="what was ordered stands"
        ),
        pytest.param(FIRST, 8.0, 8.0, 50.0, None, id="met"),
    ],
)
def test_an_order(before: Order | None, asked: float, there: float, now: float, after: Order | None) -> None:
    assert follow(before, asked, there, 20.0, SPEC, now) == after


@pytest.mark.parametrize(
    ("order", "there", "now", "expected"),
    [
        pytest.param(None, 8.0, 10.0, math.inf, id="not short"),
        pytest.param(FIRST, 8.0, 11.0, math.inf, id="the first window is free"),
        pytest.param(FIRST, 8.0, 12.0, 9.0, id="then the order stands"),
        pytest.param(FIRST, 16.0, 12.0, 16.0, id="and what there is, of whatever it is made"),
    ],
)
def test_what_bounds_new_seats(order: Order | None, there: float, now: float, expected: float) -> None:
    assert most(order, there, SPEC, now) == expected


@pytest.mark.parametrize(
    ("order", "there", "now", "seconds"),
    [
        pytest.param(None, 8.0, 10.0, 120.0, id="two start times"),
        pytest.param(FIRST, 8.0, 129.9, 120.0, id="seats may still come"),
        pytest.param(FIRST, 16.0, 130.0, 120.0, id="some came"),
        pytest.param(FIRST, 8.0, 130.0, 60.0, id="none came in all that time"),
    ],
)
def test_within_what_time_what_waits_shall_be_admitted(
    order: Order | None, there: float, now: float, seconds: float
) -> None:
    assert horizon(order, there, 60.0, now) == seconds


def seen(completions: float, seconds: float, present: float = 0.0) -> Service:
    """Ten in flight on average, ten arrivals a second."""
    return Service(completions, 10.0, seconds, present, 10.0, seconds)


@pytest.mark.parametrize(
    ("service", "capacity"),
    [
        pytest.param(None, 0.0, id="nobody has been served"),
        pytest.param(seen(0.0, 0.0), 0.0, id="just now for the first time"),
        pytest.param(seen(1.0, 60.0), (100 + 1200) / (1 + 12), id="ten seconds a request"),
        pytest.param(seen(0.0, 2.0), (100 + 1200) / (1 + 120), id="no longer than half of two seconds"),
        pytest.param(seen(0.0, 60.0), (100 + 1200) / (1 + 4), id="no longer than half of a minute"),
        pytest.param(seen(0.0, 60.0, 90.0), (100 + 1200) / (1 + 9), id="what is in flight is half done"),
        pytest.param(seen(0.1, 6000.0, 90.0), (100 + 1200) / (1 + 2.1), id="of which ten minutes know"),
    ],
)
def test_the_model_of_what_is_ordered(service: Service | None, capacity: float) -> None:
    assert fluid(_demand(queued=90, busy=10, arrivals=10), service, 120.0) == pytest.approx(capacity)


def test_without_arrivals_the_model_says_nothing() -> None:
    assert fluid(_demand(queued=90, busy=10), seen(1.0, 60.0), 120.0) == math.inf


def test_the_queue_of_one_start_takes_half_as_much_again_as_arrivals_keep_busy() -> None:
    """λ = 10/s, 1/μ = 10 s, a start takes ten of those: 100 are busy for good, 1000 have come meanwhile."""
    there = Service(1.0, 10.0, 6000.0, 0.0, 10.0, 6000.0)
    one = _demand(queued=900, busy=100, arrivals=10)
    assert fluid(one, there, horizon(None, 0.0, 100.0, 0.0)) == pytest.approx(1.5 * 100, rel=0.05)


def _demand(queued: float = 0, busy: float = 0, **flows: float) -> Demand:
    return measure(load(busy, queued, **flows), NEVER_SEEN, serving=True, now=1.0)[0]


# ------------------------------------------------------------------ in a closed loop


def test_what_waits_keeps_its_seat_on_the_way_although_nothing_else_comes() -> None:
    one = policy(serving_min=0)
    site = Site(policies=[one], fleets=[fleet(spare_target=0)], start=400.0)
    site.hold({"a": load(0)}, 15.0)
    site.step(flow(1, 0, 0.33))  # type: ignore[arg-type]
    for _ in range(395):
        site.step(flow(1, 0, 0.0))  # type: ignore[arg-type]
        assert site.total() == 1


def test_a_window_for_growing_delays_an_order_and_does_not_prevent_it() -> None:
    slow = fleet(max_seats=9, spare_target=0, scale_up=Pace(window=10.0))
    site = Site(policies=[policy(serving_min=0)], fleets=[slow], start=60.0)
    site.hold({"a": load(0)}, 15.0)
    site.step(flow(40, 0, 13.0))  # type: ignore[arg-type]
    for _ in range(20):
        site.step(flow(40, 0, 0.0))  # type: ignore[arg-type]
    assert site.total() == 5


@pytest.mark.parametrize(
    ("rate", "seconds", "start"),
    [(2.0, 60.0, 60.0), (4.0, 5.0, 180.0), (0.5, 60.0, 600.0), (2.0, 60.0, 600.0)],
)
def test_long_requests_and_slow_starts_order_no_multiple_of_what_is_needed(
    rate: float, seconds: float, start: float
) -> None:
    """Poisson arrivals for an hour: all are served, by at most half as many seats again as they take where nobody waits."""
    source, now, following = random.Random(5), 0.0, 0.0
    queue, running, at_once, recent, ended = (deque[float]() for _ in range(5))
    most_seats, needed = 0, 0
    site = Site(
        policies=[policy(serving_min=1, burst=Burst())],
        fleets=[fleet(max_seats=300, spare_target=0, scale_down=Pace(window=300.0))],
        up={"spares": 1},
        start=start,
    )
    for _ in range(3600):
        now += 1.0
        while following <= now:
            for times in (queue, recent):
                times.append(following)
            at_once.append(following + seconds)
            following += source.expovariate(rate)
        while running and running[0] <= now:
            ended.append(running.popleft())
        while queue and len(running) < site.serving() * 8:
            queue.popleft()
            running.append(now + seconds)
        for times, since in ((recent, now - 3), (ended, now - 3), (at_once, now)):
            while times and times[0] <= since:
                times.popleft()
        needed = max(needed, len(at_once))
        waited = now - queue[0] if queue else 0.0
        flows = {"arrivals": len(recent) / 3, "completions": len(ended) / 3}
        site.step({"a": load(len(running), len(queue), oldest_wait=waited, **flows)})
        most_seats = max(most_seats, site.total())
    assert most_seats <= 1.5 * math.ceil(needed / 8)
    assert len(queue) <= rate * seconds

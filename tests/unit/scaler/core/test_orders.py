"""What new seats are made for: never less than waits at first, and no more because seats take long to start."""

import math
import random

import pytest

from scaler.core.memory import Order, Throughput
from scaler.core.model import Burst, Pace
from scaler.core.orders import fluid, follow, most, watch
from tests.reports.site import Site
from tests.unit.scaler.core.world import fleet, load, policy

SPEC = policy()  # burst window 2 s


def flow(queued: float, busy: float, arrivals: float, completions: float = 0.0) -> dict[str, object]:
    return {"a": load(busy, queued, oldest_wait=1.0, arrivals=arrivals, completions=completions)}


# ------------------------------------------------------------------ the rule


@pytest.mark.parametrize(
    ("before", "asked", "there", "now", "after"),
    [
        pytest.param(None, 8.0, 8.0, 10.0, None, id="not short"),
        pytest.param(None, 9.0, 8.0, 10.0, Order(10.0, 9.0), id="short from now on"),
        pytest.param(Order(10.0, 9.0), 30.0, 8.0, 11.9, Order(10.0, 30.0), id="more in the first window"),
        pytest.param(Order(10.0, 9.0), 5.0, 4.0, 11.0, Order(10.0, 9.0), id="the most of the first window"),
        pytest.param(Order(10.0, 9.0), 30.0, 8.0, 12.0, Order(10.0, 9.0), id="later growth doesn't count"),
        pytest.param(Order(10.0, 9.0), 8.0, 8.0, 50.0, None, id="met"),
    ],
)
def test_an_order(before: Order | None, asked: float, there: float, now: float, after: Order | None) -> None:
    assert follow(before, asked, there, SPEC, now) == after


@pytest.mark.parametrize(
    ("order", "model", "now", "expected"),
    [
        pytest.param(None, 5.0, 10.0, math.inf, id="not short"),
        pytest.param(Order(10.0, 9.0), 5.0, 11.0, math.inf, id="the first window is free"),
        pytest.param(Order(10.0, 9.0), 5.0, 12.0, 9.0, id="then the order stands"),
        pytest.param(Order(10.0, 9.0), 20.0, 12.0, 20.0, id="or what the model says"),
        pytest.param(Order(10.0, 9.0), math.inf, 12.0, math.inf, id="no arrivals known"),
    ],
)
def test_what_bounds_new_seats(order: Order | None, model: float, now: float, expected: float) -> None:
    assert most(order, model, SPEC, now) == expected


def test_a_request_is_taken_to_last_no_longer_than_half_of_what_requests_were_watched() -> None:
    demand = _demand(queued=90, busy=10, arrivals=10)
    young, old = Throughput(0.0, 10.0, 10.0, 2.0), Throughput(0.0, 10.0, 10.0, 60.0)
    assert fluid(demand, young, 60.0) == pytest.approx((100 + 600) / (1 + 60))
    assert fluid(demand, old, 60.0) == pytest.approx((100 + 600) / (1 + 2))
    assert fluid(demand, None, 60.0) == 0.0


def test_averages_are_plain_means_until_their_window_is_full() -> None:
    seen = None
    for second, busy in enumerate([10, 20, 30]):
        seen = watch(seen, _demand(busy=busy, completions=busy / 2, arrivals=4), 1.0 if second else 0.0, 60.0)
    assert seen == Throughput(pytest.approx(12.5), pytest.approx(25.0), pytest.approx(4.0), 2.0)  # type: ignore[comparison-overlap]
    assert watch(seen, _demand(busy=0, completions=0, arrivals=0), 30.0, 60.0) == seen, "idle says nothing"


def _demand(queued: float = 0, busy: float = 0, arrivals: float = 0, completions: float = 0):  # noqa: ANN202
    from scaler.core.demand import measure  # noqa: PLC0415
    from scaler.core.memory import NEVER_SEEN  # noqa: PLC0415

    said = load(busy, queued, arrivals=arrivals, completions=completions)
    return measure(said, NEVER_SEEN, serving=True, now=1.0)[0]


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


@pytest.mark.parametrize("start", [60.0, 180.0, 600.0])
@pytest.mark.parametrize(("rate", "seconds"), [(2.0, 60.0), (4.0, 5.0), (0.5, 60.0)])
def test_long_requests_and_slow_starts_order_no_multiple_of_what_is_needed(
    rate: float, seconds: float, start: float
) -> None:
    """Poisson arrivals for an hour: everything is served, and the fleet is never a multiple of what it needs."""
    source, now, following = random.Random(5), 0.0, 0.0
    queue: list[float] = []
    running: list[float] = []
    served, most_seats = 0, 0
    site = Site(
        policies=[policy(serving_min=1, burst=Burst())],
        fleets=[fleet(max_seats=300, spare_target=0, scale_down=Pace(window=300.0))],
        up={"spares": 1},
        start=start,
    )
    recent: list[float] = []
    ended: list[float] = []
    for _ in range(3600):
        now += 1.0
        while following <= now:
            queue.append(following)
            recent.append(following)
            following += source.expovariate(rate)
        ended += [at for at in running if at <= now]
        running = [at for at in running if at > now]
        while queue and len(running) < site.serving() * 8:
            queue.pop(0)
            served += 1
            running.append(now + seconds)
        recent, ended = [at for at in recent if at > now - 3], [at for at in ended if at > now - 3]
        waited = now - queue[0] if queue else 0.0
        site.step(
            {
                "a": load(
                    len(running),
                    len(queue),
                    oldest_wait=waited,
                    arrivals=len(recent) / 3,
                    completions=len(ended) / 3,
                )
            }
        )
        most_seats = max(most_seats, site.total())
    need = math.ceil(rate * seconds / 8)
    assert most_seats <= 3.5 * need
    assert len(queue) <= rate * seconds

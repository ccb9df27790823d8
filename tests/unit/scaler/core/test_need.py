import math

import pytest

from scaler.core.demand import Demand, measure
from scaler.core.memory import NEVER_SEEN, Coming
from scaler.core.model import Load, Quality
from scaler.core.need import Capacity, admitting_capacity, terms
from scaler.core.windows import Ring
from tests.unit.scaler.core.world import fresh, load, policy


def demand(in_flight: float, queued: float = 0.0, **more: float) -> Demand:
    return measure(load(in_flight, queued, **more), NEVER_SEEN, serving=True, now=0.0)[0]


# μ = 0.5/s per slot throughout
@pytest.mark.parametrize(
    ("one", "rate", "seconds", "capacity"),
    [
        pytest.param(demand(8, 6), 0.5, 2.0, 8 + 6 / 2, id="arrivals unknown: they equal what finishes"),
        pytest.param(demand(8, 6), 0.0, 2.0, 14, id="service rate unknown: the demand itself"),
        pytest.param(demand(8, 6), 0.5, 0.0, 14, id="no time left: the demand itself"),
        pytest.param(demand(8, 6), 0.5, math.nan, 14, id="no number of seconds: the demand itself"),
        pytest.param(demand(8, 6, arrivals=8), 0.5, 2.0, (14 + 16) / 2, id="more arrives than finishes"),
        pytest.param(
            demand(8, 6, arrivals=1), 0.5, 2.0, 8 + 6 / 2, id="less arrives: what is busy stays counted"
        ),
        pytest.param(demand(8, 6, arrivals=1e6), 0.5, 2.0, 28, id="arrivals at most double the answer"),
        pytest.param(demand(8, 0, arrivals=8), 0.5, 1e6, 16, id="in the long run λ/μ"),
    ],
)
def test_the_fluid_model(one: Demand, rate: float, seconds: float, capacity: float) -> None:
    assert admitting_capacity(one, rate, seconds) == pytest.approx(capacity, rel=1e-4)


def test_the_fluid_model_admits_in_time() -> None:
    one = demand(8, 6, arrivals=5)
    slots = admitting_capacity(one, 0.5, 2.0)
    admitted = (slots - 8) + 0.5 * slots * 2.0
    assert admitted >= 6 + 5 * 2.0 - 1e-9


@pytest.mark.parametrize(
    ("one", "capacity", "at_risk", "wait"),
    [
        pytest.param(demand(8, 0, oldest_wait=9), 8, False, 0.0, id="nothing waits"),
        pytest.param(demand(8, 1, oldest_wait=0.1), 8, False, 0.25, id="soon admitted"),
        pytest.param(demand(8, 3, oldest_wait=0.1), 8, True, 0.75, id="the queue is too long"),
        pytest.param(
            demand(8, 1, oldest_wait=0.4), 8, True, 0.25, id="the oldest has waited for too long already"
        ),
        pytest.param(demand(8, 3, oldest_wait=0.1), 16, False, 0.0, id="capacity on its way counts"),
        pytest.param(demand(8, 3, oldest_wait=0.6), 16, True, 0.0, id="age leads whatever is predicted"),
    ],
)
def test_the_deadline(one: Demand, capacity: float, *, at_risk: bool, wait: float) -> None:
    result = terms(one, Ring(), 0.5, policy(), Capacity(capacity), 0.0)
    assert result.at_risk is at_risk
    assert result.predicted_wait == pytest.approx(wait)
    assert (result.deadline > 0.0) is at_risk


def test_a_queue_at_an_unknown_rate_is_a_risk_at_once() -> None:
    result = terms(demand(8, 1), Ring(), 0.0, policy(), Capacity(8.0), 0.0)
    assert result.at_risk
    assert result.predicted_wait == math.inf
    assert result.deadline == 9


def test_the_drain_term_counts_only_while_something_waits() -> None:
    assert terms(demand(8, 0, arrivals=100), Ring(), 0.5, policy(), Capacity(8.0), 0.0).drain == 0.0
    assert terms(demand(8, 4), Ring(), 0.5, policy(queue_drain=2.0), Capacity(8.0), 0.0).drain == 10.0


def test_the_mean_is_the_present_where_nothing_else_is_known() -> None:
    assert terms(demand(6), Ring(), 0.0, policy(), Capacity(8.0), 0.0).mean == 6.0


# ------------------------------------------------------------------ residents on their way


COMING = (Coming(10.2, 8.0), Coming(13.0, 8.0))
"""At 10 s: eight places ready in 0.2 s, and eight more in 3 s."""


@pytest.mark.parametrize(
    ("one", "total", "wait", "at_risk"),
    [
        pytest.param(demand(8, 0), 24, 0.0, False, id="nothing waits"),
        pytest.param(demand(5, 3), 24, 0.0, False, id="what serves has room"),
        pytest.param(demand(8, 8), 24, 0.2, False, id="what is ready soon has room"),
        pytest.param(demand(8, 9), 24, 3.0, True, id="it takes the parked one too"),
        pytest.param(demand(8, 9), 32, 0.2, False, id="what nobody promised is taken to be ready"),
        pytest.param(
            demand(8, 20),
            24,
            3.0,
            True,
            id="what exceeds all waits for completions, and for those on their way",
        ),
        pytest.param(demand(8, 100), 24, 84 / 12, True, id="whichever takes longer"),
    ],
)
def test_what_waits_for_a_promotion_waits_for_as_long_as_its_depth_takes(
    one: Demand, total: float, wait: float, *, at_risk: bool
) -> None:
    result = terms(one, Ring(), 0.5, policy(), Capacity(total, COMING), 10.0)
    assert result.predicted_wait == pytest.approx(wait)
    assert result.at_risk is at_risk


def test_a_promotion_that_is_overdue_is_waited_for_no_longer_than_any_other() -> None:
    late = Capacity(16.0, (Coming(9.0, 8.0),))
    assert terms(demand(8, 4), Ring(), 0.5, policy(), late, 10.0).predicted_wait == 0.0


# ------------------------------------------------------------------ work queues, and first tokens that come too late


@pytest.mark.parametrize(
    ("one", "rate", "capacity", "needed"),
    [
        pytest.param(demand(0, 0, backlog=0), 0.5, 8, 0.0, id="nothing in the queue"),
        pytest.param(demand(8, 0, backlog=40), 0.5, 8, 8 + 40 / 2, id="worked off within the drain time"),
        pytest.param(demand(8, 4, backlog=40), 0.5, 8, 8 + 44 / 2, id="what waits at gateways goes with it"),
        pytest.param(demand(0, 0, backlog=4000), 0.0, 0, 8.0, id="rate unknown: one seat to begin with"),
        pytest.param(demand(8, 0, backlog=4000), 0.0, 8, 16.0, id="rate unknown: twice what there is"),
        pytest.param(demand(0, 0, backlog=3), 0.0, 8, 3.0, id="never more than there is work"),
    ],
)
def test_a_backlog_is_work_for_the_drain(one: Demand, rate: float, capacity: float, needed: float) -> None:
    result = terms(one, Ring(), rate, policy(queue_drain=2.0), Capacity(capacity), 0.0)
    assert result.backlog == pytest.approx(needed)
    assert result.stable >= needed


def test_a_backlog_is_no_concurrency_and_no_risk() -> None:
    one = demand(2, 0, backlog=500, backlog_age=900)
    assert one.value == 2.0
    result = terms(one, Ring(), 0.5, policy(), Capacity(8.0), 0.0)
    assert not result.at_risk
    assert result.mean == 2.0


def test_a_work_queue_alone_makes_demand_known() -> None:
    one, _ = measure(Load(backlog=fresh(0)), NEVER_SEEN, serving=False, now=0.0)
    assert one.value == 0.0
    assert one.quality is Quality.FRESH


@pytest.mark.parametrize(
    ("late", "capacity", "needed"),
    [
        pytest.param(0.0, 8.0, 0.0, id="none late"),
        pytest.param(0.05, 8.0, 0.0, id="as many as may be"),
        pytest.param(0.25, 8.0, 9.6, id="as much more as are late beyond that"),
        pytest.param(1.0, 80.0, 12.0, id="at most twice the demand"),
        pytest.param(1.5, 8.0, 0.0, id="no share"),
        pytest.param(math.nan, 8.0, 0.0, id="no number"),
    ],
)
def test_first_tokens_that_come_too_late_correct_the_answer(
    late: float, capacity: float, needed: float
) -> None:
    result = terms(demand(6, late_share=late), Ring(), 0.5, policy(late_share=0.05), Capacity(capacity), 0.0)
    assert result.correction == pytest.approx(needed)

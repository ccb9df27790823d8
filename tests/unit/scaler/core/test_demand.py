import math

import pytest

from scaler.core.demand import FORGOTTEN_AFTER_SECONDS, PLAUSIBLE_MAX, measure
from scaler.core.memory import NEVER_SEEN
from scaler.core.model import MISSING, Load, Quality, Reading
from tests.unit.scaler.core.world import fresh, stale


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(Load(queued=fresh(4), in_flight=fresh(8)), id="gateway only"),
        pytest.param(Load(engines=fresh(12)), id="engines only"),
        pytest.param(Load(queued=fresh(4), in_flight=fresh(8), engines=fresh(8)), id="both"),
        pytest.param(Load(queued=fresh(4), engines=fresh(8)), id="queue of the gateway, rest of the engines"),
    ],
)
def test_each_request_counts_once(load: Load) -> None:
    demand, _ = measure(load, NEVER_SEEN, serving=True, now=0.0)
    assert demand.value == 12
    assert demand.quality is Quality.FRESH


@pytest.mark.parametrize("refused", [fresh(50), stale(50), MISSING], ids=["fresh", "stale", "unknown"])
def test_what_was_refused_is_not_here_and_no_part_of_the_demand(refused: Reading) -> None:
    demand, _ = measure(
        Load(queued=fresh(4), in_flight=fresh(8), refused=refused), NEVER_SEEN, serving=True, now=0.0
    )
    assert (demand.value, demand.peak, demand.quality) == (12, 12, Quality.FRESH)
    assert demand.refused == (50 if refused.quality is Quality.FRESH else 0)


def test_refusals_alone_leave_the_demand_unknown() -> None:
    demand, _ = measure(Load(refused=fresh(9)), NEVER_SEEN, serving=True, now=0.0)
    assert (demand.value, demand.quality) == (None, Quality.MISSING)


def test_nothing_known_is_not_zero() -> None:
    demand, _ = measure(Load(), NEVER_SEEN, serving=True, now=0.0)
    assert demand.value is None
    assert demand.quality is Quality.MISSING


def test_a_fresh_zero_is_idle() -> None:
    demand, _ = measure(Load(queued=fresh(0), in_flight=fresh(0)), NEVER_SEEN, serving=True, now=0.0)
    assert demand.value == 0
    assert demand.quality is Quality.FRESH


@pytest.mark.parametrize(
    ("load", "quality", "silent"),
    [
        pytest.param(
            Load(queued=stale(1), in_flight=fresh(5), engines=fresh(5)),
            Quality.STALE,
            "gateway queue",
            id="one stale",
        ),
        pytest.param(
            Load(engines=stale(5)), Quality.STALE, "gateway queue, gateway in flight, engines", id="engines"
        ),
        pytest.param(Load(), Quality.MISSING, "gateway queue, gateway in flight, engines", id="all gone"),
        pytest.param(
            Load(engines=fresh(9)), Quality.STALE, "gateway queue, gateway in flight", id="gateway gone"
        ),
    ],
)
def test_a_part_that_was_known_and_is_not_now_leaves_a_lower_bound(
    load: Load, quality: Quality, silent: str
) -> None:
    everything = Load(queued=fresh(1), in_flight=fresh(5), engines=fresh(5))
    _, seen = measure(everything, NEVER_SEEN, serving=True, now=0.0)
    demand, _ = measure(load, seen, serving=True, now=1.0)
    assert demand.quality is quality
    assert demand.silent == silent


def test_a_part_that_stays_silent_is_no_longer_expected() -> None:
    _, seen = measure(Load(queued=fresh(1), engines=fresh(5)), NEVER_SEEN, serving=True, now=0.0)
    load = Load(engines=fresh(5))
    before, _ = measure(load, seen, serving=True, now=FORGOTTEN_AFTER_SECONDS - 0.1)
    after, _ = measure(load, seen, serving=True, now=FORGOTTEN_AFTER_SECONDS)
    assert before.quality is Quality.STALE
    assert after.quality is Quality.FRESH


def test_engines_are_not_waited_for_while_none_serves() -> None:
    _, seen = measure(
        Load(queued=fresh(0), in_flight=fresh(1), engines=fresh(1)), NEVER_SEEN, serving=True, now=0.0
    )
    demand, _ = measure(Load(queued=fresh(0), in_flight=fresh(0)), seen, serving=False, now=1.0)
    assert demand.quality is Quality.FRESH


@pytest.mark.parametrize(
    "reading",
    [
        pytest.param(fresh(math.nan), id="NaN"),
        pytest.param(fresh(math.inf), id="infinity"),
        pytest.param(fresh(-1.0), id="negative"),
        pytest.param(fresh(PLAUSIBLE_MAX * 1.01), id="huge"),
        pytest.param(Reading(value=5.0, age=math.nan, quality=Quality.FRESH), id="NaN age"),
        pytest.param(Reading(value=5.0, age=math.inf, quality=Quality.FRESH), id="endless age"),
        pytest.param(
            Reading(value=5.0, age=1.0, quality=Quality.MISSING), id="a number that is called missing"
        ),
    ],
)
def test_what_is_no_number_is_missing(reading: Reading) -> None:
    fields = ("queued", "in_flight", "engines", "oldest_wait", "peak", "completions", "arrivals")
    spoilt, _ = measure(Load(**dict.fromkeys(fields, reading)), NEVER_SEEN, serving=True, now=0.0)
    missing, _ = measure(Load(**dict.fromkeys(fields, MISSING)), NEVER_SEEN, serving=True, now=0.0)
    assert spoilt == missing


def test_the_peak_between_two_looks_counts_and_a_stale_one_does_not() -> None:
    seen, _ = measure(Load(in_flight=fresh(3), peak=fresh(11)), NEVER_SEEN, serving=True, now=0.0)
    old, _ = measure(Load(in_flight=fresh(3), peak=stale(11)), NEVER_SEEN, serving=True, now=0.0)
    assert seen.peak == 11
    assert old.peak == 3


def test_what_is_known_without_an_expected_signal_is_a_lower_bound() -> None:
    one, _ = measure(Load(backlog=fresh(0), absent=("gateway",)), NEVER_SEEN, serving=True, now=0.0)
    assert one.value == 0.0
    assert one.quality is Quality.STALE
    assert one.silent == "signal gateway"

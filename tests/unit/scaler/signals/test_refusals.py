"""Requests that were turned away, counted once each: as many as wait outside until they come again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.gateway.settings import GatewaySettings
from scaler.signals.refusals import LONGEST_OUTSIDE_SECONDS, OUTSIDE_SECONDS, Refusals

NOW = 1_796_000_000.0


def after(*totals: tuple[float, float]) -> float | None:
    """Return who is outside after totals, each with its seconds since the first."""
    (_, first), *rest = totals
    refusals = Refusals(NOW, first)
    for seconds, total in rest:
        refusals.add(NOW + seconds, total)
    return refusals.outside


@pytest.mark.parametrize(
    ("totals", "outside"),
    [
        pytest.param([(0, 500)], None, id="of one total nobody knows what is of late"),
        pytest.param([(0, 500), (1, 500)], 0, id="nobody"),
        pytest.param([(0, 500), (0.25, 507)], 7, id="seven within the last second"),
        pytest.param([(0, 0), (0.5, 3), (1, 7)], 7, id="of several samples"),
        pytest.param([(0, 0), (0.5, 3), (1.5, 7)], 4, id="the first have come again by now"),
        pytest.param([(0, 0), (0.5, 4), (1.25, 4)], 2, id="half of them have"),
        pytest.param([(0, 0), (10, 50)], 5, id="ten seconds without a sample: a tenth of them"),
        pytest.param([(0, 0), (0, 3)], 3, id="two samples of one moment"),
        pytest.param([(0, 900), (0.5, 4)], 4, id="a total that fell began again"),
    ],
)
def test_who_waits_outside(totals: list[tuple[float, float]], outside: float | None) -> None:
    found = after(*totals)
    assert found == (None if outside is None else pytest.approx(outside))


@given(st.floats(0.1, 1000.0), st.floats(0.02, 3.0))
def test_a_constant_stream_of_refusals_is_its_rate_times_the_time_outside(rate: float, every: float) -> None:
    """Little's law, however often samples come."""
    samples = [(number * every, rate * number * every) for number in range(1 + round(4.0 / every) + 2)]
    assert after(*samples) == pytest.approx(rate * OUTSIDE_SECONDS, rel=1e-3)


@given(st.integers(1, 60), st.integers(1, 20))
def test_clients_that_come_again_when_they_are_told_count_once_each(clients: int, tries: int) -> None:
    """They are refused one by one, and each again a second later."""
    refused = sorted(number / clients + attempt for number in range(clients) for attempt in range(tries))
    samples = [(0.0, 0.0)]
    for tick in range(1, 4 * tries + 1):
        at = tick / 4.0
        samples.append((at, float(sum(moment < at for moment in refused))))
    assert after(*samples) == pytest.approx(clients, abs=1e-3 * clients)


def test_a_gateway_tells_clients_to_stay_away_for_no_shorter_and_no_longer_than_counts() -> None:
    settings = GatewaySettings()
    assert settings.retry_after_seconds == OUTSIDE_SECONDS
    assert settings.max_retry_after_seconds == LONGEST_OUTSIDE_SECONDS


@given(st.floats(0.1, 1000.0), st.floats(0.02, 3.0), st.floats(1.0, 60.0))
def test_the_time_outside_is_what_each_was_told(rate: float, every: float, told: float) -> None:
    """Little's law with any Retry-After."""
    refusals = Refusals(NOW, 0.0, 0.0)
    for number in range(1, 3 + round((told + 1.0) / every)):
        total = rate * number * every
        refusals.add(NOW + number * every, total, told * total)
    assert refusals.outside == pytest.approx(rate * told, rel=1e-2)


@pytest.mark.parametrize(
    ("told", "counted"),
    [
        pytest.param([3600.0, 3600.0], LONGEST_OUTSIDE_SECONDS, id="no client waits for an hour"),
        pytest.param([None, 30.0], OUTSIDE_SECONDS, id="it began to say so"),
        pytest.param([30.0, None], OUTSIDE_SECONDS, id="it says so no longer"),
    ],
)
def test_how_long_one_counts_at_most(told: list[float | None], counted: float) -> None:
    refusals = Refusals(NOW, 0.0, told[0] and 0.0)
    refusals.add(NOW, 1.0, told[1])
    refusals.add(NOW + counted - 0.01, 1.0, told[1])
    assert refusals.outside == 1.0
    refusals.add(NOW + counted + 0.01, 1.0, told[1])
    assert refusals.outside == 0.0


def test_what_is_remembered_of_a_flood_is_bounded() -> None:
    refusals = Refusals(NOW, 0.0, 0.0)
    for number in range(1, 20_000):
        refusals.add(NOW + number / 200.0, 5.0 * number, 300.0 * number)
    assert refusals.outside == pytest.approx(60_000.0, rel=1e-2)
    assert len(refusals._steps) <= 202

import pytest

from scaler.policy.signals import EngineMetrics, Measures, Prometheus, Pushed, RedisList, RedisStream, Signal
from scaler.signals.expected import PART_OF, Expectation, expectation
from scaler.signals.port import Part


@pytest.mark.parametrize(
    ("signal", "interval", "timeout", "parts"),
    [
        pytest.param(
            EngineMetrics(
                name="e", type="EngineMetrics", interval_milliseconds=250, timeout_milliseconds=1000
            ),
            *(0.25, 1.0, {Part.REQUESTS}),
            id="engines",
        ),
        pytest.param(
            Prometheus(
                name="p",
                type="Prometheus",
                query="up",
                measures=Measures.QUEUE_DEPTH,
                interval_seconds=30,
                timeout_seconds=4,
            ),
            *(30.0, 4.0, {Part.QUEUED}),
            id="prometheus",
        ),
        pytest.param(
            RedisList(
                name="l", type="RedisList", key="k", interval_milliseconds=500, timeout_milliseconds=100
            ),
            *(0.5, 0.1, {Part.BACKLOG}),
            id="list",
        ),
        pytest.param(
            RedisStream(name="s", type="RedisStream", key="k", group="g"),
            *(1.0, 0.5, {Part.BACKLOG}),
            id="stream, with the defaults",
        ),
        pytest.param(Pushed(name="g", type="Pushed"), *(0.0, 0.0, set[Part]()), id="pushed"),
    ],
)
def test_what_is_expected_of_a_signal(
    signal: Signal, interval: float, timeout: float, parts: set[Part]
) -> None:
    found = expectation(signal)
    assert found == Expectation(type=signal.type, interval=interval, timeout=timeout, parts=frozenset(parts))


def test_a_share_may_be_lacking_and_is_named_all_the_same() -> None:
    share = Measures.TTFT_SHARE_OVER_OBJECTIVE
    found = expectation(Prometheus(name="p", type="Prometheus", query="up", measures=share))
    assert (found.parts, found.named) == (frozenset(), {Part.LATE_SHARE})


def test_everything_that_a_number_can_measure_is_a_part() -> None:
    assert PART_OF.keys() == set(Measures)


@pytest.mark.parametrize(
    ("interval", "timeout", "fresh", "expiry"),
    [
        pytest.param(0.25, 1.0, 1.375, 30.0, id="half a minute at least"),
        pytest.param(5.0, 2.5, 10.0, 100.0, id="ten times as long"),
        pytest.param(60.0, 10.0, 100.0, 300.0, id="five minutes at most"),
        pytest.param(600.0, 5.0, 905.0, 905.0, id="read so seldom that it is never stale"),
    ],
)
def test_how_long_a_reading_holds(interval: float, timeout: float, fresh: float, expiry: float) -> None:
    found = Expectation(type="Prometheus", interval=interval, timeout=timeout, parts=frozenset())
    assert (found.fresh_seconds, found.expiry_seconds) == (fresh, expiry)

import pytest

from scaler.gateway.forecast import Forecast


def test_nothing_is_foretold_from_nothing() -> None:
    forecast = Forecast()
    assert forecast.wait(3, 100.0, cold=False) is None
    assert forecast.wait(3, 100.0, cold=True) is None


def test_what_stands_in_front_goes_at_the_pace_of_the_last_seconds() -> None:
    forecast = Forecast()
    for second in range(10):
        for _ in range(4):
            forecast.freed(100.0 + second)
    assert forecast.wait(39, 110.0, cold=False) == pytest.approx(10.0)
    assert forecast.wait(0, 110.0, cold=False) == pytest.approx(0.25)


def test_a_pace_of_long_ago_says_nothing() -> None:
    forecast = Forecast()
    forecast.freed(100.0)
    assert forecast.wait(0, 111.0, cold=False) is None


def test_a_pace_is_not_taken_from_a_moment() -> None:
    forecast = Forecast()
    forecast.freed(100.0)
    assert forecast.wait(0, 100.0, cold=False) == pytest.approx(0.5)


def test_a_first_resident_takes_as_long_as_the_last_ones_did() -> None:
    forecast = Forecast()
    for begun, seconds in ((0.0, 30.0), (100.0, 50.0)):
        forecast.waits_cold(begun)
        forecast.warm(begun + seconds)
    forecast.waits_cold(200.0)
    forecast.waits_cold(205.0)
    assert forecast.wait(7, 210.0, cold=True) == pytest.approx(30.0)
    assert forecast.wait(7, 241.0, cold=True) is None, "longer than ever, so nobody knows"


def test_the_controller_knows_better() -> None:
    forecast = Forecast()
    forecast.waits_cold(0.0)
    forecast.warm(30.0)
    forecast.coming(12.0, 100.0)
    assert forecast.wait(0, 102.0, cold=True) == pytest.approx(10.0)
    assert forecast.wait(0, 120.0, cold=True) == 0.0
    forecast.coming(None, 120.0)
    assert forecast.wait(0, 120.0, cold=True) == pytest.approx(30.0)


def test_one_more_resident_shortens_a_long_queue() -> None:
    forecast = Forecast()
    for second in range(10):
        forecast.freed(100.0 + second)
    forecast.coming(2.0, 110.0)
    assert forecast.wait(100, 110.0, cold=False) == pytest.approx(2.0)
    assert forecast.wait(0, 110.0, cold=False) == pytest.approx(1.0)

import pytest

from scaler.runtime.bench.law.timeline import Meter, Timeline


def test_events_come_in_order_of_time_and_then_of_asking() -> None:
    timeline, seen = Timeline(0.0), []
    for when, name in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (3.0, "late")):
        timeline.at(when, lambda what: seen.append((timeline.now, what)), name)
    timeline.run(3.0)
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c")]
    assert timeline.now == 3.0


def test_what_is_asked_for_in_the_past_happens_now() -> None:
    timeline, seen = Timeline(10.0), []
    timeline.at(5.0, lambda _: seen.append(timeline.now))
    timeline.run(11.0)
    assert seen == [10.0]


def test_seats_count_by_what_they_are_for_as_long_as_they_are() -> None:
    timeline = Timeline(0.0)
    meter = Meter(timeline)
    meter.move(None, "starting")
    meter.move(None, "starting")
    timeline.at(10.0, lambda _: meter.move("starting", "serving"))
    timeline.at(15.0, lambda _: meter.move("serving", None))
    timeline.run(20.0)
    assert meter.read() == {"starting": pytest.approx(30.0), "serving": pytest.approx(5.0)}
    assert meter.all == 1


def test_measuring_forgets_what_went_before() -> None:
    timeline = Timeline(-5.0)
    meter = Meter(timeline)
    meter.move(None, "serving")
    timeline.run(0.0)
    meter.restart()
    timeline.run(2.0)
    assert meter.read() == {"serving": pytest.approx(2.0)}

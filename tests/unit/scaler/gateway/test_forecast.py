from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.gateway.forecast import Forecast


def busy(forecast: Forecast, slots: int, seconds: float, *, until: float, begin: float = 0.0) -> None:
    """Have all slots in use, by requests that take so many seconds each, evenly staggered, and again at once."""
    taken = deque([begin] * slots)
    for _ in range(slots):
        forecast.taken(begin)
    ended = 1
    while (at := begin + ended * seconds / slots) <= until:
        forecast.freed(at, since=taken.popleft(), ended=True)
        forecast.taken(at)
        taken.append(at)
        ended += 1


def test_nothing_is_foretold_from_nothing() -> None:
    forecast = Forecast()
    assert forecast.wait(3, 100.0, slots=4, more=0) is None
    assert forecast.wait(3, 100.0, slots=0, more=0) is None
    forecast.taken(100.0)
    assert forecast.wait(3, 160.0, slots=4, more=0) is None, "nothing has ended yet, so nobody knows"


@pytest.mark.parametrize(("slots", "seconds"), [(1, 1.0), (4, 2.0), (32, 20.0), (256, 60.0)])
def test_what_stands_in_front_goes_at_the_pace_at_which_slots_become_free(slots: int, seconds: float) -> None:
    forecast = Forecast()
    busy(forecast, slots, seconds, until=200.0)
    assert forecast.wait(0, 200.0, slots=slots, more=0) == pytest.approx(seconds / slots, rel=0.1)
    assert forecast.wait(99, 200.0, slots=slots, more=0) == pytest.approx(100 * seconds / slots, rel=0.1)


def test_a_pace_is_known_however_long_ago_the_last_slot_became_free_and_grows_worse_meanwhile() -> None:
    forecast = Forecast()
    busy(forecast, 4, 2.0, until=100.0)
    waits = [forecast.wait(7, 100.0 + later, slots=4, more=0) or 0.0 for later in (0.0, 12.0, 60.0, 600.0)]
    assert waits[0] == pytest.approx(4.0, rel=0.1)
    assert waits == sorted(waits)
    assert waits[1] > 2 * waits[0], "nothing ended for six times as long as one takes"
    assert waits[3] > 100.0


def test_idle_hours_say_nothing_of_the_pace() -> None:
    forecast = Forecast()
    for number in range(20):
        forecast.taken(600.0 * number)
        forecast.freed(600.0 * number + 3.0, since=600.0 * number, ended=True)
    assert forecast.wait(3, 50_000.0, slots=2, more=0) == pytest.approx(4 * 3.0 / 2)


def test_the_last_of_a_burst_are_not_taken_for_short_ones_once_it_is_over() -> None:
    """Thirty-two begin at once and take from 15 to 25 seconds. The last eight end within two, and that isn't what they took."""
    forecast = Forecast()
    for _ in range(32):
        forecast.taken(0.0)
    for number in range(32):
        forecast.freed(15.0 + 10.0 * number / 31, since=0.0, ended=True)
    for later in (0.0, 12.0, 3600.0):
        assert forecast.wait(31, 25.0 + later, slots=32, more=0) == pytest.approx(20.0, rel=0.25)


def test_a_promotion_shortens_every_wait_at_once_and_a_demotion_lengthens_it() -> None:
    forecast = Forecast()
    busy(forecast, 4, 8.0, until=80.0)
    before = forecast.wait(20, 80.0, slots=4, more=0) or 0.0
    assert forecast.wait(20, 80.0, slots=8, more=0) == pytest.approx(before / 2)
    assert forecast.wait(20, 80.0, slots=2, more=0) == pytest.approx(before * 2)


def test_another_kind_of_requests_is_noticed() -> None:
    forecast = Forecast()
    busy(forecast, 4, 0.1, until=50.0)
    for _ in range(4):
        forecast.freed(50.0, since=49.0, ended=False)
    busy(forecast, 4, 4.0, begin=50.0, until=80.0)
    assert forecast.wait(0, 80.0, slots=4, more=0) == pytest.approx(1.0, rel=0.1)


def test_an_attempt_that_failed_is_no_sign_of_a_pace() -> None:
    forecast = Forecast()
    busy(forecast, 2, 4.0, until=40.0)
    before = forecast.wait(5, 40.0, slots=2, more=0) or 0.0
    for _ in range(100):
        forecast.freed(40.0, since=40.0, ended=False)
        forecast.taken(40.0)
    assert forecast.wait(5, 40.0, slots=2, more=0) == pytest.approx(before)


@given(
    events=st.lists(
        st.tuples(st.sampled_from(["take", "end", "fail"]), st.floats(min_value=0.0, max_value=30.0)),
        max_size=120,
    ),
    ahead=st.integers(min_value=0, max_value=50),
    slots=st.integers(min_value=1, max_value=64),
)
def test_whatever_happens_once_something_has_ended_there_is_an_estimate_and_more_in_front_take_longer(
    events: list[tuple[str, float]], ahead: int, slots: int
) -> None:
    forecast, now, running, ended = Forecast(), 0.0, deque[float](), 0
    for what, later in events:
        now += later
        if what == "take":
            forecast.taken(now)
            running.append(now)
        elif running:
            forecast.freed(now, since=running.popleft(), ended=what == "end")
            ended += what == "end"
    first, second = (forecast.wait(more, now, slots=slots, more=0) for more in (ahead, ahead + 1))
    assert (first is None) == (second is None)
    assert (first is not None) == (ended > 0)
    if first is not None and second is not None:
        assert 0.0 <= first <= second < float("inf")


def test_a_first_resident_takes_as_long_as_the_last_ones_did() -> None:
    forecast = Forecast()
    for begun, seconds in ((0.0, 30.0), (100.0, 50.0)):
        forecast.waits_cold(begun)
        forecast.warm(begun + seconds)
    forecast.waits_cold(200.0)
    forecast.waits_cold(205.0)
    assert forecast.wait(7, 210.0, slots=0, more=0) == pytest.approx(30.0)
    assert forecast.wait(7, 241.0, slots=0, more=0) is None, "longer than ever, so nobody knows"


def test_the_controller_knows_better() -> None:
    forecast = Forecast()
    forecast.waits_cold(0.0)
    forecast.warm(30.0)
    forecast.coming(12.0, 100.0)
    assert forecast.wait(0, 102.0, slots=0, more=0) == pytest.approx(10.0)
    assert forecast.wait(0, 112.5, slots=0, more=0) == 0.0
    assert forecast.wait(0, 120.0, slots=0, more=0) == pytest.approx(30.0), (
        "what is long overdue was no promise"
    )
    forecast.coming(None, 120.0)
    assert forecast.wait(0, 120.0, slots=0, more=0) == pytest.approx(30.0)


def test_one_more_resident_shortens_a_long_queue_by_what_it_takes() -> None:
    forecast = Forecast()
    busy(forecast, 2, 2.0, until=110.0)
    forecast.coming(5.0, 110.0)
    waits = [forecast.wait(ahead, 110.0, slots=2, more=2) for ahead in (0, 4, 5, 6, 7, 20)]
    # one goes a second; after five seconds two more at once, and then two a second
    assert waits == pytest.approx([1.0, 5.0, 5.0, 5.0, 5.5, 12.0])
    assert (forecast.wait(100, 118.0, slots=2, more=2) or 0.0) > 100.0, "it didn't come"


def test_the_first_resident_takes_no_more_than_it_has_slots_for() -> None:
    forecast = Forecast()
    busy(forecast, 4, 2.0, until=50.0)
    for since in (48.5, 49.0, 49.5, 50.0):
        forecast.freed(since + 2.0, since=since, ended=True)
    forecast.coming(10.0, 60.0)
    waits = [forecast.wait(ahead, 60.0, slots=0, more=4) for ahead in (0, 3, 4, 11)]
    assert waits == pytest.approx([10.0, 10.0, 10.5, 14.0], rel=0.05)
    assert Forecast().wait(7, 60.0, slots=0, more=4) is None


def test_of_who_stands_behind_those_that_one_more_resident_takes_nothing_is_known_before_any_has_ended() -> (
    None
):
    forecast = Forecast()
    forecast.coming(2.0, 0.0)
    assert forecast.wait(3, 0.0, slots=0, more=4) == pytest.approx(2.0)
    assert forecast.wait(4, 0.0, slots=0, more=4) is None
    assert forecast.wait(4, 0.0, slots=0, more=0) == pytest.approx(2.0), "nobody knows how many it will take"

import pytest

from scaler.signals.throttle import Rate, Source, Throttle, ThrottleLimits, TooMuch, Weight

HERE, THERE = Source("queue:jobs", "10.0.0.1"), Source("queue:jobs", "10.0.0.2")
OTHER = Source("gateway:eu", "10.0.0.1")
NOBODY = Source("Redis")
ONE = Weight(1, 100)


def throttle(
    source: float = 10, pusher: float = 20, all_: float = 30, size: float = 1e9, sources: int = 100
) -> Throttle:
    """Rates in samples a second, of which a second's worth may come at once."""
    rates = [Rate(samples=each, bytes=size, at_once=1.0) for each in (source, pusher, all_)]
    return Throttle(ThrottleLimits(source=rates[0], pusher=rates[1], all=rates[2], most_sources=sources))


def taken(one: Throttle, source: Source, now: float, what: Weight = ONE) -> int:
    """Push as fast as can be; return how many were let through at once."""
    for number in range(10_000):
        try:
            one.charge(source, what, now)
        except TooMuch:
            return number
    raise AssertionError("there is no bound")


def test_a_source_may_push_so_much_at_once_and_then_as_time_passes() -> None:
    one = throttle()
    assert [taken(one, HERE, 0.0), taken(one, HERE, 0.3), taken(one, HERE, 100.0)] == [10, 3, 10]


def test_bytes_are_bounded_as_samples_are() -> None:
    one = throttle(size=1000.0)
    assert taken(one, HERE, 0.0, Weight(1, 300)) == 3
    assert taken(one, HERE, 0.5, Weight(0, 300)) == 2


@pytest.mark.parametrize(
    ("others", "scope", "let_through"),
    [
        pytest.param([HERE], "Source", 0, id="its source"),
        pytest.param([THERE, Source("queue:jobs", "10.0.0.3")], "Pusher", 0, id="its pusher"),
        pytest.param([OTHER, Source("queue", "a"), Source("agent", "b")], "All", 0, id="all"),
        pytest.param([THERE, OTHER], "", 10, id="nobody's, where there is room"),
    ],
)
def test_who_has_used_up_the_room_is_told(others: list[Source], scope: str, let_through: int) -> None:
    one = throttle()
    for each in others:
        taken(one, each, 0.0)
    assert taken(one, HERE, 0.0) == let_through
    with pytest.raises(TooMuch) as refusal:
        one.charge(HERE, ONE, 0.0)
    assert refusal.value.scope == (scope or "Source")


def test_a_pusher_without_an_address_has_what_pushers_have() -> None:
    assert taken(throttle(), NOBODY, 0.0) == 20


def test_turns_are_given_in_the_order_of_coming_as_far_ahead_as_one_waits() -> None:
    one = throttle()
    taken(one, HERE, 0.0)
    waits = [one.charge(HERE, ONE, 0.0, patience=0.35) for _ in range(3)]
    assert waits == pytest.approx([0.1, 0.2, 0.3])
    with pytest.raises(TooMuch) as refusal:
        one.charge(HERE, ONE, 0.0, patience=0.35)
    assert refusal.value.seconds == pytest.approx(0.4)
    assert one.charge(HERE, ONE, 0.3, patience=0.35) == pytest.approx(0.1)


def test_what_is_refused_takes_nothing() -> None:
    one = throttle()
    for _ in range(50):
        with pytest.raises(TooMuch):
            one.charge(HERE, Weight(100, 0), 0.0)
    assert taken(one, HERE, 0.0) == 10


def test_sources_beyond_those_told_apart_share_what_their_pusher_has() -> None:
    one = throttle(pusher=15, sources=2)
    taken(one, HERE, 0.0)
    taken(one, OTHER, 0.0)
    late = [Source("queue:jobs", f"late-{number}") for number in range(5)]
    assert sum(taken(one, each, 0.0) for each in late) == 5
    assert taken(one, late[0], 10.0) == 10  # the others have been quiet


def test_the_usual_limits_let_the_largest_sample_come() -> None:
    limits = ThrottleLimits()
    for rate in (limits.source, limits.pusher, limits.all):
        assert rate.bytes * rate.at_once >= 64 * 1024
        assert rate.samples * rate.at_once >= 1
    assert limits.source.samples < limits.pusher.samples < limits.all.samples
    assert limits.source.bytes < limits.pusher.bytes < limits.all.bytes

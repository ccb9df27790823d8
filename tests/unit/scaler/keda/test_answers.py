import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.core.model import FallbackBehavior
from scaler.keda.answers import (
    STALE_SECONDS,
    UNKNOWN_SECONDS,
    Code,
    Refused,
    answer,
    check_metric,
)
from scaler.keda.published import Board, FleetFigures, PolicyFigures
from scaler.keda.trigger import read

AT = 1000.0
FLEET = FleetFigures(at=AT, total=7, serving=5, spare=2, fallback=9)
POLICY = PolicyFigures(at=AT, serving=5, promoting=1, queued=3.0, oldest_wait=0.25, fallback_serving=6)


def board(fleet: FleetFigures | None = FLEET, policy: PolicyFigures | None = POLICY) -> Board:
    found = Board()
    found.follow({"spares": "serving"}, {"chat": "serving"})
    found.publish({"spares": fleet} if fleet else {}, {"chat": policy} if policy else {})
    return found


def value(metadata: dict[str, str], now: float = AT + 1.0, on: Board | None = None) -> float:
    return answer(read(metadata), (on or board()).current, now).value


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"fleet": "spares"}, 7.0),
        ({"fleet": "serving/spares", "value": "Serving"}, 5.0),
        ({"fleet": "spares", "value": "Spare"}, 2.0),
        ({"policy": "chat"}, 5.0),
        ({"policy": "chat", "value": "QueueDepth"}, 3.0),
        ({"policy": "chat", "value": "QueueAgeSeconds"}, 0.25),
        ({"policy": "serving/chat", "value": "PromotionsInFlight"}, 1.0),
    ],
)
def test_each_value_is_what_was_published(metadata: dict[str, str], expected: float) -> None:
    found = answer(read(metadata), board().current, AT + 1.0)
    assert (found.value, found.age, found.stale) == (expected, 1.0, False)


@pytest.mark.parametrize(
    ("metadata", "code", "message"),
    [
        ({"fleet": "spare"}, Code.NOT_FOUND, "did you mean spares?"),
        ({"fleet": "zzz"}, Code.NOT_FOUND, "no policy file has a fleet named 'zzz'; there are spares"),
        ({"policy": "spares"}, Code.NOT_FOUND, "no policy file has a policy named 'spares'"),
        ({"fleet": "other/spares"}, Code.NOT_FOUND, "fleet spares is in namespace serving, not in 'other'"),
    ],
)
def test_what_there_isnt_is_said_by_name(metadata: dict[str, str], code: Code, message: str) -> None:
    with pytest.raises(Refused) as caught:
        value(metadata)
    assert caught.value.code is code
    assert message in str(caught.value)


@pytest.mark.parametrize("metadata", [{"fleet": "spares"}, {"policy": "chat"}])
def test_what_was_never_decided_is_unknown_and_not_zero(metadata: dict[str, str]) -> None:
    with pytest.raises(Refused, match="nothing has been decided yet") as caught:
        value(metadata, on=board(None, None))
    assert caught.value.code is Code.UNAVAILABLE


@pytest.mark.parametrize(
    ("policy", "word"),
    [
        (PolicyFigures(at=AT, serving=1), "QueueDepth"),
        (PolicyFigures(at=AT, serving=1), "QueueAgeSeconds"),
        (PolicyFigures(at=AT, serving=1, queued=math.nan), "QueueDepth"),
        (PolicyFigures(at=AT, serving=1, queued=math.inf), "QueueDepth"),
        (PolicyFigures(at=AT, serving=1, oldest_wait=-1.0), "QueueAgeSeconds"),
    ],
)
def test_a_signal_that_says_nothing_is_unknown_and_not_zero(policy: PolicyFigures, word: str) -> None:
    with pytest.raises(Refused, match=f"{word} is unknown, for its signals don't say") as caught:
        value({"policy": "chat", "value": word}, on=board(policy=policy))
    assert caught.value.code is Code.UNAVAILABLE


STALE = AT + STALE_SECONDS + 1.0


def test_a_stale_total_is_the_fallback_where_that_is_more() -> None:
    assert value({"fleet": "spares"}, STALE) == 9.0
    less = board(FleetFigures(at=AT, total=7, serving=5, spare=2, fallback=3))
    assert value({"fleet": "spares"}, STALE, less) == 7.0


@pytest.mark.parametrize(
    ("behavior", "replicas", "expected"),
    [
        (FallbackBehavior.STATIC, 2, 2.0),
        (FallbackBehavior.CURRENT_REPLICAS, 9, 5.0),
        (FallbackBehavior.CURRENT_REPLICAS_IF_HIGHER, 9, 9.0),
        (FallbackBehavior.CURRENT_REPLICAS_IF_HIGHER, 2, 5.0),
        (FallbackBehavior.CURRENT_REPLICAS_IF_LOWER, 2, 2.0),
    ],
)
def test_a_stale_policy_serves_what_its_fallback_says(
    behavior: FallbackBehavior, replicas: int, expected: float
) -> None:
    policy = PolicyFigures(at=AT, serving=5, fallback=behavior, fallback_serving=replicas)
    assert value({"policy": "chat"}, STALE, board(policy=policy)) == expected


@pytest.mark.parametrize("word", ["QueueDepth", "QueueAgeSeconds", "PromotionsInFlight"])
def test_what_a_signal_said_a_minute_ago_says_nothing(word: str) -> None:
    with pytest.raises(Refused, match="the last decision is too old"):
        value({"policy": "chat", "value": word}, STALE)


@pytest.mark.parametrize("metadata", [{"fleet": "spares"}, {"policy": "chat"}])
def test_after_ten_minutes_nothing_is_known(metadata: dict[str, str]) -> None:
    value(metadata, AT + UNKNOWN_SECONDS)
    with pytest.raises(Refused, match="the last decision is 601 s old") as caught:
        value(metadata, AT + UNKNOWN_SECONDS + 1.0)
    assert caught.value.code is Code.UNAVAILABLE


def test_an_idle_fleet_with_spares_is_active_and_an_empty_one_isnt() -> None:
    spares = board(FleetFigures(at=AT, total=2, serving=0, spare=2))
    assert answer(read({"fleet": "spares"}), spares.current, AT).active
    empty = board(FleetFigures(at=AT, total=0, serving=0, spare=0))
    assert not answer(read({"fleet": "spares"}), empty.current, AT).active


@given(st.floats(min_value=0.0, max_value=1e6), st.floats(min_value=0.0, max_value=UNKNOWN_SECONDS))
def test_a_wait_is_rounded_up_so_that_something_never_becomes_nothing(wait: float, age: float) -> None:
    now = AT + min(age, STALE_SECONDS)
    policy = board(policy=PolicyFigures(at=AT, serving=1, oldest_wait=wait))
    found = answer(read({"policy": "chat", "value": "QueueAgeSeconds"}), policy.current, now)
    assert wait - 1e-6 <= found.value <= wait + 0.001 + 1e-6
    assert found.rounded_up >= found.value
    assert found.active is (found.value > 0)
    assert round(found.value, 3) == found.value
    if wait >= 1e-6:
        assert found.active


@given(
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.floats(min_value=0.0, max_value=UNKNOWN_SECONDS),
)
def test_age_alone_never_lowers_a_total(total: int, fallback: int, age: float) -> None:
    on = board(FleetFigures(at=AT, total=total, serving=0, spare=0, fallback=fallback))
    assert value({"fleet": "spares"}, AT + age, on) >= total


def test_another_metric_than_the_triggers_own_is_refused() -> None:
    trigger = read({"fleet": "spares", "metricName": "seats"})
    check_metric(trigger, "s3-seats")
    with pytest.raises(Refused, match="this trigger's metric is seats, and 'chairs' was asked for"):
        check_metric(trigger, "chairs")


def test_policies_that_go_take_their_figures_with_them_and_late_ones_are_dropped() -> None:
    on = board()
    told: list[object] = []
    on.subscribe(told.extend)
    on.follow({}, {"chat": "serving"})
    assert [named.name for named in told] == ["spares"]  # type: ignore[attr-defined]
    on.publish({"spares": FLEET}, {})
    assert on.current.fleets == {}
    assert "chat" in on.current.policies


def test_figures_in_hand_stay_as_they_are_when_others_are_published() -> None:
    on = board()
    before = on.current
    on.publish({"spares": FleetFigures(at=AT, total=1, serving=1, spare=0)}, {})
    assert (before.fleets["spares"].total, on.current.fleets["spares"].total) == (7, 1)
    assert "chat" in on.current.policies

import math
from dataclasses import replace

import pytest

from scaler.core.explain import explain
from scaler.core.model import Decision, FallbackBehavior, Load, Mode, ReasonCode, Supply
from tests.unit.scaler.core.world import Run, fleet, load, policy, served, simple, stale, view, wanted

ONE = {"spares": simple({"a": 1}, 1)}
TWO = {"spares": simple({"a": 2}, 0)}
NONE = {"spares": simple({"a": 0}, 2)}


def settled(**options: object) -> Run:
    """A policy that has left the burst it began in, at 4 requests in flight on one seat that holds 8."""
    run = Run([policy(**options)], [fleet()])
    run.hold({"a": load(4)}, ONE, 11.0)
    assert run.decision.policies["a"].mode is Mode.STABLE
    return run


def mode(run: Run) -> Mode:
    return run.decision.policies["a"].mode


def codes(decision: Decision) -> list[ReasonCode]:
    return [reason.code for reason in decision.policies["a"].reasons]


def test_a_start_is_in_burst_for_one_stable_window() -> None:
    run = Run([policy()], [fleet()])
    run.hold({"a": load(4)}, TWO, 10.0)
    assert mode(run) is Mode.BURST
    assert served(run.decision) == 2
    assert ReasonCode.RESTARTED in codes(run.decision)
    run.step({"a": load(4)}, TWO, after=0.25)
    assert mode(run) is Mode.STABLE
    assert codes(run.decision).count(ReasonCode.BURST_ENDED) == 1


@pytest.mark.parametrize(
    ("one", "fleets", "burst"),
    [
        pytest.param(load(11), ONE, False, id="below 150 %"),
        pytest.param(load(12), ONE, True, id="at 150 %"),
        pytest.param(load(4, peak=12), ONE, True, id="a peak between two looks"),
        pytest.param(load(12), TWO, False, id="what is promoting counts as capacity"),
        pytest.param(load(8, 2, oldest_wait=0.6, completions=8), ONE, True, id="deadline at risk"),
        pytest.param(load(8, 1, oldest_wait=0.0, completions=8), ONE, False, id="something waits, in time"),
        pytest.param(load(0, 1), NONE, True, id="no capacity and any demand"),
        pytest.param(load(0), NONE, False, id="no capacity and no demand"),
    ],
)
def test_burst_begins(one: Load, fleets: dict[str, object], *, burst: bool) -> None:
    run = settled(serving_min=0)
    run.step({"a": load(1, completions=1)}, ONE, after=0.25)  # a request takes a second
    run.hold({"a": load(0)}, ONE, 3.0)
    run.step({"a": one}, fleets, after=1.0)  # type: ignore[arg-type]
    assert mode(run) is (Mode.BURST if burst else Mode.STABLE)
    assert (ReasonCode.BURST_ENTERED in codes(run.decision)) is burst


def test_burst_ends_after_one_whole_stable_window_below() -> None:
    run = settled()
    run.step({"a": load(14)}, ONE, after=0.25)
    calm = run.now  # from the next look on, two seats serve
    while mode(run) is Mode.BURST:
        run.step({"a": load(4)}, TWO, after=0.25)
        assert served(run.decision) == 2
    assert 10.0 <= run.now - calm <= 10.5


def test_heat_in_between_begins_the_calm_window_anew() -> None:
    run = settled()
    run.step({"a": load(14)}, ONE, after=0.25)
    run.hold({"a": load(4)}, TWO, 9.0)
    run.step({"a": load(25)}, TWO, after=0.25)
    run.hold({"a": load(4)}, TWO, 9.0)
    assert mode(run) is Mode.BURST


@pytest.mark.parametrize(
    "between",
    [pytest.param(Load(), id="missing"), pytest.param(Load(in_flight=stale(4), queued=stale(0)), id="stale")],
)
def test_what_is_not_fresh_is_not_calm(between: Load) -> None:
    run = settled()
    run.step({"a": load(14)}, ONE, after=0.25)
    run.hold({"a": load(4)}, TWO, 9.0)
    run.step({"a": between}, TWO, after=0.25)
    run.hold({"a": load(4)}, TWO, 9.0)
    assert mode(run) is Mode.BURST


def test_a_gap_without_a_look_is_not_calm() -> None:
    run = settled()
    run.step({"a": load(14)}, ONE, after=0.25)
    run.hold({"a": load(4)}, TWO, 3.0)
    run.step({"a": load(4)}, TWO, after=30.0)
    assert mode(run) is Mode.BURST


def test_in_burst_the_answer_never_falls() -> None:
    run = settled()
    run.step({"a": load(14)}, ONE, after=0.25)
    needed = run.decision.policies["a"].needed
    for demand in (9, 3, 0, 7, 1):
        run.step({"a": load(demand)}, TWO, after=1.0)
        assert mode(run) is Mode.BURST
        assert run.decision.policies["a"].needed >= needed
        assert wanted(run.decision) == 2


def test_hold_begins_after_the_failure_threshold_and_keeps_everything() -> None:
    run = settled(failure_threshold=3)
    run.hold({}, TWO, 2.75)
    assert mode(run) is Mode.STABLE
    assert ReasonCode.SIGNALS_MISSING in codes(run.decision)
    run.hold({}, TWO, 0.5)
    assert mode(run) is Mode.HOLD
    run.hold({}, TWO, 60.0)
    assert served(run.decision) == 2
    assert run.decision.policies["a"].demand is None


def test_hold_replaces_what_was_lost_and_asks_for_no_more() -> None:
    run = settled()
    run.hold({"a": load(14)}, TWO, 3.0)
    run.hold({}, TWO, 5.0)
    run.hold({}, {"spares": simple({"a": 1}, 2)}, 1.0)
    assert mode(run) is Mode.HOLD
    assert served(run.decision) == 2
    assert wanted(run.decision) == 2


@pytest.mark.parametrize(
    ("options", "serving"),
    [
        pytest.param({"fallback_serving": 2}, 2, id="raises"),
        pytest.param({"fallback_serving": 0}, 1, id="never lowers"),
        pytest.param({"fallback_serving": 5, "serving_max": 2}, 2, id="within the ceiling"),
        pytest.param({"fallback_serving": 0, "serving_min": 2}, 2, id="the floor stands"),
    ],
)
def test_fallback_is_a_floor_while_signals_are_missing(options: dict[str, object], serving: int) -> None:
    run = settled(**options)
    run.hold({}, {"spares": simple({"a": 1}, 2)}, 5.0)
    assert mode(run) is Mode.HOLD
    assert served(run.decision) == serving


@pytest.mark.parametrize(
    ("behavior", "replicas", "serving"),
    [
        pytest.param(FallbackBehavior.STATIC, 3, 3, id="static raises"),
        pytest.param(FallbackBehavior.STATIC, 1, 1, id="static lowers"),
        pytest.param(FallbackBehavior.CURRENT_REPLICAS, 3, 2, id="current stays"),
        pytest.param(FallbackBehavior.CURRENT_REPLICAS_IF_HIGHER, 3, 3, id="if higher raises"),
        pytest.param(FallbackBehavior.CURRENT_REPLICAS_IF_HIGHER, 1, 2, id="if higher never lowers"),
        pytest.param(FallbackBehavior.CURRENT_REPLICAS_IF_LOWER, 3, 2, id="if lower never raises"),
        pytest.param(FallbackBehavior.CURRENT_REPLICAS_IF_LOWER, 1, 1, id="if lower lowers"),
    ],
)
def test_each_fallback_does_what_keda_calls_it(
    behavior: FallbackBehavior, replicas: int, serving: int
) -> None:
    run = settled(fallback=behavior, fallback_serving=replicas)
    run.hold({"a": load(14)}, TWO, 3.0)
    run.hold({}, {"spares": simple({"a": 2}, 1)}, 6.0)
    assert mode(run) is Mode.HOLD
    assert served(run.decision) == serving


def test_after_a_hold_nothing_shrinks_before_a_stable_window_of_fresh_data() -> None:
    run = settled()
    run.hold({}, TWO, 60.0)
    run.hold({"a": load(1)}, TWO, 9.0)
    assert mode(run) is Mode.BURST
    assert ReasonCode.RESTARTED in codes(run.decision)
    assert served(run.decision) == 2
    run.hold({"a": load(1)}, TWO, 8.0)
    assert served(run.decision) == 1


def test_missing_during_a_burst_has_a_way_out() -> None:
    run = settled()
    run.step({"a": load(14)}, ONE, after=0.25)
    run.hold({}, TWO, 5.0)
    assert mode(run) is Mode.HOLD
    run.hold({"a": load(1)}, TWO, 30.0)
    assert mode(run) is Mode.STABLE
    assert served(run.decision) == 1


def test_stale_may_raise_and_never_lowers() -> None:
    run = settled()
    run.step({"a": Load(in_flight=stale(9), queued=stale(3))}, ONE, after=0.25)
    assert served(run.decision) == 2
    run.hold({"a": Load(in_flight=stale(0), queued=stale(0))}, TWO, 60.0)
    assert served(run.decision) == 2
    assert mode(run) is not Mode.HOLD
    assert ReasonCode.SIGNALS_STALE in codes(run.decision)


def test_a_named_signal_that_stays_silent_holds_the_answer_and_says_since_when() -> None:
    run = settled()
    run.step({"a": load(14)}, ONE, after=0.25)
    run.hold({"a": load(1)}, TWO, 5.0)
    began = run.now
    run.hold({"a": replace(load(1), absent=("prom",))}, TWO, 660.0)
    assert served(run.decision) == 2
    (reason,) = [each for each in run.decision.policies["a"].reasons if each.code is ReasonCode.SIGNALS_STALE]
    assert reason.facts == {"source": "signal prom", "since": began}
    assert "it has been so for 11 min" in explain(reason, run.now)
    run.hold({"a": load(1)}, TWO, 120.0)
    assert served(run.decision) == 1


def test_one_look_per_second_at_most_is_asked_for_while_something_changes() -> None:
    run = settled()
    run.step({"a": load(7)}, ONE, after=0.25)
    assert run.decision.next_wakeup == math.floor(run.now) + 1


def test_an_idle_policy_asks_for_no_look() -> None:
    run = Run([policy(serving_min=0)], [fleet(spare_target=2)])
    for _ in range(200):
        run.step({"a": load(0)}, NONE, after=0.25)
    assert run.decision.next_wakeup is None


def test_missing_signals_ask_for_a_look_when_the_hold_begins() -> None:
    run = Run([policy(serving_min=0, failure_threshold=3)], [fleet(spare_target=2)])
    for _ in range(200):
        run.step({"a": load(0)}, NONE, after=0.25)
    last = run.now
    run.step({}, NONE, after=0.25)
    assert run.decision.next_wakeup == last + 3


def test_a_fresh_zero_shrinks_to_the_floor_and_zero_serving_is_possible() -> None:
    run = settled(serving_min=0)
    run.hold({"a": load(0)}, ONE, 20.0)
    assert served(run.decision) == 0
    assert wanted(run.decision) == 0


def test_a_resident_on_its_way_is_supply() -> None:
    run = settled()
    promoting = {"spares": view({"a": Supply(serving=1, promoting=1)}, serving=2, spare=1)}
    run.hold({"a": load(14)}, promoting, 1.0)
    assert run.decision.policies["a"].capacity == 16
    assert served(run.decision) == 2

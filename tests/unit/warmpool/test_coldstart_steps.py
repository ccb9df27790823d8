"""A cold start's steps, their targets, and the verdict."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.coldstart.steps import Judged, Step, judge, parse_target, passed, steps_of, targets_for
from warmpool.timeline import OF_ENGINE, Phase


@given(st.dictionaries(st.sampled_from(OF_ENGINE), st.floats(0, 1e5)))
def test_steps_take_what_phases_took(phases: dict[Phase, float]) -> None:
    steps = steps_of(phases)
    assert sum(steps.values()) == pytest.approx(sum(phases.values()))
    assert set(steps) == set(Step) - {Step.DEVICE, Step.FIRST_REQUEST, Step.TOTAL}


def test_compiling_and_capturing_are_one_step() -> None:
    assert steps_of({Phase.COMPILE: 1.0, Phase.CAPTURE: 2.0})[Step.KERNELS] == 3.0


def test_targets_grow_with_the_weights_and_a_cpu_has_none() -> None:
    small, large = (targets_for(gpu=True, weights_bytes=each) for each in (16_000_000_000, 140_000_000_000))
    assert small[Step.TOTAL] == pytest.approx(2.5)
    assert large[Step.WEIGHTS] - small[Step.WEIGHTS] == pytest.approx(3.1)
    assert large[Step.CONTEXT] == small[Step.CONTEXT]
    assert set(small) == set(Step)
    assert targets_for(gpu=False, weights_bytes=1) == {}


@pytest.mark.parametrize(
    ("seconds", "target", "met"),
    [(1.0, 1.0, True), (1.1, 1.0, False), (None, 1.0, False), (1.0, None, None), (None, None, None)],
)
def test_a_step_meets_its_target_or_not(
    *, seconds: float | None, target: float | None, met: bool | None
) -> None:
    assert Judged(step=Step.TOTAL, seconds=seconds, target=target).met is met


def test_all_steps_are_judged_in_their_order_and_one_that_is_missed_fails_all() -> None:
    judged = judge({Step.TOTAL: 2.0, Step.IMPORT: 0.1}, {Step.TOTAL: 1.0}, {Step.DEVICE: "none"})
    assert [each.step for each in judged] == list(Step)
    assert (judged[0].note, judged[-1].met) == ("none", False)
    assert not passed(judged)
    assert passed(judge({Step.TOTAL: 0.5}, {Step.TOTAL: 1.0}, {}))
    assert passed(judge({}, {}, {}))


def test_a_target_is_read() -> None:
    assert parse_target("first-request=0.25") == (Step.FIRST_REQUEST, 0.25)


@pytest.mark.parametrize(
    "text", ["total", "everything=1", "total=", "total=soon", "total=-1", "total=nan", "total=inf"]
)
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=rf"^'{text}': "):
        parse_target(text)

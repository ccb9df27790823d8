"""How long answers are, from what they cost: the table of choices, and what holds of each."""

from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.drill.cpu import Spent
from scaler.drill.figures import FitInfo
from scaler.drill.fit import (
    Costs,
    Short,
    Whole,
    announcement,
    answer_seconds,
    busiest,
    costs,
    fitted,
    lengths,
    mean,
)
from scaler.drill.scenario import Fit, Scenario, Size
from tests.unit.scaler.drill.conftest import read_scenario

SCENARIO = """
apiVersion: emberpool.dev/v1alpha1
kind: DrillScenario
metadata: {name: two}
spec:
  policies: {files: [policies.yaml]}
  engine: {maxTokensPerSecond: 15}
  fit: {cpuPercent: 65, minLengthPercent: 25}
  models:
    - {policy: chat, requestsPerMinute: 150, outputTokens: {type: Fixed, value: 24}}
    - {policy: code, requestsPerMinute: 150, outputTokens: {type: Fixed, value: 24}}
  stages:
    - {name: baseline, kind: Baseline, seconds: 10}
    - {name: burst, kind: Burst, seconds: 10, loads: [{policy: chat, percent: 900}]}
    - {name: chat-hold, kind: Hold, seconds: 10, loads: [{policy: chat, percent: 300}]}
    - {name: code-hold, kind: Hold, seconds: 10, loads: [{policy: code, percent: 200}]}
"""
"""10 requests per second in the busiest Hold stage."""


def scenario(old: str = "", new: str = "") -> Scenario:
    assert old in SCENARIO
    return read_scenario(SCENARIO.replace(old, new) if old else SCENARIO)


WRITTEN = scenario()


def written(*, tokens: int = 24, pace: int = 15, limit: int = 65) -> Scenario:
    """The same with other numbers, without reading a text for each."""
    spec = WRITTEN.spec
    models = [model.model_copy(update={"output_tokens": Size(value=tokens)}) for model in spec.models]
    changes = {
        "models": models,
        "engine": spec.engine.model_copy(update={"max_tokens_per_second": pace}),
        "fit": Fit(cpu_percent=limit),
    }
    return WRITTEN.model_copy(update={"spec": spec.model_copy(update=changes)})


def chosen(found: Costs, *, cores: int = 2, of: Scenario | None = None) -> tuple[Scenario, FitInfo]:
    return fitted(of or scenario(), found, cores)


# ------------------------------------------------------------------ what requests cost


@pytest.mark.parametrize(
    ("idle", "short", "whole", "expected"),
    [
        pytest.param(
            Spent(seconds=2, processor=0.0),
            Short(spent=Spent(seconds=4, processor=0.6), answers=20),
            Whole(spent=Spent(seconds=4, processor=4.4), further=460, each=23),
            Costs(idle=0.0, request=0.03, token=4.4 / 460 - 0.03 / 23),
            id="quiet",
        ),
        pytest.param(
            Spent(seconds=2, processor=0.2, others=30.0),
            Short(spent=Spent(seconds=4, processor=1.0), answers=20),
            Whole(spent=Spent(seconds=4, processor=4.8), further=460, each=23),
            Costs(idle=0.1, request=0.03, token=4.4 / 460 - 0.03 / 23, others=30.0),
            id="what-is-taken-anyway-counts-apart",
        ),
        pytest.param(
            Spent(seconds=2, processor=0.0),
            Short(spent=Spent(seconds=4, processor=0.0), answers=20),
            Whole(spent=Spent(seconds=4, processor=8.0), further=230, each=23),
            Costs(idle=0.0, request=0.0, token=8 / 230),
            id="a-machine-that-falls-behind-is-no-faster-one",
        ),
        pytest.param(
            Spent(seconds=2, processor=0.2),
            Short(spent=Spent(seconds=4, processor=1.0), answers=20),
            Whole(spent=Spent(seconds=4, processor=1.0), further=0, each=0),
            Costs(idle=0.1, request=0.03, token=0.0),
            id="answers-of-one-token",
        ),
        pytest.param(
            Spent(seconds=2, processor=0.4),
            Short(spent=Spent(seconds=4, processor=0.7), answers=20),
            Whole(spent=Spent(seconds=4, processor=0.7), further=460, each=23),
            Costs(idle=0.2, request=0.0, token=0.0),
            id="nothing-is-less-than-free",
        ),
    ],
)
def test_costs_follow_from_what_was_played(idle: Spent, short: Short, whole: Whole, expected: Costs) -> None:
    found = costs(idle, short, whole)
    assert astuple(found) == pytest.approx(astuple(expected))


# ------------------------------------------------------------------ the choice


@pytest.mark.parametrize(
    ("found", "cores", "pace", "tokens", "expected", "enough"),
    [
        # 10/s of 24 tokens: 0.01 s a token are 2.3 of 2 cores
        pytest.param(Costs(idle=0.0, request=0.0, token=0.01), 2, 8, 13, 60.0, True, id="shorter"),
        pytest.param(Costs(idle=0.0, request=0.0, token=0.01), 4, 15, 24, 57.5, True, id="as-written-on-four"),
        pytest.param(Costs(idle=0.0, request=0.03, token=0.01), 2, 7, 11, 65.0, True, id="prompts-count"),
        pytest.param(Costs(idle=0.4, request=0.0, token=0.01), 2, 6, 10, 65.0, True, id="and-what-is-taken-anyway"),
        pytest.param(Costs(idle=0.0, request=0.001, token=0.0), 2, 15, 24, 0.5, True, id="nearly-free"),
        pytest.param(Costs(idle=0.0, request=0.0, token=0.05), 2, 4, 7, 150.0, False, id="too-small"),
        pytest.param(Costs(idle=0.0, request=0.2, token=0.0), 2, 4, 7, 100.0, False, id="prompts-alone-are-too-much"),
    ],
)  # fmt: skip
def test_answers_are_as_long_as_the_machine_bears(
    found: Costs, cores: int, pace: int, tokens: int, expected: float, *, enough: bool
) -> None:
    changed, info = chosen(found, cores=cores)
    assert changed.spec.engine.max_tokens_per_second == pace
    assert [model.output_tokens.value for model in changed.spec.models] == [tokens, tokens]
    assert info.stage == "chat-hold"
    assert info.expected_percent == pytest.approx(expected)
    assert info.enough == enough
    assert info.tokens_per_second == (15, pace)
    assert info.answers == {"chat": (tokens, tokens), "code": (tokens, tokens)}
    assert info.whole_answers == {"chat": (24, 24), "code": (24, 24)}


@pytest.mark.parametrize(
    ("least", "pace"), [pytest.param(1, 1, id="one"), pytest.param(50, 8, id="half"), (100, 15)]
)
def test_no_answer_is_shorter_than_the_scenario_allows(least: int, pace: int) -> None:
    of = scenario("minLengthPercent: 25", f"minLengthPercent: {least}")
    changed, info = chosen(Costs(idle=0.0, request=0.0, token=1.0), of=of)
    assert changed.spec.engine.max_tokens_per_second == pace
    assert not info.enough


def test_a_drawn_length_keeps_its_bounds_in_proportion() -> None:
    of = scenario("outputTokens: {type: Fixed, value: 24}}\n    - {policy: code", "outputTokens: {type: Uniform, min: 8, max: 40}}\n    - {policy: code")  # fmt: skip
    _, info = chosen(Costs(idle=0.0, request=0.0, token=0.01), of=of)
    assert info.whole_answers == {"chat": (8, 40), "code": (24, 24)}
    assert info.answers == {"chat": (4, 22), "code": (13, 13)}


def test_rates_stages_and_all_else_stay() -> None:
    changed, _ = chosen(Costs(idle=0.0, request=0.0, token=0.01))
    spec, written = changed.spec, scenario().spec
    assert spec.stages == written.stages
    assert [model.requests_per_minute for model in spec.models] == [150, 150]
    assert spec.engine.model_copy(update={"max_tokens_per_second": 15}) == written.engine


@given(
    idle=st.floats(0, 0.5),
    request=st.floats(0, 0.2),
    token=st.floats(0, 0.1),
    cores=st.integers(1, 64),
    tokens=st.integers(1, 300),
    pace=st.integers(1, 200),
)
def test_an_answer_takes_as_long_as_it_did_and_is_no_longer(
    idle: float, request: float, token: float, cores: int, tokens: int, pace: int
) -> None:
    found = Costs(idle=idle, request=request, token=token)
    of = written(tokens=tokens, pace=pace)
    changed, info = chosen(found, cores=cores, of=of)
    slower, answer = info.tokens_per_second[1], changed.spec.models[0].output_tokens
    assert 0.25 * pace <= slower <= pace
    assert 1 <= answer.value <= tokens
    assert abs(answer_seconds(mean(answer), slower) - answer_seconds(tokens, pace)) <= 0.5001 / slower
    assert info.enough == (busiest(changed.spec, found, cores)[1] <= 65)
    if busiest(of.spec, found, cores)[1] <= 65:
        assert changed == of


@given(token=st.floats(0, 0.1), limits=st.tuples(st.integers(1, 100), st.integers(1, 100)))
def test_who_allows_less_gets_no_longer_answers(token: float, limits: tuple[int, int]) -> None:
    found = Costs(idle=0.01, request=0.02, token=token)
    least, most = (chosen(found, of=written(limit=limit))[1].tokens_per_second[1] for limit in sorted(limits))
    assert least <= most


# ------------------------------------------------------------------ in words


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, "answers of 14 tokens instead of 24, at 9 tokens per second instead of 15", id="one-length"),
        pytest.param({"answers": {"chat": (24, 24)}, "tokens_per_second": (15, 15)}, "answers as long as the scenario says", id="unchanged"),
        pytest.param(
            {"answers": {"chat": (4, 22), "code": (13, 13)}, "whole_answers": {"chat": (8, 40), "code": (24, 24)}},
            "answers of 4 to 22 (chat), 13 (code) tokens instead of 8 to 40 (chat), 24 (code), at 9 tokens per second instead of 15",
            id="each-its-own",
        ),
    ],
)  # fmt: skip
def test_lengths_are_said(make_fit: Callable[..., FitInfo], changes: dict[str, Any], expected: str) -> None:
    assert lengths(make_fit(**changes)) == expected


def test_what_was_measured_is_said_before_the_first_arm(make_fit: Callable[..., FitInfo]) -> None:
    assert announcement(make_fit()) == (
        "answers of 14 tokens instead of 24, at 9 tokens per second instead of 15: a request takes 0.11 s of processor here, "
        "and hold is expected to take 60 % instead of 98 % of the machine"
    )


def test_a_machine_that_is_too_small_is_warned_of(make_fit: Callable[..., FitInfo]) -> None:
    text = announcement(make_fit(expected_percent=80.0, enough=False))
    assert text.startswith("warning: this machine is too small for the drill")
    assert text.endswith("80 % instead of 98 % of the machine, more than 65 %")


@pytest.mark.parametrize(("others", "warned"), [(10.0, False), (38.4, True)])
def test_other_programs_that_take_much_are_warned_of(
    make_fit: Callable[..., FitInfo], others: float, *, warned: bool
) -> None:
    text = announcement(make_fit(others_percent=others))
    assert text.startswith("answers of 14 tokens")
    assert ("warning: other programs take 38 % of it" in text) == warned

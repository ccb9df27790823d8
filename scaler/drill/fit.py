"""How long the answers of a drill are, so that its busiest Hold stage leaves the machine air. PURE.

A burst has its shape from the rate of requests and from how many of them are in flight, and both stay as they were written. What
gives is the work: an answer gets fewer tokens at a slower pace, so that it takes as long as before. The engine computes all
sequences of a tick at once (`warmpool.reference.pacing`), so with as many in flight a token costs the same at any pace.
"""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scaler.drill.cpu import Spent
from scaler.drill.figures import FitInfo
from scaler.drill.scenario import Model, Scenario, Size, SizeType, Spec
from scaler.drill.schedule import StageWindow, windows

_FIRST: Final = 0.5
"""An answer takes as long as its tokens do, less so many: the first comes at once, the second after one to two tokens' time."""
_OTHERS_PERCENT: Final = 10
"""What other programs take beyond this is warned of: the air that the load leaves is theirs as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a load takes of a machine, as it was measured there; product and drill together, models in the mean.

    Attributes:
        idle: processor seconds per second without any request.
        request: processor seconds of a request whose answer has one token.
        token: processor seconds of each further token.
        others: what other programs took without any request, in percent of the machine.
    """

    idle: float
    request: float
    token: float
    others: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Short:
    """Answers of one token that were played to find out what they cost.

    Attributes:
        spent: processor time from the first sending to the last end.
        answers: how many there were.
    """

    spent: Spent
    answers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """Answers of the scenario's lengths that were played, in a while in which as many begin as end.

    Their tokens are counted and not the answers, so that a machine which falls behind isn't taken for a faster one.

    Attributes:
        spent: processor time meanwhile.
        further: tokens meanwhile that weren't the first of their answer.
        each: how many of those an answer has, in the mean.
    """

    spent: Spent
    further: int
    each: float


def costs(idle: Spent, short: Short, whole: Whole) -> Costs:
    """Reckon costs from a while without requests, from answers of one token, and from whole ones."""
    base = idle.processor / idle.seconds
    request = _beyond(base, short.spent) / short.answers
    if not whole.further:
        return Costs(idle=base, request=request, token=0.0, others=idle.others)
    token = _beyond(base, whole.spent) / whole.further - request / whole.each
    return Costs(idle=base, request=request, token=max(0.0, token), others=idle.others)


def _beyond(base: float, spent: Spent) -> float:
    """Processor seconds that requests took."""
    return max(0.0, spent.processor - base * spent.seconds)


def fitted(scenario: Scenario, found: Costs, cores: int) -> tuple[Scenario, FitInfo]:
    """Choose the longest answers with which no Hold stage takes more than `spec.fit` allows, or the shortest that it allows.

    Args:
        scenario: as it was written, with `spec.fit`.
        found: what requests cost here.
        cores: processors that there are for them.

    Returns:
        The scenario with those answers, and what is to be told of them.
    """
    spec = scenario.spec
    fit, pace = spec.fit, spec.engine.max_tokens_per_second
    assert fit is not None
    assert pace is not None  # a rule of the format

    def percent(slower: int) -> float:
        return busiest(_at_pace(spec, slower), found, cores)[1]

    least = max(1, math.ceil(pace * fit.min_length_percent / 100))
    paces = range(least, pace + 1)
    chosen = paces[max(0, bisect.bisect_right(paces, float(fit.cpu_percent), key=percent) - 1)]
    changed = _at_pace(spec, chosen)
    stage, expected = busiest(changed, found, cores)
    info = FitInfo(
        cpu_percent=fit.cpu_percent,
        stage=stage,
        idle_percent=round(100 * found.idle / cores, 1),
        others_percent=round(found.others, 1),
        request_seconds=round(found.request, 4),
        token_seconds=round(found.token, 5),
        answer_seconds=round(_answer(changed, stage, found), 4),
        whole_percent=round(percent(pace), 1),
        expected_percent=round(expected, 1),
        tokens_per_second=(pace, chosen),
        whole_answers={model.policy: _bounds(model) for model in spec.models},
        answers={model.policy: _bounds(model) for model in changed.models},
        enough=expected <= fit.cpu_percent,
    )
    return scenario.model_copy(update={"spec": changed}), info


def _answer(spec: Spec, stage: str, found: Costs) -> float:
    """Processor seconds of a request with its answer, in the mean over a stage."""
    (window,) = (window for window in windows(spec) if window.stage.name == stage)
    rate = sum(sum(ends) / 2 for ends in window.rates.values())
    return (_taken(window, spec.models, found) - found.idle) / rate if rate else 0.0


def busiest(spec: Spec, found: Costs, cores: int) -> tuple[str, float]:
    """Return the Hold stage that takes most of the machine, and how much, in percent; over 100 it can't keep up."""
    holds = [window for window in windows(spec) if window.stage.kind == "Hold"]
    most = max(holds, key=lambda window: _taken(window, spec.models, found))
    return most.stage.name, 100 * _taken(most, spec.models, found) / cores


def _taken(window: StageWindow, models: Sequence[Model], found: Costs) -> float:
    """Processor seconds per second of a stage, in its mean."""
    return found.idle + sum(
        sum(window.rates[model.policy]) / 2 * (found.request + found.token * (mean(model.output_tokens) - 1))
        for model in models
    )


def mean(size: Size) -> float:
    """The mean of the numbers that can be drawn."""
    return (size.smallest + size.largest) / 2


def answer_seconds(tokens: float, tokens_per_second: float) -> float:
    """How long an answer takes at a pace, from its first token."""
    return max(0.0, tokens - _FIRST) / tokens_per_second


def _at_pace(spec: Spec, slower: int) -> Spec:
    """The load at another pace: answers with as many tokens as come in the time that they took."""
    pace = spec.engine.max_tokens_per_second
    if pace is None or slower == pace:
        return spec
    share = slower / pace
    models = [
        model.model_copy(update={"output_tokens": _shortened(model.output_tokens, share)})
        for model in spec.models
    ]
    engine = spec.engine.model_copy(update={"max_tokens_per_second": slower})
    return spec.model_copy(update={"models": models, "engine": engine})


def _shortened(size: Size, share: float) -> Size:
    names = ("value",) if size.type is SizeType.FIXED else ("min", "max")
    return size.model_copy(update={name: _tokens(getattr(size, name), share) for name in names})


def _tokens(whole: int, share: float) -> int:
    return max(1, round((whole - _FIRST) * share + _FIRST))


def _bounds(model: Model) -> tuple[int, int]:
    return model.output_tokens.smallest, model.output_tokens.largest


# ------------------------------------------------------------------ in words


def lengths(info: FitInfo) -> str:
    """Say how long the answers are, and how long they would be."""
    pace, slower = info.tokens_per_second
    if slower == pace:
        return "answers as long as the scenario says"
    return (
        f"answers of {_words(info.answers)} tokens instead of {_words(info.whole_answers)},"
        f" at {slower} tokens per second instead of {pace}"
    )


def _words(answers: Mapping[str, tuple[int, int]]) -> str:
    """Say the lengths once where all models have the same."""
    texts = {policy: span(*bounds) for policy, bounds in answers.items()}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return ", ".join(f"{text} ({policy})" for policy, text in texts.items())


def span(least: int, most: int) -> str:
    """Say what numbers can be drawn."""
    return str(least) if least == most else f"{least} to {most}"


def announcement(info: FitInfo) -> str:
    """Say before the first arm what was measured and what follows from it."""
    pace, slower = info.tokens_per_second
    changed = "" if slower == pace else f" instead of {info.whole_percent:.0f} %"
    text = (
        f"{lengths(info)}: a request takes {info.answer_seconds:.2f} s of processor here,"
        f" and {info.stage} is expected to take {info.expected_percent:.0f} %{changed} of the machine"
    )
    if not info.enough:
        text = f"warning: this machine is too small for the drill, its figures tell of the machine: {text}, more than {info.cpu_percent} %"
    if info.others_percent > _OTHERS_PERCENT:
        text += f"; warning: other programs take {info.others_percent:.0f} % of it, and its figures tell of them, too"
    return text

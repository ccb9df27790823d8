"""When which request is sent: arrivals computed ahead from a scenario and a seed. PURE.

The generator that plays a schedule is open loop: nothing in here depends on any answer. Both arms play the same
schedule, so that they differ in nothing but the way in which capacity comes.
"""

import bisect
import math
import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scaler.drill.scenario import Arrivals, Load, Model, Process, Ramp, Scenario, Size, SizeType, Spec, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a schedule.

    Attributes:
        at: seconds after the start of the load at which it is to be sent.
        policy: the policy that it is for.
        stage: name of the stage that `at` lies in.
        prompt: the text to complete.
        prompt_tokens: tokens that the prompt has, as far as a byte-level tokenizer goes.
        max_tokens: tokens that the answer must have.
        stream: whether the answer is to be streamed.
    """

    at: float
    policy: str
    stage: str
    prompt: str
    prompt_tokens: int
    max_tokens: int
    stream: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWindow:
    """One stage on the clock of the load.

    Attributes:
        stage: the stage as written.
        start, end: seconds after the start of the load.
        rates: per policy, requests per second at the start and at the end of the stage.
        bursting: policies whose burst the stage belongs to: those that a Burst stage raises, kept by the Hold stages
            right after it.
    """

    stage: Stage
    start: float
    end: float
    rates: dict[str, tuple[float, float]]
    bursting: tuple[str, ...]

    def rate(self, policy: str, now: float) -> float:
        """Requests per second of a policy at a time within the stage."""
        first, last = self.rates[policy]
        return first + (last - first) * (now - self.start) / (self.end - self.start)

    def describe(self) -> str:
        """Say in words what the stage asks for."""
        rates = ", ".join(f"{policy} {_change(*ends)}/s" for policy, ends in self.rates.items())
        return f"{self.stage.name} ({self.stage.kind}, {self.stage.seconds} s): {rates}"


def _change(first: float, last: float) -> str:
    return f"{last:.1f}" if math.isclose(first, last) else f"{first:.1f} to {last:.1f}"


def windows(spec: Spec) -> list[StageWindow]:
    """Lay the stages out on the clock and say how fast each policy's requests arrive in each."""
    result: list[StageWindow] = []
    start = 0.0
    before = {model.policy: _per_second(model.requests_per_minute) for model in spec.models}
    bursting: tuple[str, ...] = ()
    for stage in spec.stages:
        rates = {model.policy: _rates(model, stage, before[model.policy]) for model in spec.models}
        match stage.kind:
            case "Burst":
                bursting = tuple(name for name, (_, end) in rates.items() if end > before[name])
            case "Hold":
                pass
            case _:
                bursting = ()
        end = start + stage.seconds
        result.append(StageWindow(stage=stage, start=start, end=end, rates=rates, bursting=bursting))
        before = {name: end_rate for name, (_, end_rate) in rates.items()}
        start = end
    return result


def schedule(scenario: Scenario, seed: int) -> list[Request]:
    """Compute all requests of a scenario, in the order of their times.

    The same scenario and seed always give the same list. Each policy has generators of its own, so that a change in one
    model's load leaves the others' requests as they were.
    """
    spec = scenario.spec
    plan = windows(spec)
    ends = [window.end for window in plan]
    requests: list[Request] = []
    for model in spec.models:
        clock = random.Random(f"{seed}/{model.policy}/arrivals")
        bodies = random.Random(f"{seed}/{model.policy}/bodies")
        segments = [(window.start, window.end, *window.rates[model.policy]) for window in plan]
        for at in arrival_times(segments, model.arrivals, clock):
            stage = plan[min(bisect.bisect_right(ends, at), len(plan) - 1)].stage
            requests.append(_request(model, stage.name, at, bodies))
    requests.sort(key=lambda request: (request.at, request.policy))
    return requests


def arrival_times(
    segments: Sequence[tuple[float, float, float, float]], arrivals: Arrivals, rng: random.Random
) -> Iterator[float]:
    """Yield the arrival times of one policy, ascending.

    Gaps of mean 1 are drawn once and mapped through the inverse of the expected number of arrivals up to a time (time
    rescaling), so that steps and ramps need no special case and the process keeps its burstiness under them.

    Args:
        segments: (start, end, rate at start, rate at end) with the rate linear in between; rates in requests per second.
        arrivals: the process that the gaps come from.
        rng: where randomness comes from.
    """
    expected = 0.0
    position = _first_gap(arrivals, rng)
    for start, end, first, last in segments:
        area = (first + last) / 2 * (end - start)
        while position < expected + area:
            yield start + _time_of(position - expected, end - start, first, last)
            position += _gap(arrivals, rng)
        expected += area


def _time_of(area: float, seconds: float, first: float, last: float) -> float:
    """Time in a segment after which `area` arrivals are expected (first·t + slope·t²/2 = area)."""
    slope = (last - first) / seconds
    if math.isclose(first, last):
        return area / first
    root = math.sqrt(max(0.0, first * first + 2 * slope * area))
    return min(seconds, 2 * area / (first + root))


def _gap(arrivals: Arrivals, rng: random.Random) -> float:
    """One gap of mean 1; Gamma is shaped as in vLLM's benchmark: burstiness 1 is Poisson, below 1 burstier."""
    match arrivals.process:
        case Process.CONSTANT:
            return 1.0
        case Process.POISSON:
            return rng.expovariate(1.0)
        case Process.GAMMA:
            shape = arrivals.burstiness_percent / 100
            return rng.gammavariate(shape, 1 / shape)


def _first_gap(arrivals: Arrivals, rng: random.Random) -> float:
    """The first gap: a random phase for a constant process, so that two models don't send in step."""
    return rng.random() if arrivals.process is Process.CONSTANT else _gap(arrivals, rng)


def _request(model: Model, stage: str, at: float, rng: random.Random) -> Request:
    prompt_tokens = _draw(model.prompt_tokens, rng)
    return Request(
        at=at,
        policy=model.policy,
        stage=stage,
        prompt=_text(prompt_tokens, rng),
        prompt_tokens=prompt_tokens,
        max_tokens=_draw(model.output_tokens, rng),
        stream=rng.randrange(100) < model.stream_percent,
    )


def _text(characters: int, rng: random.Random) -> str:
    """Text of so many characters, each time another, so that no prefix cache helps."""
    return "".join(rng.choices(string.ascii_lowercase + " ", k=characters))


def _draw(size: Size, rng: random.Random) -> int:
    return size.value if size.type is SizeType.FIXED else rng.randint(size.min, size.max)


def _rates(model: Model, stage: Stage, before: float) -> tuple[float, float]:
    load = next((load for load in stage.loads if load.policy == model.policy), None)
    target = _target(model, load)
    ramp = Ramp.STEP if load is None else load.ramp
    return (before, target) if ramp is Ramp.LINEAR else (target, target)


def _target(model: Model, load: Load | None) -> float:
    if load is None:
        return _per_second(model.requests_per_minute)
    if load.requests_per_minute is not None:
        return _per_second(load.requests_per_minute)
    assert load.percent is not None
    return _per_second(model.requests_per_minute) * load.percent / 100


def _per_second(per_minute: int) -> float:
    return per_minute / 60

"""Finding out what a request costs on this machine: a few real ones through the gateway, and the processor's time meanwhile.

Nothing of it is among a drill's figures. All models are asked at once, so that engines share the machine as they do under the
load, at their baseline, which no law answers with further residents.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Final, Protocol

from scaler.drill.cpu import Spent
from scaler.drill.fit import Costs, Short, Whole, answer_seconds, costs, mean
from scaler.drill.load import Tally, Target, generate
from scaler.drill.measure import failure_examples
from scaler.drill.records import Outcome
from scaler.drill.scenario import (
    Arrivals,
    Load,
    Process,
    Scenario,
    Size,
    Spec,
    Stage,
    StageKind,
)
from scaler.drill.schedule import Request, schedule
from scaler.errors import ScalerError

_IDLE_SECONDS: Final = 2.0
_REQUESTS: Final = 20
"""Requests that are measured of each kind. Processor time comes in hundredths of a second per process; these take seconds of it."""
_MOST_SECONDS: Final = 20.0
"""How long a kind is measured at most; a baseline that is slower than that is played faster."""


class GaugeFailed(ScalerError):
    """What a request costs can't be found out: most of them got no whole answer, or no token came in time."""


class Meter(Protocol):
    """Reads processor time."""

    def spent(self) -> Spent:
        """Return what product and drill took since the call before; may block for milliseconds."""
        ...


async def gauge(scenario: Scenario, target: Target, meter: Meter) -> Costs:
    """Measure what requests cost.

    Args:
        scenario: its models, at their baseline.
        target: where the load will go; nothing else is sent there.
        meter: reads processor time.

    Raises:
        GaugeFailed: most requests failed, or no token came.
    """
    spec = scenario.spec
    short = await _short(_requests(scenario, seconds=_seconds(spec), short=True), target, meter)
    longest = max(mean(model.output_tokens) for model in spec.models)
    lead = answer_seconds(longest, spec.engine.max_tokens_per_second or math.inf)
    whole = await _whole(_requests(scenario, seconds=lead + _seconds(spec), short=False), target, meter, lead)
    await asyncio.to_thread(meter.spent)
    await asyncio.sleep(_IDLE_SECONDS)
    return costs(await asyncio.to_thread(meter.spent), short, whole)


def _seconds(spec: Spec) -> float:
    return min(_MOST_SECONDS, _REQUESTS / _per_second(spec))


def _per_second(spec: Spec) -> float:
    return sum(model.requests_per_minute for model in spec.models) / 60


def _requests(scenario: Scenario, *, seconds: float, short: bool) -> Sequence[Request]:
    """Schedule the baseline with equal gaps, all of it streams, with answers of one token or whole ones."""
    spec = scenario.spec
    faster = max(1.0, _REQUESTS / _MOST_SECONDS / _per_second(spec))
    models = [
        model.model_copy(
            update={
                "arrivals": Arrivals(process=Process.CONSTANT),
                "stream_percent": 100,
                "output_tokens": Size(value=1) if short else model.output_tokens,
            }
        )
        for model in spec.models
    ]
    loads = [
        Load(policy=model.policy, requests_per_minute=math.ceil(model.requests_per_minute * faster))
        for model in models
    ]
    stage = Stage(name="gauge", kind=StageKind.WARMUP, seconds=math.ceil(seconds), loads=loads)
    played = scenario.model_copy(
        update={"spec": spec.model_copy(update={"models": models, "stages": [stage]})}
    )
    return [each for each in schedule(played, seed=int(short)) if each.at < seconds]


async def _short(requests: Sequence[Request], target: Target, meter: Meter) -> Short:
    """Play answers of one token, and measure all of it."""
    tally = Tally()
    await asyncio.to_thread(meter.spent)
    tally.begin()
    await generate(requests, target, tally)
    spent = await asyncio.to_thread(meter.spent)
    return Short(spent=spent, answers=_answered(tally))


async def _whole(requests: Sequence[Request], target: Target, meter: Meter, lead: float) -> Whole:
    """Play answers as they are, and measure from when the first one ends to when the last one begins."""
    tally = Tally()
    tally.begin()
    async with asyncio.TaskGroup() as group:
        playing = group.create_task(generate(requests, target, tally))
        await asyncio.sleep(lead)
        await asyncio.to_thread(meter.spent)
        before = _further(tally)
        await asyncio.sleep(max(0.0, requests[-1].at - tally.now()))
        spent = await asyncio.to_thread(meter.spent)
        further = _further(tally) - before
        await playing
    _answered(tally)
    each = sum(request.max_tokens - 1 for request in requests) / len(requests)
    if each and not further:
        raise GaugeFailed(
            f"what a request costs here can't be measured: no token came in {spent.seconds:.0f} s"
        )
    return Whole(spent=spent, further=further, each=each)


def _further(tally: Tally) -> int:
    """Tokens so far that weren't the first of their answer."""
    return sum(gaps.count for gaps in tally.gaps.values())


def _answered(tally: Tally) -> int:
    """Count whole answers. On a machine that falls behind a drain may cut a stream: that doesn't change what a token costs.

    Raises:
        GaugeFailed: most requests had none.
    """
    whole = sum(record.outcome is Outcome.OK for record in tally.records)
    if 2 * whole < len(tally.records):
        (first,) = failure_examples(tally.records, limit=1)
        raise GaugeFailed(f"what a request costs here can't be measured: {first}")
    return whole

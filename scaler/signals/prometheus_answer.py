"""What the answer to an instant query stands for: one number with its time, or a sentence that says what is wrong with it.

Nothing is guessed. An empty answer is no zero, several series are not added up, and NaN is no number. PURE: no I/O.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scaler.errors import SignalError
from scaler.policy.signals import Measures
from scaler.signals.expected import PART_OF
from scaler.signals.failures import one_line
from scaler.signals.port import Part

LOOKBACK_SECONDS: Final = 300.0
"""Prometheus answers with nothing that is older (`--query.lookback-delta`, 5 min unless set): an older answer comes of
clocks that disagree, and so does one that lies as far ahead."""

_PAIR: Final = 2
"""A sample is a time and a number."""
_ROUNDING: Final = 1e-6
"""What a share may lie above 1 by: it is a quotient of two rates, each of them rounded."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One number of a server.

    Attributes:
        value: the number; anything that floats can hold.
        time: Unix time that the server gives it.
    """

    value: float
    time: float


def sample_of(result: object) -> Sample:
    """Return the one sample in an instant query's `result`, whether a scalar or a vector of one.

    The server stamps it with the time at which it evaluated the query, not with that of the scrape: a series whose
    target has vanished without a trace (the server itself was restarted) keeps answering until the lookback of five
    minutes is over.

    Args:
        result: `data.result` as it came from JSON.

    Raises:
        SignalError: there is none, or more than one, or something else; the text says what to do about it.
    """
    if not isinstance(result, list):
        raise SignalError(f"the answer holds no result: {one_line(repr(result), 80)}")
    if not result:
        raise SignalError(
            "the query gives no series, which is not zero: write `sum(…) or vector(0)` where it shall mean zero"
        )
    if not isinstance(result[0], dict):
        return _sample(result)  # a scalar: the pair itself
    if len(result) > 1:
        raise SignalError(
            f"the query gives {len(result)} series and one is wanted: put sum(…) or max(…) around it"
        )
    series: Mapping[str, object] = result[0]
    if "value" in series:
        return _sample(series["value"])
    if "histogram" in series:
        raise SignalError(
            "the query gives a native histogram and a number is wanted: take histogram_fraction(…) or histogram_count(…)"
        )
    if "values" in series or "histograms" in series:
        raise SignalError(
            "the query gives a range and one number is wanted: remove the […], or put rate(…) around it"
        )
    raise SignalError(f"the answer holds no sample: {one_line(repr(series), 80)}")


def age_of(sample: Sample, asked: float) -> float:
    """Return how old a sample was when it was asked for, in seconds.

    Args:
        sample: what was answered.
        asked: Unix time of the question; a sample that is younger has the age 0.

    Raises:
        SignalError: it is older than any server answers with, or lies as far ahead.
    """
    age = asked - sample.time
    if age < -LOOKBACK_SECONDS:
        raise SignalError(
            f"the answer lies {-age:.0f} s ahead by its own time: do the clocks here and on the server agree?"
        )
    if not age <= LOOKBACK_SECONDS:
        raise SignalError(
            f"the answer is {age:.0f} s old by its own time: do the clocks here and on the server agree?"
        )
    return max(0.0, age)


def parts_of(measures: Measures, value: float) -> Mapping[Part, float]:
    """Return what a number says of the load.

    Args:
        measures: what the query is for.
        value: the number.

    Returns:
        One part; none where the number is the share of late requests and NaN, which is 0/0: there were no requests, so
        there is no share, and that is no failure.

    Raises:
        SignalError: it can't be what it is said to be.
    """
    part = PART_OF[measures]
    if part is Part.LATE_SHARE:
        if math.isnan(value):
            return {}
        if not 0 <= value <= 1 + _ROUNDING:
            raise SignalError(
                f"the query gives {value:g} and a share lies from 0 to 1: divide late requests by all (a percentage by 100)"
            )
        return {part: min(1.0, value)}
    if math.isnan(value):
        raise SignalError(
            "the query gives NaN, as 0/0 does: write `sum(…) > 0 or vector(0)` where it shall mean zero"
        )
    if not 0 <= value < math.inf:
        raise SignalError(f"the query gives {value:g} and {measures} is a finite number from 0 up")
    return {part: value}


def _sample(pair: object) -> Sample:
    """Read `[time, "number"]`; numbers are strings, for JSON has no NaN."""
    if isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == _PAIR:
        time, value = pair
        if isinstance(time, int | float) and not isinstance(time, bool) and isinstance(value, str):
            try:
                return Sample(value=float(value), time=float(time))
            except (ValueError, OverflowError):
                pass
    raise SignalError(f"the query gives no number: {one_line(repr(pair), 80)}")

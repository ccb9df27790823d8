"""How old a signal's news may be: the worst case of each way in which a policy's load is read, while readings succeed."""

import math
from dataclasses import dataclass
from typing import Final

from scaler.policy.lint import queries
from scaler.policy.lint.assumptions import PUSH_SECONDS, Assumptions
from scaler.policy.lint.findings import SECONDS, Term
from scaler.policy.scaling_policy import ScalingPolicy
from scaler.policy.signals import EngineMetrics, Measures, Prometheus, Pushed, RedisSignal, Signal

DEMAND: Final = frozenset({Measures.REQUESTS, Measures.QUEUE_DEPTH, Measures.QUEUE_AGE_SECONDS})
"""What a number from Prometheus may stand for so that demand shows in it; a share of late first tokens only corrects."""


@dataclass(frozen=True, slots=True)
class Delay:
    """The worst case of one signal.

    Attributes:
        signal: the signal.
        terms: what its news may have to wait for, in seconds.
    """

    signal: Signal
    terms: tuple[Term, ...]

    @property
    def seconds(self) -> float:
        """All of it."""
        return math.fsum(term.value or 0.0 for term in self.terms)


def sees_demand(signal: Signal, *, serving: bool) -> bool:
    """Whether demand shows in a signal.

    Args:
        signal: the signal.
        serving: whether any resident serves; engines that don't have nothing to tell.
    """
    match signal:
        case EngineMetrics():
            return serving
        case Prometheus():
            return signal.measures in DEMAND
        case _:
            return True


def fastest(policy: ScalingPolicy, assumptions: Assumptions, *, serving: bool) -> Delay | None:
    """Return the signal that sees a burst first, in its worst case; None if none sees one.

    The law takes each part of the demand from whoever knows it, so the first that does is enough.
    """
    seeing = [signal for signal in policy.spec.signals if sees_demand(signal, serving=serving)]
    delays = [Delay(signal, _terms(signal, assumptions)) for signal in seeing]
    return min(delays, key=lambda delay: delay.seconds, default=None)


def slowest(policy: ScalingPolicy, assumptions: Assumptions) -> Delay | None:
    """Return the signal that sees the end of a load last, in its worst case; None if none sees any.

    Down, every part of the demand has to say so: a part that is still high, or unknown, holds the answer up.
    """
    seeing = [signal for signal in policy.spec.signals if sees_demand(signal, serving=True)]
    delays = [Delay(signal, _terms(signal, assumptions)) for signal in seeing]
    return max(delays, key=lambda delay: delay.seconds, default=None)


def interval_seconds(signal: Signal) -> float:
    """Return how far apart the readings of a signal are."""
    match signal:
        case Pushed():
            return 1.0  # `scaler.gateway.samples.HEARTBEAT_SECONDS`
        case EngineMetrics() | RedisSignal():
            return signal.interval_milliseconds / 1000
        case Prometheus():
            return float(signal.interval_seconds)


def _terms(signal: Signal, assumptions: Assumptions) -> tuple[Term, ...]:
    name = f"signal {signal.name}"
    match signal:
        case Pushed():
            return (
                Term(
                    name=name,
                    value=PUSH_SECONDS,
                    unit=SECONDS,
                    origin="the gateway pushes each change at once",
                ),
            )
        case EngineMetrics() | RedisSignal():
            return (_term(f"{name}: interval", signal.interval_milliseconds / 1000, "intervalMilliseconds"),)
        case Prometheus():
            return _prometheus(name, signal, assumptions)


def _prometheus(name: str, signal: Prometheus, assumptions: Assumptions) -> tuple[Term, ...]:
    """Return scrape + (rule) + (range) + interval: each may have just missed the one before it."""
    terms = [
        _term(f"{name}: scrape", assumptions.prometheus_scrape_seconds, "assumption prometheusScrapeSeconds")
    ]
    if queries.reads_recorded(signal.query):
        origin = "assumption prometheusEvaluationSeconds"
        terms.append(_term(f"{name}: recording rule", assumptions.prometheus_evaluation_seconds, origin))
    if longest := queries.longest_range(signal.query):
        terms.append(_term(f"{name}: range", longest, "the query's range, which has to fill"))
    terms.append(_term(f"{name}: interval", signal.interval_seconds, "intervalSeconds"))
    return tuple(terms)


def _term(name: str, seconds: float, origin: str) -> Term:
    return Term(name=name, value=float(seconds), unit=SECONDS, origin=origin)

"""One run: requests, GPUs and time under way, and what it came to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scaler.runtime.bench.law.case import LEAD_SECONDS, Case, Model
from scaler.runtime.bench.law.station import Station
from scaler.runtime.bench.law.timeline import Meter, Timeline
from warmpool.seats import PolicyName

MOST_SEATS: Final = 64
"""Seats that a fleet may have where no knob says less: more than any arm asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """What an operator can turn, and a sweep does.

    Attributes:
        least: replicas or residents at least, a model (`minReplicas`, `min-scale`, `serving.min`).
        most: replicas of a model, or seats of the fleet that has the spares, at most (`maxReplicas`, `maxSeats`).
        share: share of its slots that a replica should carry (HPA, KPA).
        spares: spare seats, a fleet.
        burst: seconds of the law's burst window.
        stable: seconds of its stable window.
        demote: seconds after which the law pauses a resident that is not needed any more.
    """

    least: int = 0
    most: int = MOST_SEATS
    share: float = 1.0
    spares: int = 0
    burst: float = 6.0
    stable: float = 60.0
    demote: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run came to.

    Attributes:
        gpu_seconds: by what the seats were.
        requests: requests that count.
        late: those of them that waited longer than the objective.
        worst: highest share of late requests of any model.
        p99: seconds that 99 % of the requests waited at most.
        promotions: promotions, switches and recalls.
    """

    gpu_seconds: Mapping[str, float]
    requests: int
    late: int
    worst: float
    p99: float
    promotions: int

    @property
    def held(self) -> float:
        """GPU-seconds, all together."""
        return sum(self.gpu_seconds.values())

    @property
    def late_share(self) -> float:
        """Share of the requests that waited longer than the objective."""
        return self.late / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A run of some of the models: what adds up to an `Outcome`.

    Attributes:
        gpu_seconds: by what the seats were.
        waits: seconds that each request waited, per model; what still waited at the end counts until then.
        promotions: promotions, switches and recalls.
    """

    gpu_seconds: Mapping[str, float]
    waits: Mapping[PolicyName, Sequence[float]]
    promotions: int = 0


class Run:
    """One run under way: time, GPUs, and the lines of some models."""

    def __init__(self, case: Case, models: Sequence[Model]) -> None:
        """Begin at the lead."""
        self.case = case
        self.timeline = Timeline(-LEAD_SECONDS)
        self.meter = Meter(self.timeline)
        self.stations = {
            model.name: Station(self.timeline, case.requests(model), packed=case.packed) for model in models
        }

    def finish(self, promotions: Callable[[], int] = lambda: 0) -> Part:
        """Run to the end, and say what it came to; `promotions` counts those that were begun so far."""
        self.timeline.run(0.0)
        self.meter.restart()
        begun = promotions()
        self.timeline.run(self.case.seconds)
        waits = {name: station.waits + station.leftover(0.0) for name, station in self.stations.items()}
        return Part(gpu_seconds=self.meter.read(), waits=waits, promotions=promotions() - begun)


def together(parts: Sequence[Part], objective: float) -> Outcome:
    """Add up runs that know nothing of each other."""
    seconds: dict[str, float] = {}
    for part in parts:
        for kind, spent in part.gpu_seconds.items():
            seconds[kind] = seconds.get(kind, 0.0) + spent
    each = [waits for part in parts for waits in part.waits.values()]
    late = [sum(wait > objective for wait in waits) for waits in each]
    all_waits = sorted(wait for waits in each for wait in waits)
    return Outcome(
        gpu_seconds=seconds,
        requests=len(all_waits),
        late=sum(late),
        worst=max((n / len(waits) for n, waits in zip(late, each, strict=True) if waits), default=0.0),
        p99=all_waits[int(0.99 * len(all_waits))] if all_waits else 0.0,
        promotions=sum(part.promotions for part in parts),
    )

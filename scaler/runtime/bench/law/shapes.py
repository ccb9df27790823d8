"""The golden traces: shapes of load and faults under which the law's figures are pinned."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from scaler.core.model import Load, Quality, Reading
from scaler.runtime.bench.law.arrivals import CHAT, CODING, Trace, read, synthetic

FLOOR: Final = 1
MOST_SERVING: Final = 10
MOST_SEATS: Final = 12
SPARES: Final = 2
SLOTS: Final = 8
"""Requests that a seat may have in flight; on the real arrivals it is 32."""
START_SECONDS: Final = 60.0
_PROMPT: Final = 1600
"""Prompt tokens of a made-up request: it takes 2 s."""
_SECONDS: Final = 2.0
_BASE: Final = 6.0
"""Requests in flight that are 100 %: three quarters of a seat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong between two moments.

    Attributes:
        begin, end: seconds.
        signals: what the law is told of a load; None: nothing is wrong with it.
        metric: what an HPA reads of a demand; None where it reads nothing.
        reports: whether KPA's reports arrive.
        starts: whether what begins to start ever gets ready before the end.
    """

    begin: float
    end: float
    signals: Callable[[Load, Load], Load] | None = None
    metric: Callable[[float], float | None] = lambda demand: demand
    reports: bool = True
    starts: bool = True

    def holds(self, now: float) -> bool:
        """Whether it is on."""
        return self.begin <= now < self.end

    def fails_starts(self, now: float) -> bool:
        """Whether what begins to start now doesn't get ready before the end."""
        return not self.starts and self.holds(now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """One golden trace.

    Attributes:
        name: its file's name.
        about: what it is, in a sentence.
        make: makes the requests.
        floor: residents that serve at least.
        slots: requests that a seat may have in flight.
        start: seconds that a seat takes to start.
        fault: what is wrong, if anything is.
    """

    name: str
    about: str
    make: Callable[[], Trace]
    floor: int = FLOOR
    slots: int = SLOTS
    start: float = START_SECONDS
    fault: Fault | None = None


def _load(name: str, seconds: float, share: Callable[[float], float]) -> Callable[[], Trace]:
    """Return what makes a trace of so many percent (as a share) of the base load."""
    return lambda: synthetic(name, lambda at: share(at) * _BASE / _SECONDS, seconds, _PROMPT, 0)


def _between(begin: float, end: float, high: float) -> Callable[[float], float]:
    return lambda at: high if begin <= at < end else 1.0


def _ramp(at: float) -> float:
    return 1.0 + 7.0 * min(1.0, max(0.0, (at - 60.0) / 240.0))


def _sawtooth(at: float) -> float:
    return 0.5 + 4.0 * (at % 90.0) / 90.0


def _day() -> Trace:
    """Return a day in a quarter of an hour, with noise of its own in each second."""
    chance = random.Random(7)
    noise = [chance.gauss(1.0, 0.35) for _ in range(900)]

    def share(at: float) -> float:
        return max(0.0, (2.5 - 2.0 * math.cos(2.0 * math.pi * at / 900.0)) * noise[int(at) % 900])

    return synthetic("diurnal", lambda at: share(at) * _BASE / _SECONDS, 900.0, _PROMPT, 0)


def _hour() -> Trace:
    one = _load("idle", 1.0, lambda _: _SECONDS / _BASE)().arrivals
    return Trace("idle", tuple(a._replace(at=3600.0) for a in one[:1]), 3700.0)


def _silence(load: Load, before: Load) -> Load:
    del load, before
    return Load()


def _half_stale(load: Load, before: Load) -> Load:
    """Return the engines' sum of which one half is as it was when its last reports came."""
    now, then = load.engines.value, before.engines.value
    return Load(engines=Reading(value=(now + then) / 2.0, age=30.0, quality=Quality.STALE))


def engines_only(load: Load) -> Load:
    """Return what the engines alone say of a load: running and waiting together, and no queue."""
    demand = load.queued.value + load.in_flight.value
    engines = Reading(value=demand, age=0.0, quality=Quality.FRESH)
    return Load(engines=engines, completions=load.completions)


GOLDEN: Final[Sequence[Golden]] = (
    Golden(name="flat", about="Three quarters of a seat, always.", make=_load("flat", 600.0, lambda _: 1.0)),
    Golden(name="ramp", about="From 100 % to 800 % within four minutes.", make=_load("ramp", 600.0, _ramp)),
    Golden(
        name="step-300",
        about="300 % for five minutes.",
        make=_load("step-300", 900.0, _between(60.0, 360.0, 3.0)),
    ),
    Golden(
        name="step-1000",
        about="1000 % for five minutes: more than the spares carry.",
        make=_load("step-1000", 900.0, _between(60.0, 360.0, 10.0)),
    ),
    Golden(
        name="spike", about="500 % for five seconds.", make=_load("spike", 600.0, _between(60.0, 65.0, 5.0))
    ),
    Golden(
        name="sawtooth",
        about="From 50 % to 450 % within 90 seconds, and again.",
        make=_load("sawtooth", 720.0, _sawtooth),
    ),
    Golden(name="diurnal", about="A day in a quarter of an hour, 50 % to 450 %, with noise.", make=_day),
    Golden(
        name="idle",
        about="Nothing for an hour, then one request; nothing needs to serve.",
        make=_hour,
        floor=0,
    ),
    Golden(
        name="signals-gone",
        about="300 % for five minutes; 20 s into it all signals are gone for two minutes.",
        make=_load("signals-gone", 900.0, _between(60.0, 360.0, 3.0)),
        fault=Fault(begin=80.0, end=200.0, signals=_silence, metric=lambda _: None, reports=False),
    ),
    Golden(
        name="half-stale",
        about="300 % all the time, engines' metrics alone; those of one half stop for seven minutes.",
        make=_load("half-stale", 900.0, lambda _: 3.0),
        fault=Fault(begin=120.0, end=540.0, signals=_half_stale, metric=lambda demand: demand / 2.0),
    ),
    Golden(
        name="slow-start",
        about="1000 % for ten minutes, and a seat takes five minutes to start.",
        make=_load("slow-start", 1200.0, _between(60.0, 660.0, 10.0)),
        start=300.0,
    ),
    Golden(
        name="failing-starts",
        about="600 % for ten minutes; what begins to start in the first six never gets ready.",
        make=_load("failing-starts", 1200.0, _between(60.0, 660.0, 6.0)),
        fault=Fault(begin=0.0, end=360.0, starts=False),
    ),
    Golden(
        name="coding",
        about="The real arrivals of a coding assistant, 32 in flight a seat.",
        make=lambda: read(CODING),
        slots=32,
    ),
    Golden(
        name="chat",
        about="The real arrivals of a chat, 32 in flight a seat.",
        make=lambda: read(CHAT),
        slots=32,
    ),
)
"""All of them; `golden` runs them."""

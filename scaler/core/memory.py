"""What one decision hands to the next: everything that the law knows of the past, in one immutable value.

Each policy and each fleet has its own part, keyed by name; nothing is shared between them. A restart loses all of it,
and `Memory.initial` is built so that this shrinks nothing: every policy begins in burst, and every fleet's first
total is the one that it is found with.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, Self, TypeVar

from scaler.core.model import FleetView
from scaler.core.pace import Changes, Minima
from scaler.core.rises import Rises
from scaler.core.values import frozen
from scaler.core.windows import Maxima, Ring, Starts
from scaler.core.wishes import Wishes
from warmpool.seats import FleetName, PolicyName

_Name = TypeVar("_Name", PolicyName, FleetName)
_Value = TypeVar("_Value")


@frozen()
class BurstState:
    """A burst that is on.

    Attributes:
        since: when it began.
        calm_since: since when fresh readings have been below every threshold without a gap; None while they are not.
        restarted: it began because the law had no past, and not because of demand.
    """

    since: float
    calm_since: float | None = None
    restarted: bool = False


class Seen(NamedTuple):
    """When each part of the demand was last known; −infinity for never."""

    queued: float = -math.inf
    in_flight: float = -math.inf
    engines: float = -math.inf
    backlog: float = -math.inf


NEVER_SEEN = Seen()
seen_of: Callable[[tuple[float, float, float, float]], Seen] = partial(tuple.__new__, Seen)
"""Makes these times in half of the time that calling their class takes; `service_of` does the same."""


class Service(NamedTuple):
    """How requests come and how long they take: plain means until their window is full, exponential ones from then on.

    Attributes:
        completions: requests finished per second, over minutes in which something was in flight.
        busy: requests in flight, over the same time.
        seconds: how long that was.
        present: requests in flight at the last look.
        arrivals: requests that came per second, over the stable window.
        heard: seconds over which arrivals were told.
    """

    completions: float
    busy: float
    seconds: float = 0.0
    present: float = 0.0
    arrivals: float = 0.0
    heard: float = 0.0

    @property
    def rate(self) -> float:
        """Requests per second that one busy slot finishes: 1 / mean time in service (Little: L = λW)."""
        return self.completions / self.busy if self.busy > 0 else 0.0


service_of: Callable[[tuple[float, float, float, float, float, float]], Service] = partial(
    tuple.__new__, Service
)


class Coming(NamedTuple):
    """Residents that are being promoted.

    Attributes:
        at: when they are expected to be in rotation.
        capacity: requests in flight that they will hold.
    """

    at: float
    capacity: float


class Start(NamedTuple):
    """The attempt of a policy of which nothing is up to start a resident.

    Attributes:
        since: when it first had a seat for that.
        seats: seats that it has for it now.
    """

    since: float
    seats: int


class Order(NamedTuple):
    """A need for seats that don't exist.

    Attributes:
        since: when it began.
        capacity: what new seats are made for: the most that was needed in its first burst window, and what the fluid model
            has said beyond that since.
        there: capacity that there was when it began.
    """

    since: float
    capacity: float
    there: float = 0.0


@frozen()
class PolicyMemory:
    """What the law remembers of one policy.

    Attributes:
        burst: the burst that is on, or None.
        fresh_at: when demand was last fresh (at the start: the start).
        observed_at: when `service` was last brought up to date.
        fed_since: when it last went from no seat to some.
        ring: demand over the stable window.
        holding: the last decision was a Hold.
        seen: when each part of the demand was last known.
        service: how requests come and how long they take; None until measured.
        coming: residents on their way and when they are expected to be ready, soonest first.
        order: the need for seats that don't exist; None if there is none.
        start: the attempt to start a resident while none is up; None if there is none.
        needed: capacity that the last decision asked for; None before the first.
        wanted: residents that the last decision wanted, per fleet.
        given: residents that the last decision gave, per fleet.
        kept: those of them that served only out of caution when demand was last fresh, per fleet.
        asked: seats asked for over the demote window, per fleet.
        starving_since: since when it has needed seats and got none; None if it has some or needs none.
        arrived_at: when it was in rotation first after it was fed; None before.
    """

    burst: BurstState | None
    fresh_at: float
    observed_at: float
    fed_since: float
    ring: Ring = field(default_factory=Ring)
    holding: bool = False
    seen: Seen = NEVER_SEEN
    service: Service | None = None
    coming: tuple[Coming, ...] = ()
    order: Order | None = None
    start: Start | None = None
    needed: float | None = None
    wanted: Mapping[FleetName, int] = field(default_factory=lambda: MappingProxyType({}))
    given: Mapping[FleetName, int] = field(default_factory=lambda: MappingProxyType({}))
    kept: Mapping[FleetName, int] = field(default_factory=lambda: MappingProxyType({}))
    asked: Mapping[FleetName, Maxima] = field(default_factory=lambda: MappingProxyType({}))
    starving_since: float | None = None
    arrived_at: float | None = None

    @classmethod
    def initial(cls, now: float) -> Self:
        """Return the memory of a policy that is seen for the first time."""
        return cls(
            burst=BurstState(since=now, restarted=True),
            fresh_at=now,
            observed_at=now,
            fed_since=now,
        )


@frozen()
class FleetMemory:
    """What the law remembers of one fleet.

    Attributes:
        view: what it was last seen to be made of; stands in while a snapshot lacks the fleet.
        total: the last total.
        filled: it has reached its target once; until then `per_minute` does not slow it.
        totals: totals that were asked for over the scale-down window.
        lows: totals that were asked for over the scale-up window.
        changes: how the total changed, for the rates.
        starts: seats started over the last minute.
        rises: how fast demand has risen; empty where the spares don't follow it.
        wishes: what others wish of its size; empty where nobody else writes it.
        going: seats that go once they are lent no more, and so aren't lent again.
    """

    view: FleetView
    total: int
    filled: bool
    totals: Maxima
    lows: Minima = field(default_factory=Minima)
    changes: Changes = field(default_factory=Changes)
    starts: Starts = field(default_factory=Starts)
    rises: Rises = field(default_factory=Rises)
    wishes: Wishes = field(default_factory=Wishes)
    going: int = 0


@frozen()
class Memory:
    """Everything that one decision hands to the next.

    Attributes:
        at: time of the last decision; time never goes back behind it.
        policies: per policy.
        fleets: per fleet.
        learned: how fast demand rose before a restart, per fleet that hasn't been seen since.
    """

    at: float
    policies: Mapping[PolicyName, PolicyMemory] = field(default_factory=lambda: MappingProxyType({}))
    fleets: Mapping[FleetName, FleetMemory] = field(default_factory=lambda: MappingProxyType({}))
    learned: Mapping[FleetName, Rises] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def initial(cls, now: float, learned: Mapping[FleetName, Rises] | None = None) -> Self:
        """Return the memory of a law that has just started.

        Args:
            now: monotonic seconds.
            learned: how fast demand rose before a restart, per fleet, in the time of the clock that runs now.
        """
        return cls(at=now if math.isfinite(now) else 0.0, learned=learned or MappingProxyType({}))

    def joined(self, *parts: "Memory") -> "Memory":
        """Return what is known when parts of all policies and fleets were decided anew.

        Args:
            parts: what those decisions handed on; each has the last word of what it has.
        """
        policies, fleets, learned = dict(self.policies), dict(self.fleets), dict(self.learned)
        for part in parts:
            policies |= part.policies
            fleets |= part.fleets
            learned |= part.learned
        return Memory(
            at=max([self.at, *[part.at for part in parts]]),
            policies=policies,
            fleets=fleets,
            learned={n: rises for n, rises in learned.items() if n not in fleets},
        )

    def without(self, policies: Collection[PolicyName], fleets: Collection[FleetName]) -> "Memory":
        """Return what is known of all others."""
        return self.part(
            self.policies.keys() - set(policies), (self.fleets.keys() | self.learned) - set(fleets)
        )

    def part(self, policies: Iterable[PolicyName], fleets: Iterable[FleetName]) -> "Memory":
        """Return what is known of these and of nothing else."""
        names = frozenset(fleets)
        return Memory(
            at=self.at,
            policies=_those(self.policies, policies),
            fleets=_those(self.fleets, names),
            learned=_those(self.learned, names),
        )


def _those(known: Mapping[_Name, _Value], names: Iterable[_Name]) -> Mapping[_Name, _Value]:
    return {name: known[name] for name in names if name in known}

"""What was decided last, as KEDA may ask for it: immutable, bounded by the policies in force, swapped as a whole.

Whoever answers reads `Board.current` once and has figures of one moment, value and activity alike.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from scaler.core.model import FallbackBehavior
from scaler.keda.trigger import Subject


class Named(NamedTuple):
    """A fleet or a policy."""

    subject: Subject
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFigures:
    """What a decision says of a fleet, in seats.

    Attributes:
        at: monotonic seconds of the decision.
        total: what its workload shall have.
        serving: those that serve or shall.
        spare: the spare target.
        fallback: the least that is answered for the total once the decision is stale.
    """

    at: float
    total: int
    serving: int
    spare: int
    fallback: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFigures:
    """What a decision says of a policy, and what its signals said.

    Attributes:
        at: monotonic seconds of the decision.
        serving: its residents that serve or shall.
        promoting: those on their way into rotation.
        queued: requests that gateways hold; None while unknown.
        oldest_wait: seconds that the oldest of those has waited; None while unknown.
        fallback: what its residents are taken for once the decision is stale.
        fallback_serving: the residents that `fallback` speaks of.
    """

    at: float
    serving: int
    promoting: int = 0
    queued: float | None = None
    oldest_wait: float | None = None
    fallback: FallbackBehavior = FallbackBehavior.CURRENT_REPLICAS_IF_HIGHER
    fallback_serving: int = 0


Names = Mapping[str, str]
"""Namespaces by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What is known at one moment.

    Attributes:
        names: the fleets and policies in force, with their namespaces.
        fleets: figures of those in force that have been decided for, and of no others.
        policies: likewise.
    """

    names: Mapping[Subject, Names] = field(default_factory=lambda: MappingProxyType({}))
    fleets: Mapping[str, FleetFigures] = field(default_factory=lambda: MappingProxyType({}))
    policies: Mapping[str, PolicyFigures] = field(default_factory=lambda: MappingProxyType({}))


NOTHING: Final = Published()

Listener = Callable[[Collection[Named]], None]


class Board:
    """Where decisions are put up for KEDA.

    Attributes:
        current: what is known now.
    """

    def __init__(self) -> None:
        self.current = NOTHING
        self._listeners: list[Listener] = []

    @property
    def decided(self) -> bool:
        """Whether anything has been decided that can be asked for."""
        return bool(self.current.fleets or self.current.policies)

    @property
    def watched(self) -> bool:
        """Whether anybody is told of what is put up."""
        return bool(self._listeners)

    def follow(self, fleets: Names, policies: Names) -> None:
        """Take the names of the policies in force; figures of others are dropped."""
        before = self.current
        self.current = Published(
            names=MappingProxyType({Subject.FLEET: fleets, Subject.POLICY: policies}),
            fleets=MappingProxyType({n: f for n, f in before.fleets.items() if n in fleets}),
            policies=MappingProxyType({n: f for n, f in before.policies.items() if n in policies}),
        )
        gone = [Named(Subject.FLEET, name) for name in before.fleets.keys() - fleets.keys()]
        gone += [Named(Subject.POLICY, name) for name in before.policies.keys() - policies.keys()]
        self._tell(gone)

    def publish(self, fleets: Mapping[str, FleetFigures], policies: Mapping[str, PolicyFigures]) -> None:
        """Put up what was decided; of fleets and policies that aren't given the last figures stay.

        Those that aren't in force are left out: the last tick of a set may come after its end.
        """
        known = self.current.names
        fleets = {name: each for name, each in fleets.items() if name in known.get(Subject.FLEET, ())}
        policies = {name: each for name, each in policies.items() if name in known.get(Subject.POLICY, ())}
        self.current = replace(
            self.current,
            fleets=MappingProxyType({**self.current.fleets, **fleets}),
            policies=MappingProxyType({**self.current.policies, **policies}),
        )
        changed = [Named(Subject.FLEET, name) for name in fleets]
        changed += [Named(Subject.POLICY, name) for name in policies]
        self._tell(changed)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with what has new figures, or none any more; it must not block. Returns the end of that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _tell(self, changed: Collection[Named]) -> None:
        for listener in list(self._listeners):
            listener(changed)

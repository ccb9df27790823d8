"""What is looked at: a set, the assumptions, the time; and the questions that several checks ask of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from scaler.policy.compile import PolicySet
from scaler.policy.fleet import Fleet, KvWhenPaused
from scaler.policy.floors import floors
from scaler.policy.lint.assumptions import Assumptions
from scaler.policy.lint.manifests import PodTemplate
from scaler.policy.residents import SeatResident
from scaler.policy.scaling_policy import FleetShare, ScalingPolicy
from warmpool.seats import FleetName


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is looked at.

    Attributes:
        policies: the set.
        now: the time, with a time zone; what has expired is told by it.
        assumptions: what enters the arithmetic beside the set.
        templates: the pod templates that are known.
    """

    policies: PolicySet
    now: datetime
    assumptions: Assumptions = field(default_factory=Assumptions)
    templates: tuple[PodTemplate, ...] = ()

    def fleet(self, name: str) -> Fleet:
        """Return a fleet by its name."""
        return self.policies.fleets[FleetName(name)]

    def fleets_of(self, policy: ScalingPolicy) -> list[Fleet]:
        """List the fleets that a policy may serve on, in its order."""
        return [self.fleet(share.name) for share in policy.spec.fleets]

    def policies_on(self, fleet: Fleet) -> tuple[ScalingPolicy, ...]:
        """List the policies that may serve on a fleet: each has a resident on every seat of it."""
        return self._on[fleet.metadata.name]

    def shares_on(self, fleet: Fleet) -> Iterator[tuple[ScalingPolicy, int, FleetShare]]:
        """Yield the policies on a fleet with their entry for it and its index."""
        for policy in self.policies_on(fleet):
            for index, share in enumerate(policy.spec.fleets):
                if share.name == fleet.metadata.name:
                    yield policy, index, share

    @cached_property
    def _floors(self) -> Mapping[FleetName, int]:
        return floors(self.policies)

    @cached_property
    def _on(self) -> Mapping[str, tuple[ScalingPolicy, ...]]:
        return {
            name: tuple(self.policies.policies[each] for each in self.policies.policies_on(name))
            for name in self.policies.fleets
        }

    def floor_on(self, fleet: Fleet) -> int:
        """Return the residents that always serve on a fleet."""
        return self._floors[FleetName(fleet.metadata.name)]

    def residents_on(self, fleet: Fleet) -> tuple[SeatResident, ...] | None:
        """Return the residents that a fleet's pod template lists; None where no template of it is known."""
        listed = (each.residents for each in self.templates if each.belongs_to(fleet))
        return next((residents for residents in listed if residents is not None), None)

    def releases(self, fleet: Fleet) -> bool:
        """Whether a paused resident of the fleet gives back its KV memory."""
        written = fleet.spec.seat.kv_when_paused
        if written is not None:
            return written is KvWhenPaused.RELEASE
        listed = self.residents_on(fleet)
        return len(self.policies_on(fleet) if listed is None else listed) > 1

    def memory_mib(self, fleet: Fleet) -> int | None:
        """Return the memory of one seat's GPUs; None where nobody said."""
        return fleet.spec.seat.memory_mib or self.assumptions.seat_memory_mib


def highest_floor(policy: ScalingPolicy) -> int:
    """Return the most residents that a policy's floors ever ask for."""
    return max(policy.spec.serving.min, *(each.min_serving for each in policy.spec.schedules), 0)


def most_serving(subject: Subject, policy: ScalingPolicy) -> int:
    """Return the residents that can ever serve: `serving.max`, or less where the fleets have no seats for more.

    What floors of other policies always hold on the same fleets is taken off.
    """
    seats = sum(fleet.spec.max_seats for fleet in subject.fleets_of(policy))
    room = max(0, seats - sum(floor for _, floor in others_floors(subject, policy)))
    most = policy.spec.serving.max
    return room if most is None else min(room, most)


def others_floors(subject: Subject, policy: ScalingPolicy) -> list[tuple[ScalingPolicy, int]]:
    """List the other policies whose floors have no seats but those of this policy's fleets."""
    ours = {share.name for share in policy.spec.fleets}
    near = {
        other.metadata.name: other
        for fleet in subject.fleets_of(policy)
        for other in subject.policies_on(fleet)
    }
    return [
        (other, other.spec.serving.min)
        for other in near.values()
        if other is not policy
        and other.spec.serving.min
        and ours.issuperset(share.name for share in other.spec.fleets)
    ]

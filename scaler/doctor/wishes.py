"""What policies want of a cluster, as far as a check needs it: from policy files, or from what the controller tells. PURE."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from scaler.doctor.objects import Json, listed, text, whole
from scaler.keda.findings import Intent
from scaler.keda.intent import intent_of
from scaler.policy.compile import PolicySet
from scaler.policy.fleet import ResizedBy
from warmpool.seats import FleetName


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The workload of a fleet."""

    group: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetWish:
    """What is wanted of a fleet; None where whoever told it doesn't say.

    Attributes:
        name: its name.
        policies: those that may serve there.
        namespace: where its workload is.
        target: its workload.
        resized_by: who writes its size.
        max_seats: seats at most.
        gpus: GPUs of one seat.
        spare_min: spare seats at least.
        intent: what it wants of a ScaledObject.
    """

    name: str
    policies: tuple[str, ...] = ()
    namespace: str | None = None
    target: Target | None = None
    resized_by: ResizedBy | None = None
    max_seats: int | None = None
    gpus: int | None = None
    spare_min: int | None = None
    intent: Intent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyWish:
    """What is wanted of a policy.

    Attributes:
        name: its name.
        port: where its residents are reached; None where nobody says.
        serving_min: residents that always serve.
    """

    name: str
    port: int | None = None
    serving_min: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """All of it.

    Attributes:
        source: who tells it, in words.
        fleets: all of them; two namespaces may have one of the same name.
        policies: by name.
    """

    source: str
    fleets: tuple[FleetWish, ...] = ()
    policies: Mapping[str, PolicyWish] = field(default_factory=lambda: MappingProxyType({}))

    def fleet(self, namespace: str, name: str) -> FleetWish | None:
        """Return what is wanted of a fleet; None where nobody knows it."""
        named = [each for each in self.fleets if each.name == name]
        return next((each for each in named if each.namespace in {None, namespace}), None)


def of_set(policies: PolicySet, source: str) -> Wishes:
    """Return what policy files want."""
    return Wishes(
        source=source,
        fleets=tuple(_fleet(policies, name) for name in policies.fleets),
        policies={
            str(name): PolicyWish(
                name=str(name), port=policy.spec.engine.port, serving_min=policy.spec.serving.min
            )
            for name, policy in policies.policies.items()
        },
    )


def _fleet(policies: PolicySet, name: FleetName) -> FleetWish:
    fleet = policies.fleets[name]
    namespace, group, kind, workload = fleet.target
    return FleetWish(
        name=str(name),
        policies=tuple(str(each) for each in policies.policies_on(name)),
        namespace=namespace,
        target=Target(group=group, kind=kind, name=workload),
        resized_by=fleet.spec.resized_by,
        max_seats=fleet.spec.max_seats,
        gpus=fleet.spec.seat.gpus,
        spare_min=fleet.spec.spare.min,
        intent=intent_of(policies, str(name)),
    )


def of_controller(fleets: Iterable[Json], policies: Iterable[Json]) -> Wishes:
    """Return what the controller tells of its fleets and policies."""
    return Wishes(
        source="the controller",
        fleets=tuple(
            FleetWish(
                name=text(each, "name"),
                policies=tuple(str(name) for name in listed(each, "policies")),
                namespace=text(each, "namespace") or None,
                max_seats=whole(each, "maxSeats"),
            )
            for each in fleets
        ),
        policies={text(each, "name"): PolicyWish(name=text(each, "name")) for each in policies},
    )

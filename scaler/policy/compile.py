"""From documents to the values of the law: one consistent set, or all that is wrong with it.

The only place where the file formats' integers become the core's floats, and where documents are held against each
other: names, model claims, and whether floors and spares find room.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from scaler.core import model as core
from scaler.errors import PolicyError, PolicyFault
from scaler.policy.base import Envelope
from scaler.policy.document import Document, load_documents
from scaler.policy.models import Fleet, FleetMode, ScalingPolicy
from scaler.policy.source import model_for, validate
from scaler.policy.wording import did_you_mean
from warmpool.seats import FleetName, PolicyName

KINDS: Final[Mapping[str, type[Envelope]]] = MappingProxyType(
    {"Fleet": Fleet, "ScalingPolicy": ScalingPolicy}
)
"""The kinds of documents that make up a set."""

_SHORT_HASH = 12  # hexadecimal digits; enough to tell apart all sets that anyone ever compares


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet:
    """All fleets and policies that are in force together.

    Attributes:
        fleets: what was written, by fleet name, in the order of the files.
        policies: what was written, by policy name, in the order of the files.
        fleet_specs: what the law reads, by fleet name.
        policy_specs: what the law reads, by policy name.
        hash: sha256 of the canonical form: equal for files that mean the same.
    """

    fleets: Mapping[FleetName, Fleet]
    policies: Mapping[PolicyName, ScalingPolicy]
    fleet_specs: Mapping[FleetName, core.FleetSpec]
    policy_specs: Mapping[PolicyName, core.PolicySpec]
    hash: str

    @property
    def short_hash(self) -> str:
        """The hash as people see it."""
        return self.hash[:_SHORT_HASH]

    def policy_of(self, model: str) -> PolicyName | None:
        """Return the policy that a model name in a request belongs to, or None."""
        for name, policy in self.policies.items():
            if model in policy.models:
                return name
        return None

    def policies_on(self, fleet: FleetName) -> list[PolicyName]:
        """List the policies that may serve on a fleet, the most important first."""
        names = [name for name, spec in self.policy_specs.items() if fleet in {s.fleet for s in spec.fleets}]
        return sorted(names, key=lambda name: (-self.policy_specs[name].priority, name))


def load_policies(paths: Sequence[Path]) -> PolicySet:
    """Read, check and compile policy files and directories.

    Raises:
        PolicyError: with all faults that were found.
    """
    return compile_set(load_documents(paths))


def compile_set(documents: Sequence[Document]) -> PolicySet:
    """Check documents one by one and against each other, and compile them.

    Raises:
        PolicyError: with all faults. Rules between documents are looked at once each document is right by itself.
    """
    faults: list[PolicyFault] = []
    fleets: list[tuple[Document, Fleet]] = []
    policies: list[tuple[Document, ScalingPolicy]] = []
    for document in documents:
        try:
            checked = validate(model_for(KINDS, document), document)
        except PolicyError as error:
            faults += error.faults
            continue
        if isinstance(checked, Fleet):
            fleets.append((document, checked))
        elif isinstance(checked, ScalingPolicy):
            policies.append((document, checked))
    if not faults:
        faults += _rules_between(fleets, policies)
    if faults:
        raise PolicyError(tuple(faults))
    return build_set([fleet for _, fleet in fleets], [policy for _, policy in policies])


def build_set(fleets: Sequence[Fleet], policies: Sequence[ScalingPolicy]) -> PolicySet:
    """Compile models that are already known to be consistent."""
    return PolicySet(
        fleets=MappingProxyType({FleetName(fleet.metadata.name): fleet for fleet in fleets}),
        policies=MappingProxyType({PolicyName(policy.metadata.name): policy for policy in policies}),
        fleet_specs=MappingProxyType({FleetName(fleet.metadata.name): fleet_spec(fleet) for fleet in fleets}),
        policy_specs=MappingProxyType(
            {PolicyName(policy.metadata.name): policy_spec(policy) for policy in policies}
        ),
        hash=_hash([*fleets, *policies]),
    )


def fleet_spec(fleet: Fleet) -> core.FleetSpec:
    """Compile a fleet to what the law reads."""
    spec = fleet.spec
    return core.FleetSpec(
        name=FleetName(fleet.metadata.name),
        max_seats=spec.max_seats,
        spare_target=spec.spare.min,
        replenish=core.Replenish(
            max_concurrent=spec.spare.replenish.max_concurrent, per_minute=spec.spare.replenish.per_minute
        ),
        scale_down_window=float(spec.scale_down.stabilization_window_seconds),
        observe=spec.mode is FleetMode.OBSERVE,
    )


def policy_spec(policy: ScalingPolicy) -> core.PolicySpec:
    """Compile a policy to what the law reads."""
    spec = policy.spec
    bounds = {} if spec.serving.max is None else {"serving_max": spec.serving.max}
    return core.PolicySpec(
        name=PolicyName(policy.metadata.name),
        fleets=tuple(
            core.FleetShare(fleet=FleetName(share.name), target_in_flight=share.target_in_flight)
            for share in spec.fleets
        ),
        priority=spec.priority,
        serving_min=spec.serving.min,
        ttft_objective=spec.objectives.ttft.limit_seconds,
        queue_drain=float(spec.serving.queue_drain_seconds),
        burst=core.Burst(
            threshold=spec.burst.threshold_percent / 100,
            window=float(spec.burst.window_seconds),
            stable_window=float(spec.burst.stable_window_seconds),
            demote_after=float(spec.burst.demote_after_seconds),
        ),
        failure_threshold=spec.fallback.failure_threshold,
        fallback_serving=spec.fallback.replicas,
        **bounds,
    )


def _hash(objects: Sequence[Envelope]) -> str:
    """Hash what was meant: defaults filled in, keys and objects sorted."""
    trees = [item.model_dump(mode="json", by_alias=True) for item in objects]
    trees.sort(key=lambda tree: (tree["kind"], tree["metadata"]["name"]))
    canonical = json.dumps(trees, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


# ------------------------------------------------------------------ rules between documents


def _rules_between(
    fleets: Sequence[tuple[Document, Fleet]], policies: Sequence[tuple[Document, ScalingPolicy]]
) -> Iterator[PolicyFault]:
    repeated = [*_repeated_names(fleets), *_repeated_names(policies)]
    yield from repeated
    by_name = {fleet.metadata.name: (document, fleet) for document, fleet in fleets}
    unknown = [fault for document, policy in policies for fault in _unknown_fleets(document, policy, by_name)]
    yield from unknown
    yield from _models_claimed_twice(policies)
    if not repeated and not unknown:
        yield from _no_room(by_name, policies)


def _repeated_names(objects: Sequence[tuple[Document, Envelope]]) -> Iterator[PolicyFault]:
    first: dict[str, Document] = {}
    for document, item in objects:
        name = item.metadata.name
        if name in first:
            message = (
                f"the {item.kind} {name} is already defined in {_place(first[name], 'metadata', 'name')}"
            )
            yield document.fault(("metadata", "name"), message, "rename or remove one of the two")
        first.setdefault(name, document)


def _place(document: Document, *path: str | int) -> str:
    return f"{document.file}:{document.position(path)[0]}"


def _unknown_fleets(
    document: Document, policy: ScalingPolicy, fleets: Mapping[str, tuple[Document, Fleet]]
) -> Iterator[PolicyFault]:
    for index, share in enumerate(policy.spec.fleets):
        path = ("spec", "fleets", index, "name")
        if share.name not in fleets:
            known = f"known fleets: {', '.join(fleets)}" if fleets else "add a document of kind Fleet"
            hint = did_you_mean(share.name, fleets) or known
            yield document.fault(path, f"there is no fleet {share.name}", hint)
            continue
        theirs, ours = fleets[share.name][1].metadata.namespace, policy.metadata.namespace
        if theirs != ours:
            message = f"fleet {share.name} is in namespace {theirs}, this policy in {ours}"
            yield document.fault(path, message, "a policy and its fleets share one namespace")


def _models_claimed_twice(policies: Sequence[tuple[Document, ScalingPolicy]]) -> Iterator[PolicyFault]:
    first: dict[str, tuple[Document, ScalingPolicy]] = {}
    for document, policy in policies:
        for index, model in enumerate(policy.models):
            path = ("metadata", "name") if policy.spec.models is None else ("spec", "models", index)
            if model in first and first[model][1].metadata.name != policy.metadata.name:
                other = first[model][1].metadata.name
                message = f"the model name {model} belongs to policy {other} already"
                yield document.fault(
                    path, message, f"list it in one policy; see {_place(first[model][0], 'metadata', 'name')}"
                )
            first.setdefault(model, (document, policy))


def _no_room(
    fleets: Mapping[str, tuple[Document, Fleet]], policies: Sequence[tuple[Document, ScalingPolicy]]
) -> Iterator[PolicyFault]:
    """Find sets of fleets that can't hold the floors that only they can hold, with their spares beside them.

    The sets looked at are those that some policy names: a floor that finds no room anywhere shows up in its own.
    """
    seen: set[frozenset[str]] = set()
    for document, policy in policies:
        names = frozenset(share.name for share in policy.spec.fleets)
        if names in seen:
            continue
        seen.add(names)
        confined = [other for _, other in policies if {share.name for share in other.spec.fleets} <= names]
        chosen = [fleets[share.name][1] for share in policy.spec.fleets]
        floors = [(f"{other.metadata.name} serving.min", other.spec.serving.min) for other in confined]
        spares = [(f"{fleet.metadata.name} spare.min", fleet.spec.spare.min) for fleet in chosen]
        terms = [(what, number) for what, number in (*floors, *spares) if number]
        needed = sum(number for _, number in terms)
        room = sum(fleet.spec.max_seats for fleet in chosen)
        if needed <= room or not any(number for _, number in floors):
            continue
        arithmetic = " + ".join(f"{number} ({what})" for what, number in terms)
        limit = " + ".join(f"{fleet.spec.max_seats} ({fleet.metadata.name} maxSeats)" for fleet in chosen)
        message = f"floors and spares need {arithmetic} = {needed} seats, but there are at most {limit}"
        message += f" = {room}" if len(chosen) > 1 else ""
        hint = "raise maxSeats, or lower serving.min or spare.min"
        if len(chosen) == 1:
            yield fleets[chosen[0].metadata.name][0].fault(("spec", "maxSeats"), message, hint)
        else:
            yield document.fault(("spec", "serving", "min"), message, hint)

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
from scaler.policy.between import Judged, faults_between
from scaler.policy.calendar import Calendar
from scaler.policy.document import Contents, Document, load_contents
from scaler.policy.files import in_file_order
from scaler.policy.fleet import (
    Fleet,
    FleetMode,
    FleetSpec,
    HealthMode,
    HealthScope,
    ResizedBy,
    RuleType,
    ScaleDown,
    ScaleUp,
    SpareMode,
)
from scaler.policy.scaling_policy import OnReclaim, ScalingPolicy
from scaler.policy.settings import Controller
from scaler.policy.source import examine
from scaler.policy.unbuilt import NotActedOn, not_acted_on
from scaler.policy.xid_table import XidTable
from warmpool.nodehealth.breaker import BreakerLimits
from warmpool.nodehealth.others import Heeded
from warmpool.seats import FleetName, PolicyName

KINDS: Final[Mapping[str, type[Envelope]]] = MappingProxyType(
    {"Fleet": Fleet, "ScalingPolicy": ScalingPolicy, "Controller": Controller, "XidTable": XidTable}
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
        controller: limits over all fleets; None where no document sets them.
        xid_table: what error codes say of GPUs; None where no document says.
        calendar: what the clock says of the fleets and policies.
        hash: sha256 of the canonical form: equal for files that mean the same.
    """

    fleets: Mapping[FleetName, Fleet]
    policies: Mapping[PolicyName, ScalingPolicy]
    fleet_specs: Mapping[FleetName, core.FleetSpec]
    policy_specs: Mapping[PolicyName, core.PolicySpec]
    controller: Controller | None
    xid_table: XidTable | None
    calendar: Calendar
    hash: str

    @property
    def short_hash(self) -> str:
        """The hash as people see it."""
        return self.hash[:_SHORT_HASH]

    @property
    def settings(self) -> list[Envelope]:
        """What holds over all fleets, as far as a document says it."""
        return [item for item in (self.controller, self.xid_table) if item is not None]

    def not_acted_on(self) -> Iterator[tuple[str, str, NotActedOn]]:
        """Yield kind and name of whatever says something that this version doesn't act on, and what that is."""
        for item in (*self.fleets.values(), *self.policies.values(), *self.settings):
            written = item.model_dump(mode="json", by_alias=True, exclude_unset=True)
            for found in not_acted_on(written):
                yield item.kind, item.metadata.name, found

    @property
    def gpu_budget(self) -> int | None:
        """GPUs that all fleets together may have; None for no such limit."""
        return None if self.controller is None else self.controller.spec.gpu_budget

    @property
    def breaker(self) -> BreakerLimits:
        """How fast nodes may be excluded."""
        if self.controller is None:
            return BreakerLimits()
        written = self.controller.spec.breaker
        return BreakerLimits(
            max_percent=written.max_percent,
            at_least=written.at_least,
            at_most=written.at_most,
            window_seconds=float(written.window_seconds),
        )

    @property
    def heeded(self) -> Heeded:
        """What others say of nodes that counts."""
        if self.controller is None:
            return Heeded()
        written = self.controller.spec.heeds
        parts = [each.partition("=") for each in written.conditions]
        return Heeded(
            taints=frozenset(written.taints),
            conditions=MappingProxyType({kind: status or "True" for kind, _, status in parts}),
        )

    @property
    def health_observed(self) -> frozenset[FleetName]:
        """Fleets for which what is said of GPUs is shown and not acted on."""
        return frozenset(
            name for name, fleet in self.fleets.items() if fleet.spec.gpu_health.mode is HealthMode.OBSERVE
        )

    @property
    def gpus_apart(self) -> frozenset[FleetName]:
        """Fleets that want a Bad GPU excluded alone, and not its node."""
        return frozenset(
            name for name, fleet in self.fleets.items() if fleet.spec.gpu_health.scope is HealthScope.GPU
        )

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


@dataclass(frozen=True, slots=True)
class JudgedFile:
    """A file, and what its documents come to by themselves.

    Attributes:
        file: the file as it was named to us.
        judged: its documents, as far as they can be read.
        faults: what is wrong with the file itself.
        whole: whether each of its documents could be read.
    """

    file: str
    judged: Sequence[Judged]
    faults: Sequence[PolicyFault] = ()
    whole: bool = True


def load_policies(paths: Sequence[Path]) -> PolicySet:
    """Read, check and compile policy files and directories.

    Raises:
        PolicyError: with all faults that were found.
    """
    return compile_contents(load_contents(paths))


def compile_contents(contents: Sequence[Contents]) -> PolicySet:
    """Check what files hold, each document by itself and all against each other, and compile it.

    Raises:
        PolicyError: with all faults, in the order of the files.
    """
    return assemble([judge_file(each) for each in contents])


def compile_set(documents: Sequence[Document]) -> PolicySet:
    """Check documents one by one and against each other, and compile them.

    Raises:
        PolicyError: with all faults, in the order of the documents' files.
    """
    return assemble([JudgedFile(document.file, [judge(document)]) for document in documents])


def judge_file(contents: Contents) -> JudgedFile:
    """Check each document of a file by itself."""
    judged = [judge(document) for document in contents.documents]
    return JudgedFile(contents.file, judged, contents.faults, contents.whole)


def judge(document: Document) -> Judged:
    """Check one document by itself."""
    found = examine(KINDS, document)
    return Judged(document, found.model, found.faults)


def check(document: Document) -> Envelope:
    """Check one document by itself.

    Raises:
        PolicyError: with all its faults.
    """
    judged = judge(document)
    if judged.faults or judged.item is None:
        raise PolicyError(tuple(judged.faults))
    return judged.item


def assemble(files: Sequence[JudgedFile]) -> PolicySet:
    """Hold documents against each other, and compile them.

    Raises:
        PolicyError: with all that is wrong with the files, with documents by themselves, and between documents.
    """
    judged = [each for file in files for each in file.judged]
    faults = [fault for file in files for fault in file.faults]
    faults += (fault for each in judged for fault in each.faults)
    faults += faults_between(judged, whole=all(file.whole for file in files))
    if faults:
        raise PolicyError(in_file_order(faults, [file.file for file in files]))
    return build_set([each.item for each in judged if each.item is not None])


def build_set(items: Sequence[Envelope]) -> PolicySet:
    """Compile models that are already known to be consistent."""
    fleets = [item for item in items if isinstance(item, Fleet)]
    policies = [item for item in items if isinstance(item, ScalingPolicy)]
    return PolicySet(
        fleets=MappingProxyType({FleetName(fleet.metadata.name): fleet for fleet in fleets}),
        policies=MappingProxyType({PolicyName(policy.metadata.name): policy for policy in policies}),
        fleet_specs=MappingProxyType({FleetName(fleet.metadata.name): fleet_spec(fleet) for fleet in fleets}),
        policy_specs=MappingProxyType(
            {PolicyName(policy.metadata.name): policy_spec(policy) for policy in policies}
        ),
        controller=next((item for item in items if isinstance(item, Controller)), None),
        xid_table=next((item for item in items if isinstance(item, XidTable)), None),
        calendar=Calendar(fleets, policies),
        hash=_hash(items),
    )


def fleet_spec(fleet: Fleet) -> core.FleetSpec:
    """Compile a fleet to what the law reads."""
    spec = fleet.spec
    return core.FleetSpec(
        name=FleetName(fleet.metadata.name),
        max_seats=spec.max_seats,
        spare_target=spec.spare.min,
        auto_spare=_auto_spare(spec),
        replenish=core.Replenish(
            max_concurrent=spec.spare.replenish.max_concurrent, per_minute=spec.spare.replenish.per_minute
        ),
        scale_up=_pace(spec.scale_up),
        scale_down=_pace(spec.scale_down),
        gpus=spec.seat.gpus,
        resized=spec.resized_by is ResizedBy.EMBERPOOL,
        observe=spec.mode is FleetMode.OBSERVE,
    )


def _auto_spare(spec: FleetSpec) -> core.AutoSpare | None:
    spare = spec.spare
    if spare.mode is not SpareMode.AUTO:
        return None
    most = spec.max_seats if spare.max is None else spare.max
    return core.AutoSpare(quantile=spare.quantile, lookback=float(spare.lookback_seconds), most=most)


def _pace(behavior: ScaleUp | ScaleDown) -> core.Pace:
    return core.Pace(
        limits=tuple(
            core.ChangeLimit(
                value=rule.value, percent=rule.type is RuleType.PERCENT, period=float(rule.period_seconds)
            )
            for rule in behavior.policies
        ),
        select=core.Select(behavior.select_policy),
        tolerance=behavior.tolerance_percent / 100,
        window=float(behavior.stabilization_window_seconds),
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
        preemptible=spec.preemptible,
        ended_at_once=spec.preemptible and spec.on_reclaim is OnReclaim.ABORT,
        serving_min=spec.serving.min,
        ttft_objective=spec.objectives.ttft.limit_seconds,
        late_share=(100 - spec.objectives.ttft.percent) / 100,
        queue_drain=float(spec.serving.queue_drain_seconds),
        burst=core.Burst(
            threshold=spec.burst.threshold_percent / 100,
            window=float(spec.burst.window_seconds),
            stable_window=float(spec.burst.stable_window_seconds),
            demote_after=float(spec.burst.demote_after_seconds),
        ),
        failure_threshold=spec.fallback.failure_threshold,
        fallback=core.FallbackBehavior(spec.fallback.behavior),
        fallback_serving=spec.fallback.replicas,
        **bounds,
    )


def _hash(objects: Sequence[Envelope]) -> str:
    """Hash what was meant: defaults filled in, keys and objects sorted."""
    trees = [item.model_dump(mode="json", by_alias=True) for item in objects]
    trees.sort(key=lambda tree: (tree["kind"], tree["metadata"]["name"]))
    canonical = json.dumps(trees, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()

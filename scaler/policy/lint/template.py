"""Pod templates against the set: who lives on a seat, what the pod gets, and how long it has to start and to end."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from scaler.policy.document import look_up
from scaler.policy.fleet import Fleet
from scaler.policy.lint.assumptions import POD_DRAIN_SECONDS, STOP_SECONDS
from scaler.policy.lint.codes import Code
from scaler.policy.lint.findings import SEATS, SECONDS, Finding, Severity, Term
from scaler.policy.lint.manifests import PodTemplate
from scaler.policy.lint.resizing import starting
from scaler.policy.lint.subject import Subject
from scaler.policy.residents import RESIDENTS_ANNOTATION, SeatResident
from scaler.policy.template import ADMITTED_GATE
from warmpool.seats import FLEET_LABEL

_GPU: Final = re.compile(r"(nvidia|amd|intel)\.com/(gpu|mig-.*)|gpu\.intel\.com/.*")
"""Resources by which device plugins hand out GPUs."""
_DEFAULT_PROGRESS: Final = 600
"""`progressDeadlineSeconds` of a Deployment that doesn't say (Kubernetes, apps/v1 DeploymentSpec)."""
_DEFAULT_UNAVAILABLE: Final = "25%"
"""`rollingUpdate.maxUnavailable` of a Deployment that doesn't say (as above); a percentage is rounded down."""
_WRITES_IT: Final = "`emberpool fleet template` writes it"


def template_findings(subject: Subject) -> Iterator[Finding]:
    """Yield what is to be said of every pod template."""
    for template in subject.templates:
        fleets = [fleet for fleet in subject.policies.fleets.values() if template.belongs_to(fleet)]
        if not fleets:
            yield _of_no_fleet(template)
            continue
        yield from _label(template)
        yield from _residents(subject, template, fleets[0])
        yield from _gpus(template, fleets[0])
        yield from _grace(template)
        yield from _progress(subject, template, fleets[0])
        yield from _readiness(template)
        yield from _unavailable(template, fleets[0])


def _of_no_fleet(template: PodTemplate) -> Finding:
    name = template.fleet
    what = (
        f"its label names fleet {name}, which isn't in the set" if name else "it has no label that names one"
    )
    return Finding(
        code=Code.TEMPLATE_OF_NO_FLEET,
        severity=Severity.ERROR,
        place=template.place("metadata", "labels", FLEET_LABEL)
        if name
        else template.workload_place("metadata", "name"),
        message=f"belongs to no fleet: {what}, and none has it as its target",
        hint=f"set the pods' label {FLEET_LABEL}, or a fleet's spec.target",
    )


def _label(template: PodTemplate) -> Iterator[Finding]:
    if template.fleet is None:
        yield Finding(
            code=Code.FLEET_LABEL_MISSING,
            severity=Severity.ERROR,
            place=template.place("metadata"),
            message=f"the pods lack the label {FLEET_LABEL}, by which they are found",
            hint=_WRITES_IT,
        )


# ------------------------------------------------------------------ residents


def _residents(subject: Subject, template: PodTemplate, fleet: Fleet) -> Iterator[Finding]:
    if template.residents is None:
        yield Finding(
            code=Code.RESIDENTS_MISSING,
            severity=Severity.ERROR,
            place=template.place("metadata"),
            message=f"the annotation {RESIDENTS_ANNOTATION} is missing: its seats have no resident",
            hint=_WRITES_IT,
        )
        return
    listed = {each.policy for each in template.residents}
    for policy, index, _ in subject.shares_on(fleet):
        name = policy.metadata.name
        if name not in listed:
            yield Finding(
                code=Code.NOT_RESIDENT,
                severity=Severity.WARNING,
                place=template.place("metadata", "annotations", RESIDENTS_ANNOTATION),
                message=f"policy {name} names fleet {fleet.metadata.name} (fleets[{index}]), and its seats have no resident of it",
                hint="add the resident and roll out, or take the fleet out of the policy",
            )
    containers = {str(each.get("name")) for _, each in _all_containers(template)}
    for index, resident in enumerate(template.residents):
        yield from _resident(subject, template, fleet, index)
        if resident.container is not None and resident.container not in containers:
            yield Finding(
                code=Code.CONTAINER_MISSING,
                severity=Severity.ERROR,
                place=template.place("metadata", "annotations", RESIDENTS_ANNOTATION),
                message=f"[{index}].container: the pod has no container {resident.container}",
                hint=f"it has: {', '.join(sorted(containers))}",
            )


def _resident(subject: Subject, template: PodTemplate, fleet: Fleet, index: int) -> Iterator[Finding]:
    assert template.residents is not None
    resident = template.residents[index]
    place = template.place("metadata", "annotations", RESIDENTS_ANNOTATION)
    policy = next((each for name, each in subject.policies.policies.items() if name == resident.policy), None)
    if policy is None:
        yield Finding(
            code=Code.RESIDENT_UNKNOWN,
            severity=Severity.ERROR,
            place=place,
            message=f"[{index}].policy: there is no policy {resident.policy}; it holds GPU memory and is never promoted",
            hint="add the policy to the set, or roll out without the resident",
        )
        return
    if fleet.metadata.name not in {share.name for share in policy.spec.fleets}:
        yield Finding(
            code=Code.RESIDENT_ELSEWHERE,
            severity=Severity.ERROR,
            place=place,
            message=(
                f"[{index}].policy: {resident.policy} doesn't name fleet {fleet.metadata.name}, so it is never promoted here"
            ),
            hint="list the fleet under the policy's spec.fleets, or roll out without the resident",
        )
    if policy.spec.engine.port not in {None, resident.port}:
        yield Finding(
            code=Code.PORT_DIFFERS,
            severity=Severity.ERROR,
            place=place,
            message=f"[{index}].port: is {resident.port}, and policy {resident.policy} says engine.port {policy.spec.engine.port}",
            hint="a policy's residents have the same port on all its fleets",
        )


# ------------------------------------------------------------------ what the pod gets


def _all_containers(template: PodTemplate) -> list[tuple[int, dict[str, Any]]]:
    return template.containers() + template.containers("initContainers")


def _gpus(template: PodTemplate, fleet: Fleet) -> Iterator[Finding]:
    """The GPUs of the pod against the seat's. A device plugin gives each container GPUs that no other container gets."""
    wanted = fleet.spec.seat.gpus
    if template.pod("spec", "resourceClaims"):
        yield Finding(
            code=Code.GPUS_UNKNOWN,
            severity=Severity.INFO,
            place=template.place("spec", "resourceClaims"),
            message=f"the pod's GPUs come from resource claims, which say elsewhere how many they are; a seat has {wanted}",
            hint="compare the ResourceClaimTemplate with the fleet's seat.gpus",
        )
        return
    counted = [(str(each.get("name")), _gpus_of(each)) for _, each in template.containers()]
    total = sum(gpus for _, gpus in counted)
    terms = tuple(
        Term(name=name, value=float(gpus), unit="GPUs", origin="resources.limits")
        for name, gpus in counted
        if gpus
    )
    apart = [each for each in template.residents or () if each.container is not None]
    if wanted and len(apart) > 1:
        yield _apart(template, apart, terms)
    elif total != wanted:
        yield Finding(
            code=Code.GPUS_DIFFER,
            severity=Severity.ERROR,
            place=template.place("spec", "containers"),
            message=f"the pod asks for {total} GPUs, and a seat of {fleet.metadata.name} has {wanted}",
            hint="set resources.limits of the engines' container, or the fleet's seat.gpus",
            terms=terms,
        )


def _apart(template: PodTemplate, residents: Sequence[SeatResident], terms: tuple[Term, ...]) -> Finding:
    names = ", ".join(str(each.container) for each in residents)
    return Finding(
        code=Code.GPUS_DIFFER,
        severity=Severity.ERROR,
        place=template.place("spec", "containers"),
        message=f"residents in containers of their own ({names}) can't share GPUs that a device plugin hands out",
        hint="use a ResourceClaimTemplate that each of them names, or start all engines in one container (command)",
        terms=terms,
    )


def _gpus_of(container: dict[str, Any]) -> int:
    limits = look_up(container, "resources", "limits")
    if not isinstance(limits, dict):
        return 0
    written = [str(value) for key, value in limits.items() if _GPU.fullmatch(str(key))]
    return sum(int(value) for value in written if value.isdecimal())


# ------------------------------------------------------------------ how long it has


def _grace(template: PodTemplate) -> Iterator[Finding]:
    """SIGTERM has the agent drain every resident that serves, then stop the engines; after the grace everything is killed.

    What the agent gives is fixed: a longer grace gives the requests nothing.
    """
    grace, needed = template.grace_seconds, POD_DRAIN_SECONDS + STOP_SECONDS
    if grace >= needed:
        return
    yield Finding(
        code=Code.GRACE_TOO_SHORT,
        severity=Severity.ERROR if grace < POD_DRAIN_SECONDS else Severity.WARNING,
        place=template.place("spec", "terminationGracePeriodSeconds"),
        message=(
            f"the pod has {grace} s to end, and its agent gives requests up to {POD_DRAIN_SECONDS:.0f} s and the engines"
            f" {STOP_SECONDS:.0f} s more to stop"
        ),
        hint=f"terminationGracePeriodSeconds: {needed:.0f} or more",
        terms=(
            Term(
                name="drain, at most",
                value=POD_DRAIN_SECONDS,
                unit=SECONDS,
                origin="warmpool.agent.seat.DRAIN_AT_END_SECONDS",
            ),
            Term(
                name="stopping, at most",
                value=STOP_SECONDS,
                unit=SECONDS,
                origin="warmpool.agent.life.STOP_GRACE_SECONDS",
            ),
        ),
    )


def _progress(subject: Subject, template: PodTemplate, fleet: Fleet) -> Iterator[Finding]:
    """A Deployment's rollout fails when no new pod becomes ready for so long, and a seat is ready once it is admitted."""
    if template.kind != "Deployment":
        return
    written = template.workload("spec", "progressDeadlineSeconds")
    deadline = written if isinstance(written, int) else _DEFAULT_PROGRESS
    terms = starting(subject, fleet)
    known = math.fsum(term.value or 0.0 for term in terms)
    if known >= deadline:
        default = "" if written is not None else ", Kubernetes' default"
        yield Finding(
            code=Code.PROGRESS_DEADLINE_TOO_SHORT,
            severity=Severity.WARNING,
            place=template.workload_place("spec", "progressDeadlineSeconds"),
            message=f"a rollout fails after {deadline} s without progress{default}, and a seat takes {known:.0f} s to start at least",
            hint=f"progressDeadlineSeconds above {known:.0f}",
            terms=terms,
        )


def _readiness(template: PodTemplate) -> Iterator[Finding]:
    gates = template.pod("spec", "readinessGates")
    named = [look_up(gate, "conditionType") for gate in gates] if isinstance(gates, list) else []
    if ADMITTED_GATE not in named:
        yield Finding(
            code=Code.GATE_MISSING,
            severity=Severity.WARNING,
            place=template.place("spec"),
            message=f"the readiness gate {ADMITTED_GATE} is missing: a pod counts as ready before a resident is proven",
            hint=_WRITES_IT,
        )
    for index, container in template.containers():
        for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
            if probe in container:
                yield Finding(
                    code=Code.PROBES,
                    severity=Severity.WARNING,
                    place=template.place("spec", "containers", index, probe),
                    message="one engine that fails it takes the whole seat out of rotation, its neighbours with it",
                    hint="remove it: the agent watches every engine, and the readiness gate says when the seat is ready",
                )


def _unavailable(template: PodTemplate, fleet: Fleet) -> Iterator[Finding]:
    """A rollout takes away at most `maxUnavailable` seats before new ones are there: spares have to stand in for them."""
    if template.kind != "Deployment" or template.workload("spec", "strategy", "type") == "Recreate":
        return
    written = template.workload("spec", "strategy", "rollingUpdate", "maxUnavailable")
    value = _DEFAULT_UNAVAILABLE if written is None else written
    most, spares = fleet.spec.max_seats, fleet.spec.spare.min
    if isinstance(value, str) and value.removesuffix("%").isdecimal():
        seats = most * int(value.removesuffix("%")) // 100
    elif isinstance(value, int):
        seats = value
    else:
        return
    if seats > spares:
        default = "" if written is not None else ", Kubernetes' default"
        yield Finding(
            code=Code.UNAVAILABLE_ABOVE_SPARES,
            severity=Severity.WARNING,
            place=template.workload_place("spec", "strategy", "rollingUpdate", "maxUnavailable"),
            message=(
                f"a rollout may take away {seats} of {most} seats at once (maxUnavailable {value}{default}), and {spares}"
                " are spare"
            ),
            hint=f"maxUnavailable: {spares} or less, with maxSurge: 1 or more",
            terms=(
                Term(name="seats at most", value=float(most), unit=SEATS, origin="maxSeats"),
                Term(name="spare seats", value=float(spares), unit=SEATS, origin="spare.min"),
            ),
        )

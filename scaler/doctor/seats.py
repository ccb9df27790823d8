"""What seats are made of: how long they have to end, who says that they are ready, and who lives on them. PURE."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from scaler.cluster.kube.views import RESIDENTS_ANNOTATION, read_claim
from scaler.doctor import mends
from scaler.doctor.findings import Code, Finding, Severity
from scaler.doctor.objects import Json, Object, at, listed, mappings, text, whole
from scaler.doctor.picture import Picture, Seen, Template, residents_of
from scaler.doctor.wishes import FleetWish
from scaler.policy.command_line import value_of
from scaler.policy.lint.assumptions import POD_DRAIN_SECONDS, STOP_SECONDS
from scaler.policy.template import ADMITTED_GATE
from warmpool.nodehealth.marks import EFFECT, TAINT_KEY
from warmpool.seats import CLAIM_ANNOTATION

_DEFAULT_GRACE: Final = 30
"""`terminationGracePeriodSeconds` of a pod that doesn't say (Kubernetes, core/v1 PodSpec)."""
_LAUNCHER: Final = "launcher.py"
"""What the launcher's file is called (docs/launcher.md)."""
_LONGEST_SECONDS: Final = 7 * 86_400.0
_POLICIES: Final = "policies/"
"""Where policies are supposed to be when nobody has named files."""


def check(picture: Picture) -> Iterator[Finding]:
    """Yield what is wrong with the seats of all fleets."""
    for fleet in picture.fleets:
        wish = picture.wish(fleet)
        for template in fleet.templates:
            yield from _grace(template)
            yield from _probes(template)
            yield from _gate(template)
            yield from _residents(picture, fleet, template, wish)
            yield from _tolerations(template)
        yield from _priorities(fleet)
        for pod in fleet.pods:
            yield from _claim(pod)


def _grace(template: Template) -> Iterator[Finding]:
    written = whole(template.pod, "spec", "terminationGracePeriodSeconds")
    grace = _DEFAULT_GRACE if written is None else written
    drain, stop = _ending(template)
    if grace >= drain + stop:
        return
    path = ("spec", "terminationGracePeriodSeconds")
    yield Finding(
        code=Code.GRACE_TOO_SHORT,
        severity=Severity.ERROR if grace < drain else Severity.WARNING,
        object=str(template.object),
        path=template.path(*path),
        message=f"a pod has {grace} s to end; accepted requests get up to {drain:g} s, and engines {stop:g} s more to stop",
        mend=mends.in_template(template, mends.add(template.pointer(*path), math.ceil(drain + stop))),
    )


def _ending(template: Template) -> tuple[float, float]:
    """Return how many seconds the end of a pod gives requests, and engines after that: as its launcher is told, else the agent's."""
    for _, container in template.containers():
        words = [str(word) for key in ("command", "args") for word in listed(container, key)]
        if any(word.rpartition("/")[2] == _LAUNCHER for word in words):
            return _seconds(words, "--drain-seconds", 20.0), _seconds(words, "--grace-seconds", 8.0)
    return POD_DRAIN_SECONDS, STOP_SECONDS


def _seconds(words: Sequence[str], flag: str, default: float) -> float:
    """Read a number of seconds from a command line; the launcher's own default where there is none."""
    try:
        seconds = float(value_of(words, flag) or default)
    except ValueError:
        return default
    return seconds if 0 <= seconds <= _LONGEST_SECONDS else default


def _probes(template: Template) -> Iterator[Finding]:
    for path, container in template.containers():
        sidecar = "initContainers" in path
        for probe, severity in (
            ("livenessProbe", Severity.ERROR),
            ("readinessProbe", Severity.WARNING),
            *(() if sidecar else (("startupProbe", Severity.WARNING),)),
        ):
            if container.get(probe) is None:
                continue
            what = (
                "restarts the container, with the engines of all residents"
                if probe == "livenessProbe"
                else "takes the whole seat out of rotation, its neighbours with it"
            )
            yield Finding(
                code=Code.PROBES,
                severity=severity,
                object=str(template.object),
                path=template.path(*path, probe),
                message=f"{text(container, 'name') or 'a container'} has a {probe}: one engine that fails it {what}",
                mend=mends.in_template(template, mends.remove(template.pointer(*path, probe))),
            )


def _gate(template: Template) -> Iterator[Finding]:
    gates = listed(template.pod, "spec", "readinessGates")
    if any(text(gate, "conditionType") == ADMITTED_GATE for gate in gates):
        return
    at_end = ("-",) if gates else ()
    gate = {"conditionType": ADMITTED_GATE}
    value: object = gate if gates else [gate]
    yield Finding(
        code=Code.GATE_MISSING,
        severity=Severity.WARNING,
        object=str(template.object),
        path=template.path("spec", "readinessGates"),
        message=f"the readiness gate {ADMITTED_GATE} is missing: pods count as ready before a resident is proven, and a rollout"
        " doesn't wait for them",
        mend=mends.in_template(
            template, mends.add(template.pointer("spec", "readinessGates", *at_end), value)
        ),
    )


# ------------------------------------------------------------------ who lives there


def _residents(
    picture: Picture, fleet: Seen, template: Template, wish: FleetWish | None
) -> Iterator[Finding]:
    residents, unreadable = residents_of(template.annotation)
    path = template.path("metadata", "annotations", RESIDENTS_ANNOTATION)
    files = picture.wishes.source if picture.wishes and wish and wish.target else _POLICIES
    write = mends.written_by_template(template, fleet.name, files)
    if template.annotation is None or unreadable:
        missing = template.annotation is None
        yield Finding(
            code=Code.RESIDENTS_MISSING if missing else Code.RESIDENTS_UNREADABLE,
            severity=Severity.ERROR,
            object=str(template.object),
            path=path,
            message="the list of residents is missing: its seats have none"
            if missing
            else f"the list of residents can't be read: {unreadable}",
            mend=write,
        )
        return
    if wish is None or picture.wishes is None:
        return
    listed_here = {str(each.policy): each for each in residents}
    for name in wish.policies:
        if name not in listed_here:
            yield Finding(
                code=Code.NOT_RESIDENT,
                severity=Severity.WARNING,
                object=str(template.object),
                path=path,
                message=f"policy {name} names fleet {fleet.name}, and its seats have no resident of it ({picture.wishes.source})",
                mend=write,
            )
    for name, resident in listed_here.items():
        if name not in wish.policies:
            yield Finding(
                code=Code.RESIDENT_UNKNOWN,
                severity=Severity.ERROR,
                object=str(template.object),
                path=path,
                message=f"it has a resident of {name}, and no such policy names fleet {fleet.name}"
                f" ({picture.wishes.source}): it holds GPU memory and is never promoted",
                mend=write,
            )
        policy = picture.wishes.policies.get(name)
        if policy is not None and policy.port is not None and policy.port != resident.port:
            yield Finding(
                code=Code.PORT_DIFFERS,
                severity=Severity.ERROR,
                object=str(template.object),
                path=path,
                message=f"the resident of {name} has port {resident.port}, and its policy says {policy.port}",
                mend=write,
            )


def _tolerations(template: Template) -> Iterator[Finding]:
    """A seat that tolerates the taint of nodes with Bad GPUs is put right there, and its replacement again."""
    for place, each in mappings(template.pod, "spec", "tolerations"):
        key, effect = text(each, "key"), text(each, "effect")
        everything = not key and text(each, "operator") == "Exists"
        if effect not in {"", EFFECT} or not (everything or key == TAINT_KEY):
            continue
        path = ("spec", "tolerations", place)
        yield Finding(
            code=Code.TOLERATES_EXCLUSION,
            severity=Severity.WARNING,
            object=str(template.object),
            path=template.path(*path),
            message=f"its pods tolerate {'every taint' if everything else TAINT_KEY}, so new seats are put on nodes that were excluded"
            " for their GPUs",
            mend=mends.in_template(template, mends.remove(template.pointer(*path))),
        )


# ------------------------------------------------------------------ pods


def _priorities(fleet: Seen) -> Iterator[Finding]:
    """A pod's priority can't change: pods of one fleet that differ in it are preempted in an order that nobody chose."""
    found = Counter(_priority(each.body) for each in fleet.pods)
    classes = {text(each.pod, "spec", "priorityClassName") for each in fleet.templates}
    if len(found) <= 1 and len(classes) <= 1:
        return
    what = ", ".join(f"{name} ({count})" for name, count in sorted(found.items()))
    counted = what or ", ".join(sorted(name or "none" for name in classes))
    first: Object = (fleet.workloads or fleet.pods)[0]
    restart = mends.kubectl(
        "rollout", "restart", f"{first.kind.lower()}/{first.name}", namespace=fleet.namespace
    )
    yield Finding(
        code=Code.PRIORITIES_DIFFER,
        severity=Severity.WARNING,
        object=str(first),
        path="spec.template.spec.priorityClassName" if fleet.workloads else "spec.priorityClassName",
        message=f"pods of fleet {fleet.name} have different priorities: {counted}; seats that serve may be preempted before"
        " spare ones",
        mend=restart if fleet.workloads and len(classes) <= 1 else _classes(fleet.workloads or fleet.pods),
    )


def _classes(objects: Sequence[Object]) -> str:
    first = objects[0]
    names = list(dict.fromkeys(each.name for each in objects))
    return mends.kubectl(
        "get",
        first.kind.lower(),
        *names,
        "-o",
        "custom-columns=NAME:.metadata.name,CLASS:..priorityClassName",
        namespace=first.namespace,
    )


def _priority(pod: Json) -> str:
    name, number = text(pod, "spec", "priorityClassName"), whole(pod, "spec", "priority")
    return name or str(number or 0)


def _claim(pod: Object) -> Iterator[Finding]:
    written = at(pod.body, "metadata", "annotations", CLAIM_ANNOTATION)
    if not isinstance(written, str):
        return
    if why := read_claim(written)[1]:
        yield Finding(
            code=Code.CLAIM_UNREADABLE,
            severity=Severity.ERROR,
            object=str(pod),
            path=f"metadata.annotations.{CLAIM_ANNOTATION}",
            message=f"its claim can't be read, so nothing is promoted there: {why.partition(': ')[2]}",
            mend=mends.of("annotate", pod, f"{CLAIM_ANNOTATION}-"),
        )

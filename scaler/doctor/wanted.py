"""What policies name that isn't there, and what is there that none names. PURE."""

from collections.abc import Iterator

from scaler.doctor import mends
from scaler.doctor.findings import Code, Finding, Severity
from scaler.doctor.objects import Object, texts
from scaler.doctor.picture import Part, Picture, Template
from scaler.doctor.wishes import FleetWish, Target
from warmpool.seats import FLEET_LABEL

_READ = {"Deployment": Part.DEPLOYMENTS, "StatefulSet": Part.STATEFUL_SETS}
"""Workloads that are read; of others nothing is said."""


def check(picture: Picture) -> Iterator[Finding]:
    """Yield fleets without a workload, workloads that aren't marked, and fleets that no policy knows."""
    if picture.wishes is None:
        return
    for wish in picture.wishes.fleets:
        if not picture.namespaces or wish.namespace is None or wish.namespace in picture.namespaces:
            yield from _fleet(picture, wish, picture.wishes.source)
    for fleet in picture.fleets:
        if picture.wish(fleet) is None:
            first = (fleet.workloads or fleet.pods)[0]
            yield Finding(
                code=Code.FLEET_UNKNOWN,
                severity=Severity.WARNING,
                object=str(first),
                path=f"{'spec.template.' if fleet.workloads else ''}metadata.labels.{FLEET_LABEL}",
                message=f"no Fleet {fleet.namespace}/{fleet.name} is known ({picture.wishes.source}): its seats are left as they are",
                mend=f"emberpool policy new {fleet.name} --fleet {fleet.name} --namespace {fleet.namespace}",
            )


def _fleet(picture: Picture, wish: FleetWish, source: str) -> Iterator[Finding]:
    if wish.target is None:
        where = {None, *(each.namespace for each in picture.fleets if each.name == wish.name)}
        if len(where) == 1 or wish.namespace not in where:
            yield Finding(
                code=Code.WORKLOAD_MISSING,
                severity=Severity.ERROR,
                object=f"Fleet {wish.namespace}/{wish.name}" if wish.namespace else f"Fleet {wish.name}",
                message=f"{source} knows it, and no pod or workload here has the label {FLEET_LABEL}={wish.name}",
                mend=mends.kubectl("get", "deployments,statefulsets", "--all-namespaces", "-L", FLEET_LABEL),
            )
        return
    part = _READ.get(wish.target.kind) if wish.target.group == "apps" else None
    if part is None or part not in picture.objects:
        return
    found = _workload(picture.all(part), wish.namespace or "", wish.target)
    if found is None:
        yield Finding(
            code=Code.WORKLOAD_MISSING,
            severity=Severity.ERROR,
            object=f"Fleet {wish.namespace}/{wish.name}",
            path="spec.target",
            message=f"its workload, {wish.target.kind} {wish.target.name}, isn't there: the fleet has no seats",
            mend=mends.kubectl("get", part, "-L", FLEET_LABEL, namespace=wish.namespace or ""),
        )
        return
    label = texts(found.body, "spec", "template", "metadata", "labels").get(FLEET_LABEL)
    if label != wish.name:
        has = f"is {label}" if label else "is missing"
        yield Finding(
            code=Code.FLEET_LABEL_MISSING,
            severity=Severity.ERROR,
            object=str(found),
            path=f"spec.template.metadata.labels.{FLEET_LABEL}",
            message=f"it is the workload of fleet {wish.name}, and the label {has}: its pods aren't found",
            mend=mends.written_by_template(Template(found, ("spec", "template")), wish.name, source),
        )


def _workload(objects: list[Object], namespace: str, target: Target) -> Object | None:
    named = (namespace, target.kind, target.name)
    return next((each for each in objects if (each.namespace, each.kind, each.name) == named), None)

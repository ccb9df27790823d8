"""What HPAs and KEDA make of a fleet's size: the checks of `scaler.keda`, on what is in the cluster. PURE."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, TypeVar

from scaler.doctor import mends
from scaler.doctor.findings import Code, Finding, KedaCode, Severity
from scaler.doctor.objects import Object, at, text
from scaler.doctor.picture import Part, Picture, Seen
from scaler.doctor.wishes import FleetWish
from scaler.errors import UserError
from scaler.keda import findings as keda
from scaler.keda.findings import Intent
from scaler.keda.fleet_findings import Objects, Placed, look
from scaler.keda.objects import Target, read_hpa, read_scaled_object
from scaler.policy.fleet import ResizedBy

_OPERATOR: Final = "keda-operator"
_VERSION: Final = "app.kubernetes.io/version"
_SECOND: Final = frozenset({KedaCode.SECOND_WRITER, KedaCode.NOT_KEDAS})
"""Of two that write one size, this one is too many."""
_T = TypeVar("_T")


def check(picture: Picture) -> Iterator[Finding]:
    """Yield what is wrong with what sizes fleets, and with KEDA itself."""
    by_keda = False
    for fleet in picture.fleets:
        for workload in fleet.workloads:
            scaled = [each for each in picture.all(Part.SCALED_OBJECTS) if _scales(each, workload)]
            intent = _intent(picture.wish(fleet), fleet, workload, by_keda=bool(scaled))
            by_keda |= intent.by_keda or bool(scaled)
            if intent.by_keda and Part.SCALED_OBJECTS in picture.absent:
                yield _no_keda(fleet)
            hpas = [each for each in picture.all(Part.HPAS) if _scales(each, workload)]
            yield from _looked(picture, intent, scaled, hpas)
    if by_keda:
        yield from _operators(picture)


def _scales(scaler: Object, workload: Object) -> bool:
    """Whether an HPA or a ScaledObject is about a workload."""
    target = at(scaler.body, "spec", "scaleTargetRef")
    named = (scaler.namespace, text(target, "kind") or "Deployment", text(target, "name"))
    return named == (workload.namespace, workload.kind, workload.name)


def _intent(wish: FleetWish | None, fleet: Seen, workload: Object, *, by_keda: bool) -> Intent:
    """Return what the fleet wants; of what nobody says, what leaves least to be found.

    Args:
        wish: what policies say.
        fleet: the fleet.
        workload: its workload.
        by_keda: whether KEDA sizes it, where policies don't say.
    """
    running = len(fleet.pods)
    if wish is not None and wish.intent is not None:
        return replace(wish.intent, running=running)
    said = None if wish is None else wish.resized_by
    return Intent(
        fleet=fleet.name,
        namespace=fleet.namespace,
        workload=Target(kind=workload.kind, name=workload.name),
        max_seats=0 if wish is None or wish.max_seats is None else wish.max_seats,
        floor=0,
        by_keda=by_keda if said is None else said is ResizedBy.KEDA,
        running=running,
    )


def _looked(picture: Picture, intent: Intent, scaled: list[Object], hpas: list[Object]) -> Iterator[Finding]:
    """Yield what `emberpool keda check` would say, and whatever can't be read."""
    objects = {str(each): each for each in (*scaled, *hpas)}
    read_scaled, odd_scaled = _read(scaled, read_scaled_object)
    read_hpas, odd_hpas = _read(hpas, read_hpa)
    for each, why in (*odd_scaled, *odd_hpas):
        yield Finding(
            code=Code.SCALER_UNREADABLE,
            severity=Severity.WARNING,
            object=str(each),
            message=f"it can't be read: {why}",
            mend=mends.of("get", each, "-o", "yaml"),
        )
    complete = {Part.SCALED_OBJECTS, Part.HPAS} <= picture.objects.keys() and not odd_scaled
    found = look(intent, Objects(scaled=read_scaled, hpas=read_hpas, complete=complete))
    for placed in found.findings:
        name = f"{placed.kind} {intent.namespace}/{placed.name}"
        yield Finding(
            code=placed.finding.code,
            severity=placed.finding.severity,
            object=name,
            path=placed.finding.path,
            message=placed.finding.message,
            mend=_mend(placed, objects.get(name), intent),
        )


def _read(objects: list[Object], read: Callable[[object], _T]) -> tuple[list[_T], list[tuple[Object, str]]]:
    """Read objects; return them, and those that can't be with the reason."""
    found, odd = list[_T](), list[tuple[Object, str]]()
    for each in objects:
        try:
            found.append(read(each.body))
        except (UserError, ValueError, TypeError) as error:
            odd.append((each, str(error)))
    return found, odd


def _mend(placed: Placed, found: Object | None, intent: Intent) -> str:
    finding = placed.finding
    if found is None:
        return mends.kubectl("apply", "-f", "deploy/keda/scaled-object.yaml", namespace=intent.namespace)
    if finding.code in _SECOND:
        return mends.of("delete", found)
    return mends.of("edit", found) + (f"  # {finding.hint}" if finding.hint else "")


def _no_keda(fleet: Seen) -> Finding:
    return Finding(
        code=Code.KEDA_MISSING,
        severity=Severity.ERROR,
        object=f"Fleet {fleet.namespace}/{fleet.name}",
        path="spec.resizedBy",
        message="the fleet is resized by KEDA, and the cluster has no ScaledObjects: KEDA isn't installed, so nobody changes the"
        " fleet's size",
        mend="helm upgrade --install keda kedacore/keda --namespace keda --create-namespace",
    )


def _operators(picture: Picture) -> Iterator[Finding]:
    """Hold the operator's version against what `keda check` says of the version that an HPA was made by."""
    for operator in picture.all(Part.DEPLOYMENTS):
        if operator.labels.get("app.kubernetes.io/name", operator.name) != _OPERATOR:
            continue
        made = {
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"labels": {_VERSION: operator.labels.get(_VERSION, "")}},
        }
        nothing = read_scaled_object({"kind": "ScaledObject"})
        for each in keda.check(nothing, read_hpa(made)):
            if each.code is KedaCode.OLD_OPERATOR:
                yield Finding(
                    code=each.code,
                    severity=each.severity,
                    object=str(operator),
                    path=f"metadata.labels.{_VERSION}",
                    message=each.message,
                    mend=f"helm upgrade keda kedacore/keda --namespace {operator.namespace}",
                )

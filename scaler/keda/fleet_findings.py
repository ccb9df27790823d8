"""What is wrong with everything in a cluster that sizes one fleet, or should: ScaledObjects and HPAs together. PURE.

`scaler.keda.findings` looks at one ScaledObject with its HPA. A cluster may have none, several, or an HPA of somebody else's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from scaler.keda.findings import Code, Finding, Intent, Severity, check
from scaler.keda.objects import Hpa, Pause, ScaledObject

SCALED_OBJECT: Final = "ScaledObject"
HPA: Final = "HorizontalPodAutoscaler"
_FLEET: Final = "Fleet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A finding, and which object it is about.

    Attributes:
        kind: ScaledObject, HorizontalPodAutoscaler or Fleet.
        name: its name.
        finding: what was found.
    """

    kind: str
    name: str
    finding: Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """What there is about one fleet.

    Attributes:
        scaled: ScaledObjects that scale its workload, or follow its total.
        hpas: HPAs that scale its workload.
        complete: both kinds are known; while they aren't, nothing is said to be missing.
    """

    scaled: Sequence[ScaledObject] = ()
    hpas: Sequence[Hpa] = ()
    complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFindings:
    """What was found about one fleet.

    Attributes:
        findings: the gravest first.
        pause: how people have stopped KEDA for its workload.
        hpa: the name of the HPA that KEDA has made for it; empty where none is known.
    """

    findings: tuple[Placed, ...] = ()
    pause: Pause = field(default_factory=Pause)
    hpa: str = ""

    @property
    def paused(self) -> tuple[str, ...]:
        """How people have stopped KEDA, in sentences."""
        return tuple(self.pause.sentences(self.hpa))

    @property
    def counts(self) -> Mapping[Severity, int]:
        """How many there are of each severity."""
        all_of = [placed.finding.severity for placed in self.findings]
        return {severity: all_of.count(severity) for severity in Severity}


def look(intent: Intent, objects: Objects) -> FleetFindings:
    """Look at all that sizes a fleet.

    Args:
        intent: what the fleet wants.
        objects: what there is.
    """
    sizing = [each for each in objects.scaled if each.target == intent.workload]
    found: list[Placed] = []
    for scaled in objects.scaled:
        hpa = _made_of(scaled, objects.hpas)
        for finding in check(scaled, hpa, intent):
            name = hpa.name if hpa is not None and finding.object == HPA else scaled.name
            found.append(Placed(kind=finding.object, name=name, finding=finding))
    found += _too_many(intent, sizing)
    found += _of_others(intent, sizing, objects.hpas)
    if intent.by_keda and not sizing and objects.complete:
        found.append(_nobody(intent, objects.scaled))
    order = list(Severity)
    found.sort(key=lambda placed: order.index(placed.finding.severity))
    if not sizing:
        return FleetFindings(findings=tuple(found))
    made = _made_of(sizing[0], objects.hpas)
    return FleetFindings(findings=tuple(found), pause=sizing[0].pause, hpa="" if made is None else made.name)


def _made_of(scaled: ScaledObject, hpas: Sequence[Hpa]) -> Hpa | None:
    return next((hpa for hpa in hpas if hpa.owner == f"{SCALED_OBJECT}/{scaled.name}"), None)


def _too_many(intent: Intent, sizing: Sequence[ScaledObject]) -> Iterator[Placed]:
    for scaled in sizing[1:]:
        finding = Finding(
            code=Code.SECOND_WRITER,
            severity=Severity.ERROR,
            path="spec.scaleTargetRef",
            message=f"ScaledObject {sizing[0].name} scales {intent.workload.name} as well",
            hint="one ScaledObject for a workload",
        )
        yield Placed(kind=SCALED_OBJECT, name=scaled.name, finding=finding)


def _of_others(intent: Intent, sizing: Sequence[ScaledObject], hpas: Sequence[Hpa]) -> Iterator[Placed]:
    """Yield HPAs that no ScaledObject has made."""
    known = {f"{SCALED_OBJECT}/{scaled.name}" for scaled in sizing}
    for hpa in hpas:
        if hpa.owner in known:
            continue
        writer = "its ScaledObject" if intent.by_keda else "Emberpool"
        finding = Finding(
            code=Code.NOT_KEDAS if intent.by_keda else Code.SECOND_WRITER,
            severity=Severity.ERROR,
            path="spec.scaleTargetRef",
            message=f"it scales {intent.workload.name}, and so does {writer}: two write the size of fleet {intent.fleet}",
            hint="delete the HPA",
            object=HPA,
        )
        yield Placed(kind=HPA, name=hpa.name, finding=finding)


def _nobody(intent: Intent, scaled: Sequence[ScaledObject]) -> Placed:
    workload = intent.workload
    alike = [each for each in scaled if each.target.name == workload.name]
    which, instead = workload.name, ""
    if alike:
        which = f"{workload.kind} {workload.name}"
        instead = f"; {alike[0].name} scales {alike[0].target.kind} {workload.name}"
    finding = Finding(
        code=Code.NO_SCALED_OBJECT,
        severity=Severity.ERROR,
        path="spec.resizedBy",
        message=f"fleet {intent.fleet} has resizedBy: Keda, and no ScaledObject scales {which}: nobody sizes it{instead}",
        hint="deploy/keda/scaled-object.yaml is one to begin with; or set resizedBy: Emberpool",
        object=_FLEET,
    )
    return Placed(kind=_FLEET, name=intent.fleet, finding=finding)

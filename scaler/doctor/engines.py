"""What engines were found to be unable to do, of what their seats need. PURE."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from scaler.doctor.findings import Code, Finding, Severity
from scaler.doctor.objects import listed, mappings, text
from scaler.doctor.picture import Picture
from warmpool.engines.capabilities import Capability, Ground
from warmpool.errors import BadOrder
from warmpool.wire import capabilities_from_json


@dataclass(frozen=True, slots=True)
class _Need:
    """Why a seat needs something, and how much it matters."""

    severity: Severity
    why: str
    shared: bool = False


_NEEDS: Final[Mapping[Capability, _Need]] = MappingProxyType(
    {
        Capability.SCHEDULER_PAUSE: _Need(
            Severity.ERROR, "it can't be paused, so it can't wait on a spare seat"
        ),
        Capability.KV_RELEASE: _Need(
            Severity.ERROR, "it keeps its KV memory, which its neighbours on the seat need", shared=True
        ),
        Capability.DRAIN_WAIT: _Need(
            Severity.WARNING, "demoting it breaks off the requests that it has accepted"
        ),
        Capability.TOKEN_IDS: _Need(Severity.WARNING, "it can't be proven that it computes what it should"),
    }
)


@dataclass(slots=True)
class _Lack:
    """One capability that residents of one policy lack."""

    kind: str
    reason: str
    seats: list[str] = field(default_factory=list)


def check(picture: Picture) -> Iterator[Finding]:
    """Yield what engines can't do: one finding for each policy and capability, whatever the number of its seats."""
    lacks: dict[tuple[str, Capability], _Lack] = {}
    for seat in picture.controller.seats:
        shared = len(listed(seat, "residents")) > 1
        for _, resident in mappings(seat, "residents"):
            try:
                found = capabilities_from_json(resident["capabilities"])
            except (BadOrder, KeyError):
                continue  # it wasn't asked yet, or by an agent of another version
            for capability, need in _NEEDS.items():
                finding = found.finding(capability)
                if finding.granted or finding.ground is Ground.NOT_TRIED or (need.shared and not shared):
                    continue
                of = (text(resident, "policy"), capability)
                lacks.setdefault(of, _Lack(found.kind, finding.reason)).seats.append(text(seat, "name"))
    for (policy, capability), lack in lacks.items():
        need = _NEEDS[capability]
        more = f" and {len(lack.seats) - 1} more" if len(lack.seats) > 1 else ""
        yield Finding(
            code=Code.ENGINE_CANNOT,
            severity=need.severity,
            object=f"ScalingPolicy {policy}",
            path=f"status.capabilities.{capability}",
            message=f"{need.why}: {lack.reason} (seat {lack.seats[0]}{more})",
            mend=f"emberpool engine args --engine {lack.kind}",
        )

"""What the controller itself says is so: policy files that it couldn't load, and conditions of fleets. PURE."""

from collections.abc import Iterator
from typing import Final

from scaler.doctor.findings import Code, Finding, Severity
from scaler.doctor.objects import Json, listed, mapping, mappings, text
from scaler.doctor.picture import Picture

_LOADED: Final = frozenset({"", "Loaded", "Unchanged"})
_SEEN_HERE: Final = frozenset(
    {"PausedResidentsReachable", "WorkloadMissing", "ClaimsUnreadable", "KedaMisfit"}
)
"""Conditions that other checks find in the cluster itself, with the command that mends them."""


def check(picture: Picture) -> Iterator[Finding]:
    """Yield what controllers say."""
    for namespace, status in picture.controller.status.items():
        yield from _attempt(namespace, mapping(status, "lastAttempt"))
        for _, condition in mappings(status, "conditions"):
            if text(condition, "type") not in _SEEN_HERE:
                yield _condition(namespace, condition)


def _attempt(namespace: str, attempt: Json) -> Iterator[Finding]:
    outcome = text(attempt, "outcome")
    if outcome in _LOADED:
        return
    fault = next((each for _, each in mappings(attempt, "faults")), {})
    why = text(attempt, "problem") or text(fault, "message")
    where = f"{text(fault, 'file')}: {text(fault, 'path')}: " if fault else ""
    more = f", and {len(listed(attempt, 'faults')) - 1} more" if len(listed(attempt, "faults")) > 1 else ""
    yield Finding(
        code=Code.POLICIES_NOT_LOADED,
        severity=Severity.ERROR,
        object=f"Controller {namespace}/emberpool-controller",
        message=f"the policy files couldn't be loaded ({outcome}), and the last good ones are in force: {where}{why}{more}",
        mend=f"emberpool policy status -n {namespace}",
    )


def _condition(namespace: str, condition: Json) -> Finding:
    fleet = text(condition, "fleet")
    return Finding(
        code=Code.CONDITION,
        severity=Severity.WARNING,
        object=f"Fleet {namespace}/{fleet}",
        path=text(condition, "type"),
        message=text(condition, "message"),
        mend=f"emberpool fleet describe {fleet} -n {namespace}",
    )

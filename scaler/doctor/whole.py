"""All checks together, and what is said of what couldn't be looked at. PURE."""

from collections.abc import Callable, Iterator
from typing import Final

from scaler.doctor import (
    conditions,
    disruption,
    engines,
    mends,
    network,
    nodes,
    owners,
    reach,
    rights,
    seats,
    sizes,
    wanted,
)
from scaler.doctor.findings import Code, Finding, Severity, ordered
from scaler.doctor.picture import Picture
from warmpool.seats import FLEET_LABEL

_CHECKS: Final[tuple[Callable[[Picture], Iterator[Finding]], ...]] = (
    rights.check,
    seats.check,
    reach.check,
    disruption.check,
    owners.check,
    sizes.check,
    conditions.check,
    engines.check,
    nodes.check,
    wanted.check,
    network.check,
)


def check(picture: Picture) -> tuple[Finding, ...]:
    """Return everything that is found, the gravest first."""
    found = [finding for each in _CHECKS for finding in each(picture)]
    return ordered([*found, *_unread(picture), *_nothing(picture), *_controller(picture)])


def _unread(picture: Picture) -> Iterator[Finding]:
    for part, why in picture.unread.items():
        yield Finding(
            code=Code.NOT_LOOKED_AT,
            severity=Severity.NOTE,
            object="Cluster",
            path=str(part),
            message=f"{part} couldn't be read, so nothing is said of them: {why}",
            mend=mends.kubectl("auth", "can-i", "--list", namespace=next(iter(picture.namespaces), "")),
        )


def _nothing(picture: Picture) -> Iterator[Finding]:
    """A look at the wrong place would otherwise end with nothing found."""
    if picture.fleets:
        return
    where = f"namespace {', '.join(picture.namespaces)}" if picture.namespaces else "the whole cluster"
    yield Finding(
        code=Code.NOTHING_HERE,
        severity=Severity.WARNING,
        object="Cluster",
        message=f"in {where} no pod and no workload has the label {FLEET_LABEL}: there are no seats to look at",
        mend="emberpool doctor --all-namespaces" if picture.namespaces else "emberpool fleet template --help",
    )


def _controller(picture: Picture) -> Iterator[Finding]:
    if not picture.controller.missing:
        return
    yield Finding(
        code=Code.CONTROLLER_NOT_REACHED,
        severity=Severity.WARNING if picture.fleets else Severity.NOTE,
        object="Service emberpool-controller",
        message=f"the controller isn't reached, so nothing is said of engines: {picture.controller.missing}",
        mend=mends.kubectl(
            "get", "services,pods", "--all-namespaces", "-l", "app.kubernetes.io/name=emberpool"
        ),
    )

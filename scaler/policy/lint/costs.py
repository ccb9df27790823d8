"""What spare seats cost a day, and what sharing them saves against spares for each model alone."""

from collections.abc import Iterator
from typing import Final

from scaler.policy.fleet import Fleet, SpareMode
from scaler.policy.lint.codes import Code
from scaler.policy.lint.findings import GPU_HOURS, SEATS, Figure, Finding, Operator, Place, Severity, Term
from scaler.policy.lint.subject import Subject
from scaler.policy.scaling_policy import ScalingPolicy

_HOURS: Final = 24
_CENTS: Final = 100


def fleet_costs(subject: Subject, fleet: Fleet) -> tuple[Figure, ...]:
    """Return what a fleet costs a day: its spares, all its seats, and what spares for each model alone would cost.

    seats × GPUs of a seat × 24 h × price of a GPU for an hour; in GPU-hours where no price is given. Seats without GPUs
    cost nothing here.
    """
    spec = fleet.spec
    if not spec.seat.gpus:
        return ()
    figures = [_daily("spare seats", fleet, _seats(spec.spare.min, "spare.min"))] if spec.spare.min else []
    if spec.spare.mode is SpareMode.AUTO and spec.spare.max is not None:
        figures.append(_daily("spare seats, at most", fleet, _seats(spec.spare.max, "spare.max")))
    figures.append(_daily("all of maxSeats", fleet, _seats(spec.max_seats, "maxSeats")))
    further = len(_backed(subject, fleet)) - 1
    if further > 0 and spec.spare.min:
        each = Term(
            name="further model" if further == 1 else "further models",
            value=float(further),
            unit="models",
            origin="policies on the fleet",
        )
        figures.append(_daily("saved by sharing", fleet, _seats(spec.spare.min, "spare.min"), each))
    return tuple(figures)


def cost_findings(subject: Subject) -> Iterator[Finding]:
    """Yield what each fleet's spares cost, and what sharing them saves."""
    for fleet in subject.policies.fleets.values():
        figures = {figure.name: figure for figure in fleet_costs(subject, fleet)}
        spares, whole = figures.get("spare seats"), figures.get("all of maxSeats")
        if spares is None or whole is None:
            continue
        yield Finding(
            code=Code.SPARE_COST,
            severity=Severity.INFO,
            place=Place.of(fleet, "spec", "spare", "min"),
            message=f"spare seats cost {amount(spares)} a day; all of maxSeats would cost {amount(whole)}",
            hint="" if fleet.spec.cost_per_gpu_hour else "costPerGpuHour tells it in money",
            terms=spares.terms,
        )
        saved = figures.get("saved by sharing")
        if saved is not None:
            yield _saving(subject, fleet, saved)


def amount(figure: Figure) -> str:
    """Write a cost: `48 GPU-hours`, `120.50 USD`."""
    total = figure.total or 0.0
    return f"{total:,.2f}".removesuffix(".00") + f" {figure.unit}"


def _saving(subject: Subject, fleet: Fleet, saved: Figure) -> Finding:
    """As many spares for each model alone would take the same burst; shared ones take it of one model at a time."""
    sharers, spares = len(_backed(subject, fleet)), fleet.spec.spare.min
    shared = "1 spare seat" if spares == 1 else f"{spares} spare seats"
    return Finding(
        code=Code.SHARING_SAVES,
        severity=Severity.INFO,
        place=Place.of(fleet, "spec", "spare", "min"),
        message=(
            f"{sharers} models share {shared}; as many for each alone would be {spares * sharers}, so sharing saves"
            f" {amount(saved)} a day"
        ),
        hint="they take one model's burst of that size, or several smaller ones, at a time",
        terms=saved.terms,
    )


def _backed(subject: Subject, fleet: Fleet) -> list[ScalingPolicy]:
    """List the policies that the spares are for; work that only borrows them would have none of its own."""
    return [policy for policy in subject.policies_on(fleet) if not policy.spec.preemptible]


def _seats(count: int, origin: str) -> Term:
    return Term(name="seat" if count == 1 else "seats", value=float(count), unit=SEATS, origin=origin)


def _daily(name: str, fleet: Fleet, *factors: Term) -> Figure:
    gpus = Term(
        name="GPU of each" if fleet.spec.seat.gpus == 1 else "GPUs of each",
        value=float(fleet.spec.seat.gpus),
        unit="GPUs",
        origin="seat.gpus",
    )
    hours = Term(name="hours", value=float(_HOURS), unit="hours", origin="a day")
    terms, cost = (*factors, gpus, hours), fleet.spec.cost_per_gpu_hour
    if cost is None:
        return Figure(name=name, unit=GPU_HOURS, terms=terms, operator=Operator.PRODUCT)
    price = Term(
        name=f"{cost.currency} for a GPU's hour",
        value=cost.cents / _CENTS,
        unit=cost.currency,
        origin="costPerGpuHour.cents / 100",
    )
    return Figure(name=name, unit=cost.currency, terms=(*terms, price), operator=Operator.PRODUCT)

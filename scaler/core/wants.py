"""What a policy wants of each fleet beyond the seats that it was given: what belongs there, what is short, what is only kept."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import sub
from typing import NamedTuple

from scaler.core.allocate import Applicant
from scaler.core.assess import Assessment
from scaler.core.model import Quality
from scaler.core.placement import along, beyond, floored, homes, wishes
from warmpool.seats import FleetName

_FRESH = Quality.FRESH
"""By a name of its own: looking an enum's members up takes long (`scaler.core.demand`)."""


class Want(NamedTuple):
    """What one policy wants on one fleet.

    Attributes:
        fleet: the fleet.
        residents: residents wanted that own their seats.
        floor: the part of them that is floor.
        kept: the part of them that serves only out of caution.
        calm: seconds of the policy's stable window.
    """

    fleet: FleetName
    residents: int
    floor: int
    kept: int
    calm: float


want_of: Callable[[tuple[FleetName, int, int, int, float]], Want] = partial(tuple.__new__, Want)
"""Makes a want in half of the time that calling its class takes."""


def wanted(assessment: Assessment, given: Sequence[int], ordered: float) -> list[int]:
    """Return the residents wanted per place: what was given, what belongs there, what is short; floors last.

    Args:
        assessment: what was known before seats were handed out.
        given: seats that it got, per place.
        ordered: capacity that new seats may be made for.
    """
    places, most = assessment.places, assessment.most
    if assessment.spec.preemptible:
        return floored(places, given, assessment.floor)
    if assessment.holding:
        past = assessment.memory.wanted
        residents = [max(seats, past.get(p.pool.name, 0)) for seats, p in zip(given, places, strict=True)]
        residents = [min(seats, most) for seats in residents]
    else:
        belongs = homes(places, min(_steady(assessment), ordered), most)
        residents = wishes(places, list(map(max, given, belongs)), min(assessment.answer, ordered), most)
    return floored(places, residents, assessment.floor)


def _steady(assessment: Assessment) -> float:
    """Return what belongs on a policy's own fleets for good.

    Where later fleets bridge, a queue of a moment is theirs: an own seat that was made for it would stay for a whole
    scale-down window.
    """
    wants = assessment.terms
    return wants.stable if len(assessment.places) == 1 else max(wants.mean, wants.backlog, wants.correction)


def kept(assessment: Assessment, asker: Applicant) -> Mapping[FleetName, int]:
    """Return per fleet how many of the seats that a policy got serve only out of caution; only what is above zero.

    While demand isn't fresh it is what it was: the unknown frees no seat.
    """
    places, given = assessment.places, asker.given
    if assessment.demand.quality is not _FRESH:
        past = assessment.memory.kept
        cautious = (
            [min(given[index], past.get(p.pool.name, 0)) for index, p in enumerate(places)] if past else []
        )
    elif asker.capacity <= asker.need or assessment.spec.preemptible or asker.seats <= assessment.floor:
        cautious = []  # a borrower's seats beyond its floor are lent, and count as spare anyway
    else:
        used, free = along(places, given, asker.need, assessment.most), beyond(given, assessment.floor)
        cautious = [min(seats - used[index], free[index]) for index, seats in enumerate(given)]
    if not cautious:
        return {}
    return {places[index].pool.name: seats for index, seats in enumerate(cautious) if seats}


def wants_of(
    assessment: Assessment,
    residents: Sequence[int],
    lent: Sequence[int] | None,
    cautious: Mapping[FleetName, int],
) -> list[Want]:
    """Return what a policy wants, fleet by fleet.

    Args:
        assessment: what was known before seats were handed out.
        residents: residents wanted, per place.
        lent: the part of them that only borrows its seats, per place; None where none does.
        cautious: per fleet, the part of them that serves only out of caution.
    """
    places, calm = assessment.places, assessment.spec.burst.stable_window
    floors = floored(places, [0] * len(places), assessment.floor)
    owned = residents if lent is None else list(map(sub, residents, lent))
    found = []
    for place, seats, floor in zip(places, owned, floors):  # noqa: B905 - as in `scaler.core.placement.along`
        fleet = place.pool.name
        found.append(want_of((fleet, seats, floor, cautious.get(fleet, 0) if cautious else 0, calm)))
    return found

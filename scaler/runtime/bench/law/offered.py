"""What the requests would take if each were served at once: the least that any rule could hold. PURE."""

from typing import NamedTuple

from scaler.runtime.bench.law.case import Case


class Offered(NamedTuple):
    """Seats that are kept busy where nobody waits, one model a seat at a time.

    Attributes:
        mean: on average.
        most: at most.
    """

    mean: float
    most: int


def offered(case: Case) -> Offered:
    """Return what a case's requests keep busy, with the slots of seats that a group shares."""
    events = sorted(_events(case))
    models = len(case.models)
    busy, seats = [0] * models, [0] * models
    area, most, last = 0.0, 0, 0.0
    for at, change, model, slots in events:
        if at >= 0.0:
            area += sum(seats) * (at - last)
            last = at
        busy[model] += change
        seats[model] = -(-busy[model] // slots)
        most = max(most, sum(seats)) if at >= 0.0 else most
    return Offered(area / last if last else 0.0, most)


def _events(case: Case) -> list[tuple[float, int, int, int]]:
    """Return when a model's requests begin and end: time, change, number of the model, slots of its seats."""
    found, number = [], 0
    for group in case.groups:
        slots = case.shared_slots(group)
        for model in group:
            for at, seconds in case.requests(model):
                end = at + seconds
                found += [(at, 1, number, slots[model.name]), (end, -1, number, slots[model.name])]
            number += 1
    return found

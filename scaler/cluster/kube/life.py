"""What is to be done about a pod in its life beside promotions: let it become Ready, mark what it is worth, free it. PURE.

Rules of a present state alone, so that a leader that has just begun does what its predecessor had left undone.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from scaler.cluster.kube.views import Pod
from scaler.cluster.objects import proven
from warmpool.seats import DELETION_COST, Seat, SeatValue

ROUND: Final = 100
"""Chores of one kind that are begun at once; the others wait for the next look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chore:
    """Something to do on one pod.

    Attributes:
        seat: the seat as it was looked at.
    """

    seat: Seat


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit(Chore):
    """Set the readiness gate.

    Attributes:
        reason: why, in one word.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark(Chore):
    """Mirror what the seat is worth in its label and its deletion cost."""

    value: SeatValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Free(Chore):
    """Take a claim off that nobody can read: no claim could be put on the seat any more.

    Attributes:
        why: what is wrong with it.
    """

    why: str


def chores(pod: Pod, seat: Seat, *, admits: bool = True) -> Iterator[Chore]:
    """Yield what is to be done on a pod now.

    Args:
        pod: the pod.
        seat: its seat, as joined, and lent if it is.
        admits: whether pods of its fleet may become Ready.
    """
    if seat.terminating:
        return
    if pod.unreadable:
        yield Free(seat=seat, why=pod.unreadable)
        return
    if admits and not seat.admitted and (reason := admission(seat)):
        yield Admit(seat=seat, reason=reason)
    if seat.claim is None and not marked(pod, seat):  # a claim marks its seat itself, and so does its end
        yield Mark(seat=seat, value=seat.value)


def admission(seat: Seat) -> str:
    """Say in one word why a seat's pod may become Ready; empty while it may not.

    All its residents are proven or given up, or the first has been promoted.
    """
    if seat.serving:
        return "Promoted"
    return "ResidentsProven" if seat.reachable and proven(seat.residents) else ""


def marked(pod: Pod, seat: Seat) -> bool:
    """Whether a pod's label and deletion cost say what its seat is worth."""
    return (pod.marked, pod.cost) == (seat.value, str(DELETION_COST[seat.value]))


def in_order(found: Iterable[Chore]) -> list[Chore]:
    """Return what to do now: at most `ROUND` of each kind, and of marks those first whose loss would cost most."""
    frees, admits, marks = list[Chore](), list[Chore](), list[Mark]()
    for chore in found:
        match chore:
            case Mark():
                marks.append(chore)
            case Admit():
                admits.append(chore)
            case _:
                frees.append(chore)
    marks.sort(key=lambda mark: -abs(DELETION_COST[mark.value]))
    return [*frees[:ROUND], *admits[:ROUND], *marks[:ROUND]]

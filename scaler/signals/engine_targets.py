"""Which engines are asked: those of the residents in rotation, as the seats' own labels say. PURE."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from warmpool.seats import PolicyName, Seat
from warmpool.states import ResidentState

_CANNOT_HOLD_REQUESTS = frozenset(
    {
        ResidentState.STARTING,
        ResidentState.LOADING,
        ResidentState.WARMING,
        ResidentState.PARKING,
        ResidentState.PARKED,
        ResidentState.UNPARKING,
        ResidentState.FAILED,
        ResidentState.TERMINATING,
    }
)
"""States in which no engine is up, or one that can't compute: a label that says otherwise is about to go."""


@dataclass(frozen=True, slots=True)
class EngineTarget:
    """One engine to ask.

    Attributes:
        uid: identity of the seat's pod: a new pod of the same name is another target, and so is another address.
        url: base URL of the resident's guard; empty while it isn't known.
        seat: the seat's name, for people.
    """

    uid: str
    url: str
    seat: str = ""

    def __str__(self) -> str:
        """Show the seat's name, or what there is."""
        return self.seat or self.uid


def in_rotation(seats: Iterable[Seat]) -> Mapping[PolicyName, tuple[EngineTarget, ...]]:
    """Return the engines of all residents in rotation, by policy; policies that none serves are left out.

    The serving label decides, and not whether the seat is healthy or its agent reachable: what an engine has taken it
    still has while its agent restarts, and a sum without it would be too small. Paused, promoting and draining residents
    have no label: the numbers of a paused engine say nothing about demand.

    Call it once for each change of the cluster, not for each reading.
    """
    found: dict[PolicyName, list[EngineTarget]] = {}
    for seat in seats:
        for policy in seat.serving:
            resident = seat.resident(policy)
            if resident is not None and resident.state not in _CANNOT_HOLD_REQUESTS:
                target = EngineTarget(uid=seat.uid, url=resident.address, seat=seat.name)
                found.setdefault(policy, []).append(target)
    return MappingProxyType({policy: tuple(targets) for policy, targets in found.items()})

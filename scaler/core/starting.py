"""A policy of which nothing is up anywhere, and how it gets a seat for a resident to start on.

A resident (re)starts only while nothing serves on its seat. So one that isn't up would wait for ever behind whoever serves
there, of however low a priority. While none of a policy's residents is up (serving, on its way, draining, or to be
promoted on any seat), what it wants is therefore one seat to start on: it stands in line for that as for a first seat to
serve on, in order of priority and with the same turns, and what it is given is kept free until a resident is up.

A resident that never comes up must not keep a seat from others for good. So such a policy stands in line for as long as a
seat's start may take, and steps aside for as long. It steps aside at once where a resident waits for memory on a seat that
is free: another seat wouldn't help it, and somebody would have left it for nothing.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from scaler.core.memory import Start
from scaler.core.placement import Place

SHORTEST_PATIENCE_SECONDS: Final = 600.0
"""A start may take so long whatever starts have taken: Kubernetes' own default for a rollout's progress
(kubernetes.io, Deployments, `progressDeadlineSeconds`); images are pulled and disks are cold now and then."""
_PATIENT_STARTS: Final = 3.0
"""A start that takes so many times what starts have taken is late, and not merely slow."""


def is_down(places: Sequence[Place]) -> bool:
    """Whether nothing of a policy is up anywhere, and there is a seat on which a resident could start."""
    return not any(place.reach for place in places) and any(place.to_start().reach for place in places)


def is_cramped(places: Sequence[Place]) -> bool:
    """Whether nothing of a policy is up anywhere, and a resident waits for memory on a seat that is free."""
    return any(place.supply.cramped > 0 for place in places) and not any(place.reach for place in places)


class Turn(NamedTuple):
    """Whether a policy that is down stands in line for a seat to start on.

    Attributes:
        stands: it does; else it leaves its turn to others.
        until: when that changes; infinity while it has had no seat to start on.
    """

    stands: bool
    until: float


def turn_of(places: Sequence[Place], start: Start | None, now: float) -> Turn | None:
    """Return the turn of a policy; None if something of it is up, or no resident could start anywhere.

    Args:
        places: its fleets.
        start: its attempt to start a resident; None if it has had no seat for that.
        now: the time.
    """
    if not is_down(places):
        return None
    if is_cramped(places):
        return Turn(stands=False, until=now + patience_seconds(places))
    if start is None:
        return Turn(stands=True, until=math.inf)
    patience = patience_seconds(places)
    passed = math.floor((now - start.since) / patience)
    return Turn(stands=passed % 2 == 0, until=start.since + (passed + 1) * patience)


def attempt(
    places: Sequence[Place], turn: Turn | None, before: Start | None, seats: int, now: float
) -> Start | None:
    """Return a policy's attempt to start a resident, which begins with the first seat for it; None if there is none.

    Args:
        places: its fleets.
        turn: whether it stands in line; None if it has nothing to start.
        before: the attempt so far.
        seats: seats that it has been given for it.
        now: the time.
    """
    if is_cramped(places):
        return Start(now - patience_seconds(places), 0)
    if turn is None or (before is None and not seats):
        return None
    return Start(now if before is None else before.since, seats)


def patience_seconds(places: Sequence[Place]) -> float:
    """Return for how long a policy has a seat to start on before it steps aside, and for how long it does."""
    known = [place.pool.start_seconds for place in places if math.isfinite(place.pool.start_seconds)]
    return late_after(max(known, default=0.0))


def late_after(start_seconds: float) -> float:
    """Return the seconds after which a start is late, and not merely slow.

    Args:
        start_seconds: what starts have taken; 0 while none has been seen to.
    """
    return max(SHORTEST_PATIENCE_SECONDS, _PATIENT_STARTS * start_seconds)

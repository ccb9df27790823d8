"""A policy of which nothing is up anywhere, and how it gets a seat for a resident to start on.

A resident (re)starts only while nothing serves on its seat. So one that isn't up would wait for ever behind whoever serves
there, of however low a priority. While none of a policy's residents is up (serving, on its way, draining, or to be
promoted on any seat), what it wants is therefore one seat to start on: it stands in line for that as for a first seat to
serve on, in order of priority and with the same turns, and what it is given is kept free until a resident is up.

A resident that never comes up must not keep a seat from others for good. So such a policy stands in line for as long as a
seat's start may take, and steps aside for as long.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from scaler.core.memory import Start
from scaler.core.placement import Place

SHORTEST_PATIENCE_SECONDS: Final = 600.0
"""A start may take so long whatever starts have taken: Kubernetes' own default for a rollout's progress
(kubernetes.io, Deployments, `progressDeadlineSeconds`)."""
_PATIENT_STARTS: Final = 3.0
"""A start that takes so many times what starts have taken is late, and not merely slow."""


def is_down(places: Sequence[Place]) -> bool:
    """Whether nothing of a policy is up anywhere, and there is a seat on which a resident could start."""
    return not any(place.reach for place in places) and any(place.to_start().reach for place in places)


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
    if start is None:
        return Turn(stands=True, until=math.inf)
    patience = patience_seconds(places)
    passed = math.floor((now - start.since) / patience)
    return Turn(stands=passed % 2 == 0, until=start.since + (passed + 1) * patience)


def patience_seconds(places: Sequence[Place]) -> float:
    """Return for how long a policy has a seat to start on before it steps aside, and for how long it does."""
    known = [place.pool.start_seconds for place in places if math.isfinite(place.pool.start_seconds)]
    return max(SHORTEST_PATIENCE_SECONDS, _PATIENT_STARTS * max(known, default=0.0))

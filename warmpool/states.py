"""The one transition table of residents: what may follow what, and nothing else may.

A resident is one engine of one model on one seat. Both sides of the product use this table: the agent when it moves
an engine, the controller when it reads what agents report. PURE: no I/O, no clock.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from warmpool.errors import IllegalTransition


class ResidentState(StrEnum):
    """Where a resident is in its life."""

    STARTING = "Starting"
    """The engine's process is being started; nothing of it answers yet."""
    LOADING = "Loading"
    """Weights stream into device memory."""
    WARMING = "Warming"
    """Warm-up requests run: kernels compile, caches fill."""
    PROVING = "Proving"
    """It answers a known prompt and the tokens are compared; it is out of rotation meanwhile."""
    PAUSED = "Paused"
    """Weights in device memory, proven, scheduler off, out of rotation: can be promoted in milliseconds."""
    PROMOTING = "Promoting"
    """A claim is being carried out: KV memory, resume, canary."""
    SERVING = "Serving"
    """In rotation, or about to be: the canary has passed and the guard is open."""
    DRAINING = "Draining"
    """Out of rotation; what it accepted is being finished."""
    PARKING = "Parking"
    """Weights move from device memory to host memory."""
    PARKED = "Parked"
    """Weights in host memory; seconds to serve."""
    UNPARKING = "Unparking"
    """Weights move back from host memory to device memory."""
    FAILED = "Failed"
    """Its process died or it failed a step; it is restarted or given up."""
    QUARANTINED = "Quarantined"
    """Its GPU is suspected or bad; it gets no promotion."""
    TERMINATING = "Terminating"
    """It is being stopped for good."""


class Depth(StrEnum):
    """How deep a resident that doesn't serve sleeps, the lightest sleep first; what its wake times are told by."""

    PAUSED = "Paused"
    """Scheduler off; weights, KV memory and graphs in device memory."""
    KV_RELEASED = "KvReleased"
    """Paused, with its KV memory given back: the depth for seats with several residents."""
    PARKED = "Parked"
    """Weights in host memory, nothing in device memory but what its process can't give back."""


_S = ResidentState

_EVERYWHERE = frozenset({_S.FAILED, _S.QUARANTINED, _S.TERMINATING})

_NEXT: dict[ResidentState, set[ResidentState]] = {
    _S.STARTING: {_S.LOADING},
    _S.LOADING: {_S.WARMING},
    _S.WARMING: {_S.PROVING, _S.LOADING},  # back to Loading: it gives way to a promotion on its seat, loaded
    _S.PROVING: {_S.PAUSED, _S.PROMOTING, _S.LOADING},  # Promoting: a claim takes over the resumed engine
    _S.PAUSED: {_S.PROMOTING, _S.PROVING, _S.PARKING},
    _S.PROMOTING: {_S.SERVING, _S.PAUSED},  # back to Paused is the undo
    _S.SERVING: {_S.DRAINING},
    _S.DRAINING: {_S.PAUSED, _S.SERVING},  # back to Serving is the recall
    _S.PARKING: {_S.PARKED, _S.PAUSED},
    _S.PARKED: {_S.UNPARKING},
    _S.UNPARKING: {_S.PAUSED, _S.PARKED},
    _S.FAILED: {_S.STARTING},
    _S.QUARANTINED: {_S.PAUSED, _S.STARTING},
    _S.TERMINATING: set(),
}

TRANSITIONS: Mapping[ResidentState, frozenset[ResidentState]] = MappingProxyType(
    {
        state: frozenset(following)
        if state is _S.TERMINATING
        else (frozenset(following) | _EVERYWHERE) - {state}
        for state, following in _NEXT.items()
    }
)
"""For each state, the states that may follow it."""

COMPUTING = frozenset({_S.WARMING, _S.PROVING, _S.PROMOTING, _S.SERVING, _S.DRAINING})
"""States in which a resident may use its seat's GPUs; by default one resident of a seat at a time."""

MOVING = frozenset({_S.PARKING, _S.UNPARKING})
"""States in which a resident's weights are on their way, and at whose end it can be promoted."""

PROMOTABLE = frozenset({_S.PAUSED, _S.PARKED})
"""States from which one order brings a resident into service: in milliseconds from the first, in seconds from the second."""


def transition(current: ResidentState, following: ResidentState) -> ResidentState:
    """Return `following` if the table lets it follow `current`.

    Raises:
        IllegalTransition: the table has no such arrow.
    """
    if following not in TRANSITIONS[current]:
        allowed = ", ".join(sorted(TRANSITIONS[current])) or "nothing"
        raise IllegalTransition(f"a resident can't go from {current} to {following} (from there: {allowed})")
    return following

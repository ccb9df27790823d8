"""What an adapter knows of where its engine's memory is. Orders that move it twice are errors on some engines, or end them."""

from enum import Enum, auto

from warmpool.engines.capabilities import Finding
from warmpool.errors import EngineRejected, EngineUnfit


class Kv(Enum):
    """Where the KV memory is."""

    HELD = auto()
    RELEASED = auto()
    UNKNOWN = auto()
    """An order that released or took it was not answered, or answered with an error."""


class Weights(Enum):
    """Where the weights are."""

    HELD = auto()
    """In device memory."""
    PARKED = auto()
    """In host memory."""
    UNKNOWN = auto()
    """An order that moved them was not answered, or answered with an error."""


def require_known(weights: Weights) -> None:
    """See that it is known where the weights are. Half-moved weights are not moved again: what was mapped leaks with each attempt.

    Raises:
        EngineUnfit: it isn't.
    """
    if weights is Weights.UNKNOWN:
        raise EngineUnfit(
            "where its weights are isn't known, since an order that moved them was not carried out to its end; it has to be replaced"
        )


def require_held(weights: Weights) -> None:
    """See that the weights are in device memory.

    Raises:
        EngineRejected: they are parked.
        EngineUnfit: it isn't known where they are.
    """
    require_known(weights)
    if weights is Weights.PARKED:
        raise EngineRejected("the engine is parked; unpark first")


def require_granted(parking: Finding) -> Finding:
    """See that an engine can be parked, and return what says so.

    Raises:
        EngineRejected: it can't be.
    """
    if not parking.granted:
        raise EngineRejected(f"the engine can't be parked ({parking.ground}): {parking.reason}")
    return parking

"""Orders of people that stand until they end: fleets that keep their size, and seats that take no promotion.

They must outlive the controller that took them: a freeze for the night isn't over because a controller was restarted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scaler.store import state_file
from warmpool.errors import BadOrder
from warmpool.seats import FleetName, SeatName

MOST_DRAINED: Final = 32
"""Seats of one fleet that may be drained at a time: what is kept of a fleet has a bounded length."""
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze:
    """A fleet that keeps its size.

    Attributes:
        until: Unix time at which it ends.
        reason: why.
        by: who ordered it.
        since: Unix time of the order.
    """

    until: float
    reason: str
    by: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """A seat that takes no promotion.

    Attributes:
        uid: the pod's identity; a new pod of the same name isn't drained.
        reason: why.
        by: who ordered it.
        since: Unix time of the order.
    """

    uid: str
    reason: str
    by: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OfFleet:
    """What stands for one fleet.

    Attributes:
        freeze: None while nobody has frozen it.
        drains: the drained seats.
    """

    freeze: Freeze | None = None
    drains: Mapping[SeatName, Drain]


Standing = Mapping[FleetName, OfFleet]
"""Per fleet. One without any order may be in it: its orders have ended."""


def save(path: Path, standing: Standing) -> None:
    """Write what stands.

    Raises:
        OSError: the file can't be written.
    """
    state_file.write(path, to_json(standing))


def load(path: Path) -> Standing:
    """Read what stands; nothing where there is no such file, or it can't be understood.

    Raises:
        OSError: the file is there and can't be read.
    """
    return state_file.read(path, from_json, "orders that stood can't be read, and are forgotten") or {}


def to_json(standing: Standing) -> dict[str, Any]:
    """Return what stands as JSON."""
    return {"format": _FORMAT, "fleets": {name: _fleet_to_json(each) for name, each in standing.items()}}


def from_json(data: Mapping[str, Any]) -> Standing:
    """Read what `to_json` has returned.

    Raises:
        BadOrder: it is something else.
    """
    try:
        if data["format"] != _FORMAT:
            raise BadOrder(f"format {data['format']} of orders is not known")
        return {FleetName(str(name)): _fleet_from_json(each) for name, each in data["fleets"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadOrder(f"no orders: {error!r}") from error


def _fleet_to_json(fleet: OfFleet) -> dict[str, Any]:
    freeze = fleet.freeze
    return {
        "freeze": None if freeze is None else {"until": freeze.until, **_order_to_json(freeze)},
        "drains": {name: {"uid": each.uid, **_order_to_json(each)} for name, each in fleet.drains.items()},
    }


def _order_to_json(order: Freeze | Drain) -> dict[str, Any]:
    return {"reason": order.reason, "by": order.by, "since": order.since}


def _order_from_json(data: Mapping[str, Any]) -> dict[str, Any]:
    return {"reason": str(data["reason"]), "by": str(data["by"]), "since": float(data["since"])}


def _fleet_from_json(data: Mapping[str, Any]) -> OfFleet:
    freeze = data["freeze"]
    return OfFleet(
        freeze=None if freeze is None else Freeze(until=float(freeze["until"]), **_order_from_json(freeze)),
        drains={
            SeatName(str(name)): Drain(uid=str(each["uid"]), **_order_from_json(each))
            for name, each in data["drains"].items()
        },
    )

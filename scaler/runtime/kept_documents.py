"""What is kept of one fleet, as one text of bounded length. PURE: time is an argument.

Where it would be longer, the oldest goes: days of the fleet's history while that takes more than half of the room, then expectations.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from scaler.runtime.kept import Kept
from scaler.store import histories, recordings, standing_orders
from scaler.store.histories import History
from scaler.store.recordings import Recordings
from warmpool.errors import BadOrder
from warmpool.seats import FleetName

MOST_BYTES: Final = 64 * 1024


class Unreadable(ValueError):
    """A text is none of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfFleet:
    """What is kept of one fleet.

    Attributes:
        fleet: its name.
        history: what it has learned; None where it has learned nothing.
        recordings: what residents of policies that have it first have agreed on.
        orders: the orders of people that stand for it; None where nobody has given any.
    """

    fleet: FleetName
    history: History | None = None
    recordings: Recordings = field(default_factory=lambda: MappingProxyType({}))
    orders: standing_orders.OfFleet | None = None

    @property
    def worth_keeping(self) -> bool:
        """Whether there is anything."""
        history = self.history
        learned = history is not None and (bool(history.starts) or history.rises.since is not None)
        return learned or any(self.recordings.values()) or self.orders is not None


def to_text(kept: OfFleet, now: float, wall: float) -> str:
    """Write it, in `MOST_BYTES` at most.

    Args:
        kept: what is kept.
        now: the law's clock.
        wall: the same moment as Unix time.
    """
    while len(text := _text(kept, now, wall)) > MOST_BYTES:
        shorter = _shorter(kept, now, wall)
        if shorter is None:
            return _text(OfFleet(fleet=kept.fleet, orders=kept.orders), now, wall)
        kept = shorter
    return text


def from_text(text: str, now: float, wall: float) -> Kept:
    """Read it, in the time of the clock that runs now.

    Raises:
        Unreadable: it is something else.
    """
    try:
        data = json.loads(text)
        return Kept(
            histories=histories.from_json(data["histories"], now, wall),
            recordings=recordings.from_json(data["recordings"]),
            orders=standing_orders.from_json(data["orders"]) if "orders" in data else {},
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, BadOrder) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def _text(kept: OfFleet, now: float, wall: float) -> str:
    learned: Mapping[FleetName, History] = {} if kept.history is None else {kept.fleet: kept.history}
    data = {
        "histories": histories.to_json(learned, now, wall),
        "recordings": recordings.to_json(kept.recordings),
    }
    if kept.orders is not None:
        data["orders"] = standing_orders.to_json({kept.fleet: kept.orders})
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def _shorter(kept: OfFleet, now: float, wall: float) -> OfFleet | None:
    """Return it without what is oldest; None where nothing can be left out."""
    history, agreed = kept.history, kept.recordings
    alone = 0 if history is None else len(_text(replace(kept, recordings={}), now, wall))
    if history is not None and history.rises.days and (alone > MOST_BYTES // 2 or not any(agreed.values())):
        rises = replace(history.rises, days=history.rises.days[1:])
        return replace(kept, history=replace(history, rises=rises))
    if not any(agreed.values()):
        return None
    longest = max(agreed, key=lambda policy: len(agreed[policy]))
    return replace(kept, recordings={**agreed, longest: agreed[longest][1:]})

"""What people have ordered of a node, kept on the node itself: any leader reads it, and `kubectl describe node` shows it. PURE."""

import json
from dataclasses import dataclass
from typing import Final

EXCLUDED_BY_HAND: Final = "ExcludedByHand"
"""Value of the taint of a node that a person has excluded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandMark:
    """An order on a node that is in force.

    Attributes:
        excluded: the node gets no new pods; else it does, whatever is said of its GPUs.
        actor: who ordered it.
        reason: why.
        since: Unix time of the order.
        until: Unix time at which it ends by itself; None: never.
    """

    excluded: bool
    actor: str
    reason: str
    since: float
    until: float | None = None

    def holds(self, now: float) -> bool:
        """Whether it is in force still."""
        return self.until is None or now < self.until

    @property
    def annotation(self) -> str:
        """It as the annotation beside our taint holds it."""
        data = {
            "taint": EXCLUDED_BY_HAND if self.excluded else None,
            "since": round(self.since),
            "why": self.reason,
            "by": self.actor,
            "until": self.until,
        }
        return json.dumps(data, sort_keys=True)


def hand_mark(annotation: str | None) -> HandMark | None:
    """Read the annotation; None where it tells of no order of a person."""
    if annotation is None:
        return None
    try:
        found = json.loads(annotation)
        return HandMark(
            excluded=found["taint"] is not None,
            actor=str(found["by"]),
            reason=str(found["why"]),
            since=float(found["since"]),
            until=None if found["until"] is None else float(found["until"]),
        )
    except (ValueError, KeyError, TypeError):
        return None

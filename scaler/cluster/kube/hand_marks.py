"""What people have ordered of a node, kept on the node itself: any leader reads it, and `kubectl describe node` shows it. PURE."""

import json
from dataclasses import dataclass
from typing import Final

from warmpool.nodehealth.marks import owned_value, since_of

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


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMark:
    """Why a node is out, or kept in though something is said of its GPUs.

    Attributes:
        excluded: it gets no new pods.
        reason: why, in words.
        since: Unix time.
        actor: the person who ordered it; empty where it follows from what is said of its GPUs.
        until: Unix time at which it ends by itself; None: when what it follows from ends.
    """

    excluded: bool
    reason: str
    since: float
    actor: str = ""
    until: float | None = None


def node_mark(annotation: str | None) -> NodeMark | None:
    """Read the annotation, a person's or ours; None where it tells of neither."""
    order = hand_mark(annotation)
    if order is not None:
        return NodeMark(
            excluded=order.excluded,
            reason=order.reason,
            since=order.since,
            actor=order.actor,
            until=order.until,
        )
    since = since_of(annotation)
    if annotation is None or since is None or owned_value(annotation) is None:
        return None
    return NodeMark(excluded=True, reason=str(json.loads(annotation).get("why", "")), since=since)


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

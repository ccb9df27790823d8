"""Decisions as the leader tells them and controllers that stand by hear them, one line each time. PURE: time is an argument.

A line holds the figures of every fleet and policy that was decided for since the line before; the first one, of all. Each figure goes
with its age, for clocks of two machines are never compared: what a line takes on its way is not counted, and a stream that brings
nothing for `SILENT_SECONDS` is given up, so that an age is short by no more than that.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scaler.core.model import FallbackBehavior
from scaler.errors import SignalError
from scaler.keda.published import FleetFigures, PolicyFigures

HEARTBEAT_SECONDS: Final = 2.0
"""A line comes at least this often."""
SILENT_SECONDS: Final = 3 * HEARTBEAT_SECONDS
"""A stream that brings nothing for this long is broken."""
LONGEST_LINE_BYTES: Final = 16 * 1024 * 1024
HEARTBEAT: Final = b"{}\n"
"""The line that says nothing but that the stream lives."""


class ToldRejected(SignalError):
    """A line of the stream tells no decisions; what was heard before stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one line tells.

    Attributes:
        term: the leader's term; what is told in an earlier one than was heard already is of no use.
        holder: the leader.
        fleets: figures by name.
        policies: figures by name.
    """

    term: int
    holder: str
    fleets: Mapping[str, FleetFigures]
    policies: Mapping[str, PolicyFigures]


def to_line(told: Told, now: float) -> bytes:
    """Write a line.

    Args:
        told: what is told.
        now: monotonic seconds, on the clock of the figures.
    """
    data = {
        "term": told.term,
        "holder": told.holder,
        "fleets": {name: _fleet(each, now) for name, each in told.fleets.items()},
        "policies": {name: _policy(each, now) for name, each in told.policies.items()},
    }
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def from_line(text: bytes, now: float) -> Told | None:
    """Read a line; None for a heartbeat.

    Args:
        text: the line.
        now: monotonic seconds on the reader's own clock, in which the figures will be.

    Raises:
        ToldRejected: it is no such line.
    """
    try:
        data = json.loads(text)
        if data == {}:
            return None
        return Told(
            term=int(data["term"]),
            holder=str(data["holder"]),
            fleets={str(name): _fleet_figures(each, now) for name, each in data["fleets"].items()},
            policies={str(name): _policy_figures(each, now) for name, each in data["policies"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ToldRejected(f"not a line of decisions: {error!r}") from error


def _fleet(figures: FleetFigures, now: float) -> dict[str, Any]:
    return {
        "age": _age(figures.at, now),
        "total": figures.total,
        "serving": figures.serving,
        "spare": figures.spare,
        "fallback": figures.fallback,
    }


def _policy(figures: PolicyFigures, now: float) -> dict[str, Any]:
    return {
        "age": _age(figures.at, now),
        "serving": figures.serving,
        "promoting": figures.promoting,
        "queued": _finite(figures.queued),
        "oldestWait": _finite(figures.oldest_wait),
        "fallback": str(figures.fallback),
        "fallbackServing": figures.fallback_serving,
    }


def _age(at: float, now: float) -> float:
    return round(max(0.0, now - at), 3)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _fleet_figures(data: Mapping[str, Any], now: float) -> FleetFigures:
    return FleetFigures(
        at=now - _number(data["age"]),
        total=_count(data["total"]),
        serving=_count(data["serving"]),
        spare=_count(data["spare"]),
        fallback=_count(data["fallback"]),
    )


def _policy_figures(data: Mapping[str, Any], now: float) -> PolicyFigures:
    queued, oldest = data["queued"], data["oldestWait"]
    return PolicyFigures(
        at=now - _number(data["age"]),
        serving=_count(data["serving"]),
        promoting=_count(data["promoting"]),
        queued=None if queued is None else _number(queued),
        oldest_wait=None if oldest is None else _number(oldest),
        fallback=FallbackBehavior(data["fallback"]),
        fallback_serving=_count(data["fallbackServing"]),
    )


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is no number from 0 on")
    return float(value)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value

"""What people see of one signal: the JSON of `GET /v1/signals`, which `emberpool signals get` prints. PURE."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from scaler.core.model import Load, Reading
from scaler.signals.board import PUSHED, SignalState
from scaler.signals.engine_metrics import EngineMetricsSource
from scaler.signals.engine_sum import EngineView
from scaler.signals.port import Part, SignalKey
from scaler.signals.pushed import Speaker

_PUSHED_PARTS: Final[Mapping[str, str]] = {
    "Queued": "queued",
    "InFlight": "in_flight",
    "OldestWaitSeconds": "oldest_wait",
    "ArrivalsPerSecond": "arrivals",
    "CompletionsPerSecond": "completions",
    "Refused": "refused",
    "LateShare": "late_share",
    "Backlog": "backlog",
    "BacklogAgeSeconds": "backlog_age",
}
"""What can be pushed, and which field of a load has it."""


def read(key: SignalKey, state: SignalState, source: object) -> dict[str, Any]:
    """Show a signal that the controller reads.

    Args:
        key: which.
        state: what the board has of it.
        source: what reads it at present; None if nothing does.
    """
    expected = state.expectation
    view: dict[str, Any] = {
        "policy": key.policy,
        "name": key.signal,
        "type": expected.type,
        "parts": [_part(part, reading, _why(part, state)) for part, reading in state.parts.items()],
        "intervalSeconds": expected.interval,
        "freshSeconds": expected.fresh_seconds,
        "expirySeconds": expected.expiry_seconds,
        "readings": {"read": state.read, "failed": state.failed, "spoilt": state.spoilt},
        "lastError": {"message": state.error, "inARow": state.failed_in_a_row} if state.error else None,
    }
    if isinstance(source, EngineMetricsSource):
        view["engines"] = [_engine(engine) for engine in source.describe().engines]
    return view


def pushed(key: SignalKey, load: Load, instances: Iterable[Speaker]) -> dict[str, Any]:
    """Show a signal that others push.

    Args:
        key: which.
        load: what they say together.
        instances: who does.
    """
    readings = {part: getattr(load, field) for part, field in _PUSHED_PARTS.items()}
    return {
        "policy": key.policy,
        "name": key.signal,
        "type": PUSHED,
        "parts": [_part(part, reading) for part, reading in readings.items() if reading.known],
        "instances": [
            {"name": each.name, "kind": str(each.kind), "pusher": each.pusher, "ageSeconds": each.age}
            for each in instances
        ],
        "lastError": None,
    }


def _part(part: str, reading: Reading, why: str = "") -> dict[str, Any]:
    return {
        "part": str(part),
        "value": reading.value if reading.known else None,
        "ageSeconds": reading.age if reading.known else None,
        "quality": str(reading.quality),
        "reason": None if reading.known else why,
    }


def _why(part: Part, state: SignalState) -> str:
    """Say why a part that is Missing is."""
    if state.error:
        return state.error
    if not state.read:
        return "it has not been read yet"
    if part in state.expectation.spare:
        return "0/0: no requests, and so no share of them"
    return "the last reading has expired"


def _engine(engine: EngineView) -> dict[str, Any]:
    return {
        "seat": str(engine.target),
        "dialect": engine.dialect,
        "running": engine.running,
        "waiting": engine.waiting,
        "kvUsage": engine.kv_usage,
        "ageSeconds": engine.age if math.isfinite(engine.age) else None,
        "trouble": engine.trouble,
    }

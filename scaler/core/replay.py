"""Snapshots and decisions as JSON: what the ledger holds, and what a replay starts from.

lowerCamelCase keys, PascalCase values, times of the law's own clock. JSON has no NaN and no infinity: a number that is
neither finite becomes null, and null comes back as one that the law takes for the same (an unknown value, an endless age).
A record's snapshots, replayed in order from `Memory.initial` of its first time, give its decisions again.
"""

import math
from collections.abc import Mapping
from typing import Any

from scaler.core.explain import explain
from scaler.core.model import (
    Decision,
    FleetDecision,
    FleetView,
    Load,
    PolicyDecision,
    Quality,
    Reading,
    Reason,
    Snapshot,
    Supply,
)
from warmpool.seats import FleetName, PolicyName

Json = Mapping[str, Any]

_READINGS = {
    "queued": "queued",
    "in_flight": "inFlight",
    "engines": "engines",
    "oldest_wait": "oldestWaitSeconds",
    "peak": "peak",
    "completions": "completionsPerSecond",
    "arrivals": "arrivalsPerSecond",
}
_SUPPLY = ("serving", "promoting", "draining", "promotable", "switchable")
_SEATS = ("serving", "draining", "spare", "lent", "starting", "held", "doomed", "replicas")


def decision_to_json(decision: Decision) -> dict[str, Any]:
    """Render a decision; each reason comes with its sentence."""
    return {
        "at": decision.at,
        "law": decision.law,
        "nextWakeup": decision.next_wakeup,
        "policies": {
            name: _policy_to_json(policy, decision.at) for name, policy in decision.policies.items()
        },
        "fleets": {name: _fleet_to_json(fleet, decision.at) for name, fleet in decision.fleets.items()},
    }


def reason_to_json(reason: Reason, now: float | None = None) -> dict[str, Any]:
    """Render a reason with its sentence.

    Args:
        reason: the reason.
        now: time of the decision, so that the sentence can say for how long.
    """
    return {
        "code": str(reason.code),
        "facts": {key: _plain(value) for key, value in reason.facts.items()},
        "until": reason.until,
        "sentence": explain(reason, now),
    }


def snapshot_to_json(snapshot: Snapshot) -> dict[str, Any]:
    """Render all that a decision looked at."""
    return {
        "loads": {name: _load_to_json(load) for name, load in snapshot.loads.items()},
        "fleets": {name: _view_to_json(view) for name, view in snapshot.fleets.items()},
        "seatBudget": snapshot.seat_budget,
    }


def snapshot_from_json(data: Json) -> Snapshot:
    """Read a snapshot back.

    Raises:
        ValueError: the data aren't what `snapshot_to_json` writes.
    """
    try:
        return Snapshot(
            loads={PolicyName(str(name)): _load_from_json(load) for name, load in data["loads"].items()},
            fleets={FleetName(str(name)): _view_from_json(view) for name, view in data["fleets"].items()},
            seat_budget=None if data.get("seatBudget") is None else int(data["seatBudget"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a snapshot: {error!r}") from error


def _policy_to_json(policy: PolicyDecision, now: float) -> dict[str, Any]:
    return {
        "policy": policy.policy,
        "mode": str(policy.mode),
        "demand": policy.demand,
        "needed": policy.needed,
        "capacity": policy.capacity,
        "wanted": dict(policy.wanted),
        "serving": dict(policy.serving),
        "reasons": [reason_to_json(reason, now) for reason in policy.reasons],
    }


def _fleet_to_json(fleet: FleetDecision, now: float) -> dict[str, Any]:
    return {
        "fleet": fleet.fleet,
        "serving": fleet.serving,
        "spare": fleet.spare,
        "held": fleet.held,
        "total": fleet.total,
        "reasons": [reason_to_json(reason, now) for reason in fleet.reasons],
    }


def _plain(value: float | str) -> float | str | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _load_to_json(load: Load) -> dict[str, Any]:
    """Render the readings that there are; one that is Missing is left out."""
    readings = ((key, getattr(load, name)) for name, key in _READINGS.items())
    return {
        key: {"value": _plain(reading.value), "age": _plain(reading.age), "quality": str(reading.quality)}
        for key, reading in readings
        if reading.known
    }


def _load_from_json(data: Json) -> Load:
    return Load(**{name: _reading_from_json(data[key]) for name, key in _READINGS.items() if key in data})


def _reading_from_json(data: Json) -> Reading:
    return Reading(
        value=math.nan if data["value"] is None else float(data["value"]),
        age=math.inf if data["age"] is None else float(data["age"]),
        quality=Quality(data["quality"]),
    )


def _view_to_json(view: FleetView) -> dict[str, Any]:
    return {
        **{name: getattr(view, name) for name in _SEATS},
        "supply": {
            policy: {name: getattr(supply, name) for name in _SUPPLY}
            for policy, supply in view.supply.items()
        },
    }


def _view_from_json(data: Json) -> FleetView:
    supply = {
        PolicyName(str(policy)): Supply(**{name: int(counts.get(name, 0)) for name in _SUPPLY})
        for policy, counts in data["supply"].items()
    }
    return FleetView(**{name: int(data.get(name, 0)) for name in _SEATS}, supply=supply)

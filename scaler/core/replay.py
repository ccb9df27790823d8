"""Snapshots and decisions as JSON, for the ledger (`scaler.core.ledger`) and for whoever asks the controller.

lowerCamelCase keys, PascalCase values, times of the law's own clock. JSON has no NaN and no infinity: a number that is
not finite becomes null, and null comes back as one that the law takes for the same (an unknown value, an endless age).
"""

import math
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from scaler.core.explain import explain
from scaler.core.model import (
    Decision,
    FleetDecision,
    FleetView,
    Floor,
    Kind,
    Load,
    OneWay,
    Ordered,
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
    "refused": "refused",
    "late_share": "lateShare",
    "backlog": "backlog",
    "backlog_age": "backlogAgeSeconds",
}
_KEYS = tuple(_READINGS.values())
_readings: Callable[[Load], tuple[Reading, ...]] = attrgetter(*_READINGS)
_ENDLESS = math.inf
_MISSING, _FRESH = Quality.MISSING, Quality.FRESH
"""By names of their own: looking an enum's members up takes long (`scaler.core.demand`)."""
_SUPPLY = (
    "serving",
    "promoting",
    "draining",
    "promotable",
    "switchable",
    "startable",
    "blocked",
    "cramped",
    "parked",
)
_ALWAYS = frozenset(_SUPPLY[:5])
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
        "facts": _facts_to_json(reason.facts),
        "until": reason.until,
        "sentence": explain(reason, now),
    }


class RenderedViews:
    """Fleets as they were rendered last: a view that is the same object as before isn't rendered again.

    Whoever gets the JSON must not change it.
    """

    def __init__(self) -> None:
        self._known: dict[FleetName, tuple[FleetView, Json]] = {}

    def of(self, name: FleetName, view: FleetView) -> Json:
        """Return a fleet's view as JSON."""
        known = self._known.get(name)
        if known is None or known[0] is not view:
            known = self._known[name] = (view, _view_to_json(view))
        return known[1]


def snapshot_to_json(snapshot: Snapshot, views: RenderedViews | None = None) -> dict[str, Any]:
    """Render all that a decision looked at.

    Args:
        snapshot: what it looked at.
        views: what was rendered before.
    """
    rendered = views or RenderedViews()
    return {
        "loads": {name: _load_to_json(load) for name, load in snapshot.loads.items()},
        "fleets": {name: rendered.of(name, view) for name, view in snapshot.fleets.items()},
        "servingFloors": {name: _floor_to_json(floor) for name, floor in snapshot.serving_floors.items()},
        "seatFloors": {name: _floor_to_json(floor) for name, floor in snapshot.seat_floors.items()},
        "frozenUntil": dict(snapshot.frozen),
        **(
            {"oneWay": {name: str(way) for name, way in snapshot.one_way.items()}} if snapshot.one_way else {}
        ),
        **(
            {
                "ordered": {
                    name: {"seats": dict(ordered.seats), "until": ordered.until}
                    for name, ordered in snapshot.ordered.items()
                }
            }
            if snapshot.ordered
            else {}
        ),
        "seatBudget": snapshot.seat_budget,
        "gpuBudget": snapshot.gpu_budget,
        **({"partial": True} if snapshot.partial else {}),
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
            serving_floors={
                PolicyName(str(name)): _floor_from_json(floor)
                for name, floor in data.get("servingFloors", {}).items()
            },
            seat_floors={
                FleetName(str(name)): _floor_from_json(floor)
                for name, floor in data.get("seatFloors", {}).items()
            },
            frozen={
                FleetName(str(name)): float(until) for name, until in data.get("frozenUntil", {}).items()
            },
            one_way={FleetName(str(name)): OneWay(way) for name, way in data.get("oneWay", {}).items()},
            ordered={
                PolicyName(str(name)): _ordered_from_json(ordered)
                for name, ordered in data.get("ordered", {}).items()
            },
            seat_budget=_whole(data.get("seatBudget")),
            gpu_budget=_whole(data.get("gpuBudget")),
            partial=bool(data.get("partial", False)),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a snapshot: {error!r}") from error


def _whole(value: object) -> int | None:
    return None if value is None else int(str(value))


def _floor_to_json(floor: Floor) -> dict[str, Any]:
    return {"value": floor.value, "schedule": floor.schedule, "changesAt": floor.changes_at}


def _ordered_from_json(data: Json) -> Ordered:
    until = data["until"]
    return Ordered(
        seats={FleetName(str(fleet)): int(seats) for fleet, seats in data["seats"].items()},
        until=None if until is None else float(until),
    )


def _floor_from_json(data: Json) -> Floor:
    changes_at = data["changesAt"]
    return Floor(
        value=int(data["value"]),
        schedule=str(data["schedule"]),
        changes_at=None if changes_at is None else float(changes_at),
    )


def _policy_to_json(policy: PolicyDecision, now: float) -> dict[str, Any]:
    found: dict[str, Any] = {
        "policy": policy.policy,
        "mode": str(policy.mode),
        "demand": policy.demand,
        "needed": policy.needed,
        "capacity": policy.capacity,
        "wanted": dict(policy.wanted),
        "serving": dict(policy.serving),
        "lent": dict(policy.lent),
    }
    if policy.warm:
        found["warm"] = dict(policy.warm)
    if policy.starting:
        found["starting"] = dict(policy.starting)
    found["reasons"] = [reason_to_json(reason, now) for reason in policy.reasons]
    return found


def _fleet_to_json(fleet: FleetDecision, now: float) -> dict[str, Any]:
    return {
        "fleet": fleet.fleet,
        "serving": fleet.serving,
        "spare": fleet.spare,
        "held": fleet.held,
        "total": fleet.total,
        **({"kept": fleet.kept} if fleet.kept else {}),
        "reasons": [reason_to_json(reason, now) for reason in fleet.reasons],
    }


def _plain(value: float) -> float | None:
    return value if -_ENDLESS < value < _ENDLESS else None  # NaN fails both


def _facts_to_json(facts: Mapping[str, float | str]) -> dict[str, float | str | None]:
    return {key: value if isinstance(value, str) else _plain(value) for key, value in facts.items()}


def _load_to_json(load: Load) -> dict[str, Any]:
    """Render the readings that there are; one that is Missing is left out."""
    found: dict[str, Any] = {"absent": list(load.absent)} if load.absent else {}
    for key, reading in zip(_KEYS, _readings(load), strict=True):
        quality = reading.quality
        if quality is not _MISSING:
            value, age = reading.value, reading.age  # there are thousands, so that `_plain` is written out
            found[key] = {
                "value": value if -_ENDLESS < value < _ENDLESS else None,
                "age": age if -_ENDLESS < age < _ENDLESS else None,
                "quality": "Fresh" if quality is _FRESH else str(quality),
            }
    return found


def _load_from_json(data: Json) -> Load:
    return Load(
        **{name: _reading_from_json(data[key]) for name, key in _READINGS.items() if key in data},
        absent=tuple(str(name) for name in data.get("absent", ())),
    )


def _reading_from_json(data: Json) -> Reading:
    return Reading(
        value=math.nan if data["value"] is None else float(data["value"]),
        age=math.inf if data["age"] is None else float(data["age"]),
        quality=Quality(data["quality"]),
    )


def _view_to_json(view: FleetView) -> dict[str, Any]:
    return {
        **{name: getattr(view, name) for name in _SEATS},
        "startSeconds": _plain(view.start_seconds),
        "supply": {policy: _supply_to_json(supply) for policy, supply in view.supply.items()},
        **({"kinds": [_kind_to_json(kind) for kind in view.kinds]} if view.kinds else {}),
    }


def _kind_to_json(kind: Kind) -> dict[str, Any]:
    return {"up": list(kind.up), "starts": list(kind.starts), "seats": kind.seats}


def _kind_from_json(data: Json) -> Kind:
    return Kind(
        up=tuple(PolicyName(str(name)) for name in data["up"]),
        starts=tuple(PolicyName(str(name)) for name in data["starts"]),
        seats=int(data["seats"]),
    )


def _supply_to_json(supply: Supply) -> dict[str, Any]:
    """Render the counts, and of what few fleets have only what isn't zero."""
    found = {name: getattr(supply, name) for name in _SUPPLY}
    wakes = {"pausedWakeSeconds": _plain(supply.paused_wake), "parkedWakeSeconds": _plain(supply.parked_wake)}
    return {name: number for name, number in (found | wakes).items() if number or name in _ALWAYS}


def _supply_from_json(data: Json) -> Supply:
    return Supply(
        **{name: int(data.get(name, 0)) for name in _SUPPLY},
        paused_wake=float(data.get("pausedWakeSeconds") or 0.0),
        parked_wake=float(data.get("parkedWakeSeconds") or 0.0),
    )


def _view_from_json(data: Json) -> FleetView:
    supply = {PolicyName(str(policy)): _supply_from_json(counts) for policy, counts in data["supply"].items()}
    start = data.get("startSeconds")
    return FleetView(
        **{name: int(data.get(name, 0)) for name in _SEATS},
        start_seconds=0.0 if start is None else float(start),
        supply=supply,
        kinds=tuple(_kind_from_json(kind) for kind in data.get("kinds", ())),
    )

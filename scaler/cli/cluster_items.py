"""What a cluster's own objects say of fleets, seats, policies and nodes, in the form of the controller's answers. PURE.

The pod object is the authority on claim and rotation, so both are taken from it; what agents report is the controller's to
tell, and marked as unknown (`reported`) where it hasn't told it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from scaler.cluster.kube.stamps import pod_stamps
from scaler.cluster.kube.views import Json, Pod, pod_from_json, unix
from warmpool.seats import FLEET_LABEL, SeatValue
from warmpool.wire import seat_to_json

Items = list[dict[str, Any]]

GPU: Final = "nvidia.com/gpu"
"""What the device plugin calls GPUs."""
_PRODUCT: Final = "nvidia.com/gpu.product"
"""Label by which GPU feature discovery names the model."""
_REPORTED: Final = (
    "gpus",
    "residents",
    "verdict",
    "gpuHealth",
    "healthObserved",
    "agent",
    "memory",
    "reachable",
    "ailing",
)
"""Keys of a seat that its agent and its controller tell, not its pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the controller has told, as it came; None where it wasn't reached."""

    fleets: Sequence[Json] | None = None
    policies: Sequence[Json] | None = None
    seats: Sequence[Json] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """What was read from the API server, as it came."""

    pods: Sequence[Json] = ()
    workloads: Sequence[Json] = ()
    nodes: Sequence[Json] = ()


NOTHING_TOLD: Final = Told()


@dataclass(slots=True)
class _Fleet:
    values: Counter[str] = field(default_factory=Counter)
    policies: dict[str, None] = field(default_factory=dict)
    created: list[float] = field(default_factory=list)


def seats(objects: Objects, told: Told = NOTHING_TOLD) -> Items:
    """Return the seats, in the order of their names."""
    known = {each.get("uid"): each for each in told.seats or ()}
    items = []
    for body in objects.pods:
        pod = pod_from_json(body)
        items.append(
            _seat(pod, _metadata(body).get("namespace", ""), known.get(pod.seat.uid)) | _stamps(body)
        )
    return sorted(items, key=lambda item: (item["namespace"], item["name"]))


def _seat(pod: Pod, namespace: str, known: Json | None) -> dict[str, Any]:
    """Return a seat: what stands on its pod, and what its agent reports as far as the controller told it."""
    item = {key: value for key, value in seat_to_json(pod.seat).items() if key not in _REPORTED}
    if known is not None:
        item |= {key: known[key] for key in _REPORTED if key in known}
    if not pod.seat.terminating:
        item["value"] = pod.marked or (known or {}).get("value") or item["value"]
    if pod.unreadable:
        item["unreadable"] = pod.unreadable
    return {
        **item,
        "namespace": namespace,
        "phase": pod.phase,
        "podIP": pod.ip,
        "declared": declared(pod.residents),
        "reported": known is not None,
    }


def _stamps(body: Json) -> dict[str, float | None]:
    """Return when a node took a pod and when its containers ran, in Unix seconds; null where that isn't told."""
    stamps = pod_stamps(body.get("status") or {})
    return {
        "scheduledAt": unix(stamps.scheduled) if stamps.scheduled else None,
        "runningAt": unix(stamps.running) if stamps.running else None,
    }


def declared(annotation: str) -> list[str]:
    """Return the policies of which a pod's template says that it has residents; none where it can't be read."""
    try:
        listed = json.loads(annotation)
    except (ValueError, RecursionError):
        return []
    entries = listed if isinstance(listed, list) else []
    return [str(each["policy"]) for each in entries if isinstance(each, dict) and "policy" in each]


def fleets(objects: Objects, told: Told = NOTHING_TOLD) -> Items:
    """Return the fleets: those that have pods or a workload, and those that only the controller knows."""
    seen: dict[tuple[str, str], _Fleet] = {}
    for seat in seats(objects, told):
        fleet = seen.setdefault((seat["namespace"], seat["fleet"]), _Fleet())
        fleet.values[seat["value"]] += 1
        fleet.policies |= dict.fromkeys([*seat["declared"], *seat["serving"]])
        fleet.created.append(seat["createdAt"])
    workloads = {_fleet_of(body): body for body in objects.workloads if _fleet_of(body)[1]}
    known = {(str(each.get("namespace", "")), str(each.get("name"))): each for each in told.fleets or ()}
    keys = sorted({*seen, *workloads})
    found = {key: known.get(key, known.get(("", key[1]), {})) for key in keys}
    items = [_fleet(key, seen.get(key, _Fleet()), workloads.get(key), found[key]) for key in keys]
    return [*items, *(dict(each) for each in known.values() if each not in found.values())]


def _fleet(key: tuple[str, str], seen: _Fleet, workload: Json | None, known: Json) -> dict[str, Any]:
    names = [str(value) for value in SeatValue]
    order = sorted(seen.values, key=lambda value: names.index(value) if value in names else len(names))
    policies = known.get("policies")
    item = {
        **known,
        "name": key[1],
        "namespace": key[0],
        "seats": {value: seen.values[value] for value in order},
        "policies": sorted(seen.policies) if policies is None else policies,
        "createdAt": min(seen.created, default=None),
    }
    if workload is not None:
        item["workload"] = f"{workload.get('kind')}/{_metadata(workload).get('name')}"
        item["replicas"] = (workload.get("spec") or {}).get("replicas")
    return item


def _fleet_of(workload: Json) -> tuple[str, str]:
    template = (workload.get("spec") or {}).get("template") or {}
    labels = _metadata(template).get("labels") or {}
    return str(_metadata(workload).get("namespace", "")), str(labels.get(FLEET_LABEL, ""))


def policies(objects: Objects, told: Told = NOTHING_TOLD) -> Items:
    """Return the policies: those that the controller knows, and those that pods name."""
    rotation: dict[str, Counter[str]] = {}
    for seat in seats(objects):
        for policy in dict.fromkeys([*seat["declared"], *seat["serving"]]):
            rotation.setdefault(policy, Counter())[seat["fleet"]] += policy in seat["serving"]
    known = {str(each.get("name")): each for each in told.policies or ()}
    return [
        _policy(name, known.get(name), rotation.get(name, Counter()))
        for name in [*known, *sorted(rotation.keys() - known.keys())]
    ]


def _policy(name: str, known: Json | None, rotation: Counter[str]) -> dict[str, Any]:
    if known is None:
        return {"name": name, "serving": dict(rotation), "inRotation": dict(rotation)}
    return {**known, "inRotation": dict(rotation)}


def nodes(objects: Objects) -> Items:
    """Return the nodes that have GPUs or seats, in the order of their names."""
    held: dict[str, Items] = {}
    for seat in seats(objects):
        held.setdefault(seat["node"], []).append(seat)
    items = [_node(body, held.get(_metadata(body).get("name", ""), [])) for body in objects.nodes]
    kept = [item for item in items if item["gpus"]["capacity"] or item["seats"]]
    return sorted(kept, key=lambda item: item["name"])


def _node(body: Json, held: Items) -> dict[str, Any]:
    metadata, spec, status = _metadata(body), body.get("spec") or {}, body.get("status") or {}
    conditions = [
        _kept(each, ("type", "status", "reason", "message")) for each in status.get("conditions") or ()
    ]
    return {
        "name": metadata.get("name", ""),
        "ready": any(each["type"] == "Ready" and each["status"] == "True" for each in conditions),
        "cordoned": bool(spec.get("unschedulable")),
        "gpus": {
            "product": (metadata.get("labels") or {}).get(_PRODUCT, ""),
            "capacity": _count(status.get("capacity")),
            "allocatable": _count(status.get("allocatable")),
        },
        "taints": [_kept(each, ("key", "value", "effect")) for each in spec.get("taints") or ()],
        "conditions": conditions,
        "seats": [
            {key: seat[key] for key in ("name", "namespace", "fleet", "value", "serving")} for seat in held
        ],
        "createdAt": unix(metadata.get("creationTimestamp")),
    }


def _count(resources: object) -> int:
    written = str(resources.get(GPU, 0)) if isinstance(resources, Mapping) else "0"
    return int(written) if written.isdecimal() else 0


def _kept(item: Json, keys: Iterable[str]) -> dict[str, str]:
    return {key: str(item.get(key) or "") for key in keys}


def _metadata(body: Json) -> Json:
    return body.get("metadata") or MappingProxyType({})

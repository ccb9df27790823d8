"""Objects as we read them: raw JSON to small values of our own, with nothing kept that nobody asks for.

Reading never fails: what a pod's annotations hold was written by somebody, and a pod that can't be understood is a seat
that takes no promotion. PURE.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from sys import intern
from types import MappingProxyType
from typing import Any, Final

from warmpool.errors import BadOrder
from warmpool.seats import (
    CLAIM_ANNOTATION,
    FLEET_LABEL,
    SEAT_LABEL,
    SERVING_LABEL_PREFIX,
    Claim,
    FleetName,
    PolicyName,
    Seat,
    SeatName,
    SeatValue,
)
from warmpool.wire import claim_from_json

Json = Mapping[str, Any]

ADMITTED_CONDITION: Final = "emberpool.dev/admitted"
"""The readiness gate of a seat."""
RESIDENTS_ANNOTATION: Final = "emberpool.dev/residents"
"""Which residents the pod template gives its seats, as JSON."""
DELETION_COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"
"""What a ReplicaSet reads when it has to remove pods."""
_TEMPLATE_LABELS = ("pod-template-hash", "controller-revision-hash")
"""Which template a pod was made from: the first is a ReplicaSet's, the second a StatefulSet's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of a fleet.

    Attributes:
        seat: what the pod says of the seat; its residents, agent and GPUs are for the agent to tell.
        ip: its address; empty until it has one.
        phase: as the kubelet says.
        marked: the seat's value as its label mirrors it; empty where there is none.
        residents: the template's list of residents, as JSON; empty where there is none.
        leaves_by: Unix time at which its grace ends; None unless it is terminating.
        unschedulable_since: Unix time since which no node takes it; None if one does.
        unreadable: why its claim can't be read, in words; empty if it can.
    """

    seat: Seat
    ip: str = ""
    phase: str = ""
    marked: str = ""
    residents: str = ""
    leaves_by: float | None = None
    unschedulable_since: float | None = None
    unreadable: str = ""


def unix(timestamp: str | None) -> float:
    """Read an API server's time; 0 where there is none."""
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0


def pod_from_json(body: Json) -> Pod:
    """Read a pod."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    claim, unreadable = _claim(annotations.get(CLAIM_ANNOTATION))
    ends = metadata.get("deletionTimestamp")
    running, address = status.get("phase", ""), status.get("podIP", "")
    seat = Seat(
        name=SeatName(metadata["name"]),
        uid=metadata["uid"],
        version=metadata.get("resourceVersion", ""),
        fleet=FleetName(intern(labels.get(FLEET_LABEL, ""))),
        node=intern(spec.get("nodeName", "")),
        serving=_serving(labels),
        claim=claim,
        admitted=_true(conditions.get(ADMITTED_CONDITION)),
        ready=_true(conditions.get("Ready")),
        reachable=running == "Running" and bool(address) and not unreadable,
        terminating=ends is not None,
        lent=labels.get(SEAT_LABEL) == SeatValue.LENT,
        created_at=unix(metadata.get("creationTimestamp")),
        template=intern(next((labels[key] for key in _TEMPLATE_LABELS if key in labels), "")),
    )
    return Pod(
        seat=seat,
        ip=address,
        phase=intern(running),
        marked=intern(labels.get(SEAT_LABEL, "")),
        residents=intern(annotations.get(RESIDENTS_ANNOTATION, "")),
        leaves_by=None if ends is None else unix(ends),
        unschedulable_since=_unschedulable_since(conditions.get("PodScheduled")),
        unreadable=unreadable,
    )


_NOBODY: frozenset[PolicyName] = frozenset()


def _serving(labels: Mapping[str, str]) -> frozenset[PolicyName]:
    found = [
        PolicyName(intern(key[len(SERVING_LABEL_PREFIX) :]))
        for key, value in labels.items()
        if key.startswith(SERVING_LABEL_PREFIX) and value == "true"
    ]
    return frozenset(found) if found else _NOBODY


def _claim(text: str | None) -> tuple[Claim | None, str]:
    if text is None:
        return None, ""
    try:
        return claim_from_json(json.loads(text)), ""
    except (BadOrder, ValueError, AttributeError) as error:
        return None, f"annotation {CLAIM_ANNOTATION}: {error}"


def _true(condition: Json | None) -> bool:
    return condition is not None and condition.get("status") == "True"


def _unschedulable_since(scheduled: Json | None) -> float | None:
    if scheduled is None or scheduled.get("status") != "False" or scheduled.get("reason") != "Unschedulable":
        return None
    return unix(scheduled.get("lastTransitionTime"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """What keeps pods off a node."""

    key: str
    effect: str
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node.

    Attributes:
        name: its name.
        version: the object's version.
        ready: its kubelet says so.
        cordoned: it takes no new pods.
        taints: who else keeps pods off it.
        gpus: how many GPUs of the device plugin's it has.
        conditions: condition → status.
    """

    name: str
    version: str
    ready: bool = False
    cordoned: bool = False
    taints: tuple[Taint, ...] = ()
    gpus: int = 0
    conditions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def node_from_json(body: Json) -> Node:
    """Read a node."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    conditions = {
        intern(each.get("type", "")): intern(each.get("status", ""))
        for each in status.get("conditions") or ()
    }
    return Node(
        name=metadata["name"],
        version=metadata.get("resourceVersion", ""),
        ready=conditions.get("Ready") == "True",
        cordoned=bool(spec.get("unschedulable")),
        taints=taints_from_json(spec.get("taints") or ()),
        gpus=int((status.get("allocatable") or {}).get("nvidia.com/gpu", 0)),
        conditions=MappingProxyType(conditions),
    )


def taints_from_json(taints: Sequence[Json]) -> tuple[Taint, ...]:
    """Read a node's taints."""
    return tuple(
        Taint(key=each["key"], effect=each.get("effect", ""), value=each.get("value", "")) for each in taints
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What makes a fleet's pods: an object with a scale.

    Attributes:
        name: its name.
        version: the object's version.
        replicas: how many pods it is asked for.
        observed: how many it has, as its controller says.
    """

    name: str
    version: str
    replicas: int
    observed: int = 0


def workload_from_json(body: Json) -> Workload:
    """Read a workload, or the Scale of one: `spec.replicas` and `status.replicas` stand in the same place in both."""
    metadata = body["metadata"]
    return Workload(
        name=metadata["name"],
        version=metadata.get("resourceVersion", ""),
        replicas=int((body.get("spec") or {}).get("replicas") or 0),
        observed=int((body.get("status") or {}).get("replicas") or 0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A ConfigMap: file name → text."""

    name: str
    version: str
    data: Mapping[str, str]


def config_from_json(body: Json) -> Config:
    """Read a ConfigMap."""
    return Config(
        name=body["metadata"]["name"],
        version=body["metadata"].get("resourceVersion", ""),
        data=MappingProxyType(dict(body.get("data") or {})),
    )

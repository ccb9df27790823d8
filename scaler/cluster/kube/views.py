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

from scaler.cluster.kube.crashes import crash_of
from scaler.cluster.kube.stamps import pod_stamps
from warmpool.errors import BadOrder
from warmpool.nodehealth.marks import CONDITION, LATCHES_ANNOTATION, OWNER_ANNOTATION, TAINT_KEY
from warmpool.nodehealth.others import Heeded
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
AGENT_PORT_ANNOTATION: Final = "emberpool.dev/agent-port"
"""At which port of the pod its agent listens, where that isn't `AGENT_PORT`."""
AGENT_PORT: Final = 9081
"""At which port of a pod its agent listens."""
DELETION_COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"
"""What a ReplicaSet reads when it has to remove pods."""
_EMPTY: Mapping[str, Any] = MappingProxyType({})
_PORTS = 1 << 16
_LEAVING = frozenset(
    {
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
        "node.cloudprovider.kubernetes.io/shutdown",
        "node.kubernetes.io/out-of-service",
        "aws-node-termination-handler/spot-itn",
        "cloud.google.com/impending-node-termination",
    }
)
"""Taints by which others announce that a node is being emptied; all of them are about to delete its pods."""
_TEMPLATE_LABELS = ("pod-template-hash", "controller-revision-hash")
"""Which template a pod was made from: the first is a ReplicaSet's, the second a StatefulSet's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of a fleet.

    Attributes:
        seat: what the pod says of the seat; its residents, agent and GPUs are for the agent to tell.
        ip: its address; empty until it has one.
        phase: as the kubelet says.
        agent_port: at which port its agent listens.
        marked: the seat's value as its label mirrors it; empty where there is none.
        cost: its deletion cost as its annotation says it; empty where there is none.
        residents: the template's list of residents, as JSON; empty where there is none.
        unschedulable_since: Unix time since which no node takes it; None if one does.
        unreadable: why its claim can't be read, in words; empty if it can.
        owner: kind of what controls it, such as ReplicaSet; empty where nothing does.
    """

    seat: Seat
    ip: str = ""
    phase: str = ""
    agent_port: int = AGENT_PORT
    marked: str = ""
    cost: str = ""
    residents: str = ""
    unschedulable_since: float | None = None
    unreadable: str = ""
    owner: str = ""


def unix(timestamp: str | None) -> float:
    """Read an API server's time; 0 where there is none."""
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0


def pod_from_json(body: Json) -> Pod:
    """Read a pod."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    claim, unreadable = read_claim(annotations.get(CLAIM_ANNOTATION))
    ends = metadata.get("deletionTimestamp")
    running, address = status.get("phase", ""), status.get("podIP", "")
    stamps = pod_stamps(status)
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
        leaves_by=None if ends is None else unix(ends),
        lent=labels.get(SEAT_LABEL) == SeatValue.LENT,
        created_at=unix(metadata.get("creationTimestamp")),
        scheduled_at=unix(stamps.scheduled) if stamps.scheduled else None,
        running_at=unix(stamps.running) if stamps.running else None,
        crash=crash_of(status),
        template=intern(next((labels[key] for key in _TEMPLATE_LABELS if key in labels), "")),
    )
    return Pod(
        seat=seat,
        ip=address,
        phase=intern(running),
        agent_port=agent_port(annotations.get(AGENT_PORT_ANNOTATION, "")),
        marked=intern(labels.get(SEAT_LABEL, "")),
        cost=intern(annotations.get(DELETION_COST_ANNOTATION, "")),
        residents=intern(annotations.get(RESIDENTS_ANNOTATION, "")),
        unschedulable_since=_unschedulable_since(conditions.get("PodScheduled")),
        unreadable=unreadable,
        owner=_owner(metadata.get("ownerReferences") or ()),
    )


def _owner(references: Sequence[Json]) -> str:
    return next((intern(each.get("kind", "")) for each in references if each.get("controller")), "")


def agent_port(text: str) -> int:
    """Read the port at which a pod says its agent listens; what is none leaves the default."""
    digits = text.lstrip("0") if text.isascii() and text.isdigit() else ""
    if not digits or len(digits) > len(str(_PORTS)):  # Python refuses to read numbers of thousands of digits
        return AGENT_PORT
    return int(digits) if int(digits) < _PORTS else AGENT_PORT


_NOBODY: frozenset[PolicyName] = frozenset()


def _serving(labels: Mapping[str, str]) -> frozenset[PolicyName]:
    found = [
        PolicyName(intern(key[len(SERVING_LABEL_PREFIX) :]))
        for key, value in labels.items()
        if key.startswith(SERVING_LABEL_PREFIX) and value == "true"
    ]
    return frozenset(found) if found else _NOBODY


def read_claim(text: str | None) -> tuple[Claim | None, str]:
    """Read a claim as a pod has it; return it with what is wrong with it, in words."""
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
        gpu_mark: the annotation that says that our taint is ours; None: there is none.
        gpu_reason: reason of our condition; None: there is none.
        gpu_latches: the copy of what was found of its GPUs; empty: there is none.
    """

    name: str
    version: str
    ready: bool = False
    cordoned: bool = False
    taints: tuple[Taint, ...] = ()
    gpus: int = 0
    conditions: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    gpu_mark: str | None = None
    gpu_reason: str | None = None
    gpu_latches: str = ""

    def leaving(self, heeded: Heeded) -> str:
        """Return why its pods are about to go, or had better, in words; empty if they stay as far as the node says.

        Args:
            heeded: what others say of nodes that counts.
        """
        if self.cordoned:
            return "cordoned"
        keys = [taint.key for taint in self.taints]
        return next((key for key in keys if key in _LEAVING), "") or heeded.against(keys, self.conditions)

    @property
    def fenced(self) -> bool:
        """Whether the scheduler puts no new pods of ours there: it is cordoned, or has our taint."""
        return self.cordoned or any(taint.key == TAINT_KEY for taint in self.taints)


def node_from_json(body: Json) -> Node:
    """Read a node."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    annotations = metadata.get("annotations") or {}
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
        gpu_mark=annotations.get(OWNER_ANNOTATION),
        gpu_latches=annotations.get(LATCHES_ANNOTATION, ""),
        gpu_reason=next(
            (
                each.get("reason", "")
                for each in status.get("conditions") or ()
                if each.get("type") == CONDITION
            ),
            None,
        ),
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
        uid: its identity.
        version: the object's version.
        replicas: how many pods it is asked for.
        observed: how many it has, as its controller says.
        labels: what its pod template puts on pods.
        ports: names of its pod template's container ports, with the ports.
        residents: its pod template's list of residents, as JSON; empty where there is none.
    """

    name: str
    uid: str = ""
    version: str
    replicas: int
    observed: int = 0
    labels: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    ports: Mapping[str, int] = field(default_factory=lambda: _EMPTY)
    residents: str = ""


def workload_from_json(body: Json) -> Workload:
    """Read a workload, or the Scale of one: `spec.replicas` and `status.replicas` stand in the same place in both."""
    metadata, spec = body["metadata"], body.get("spec") or {}
    template = spec.get("template") or {}
    about, pod = template.get("metadata") or {}, template.get("spec") or {}
    containers = [*(pod.get("initContainers") or ()), *(pod.get("containers") or ())]
    named = {
        port["name"]: int(port.get("containerPort") or 0)
        for container in containers
        for port in container.get("ports") or ()
        if port.get("name")
    }
    return Workload(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        version=metadata.get("resourceVersion", ""),
        replicas=int(spec.get("replicas") or 0),
        observed=int((body.get("status") or {}).get("replicas") or 0),
        labels=MappingProxyType(dict(about.get("labels") or {})),
        ports=MappingProxyType(named),
        residents=(about.get("annotations") or {}).get(RESIDENTS_ANNOTATION, ""),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A Service, or an InferencePool, which sends requests to pods as well.

    Attributes:
        name: its name.
        kind: which of the two.
        selector: labels of the pods that it sends traffic to; empty where it selects none.
        ports: ports of the pods that it sends traffic to: numbers, or names of container ports.
    """

    name: str
    kind: str = "Service"
    selector: Mapping[str, str]
    ports: tuple[int | str, ...] = ()


def service_from_json(body: Json) -> Service:
    """Read a Service."""
    spec = body.get("spec") or {}
    ports = [each.get("targetPort") or each.get("port") for each in spec.get("ports") or ()]
    return Service(
        name=body["metadata"]["name"],
        selector=MappingProxyType(dict(spec.get("selector") or {})),
        ports=tuple(port for port in ports if port),
    )


def pool_from_json(body: Json) -> Service:
    """Read an InferencePool, of its stable version or of the one before that."""
    spec = body.get("spec") or {}
    selector = spec.get("selector") or {}
    ports = [each.get("number") for each in spec.get("targetPorts") or ()] or [spec.get("targetPortNumber")]
    return Service(
        name=body["metadata"]["name"],
        kind="InferencePool",
        selector=MappingProxyType(dict(selector.get("matchLabels", selector))),
        ports=tuple(int(port) for port in ports if port),
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

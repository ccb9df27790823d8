"""A cluster in which nothing is wrong, to be changed by one thing at a time."""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from scaler.doctor.objects import Object
from scaler.doctor.picture import Clock, Controller, Part, Picture, Rights
from scaler.doctor.wishes import FleetWish, PolicyWish, Target, Wishes
from scaler.policy.fleet import ResizedBy

NOW = 1_800_000_000.0
Body = dict[str, Any]

RESIDENTS = [
    {"policy": "chat", "command": ["vllm", "serve", "/models/chat"], "port": 8001, "enginePort": 9001},
    {"policy": "code", "command": ["vllm", "serve", "/models/code"], "port": 8002, "enginePort": 9002},
]


def pod_spec() -> Body:
    return {
        "terminationGracePeriodSeconds": 60,
        "priorityClassName": "seats",
        "readinessGates": [{"conditionType": "emberpool.dev/admitted"}],
        "initContainers": [
            {
                "name": "agent",
                "image": "x",
                "restartPolicy": "Always",
                "ports": [{"name": "agent", "containerPort": 9081}],
            }
        ],
        "containers": [
            {
                "name": "engines",
                "image": "x",
                "resources": {"limits": {"nvidia.com/gpu": 1}},
                "ports": [{"name": "chat", "containerPort": 8001}, {"name": "code", "containerPort": 8002}],
            }
        ],
    }


def deployment(name: str = "spares") -> Body:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "serving"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {
                    "labels": {"app": name, "emberpool.dev/fleet": name},
                    "annotations": {"emberpool.dev/residents": json.dumps(RESIDENTS)},
                },
                "spec": pod_spec(),
            },
        },
    }


def pod(name: str = "spares-0", **labels: str) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "serving",
            "uid": f"uid-of-{name}",
            "labels": {
                "app": "spares",
                "emberpool.dev/fleet": "spares",
                "emberpool.dev/seat": "Spare",
                **labels,
            },
            "annotations": {"emberpool.dev/residents": json.dumps(RESIDENTS)},
        },
        "spec": {**pod_spec(), "nodeName": "gpu-a", "priority": 1000},
        "status": {"phase": "Running", "podIP": "10.0.0.9"},
    }


def controller() -> Body:
    labels = {"app.kubernetes.io/name": "emberpool", "app.kubernetes.io/component": "controller"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "emberpool-controller", "namespace": "emberpool", "labels": labels},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": "emberpool",
                    "containers": [
                        {
                            "name": "controller",
                            "image": "x",
                            "ports": [{"name": "http", "containerPort": 9080}],
                        }
                    ],
                },
            },
        },
    }


def service(policy: str = "chat", port: int = 8001) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": policy, "namespace": "serving"},
        "spec": {
            "selector": {"app": "spares", f"serving.emberpool.dev/{policy}": "true"},
            "ports": [{"port": 80, "targetPort": port}],
        },
    }


def pool() -> Body:
    selector = {"matchLabels": {"app": "spares", "serving.emberpool.dev/code": "true"}}
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": "code", "namespace": "serving"},
        "spec": {"selector": selector, "targetPorts": [{"number": 8002}]},
    }


def budget(name: str, **labels: str) -> Body:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "serving"},
        "spec": {
            "selector": {
                "matchLabels": {
                    key.replace("__", "/").replace("_", "."): each for key, each in labels.items()
                }
            },
            "minAvailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def node(name: str = "gpu-a", gpus: int = 8) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "spec": {},
        "status": {
            "capacity": {"nvidia.com/gpu": str(gpus)},
            "allocatable": {"nvidia.com/gpu": str(gpus)},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def lease(name: str = "gpu-a", renewed: str = "2027-01-15T07:59:58.000000Z") -> Body:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {"renewTime": renewed},
    }


def network_policy() -> Body:
    peer = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "emberpool"}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "emberpool"}},
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "seats", "namespace": "serving"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "spares"}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [peer], "ports": [{"protocol": "TCP", "port": 9081}]}],
        },
    }


def scaled_object() -> Body:
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": "spares", "namespace": "serving"},
        "spec": {
            "scaleTargetRef": {"name": "spares"},
            "minReplicaCount": 2,
            "maxReplicaCount": 4,
            "triggers": [
                {
                    "type": "external-push",
                    "metadata": {"scalerAddress": "emberpool-keda.emberpool:6000", "fleet": "serving/spares"},
                }
            ],
        },
    }


def hpa(owner: str = "ScaledObject/spares", name: str = "keda-hpa-spares") -> Body:
    kind, _, owned_by = owner.partition("/")
    owners = [{"kind": kind, "name": owned_by, "controller": True}] if owner else []
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "namespace": "serving", "ownerReferences": owners},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "spares"},
            "minReplicas": 2,
            "maxReplicas": 4,
            "metrics": [],
        },
    }


def seat(**capabilities: tuple[str, str]) -> Body:
    """A seat as the controller tells it, with what the engine of chat was found to be able to do."""
    findings = {name: {"ground": ground, "reason": reason} for name, (ground, reason) in capabilities.items()}
    return {
        "name": "spares-0",
        "uid": "uid-of-spares-0",
        "fleet": "spares",
        "residents": [
            {"policy": "chat", "capabilities": {"kind": "VLLM", "version": "0.32.0", "findings": findings}},
            {"policy": "code", "capabilities": None},
        ],
    }


WISHES = Wishes(
    source="policies/",
    fleets=(
        FleetWish(
            name="spares",
            policies=("chat", "code"),
            namespace="serving",
            target=Target(group="apps", kind="Deployment", name="spares"),
            resized_by=ResizedBy.EMBERPOOL,
            max_seats=4,
            gpus=1,
            spare_min=2,
        ),
    ),
    policies={"chat": PolicyWish(name="chat", port=8001), "code": PolicyWish(name="code", port=8002)},
)


def objects() -> dict[Part, list[Body]]:
    return {
        Part.PODS: [pod(), pod("spares-1")],
        Part.DEPLOYMENTS: [deployment(), controller()],
        Part.STATEFUL_SETS: [],
        Part.NODES: [node()],
        Part.NODE_LEASES: [lease()],
        Part.SERVICES: [service()],
        Part.POOLS: [pool()],
        Part.BUDGETS: [
            budget("chat", serving_emberpool_dev__chat="true"),
            budget("code", serving_emberpool_dev__code="true"),
            budget("spares", emberpool_dev__seat="Spare", emberpool_dev__fleet="spares"),
        ],
        Part.HPAS: [],
        Part.SCALED_OBJECTS: [],
        Part.NETWORK_POLICIES: [network_policy()],
        Part.NAMESPACES: [],
    }


def picture(bodies: Mapping[Part, list[Body]] | None = None) -> Picture:
    found = objects() if bodies is None else bodies
    return Picture(
        now=NOW,
        objects={part: tuple(Object(each) for each in items) for part, items in found.items()},
        clock=Clock(ahead=0.1, uncertain=0.6),
        rights=(Rights(account="emberpool/emberpool"),),
        controller=Controller(seats=(seat(SchedulerPause=("Tried", "paused and resumed")),)),
        wishes=WISHES,
    )


Change = Callable[[dict[Part, list[Body]]], object]


def changed(change: Change) -> Picture:
    """Return the healthy picture with its objects changed."""
    bodies = copy.deepcopy(objects())
    change(bodies)
    return picture(bodies)


def wishing(base: Picture, **fleet: Any) -> Picture:
    """Return a picture whose fleet is wanted otherwise."""
    return replace(base, wishes=replace(WISHES, fleets=(replace(WISHES.fleets[0], **fleet),)))

"""Each finding: a cluster that has it, what is said of it, and what looks alike and is right."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from scaler.doctor.findings import Code, Finding, KedaCode, Severity
from scaler.doctor.picture import Clock, Controller, Part, Picture, Right, Rights
from scaler.doctor.whole import check
from scaler.doctor.wishes import PolicyWish, Wishes, of_controller
from scaler.policy.fleet import ResizedBy
from tests.unit.scaler.doctor import cluster as c
from tests.unit.scaler.doctor.cluster import Body, changed, picture, wishing

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE
Bodies = dict[Part, list[Body]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A picture, and the one finding of it."""

    picture: Callable[[], Picture]
    code: Code | KedaCode
    severity: Severity
    object: str
    path: str = ""
    message: str
    mend: str


def with_(
    *path: str | int, value: Any, part: Part = Part.DEPLOYMENTS, index: int = 0
) -> Callable[[], Picture]:
    """Return the healthy picture with one value of one object set; None takes it away."""

    def change(bodies: Bodies) -> None:
        found: Any = bodies[part][index]
        for each in path[:-1]:
            found = found[each]
        if value is None:
            del found[path[-1]]
        else:
            found[path[-1]] = value

    return lambda: changed(change)


def and_(part: Part, *bodies: Body) -> Callable[[], Picture]:
    """Return the healthy picture with more objects."""
    return lambda: changed(lambda found: found[part].extend(bodies))


TEMPLATE = ("spec", "template")
POD = (*TEMPLATE, "spec")
ENGINES = (*POD, "containers", 0)
ANNOTATIONS = (*TEMPLATE, "metadata", "annotations")
RESIDENTS = (*ANNOTATIONS, "emberpool.dev/residents")
SPARES = "Deployment serving/spares"
PATCH = "kubectl patch deployment spares -n serving"


def patch_of(*operations: dict[str, Any]) -> str:
    written = json.dumps(operations, separators=(",", ":"))
    return f"kubectl patch deployment spares --type=json -p '{written}' -n serving"


def residents(*more: Body, without: str = "") -> str:
    return json.dumps([each for each in c.RESIDENTS if each["policy"] != without] + list(more))


def managed(manager: str, operation: str = "Apply", subresource: str = "") -> list[Body]:
    fields = {"f:spec": {"f:replicas": {}}}
    entry = {"manager": manager, "operation": operation, "fieldsV1": fields}
    return [{**entry, "subresource": subresource} if subresource else entry]


def launched(*words: str) -> list[str]:
    return ["python3", "/opt/launcher/launcher.py", "--socket", "/run/emberpool/launcher.sock", *words]


SEATS = {
    "a-grace-below-the-drain": Case(
        picture=with_(*POD, "terminationGracePeriodSeconds", value=5),
        code=Code.GRACE_TOO_SHORT,
        severity=ERROR,
        object=SPARES,
        path="spec.template.spec.terminationGracePeriodSeconds",
        message="a pod has 5 s to end; accepted requests get up to 10 s, and engines 5 s more to stop",
        mend=patch_of(
            {"op": "add", "path": "/spec/template/spec/terminationGracePeriodSeconds", "value": 15}
        ),
    ),
    "a-grace-that-kills-engines": Case(
        picture=with_(*POD, "terminationGracePeriodSeconds", value=12),
        code=Code.GRACE_TOO_SHORT,
        severity=WARNING,
        object=SPARES,
        path="spec.template.spec.terminationGracePeriodSeconds",
        message="a pod has 12 s to end",
        mend=patch_of(
            {"op": "add", "path": "/spec/template/spec/terminationGracePeriodSeconds", "value": 15}
        ),
    ),
    "a-grace-below-what-the-launcher-is-told": Case(
        picture=with_(*ENGINES, "command", value=launched("--drain-seconds", "300", "--grace-seconds=20")),
        code=Code.GRACE_TOO_SHORT,
        severity=ERROR,
        object=SPARES,
        path="spec.template.spec.terminationGracePeriodSeconds",
        message="a pod has 60 s to end; accepted requests get up to 300 s, and engines 20 s more to stop",
        mend=patch_of(
            {"op": "add", "path": "/spec/template/spec/terminationGracePeriodSeconds", "value": 320}
        ),
    ),
    "a-liveness-probe": Case(
        picture=with_(*ENGINES, "livenessProbe", value={"httpGet": {"port": 8001}}),
        code=Code.PROBES,
        severity=ERROR,
        object=SPARES,
        path="spec.template.spec.containers[0].livenessProbe",
        message="engines has a livenessProbe: one engine that fails it restarts the container",
        mend=patch_of({"op": "remove", "path": "/spec/template/spec/containers/0/livenessProbe"}),
    ),
    "a-readiness-probe-of-the-agent": Case(
        picture=with_(*POD, "initContainers", 0, "readinessProbe", value={}),
        code=Code.PROBES,
        severity=WARNING,
        object=SPARES,
        path="spec.template.spec.initContainers[0].readinessProbe",
        message="agent has a readinessProbe: one engine that fails it takes the whole seat out of rotation",
        mend=patch_of({"op": "remove", "path": "/spec/template/spec/initContainers/0/readinessProbe"}),
    ),
    "no-readiness-gate": Case(
        picture=with_(*POD, "readinessGates", value=None),
        code=Code.GATE_MISSING,
        severity=WARNING,
        object=SPARES,
        path="spec.template.spec.readinessGates",
        message="the readiness gate emberpool.dev/admitted is missing",
        mend=patch_of(
            {
                "op": "add",
                "path": "/spec/template/spec/readinessGates",
                "value": [{"conditionType": "emberpool.dev/admitted"}],
            }
        ),
    ),
    "another-readiness-gate-alone": Case(
        picture=with_(*POD, "readinessGates", value=[{"conditionType": "other/gate"}]),
        code=Code.GATE_MISSING,
        severity=WARNING,
        object=SPARES,
        path="spec.template.spec.readinessGates",
        message="is missing",
        mend=patch_of(
            {
                "op": "add",
                "path": "/spec/template/spec/readinessGates/-",
                "value": {"conditionType": "emberpool.dev/admitted"},
            }
        ),
    ),
    "priorities-of-pods": Case(
        picture=with_("spec", "priorityClassName", value="low", part=Part.PODS),
        code=Code.PRIORITIES_DIFFER,
        severity=WARNING,
        object=SPARES,
        path="spec.template.spec.priorityClassName",
        message="pods of fleet spares have different priorities: low (1), seats (1)",
        mend="kubectl rollout restart deployment/spares -n serving",
    ),
    "every-taint-is-tolerated": Case(
        picture=with_(*POD, "tolerations", value=[{"operator": "Exists"}]),
        code=Code.TOLERATES_EXCLUSION,
        severity=WARNING,
        object=SPARES,
        path="spec.template.spec.tolerations[0]",
        message="its pods tolerate every taint",
        mend=patch_of({"op": "remove", "path": "/spec/template/spec/tolerations/0"}),
    ),
    "exclusion-is-tolerated": Case(
        picture=with_(
            *POD,
            "tolerations",
            value=[
                {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
                {"operator": "Exists", "effect": "NoExecute"},
                {"key": "emberpool.dev/gpu-unhealthy", "operator": "Exists", "effect": "NoSchedule"},
            ],
        ),
        code=Code.TOLERATES_EXCLUSION,
        severity=WARNING,
        object=SPARES,
        path="spec.template.spec.tolerations[2]",
        message="its pods tolerate emberpool.dev/gpu-unhealthy, so new seats are put on nodes that were excluded",
        mend=patch_of({"op": "remove", "path": "/spec/template/spec/tolerations/2"}),
    ),
    "a-claim-that-cant-be-read": Case(
        picture=with_("metadata", "annotations", "emberpool.dev/claim", value="{", part=Part.PODS),
        code=Code.CLAIM_UNREADABLE,
        severity=ERROR,
        object="Pod serving/spares-0",
        path="metadata.annotations.emberpool.dev/claim",
        message="its claim can't be read, so nothing is promoted there: Expecting property name",
        mend="kubectl annotate pod spares-0 emberpool.dev/claim- -n serving",
    ),
    "a-resident-that-policies-want": Case(
        picture=with_(*RESIDENTS, value=residents(without="code")),
        code=Code.NOT_RESIDENT,
        severity=WARNING,
        object=SPARES,
        path="spec.template.metadata.annotations.emberpool.dev/residents",
        message="policy code names fleet spares, and its seats have no resident of it (policies/)",
        mend="kubectl get deployment spares -o yaml -n serving | emberpool fleet template spares -f policies/ -m - |"
        " kubectl apply -f -",
    ),
    "a-resident-that-no-policy-wants": Case(
        picture=with_(*RESIDENTS, value=residents({"policy": "tail", "command": ["x"], "port": 8003})),
        code=Code.RESIDENT_UNKNOWN,
        severity=ERROR,
        object=SPARES,
        path="spec.template.metadata.annotations.emberpool.dev/residents",
        message="it has a resident of tail, and no such policy names fleet spares (policies/)",
        mend="emberpool fleet template spares",
    ),
    "another-port": Case(
        picture=lambda: replace(
            picture(), wishes=replace(c.WISHES, policies={"chat": PolicyWish(name="chat", port=8009)})
        ),
        code=Code.PORT_DIFFERS,
        severity=ERROR,
        object=SPARES,
        path="spec.template.metadata.annotations.emberpool.dev/residents",
        message="the resident of chat has port 8001, and its policy says 8009",
        mend="emberpool fleet template spares",
    ),
}

REACH = {
    "a-service-of-all-seats": Case(
        picture=with_("spec", "selector", value={"app": "spares"}, part=Part.SERVICES),
        code=Code.PAUSED_RESIDENTS_REACHABLE,
        severity=ERROR,
        object="Service serving/chat",
        path="spec.selector",
        message="spec.ports[0] is port 8001 of residents of chat, and the selector takes those of Deployment serving/spares"
        " that don't serve as well",
        mend='kubectl patch service chat --type=merge -p \'{"spec":{"selector":{"serving.emberpool.dev/chat":"true"}}}\' -n'
        " serving",
    ),
    "a-service-with-a-named-port": Case(
        picture=and_(
            Part.SERVICES,
            {**c.service("x"), "spec": {"selector": {"app": "spares"}, "ports": [{"targetPort": "code"}]}},
        ),
        code=Code.PAUSED_RESIDENTS_REACHABLE,
        severity=ERROR,
        object="Service serving/x",
        path="spec.selector",
        message="is port 8002 of residents of code",
        mend="serving.emberpool.dev/code",
    ),
    "a-service-of-those-that-serve-another": Case(
        picture=with_("spec", "ports", value=[{"port": 8002}], part=Part.SERVICES),
        code=Code.PAUSED_RESIDENTS_REACHABLE,
        severity=ERROR,
        object="Service serving/chat",
        path="spec.selector",
        message="is port 8002 of residents of code",
        mend="serving.emberpool.dev/code",
    ),
    "a-pool-of-all-seats": Case(
        picture=with_("spec", "selector", value={"matchLabels": {"app": "spares"}}, part=Part.POOLS),
        code=Code.PAUSED_RESIDENTS_REACHABLE,
        severity=ERROR,
        object="InferencePool serving/code",
        path="spec.selector",
        message="spec.targetPorts[0] is port 8002 of residents of code",
        mend='{"spec":{"selector":{"matchLabels":{"serving.emberpool.dev/code":"true"}}}}',
    ),
    "an-older-pool": Case(
        picture=with_(
            "spec", value={"selector": {"app": "spares"}, "targetPortNumber": 8001}, part=Part.POOLS
        ),
        code=Code.PAUSED_RESIDENTS_REACHABLE,
        severity=ERROR,
        object="InferencePool serving/code",
        path="spec.selector",
        message="spec.targetPortNumber is port 8001 of residents of chat",
        mend='{"spec":{"selector":{"serving.emberpool.dev/chat":"true"}}}',
    ),
    "a-network-policy-without-the-agents-port": Case(
        picture=with_("spec", "ingress", 0, "ports", value=[{"port": 8001}], part=Part.NETWORK_POLICIES),
        code=Code.NETWORK_BLOCKS,
        severity=ERROR,
        object="NetworkPolicy serving/seats",
        path="spec.ingress",
        message="the controller can't reach agents of fleet spares: it lets nothing in from there on port 9081",
        mend="kubectl patch networkpolicy seats --type=json -p",
    ),
    "an-agent-at-another-port": Case(
        picture=with_(*ANNOTATIONS, "emberpool.dev/agent-port", value="9999"),
        code=Code.NETWORK_BLOCKS,
        severity=ERROR,
        object="NetworkPolicy serving/seats",
        path="spec.ingress",
        message="it lets nothing in from there on port 9999",
        mend='"ports":[{"protocol":"TCP","port":9999}]',
    ),
    "a-network-policy-that-lets-nothing-in": Case(
        picture=with_("spec", value={"podSelector": {}}, part=Part.NETWORK_POLICIES),
        code=Code.NETWORK_BLOCKS,
        severity=ERROR,
        object="NetworkPolicy serving/seats",
        path="spec.ingress",
        message="the controller can't reach agents of fleet spares",
        mend='"path":"/spec/ingress"',
    ),
    "a-network-policy-that-keeps-agents-in": Case(
        picture=and_(
            Part.NETWORK_POLICIES,
            {
                **c.network_policy(),
                "metadata": {"name": "out", "namespace": "serving"},
                "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"ports": [{"port": 53}]}]},
            },
        ),
        code=Code.NETWORK_BLOCKS,
        severity=ERROR,
        object="NetworkPolicy serving/out",
        path="spec.egress",
        message="agents of fleet spares can't report to the controller: it lets nothing out to there on port 9080",
        mend='"path":"/spec/egress/-"',
    ),
}

DISRUPTION = {
    "budgets-that-overlap": Case(
        picture=and_(Part.BUDGETS, c.budget("all", app="spares")),
        code=Code.BUDGETS_OVERLAP,
        severity=ERROR,
        object="PodDisruptionBudget serving/all",
        path="spec.selector",
        message="it selects seats that serve chat of fleet spares, and so does PodDisruptionBudget serving/chat,"
        " PodDisruptionBudget serving/code, PodDisruptionBudget serving/spares: a pod with two budgets can't be evicted",
        mend="kubectl delete poddisruptionbudget all -n serving",
    ),
    "a-budget-that-blocks": Case(
        picture=with_("spec", "minAvailable", value="100%", part=Part.BUDGETS, index=2),
        code=Code.BUDGET_BLOCKS,
        severity=WARNING,
        object="PodDisruptionBudget serving/spares",
        path="spec.minAvailable",
        message="minAvailable: 100% allows no eviction at all",
        mend='{"spec":{"maxUnavailable":1,"minAvailable":null}}',
    ),
    "a-budget-that-keeps-unready-seats": Case(
        picture=with_("spec", "unhealthyPodEvictionPolicy", value=None, part=Part.BUDGETS),
        code=Code.BUDGET_KEEPS_UNREADY,
        severity=NOTE,
        object="PodDisruptionBudget serving/chat",
        path="spec.unhealthyPodEvictionPolicy",
        message="seats that aren't ready",
        mend='{"spec":{"unhealthyPodEvictionPolicy":"AlwaysAllow"}}',
    ),
    "no-budget": Case(
        picture=lambda: changed(lambda bodies: bodies[Part.BUDGETS].pop(1)),
        code=Code.BUDGET_MISSING,
        severity=NOTE,
        object="PodDisruptionBudget serving/code",
        message="no budget keeps seats that serve code",
        mend="kubectl create poddisruptionbudget code --selector=serving.emberpool.dev/code=true --min-available=1 -n serving",
    ),
}

OWNERS = {
    "an-hpa-beside-the-controller": Case(
        picture=and_(Part.HPAS, c.hpa("", "by-cpu")),
        code=KedaCode.SECOND_WRITER,
        severity=ERROR,
        object="HorizontalPodAutoscaler serving/by-cpu",
        path="spec.scaleTargetRef",
        message="it scales spares, and so does Emberpool: two write the size of fleet spares",
        mend="kubectl delete horizontalpodautoscaler by-cpu -n serving",
    ),
    "keda-beside-the-controller": Case(
        picture=lambda: changed(
            lambda bodies: (
                bodies[Part.SCALED_OBJECTS].append(c.scaled_object()),
                bodies[Part.HPAS].append(c.hpa()),
            )
        ),
        code=KedaCode.SECOND_WRITER,
        severity=ERROR,
        object="ScaledObject serving/spares",
        path="spec.scaleTargetRef",
        message="fleet spares is resized by Emberpool: two would write the replicas of spares",
        mend="kubectl delete scaledobject spares -n serving",
    ),
    "server-side-apply-with-replicas": Case(
        picture=with_("metadata", "managedFields", value=managed("argocd-controller")),
        code=Code.SIZE_IN_MANIFEST,
        severity=ERROR,
        object=SPARES,
        path="spec.replicas",
        message="argocd-controller owns the size",
        mend="kubectl get deployment spares -o yaml --show-managed-fields -n serving",
    ),
    "a-tool-that-applies-again": Case(
        picture=with_("metadata", "managedFields", value=managed("helm", "Update")),
        code=Code.SIZE_IN_MANIFEST,
        severity=WARNING,
        object=SPARES,
        path="spec.replicas",
        message="helm has written the size",
        mend="kubectl get deployment spares",
    ),
    "a-manifest-that-says-replicas": Case(
        picture=with_(
            "metadata",
            "annotations",
            value={"kubectl.kubernetes.io/last-applied-configuration": json.dumps({"spec": {"replicas": 2}})},
        ),
        code=Code.SIZE_IN_MANIFEST,
        severity=WARNING,
        object=SPARES,
        path="spec.replicas",
        message="the manifest that was applied last says replicas",
        mend="kubectl apply edit-last-applied deployment/spares -n serving",
    ),
}


def by_keda(*scaled: Body, hpas: tuple[Body, ...] = (), absent: frozenset[Part] = frozenset()) -> Picture:
    def change(bodies: Bodies) -> None:
        bodies[Part.SCALED_OBJECTS] += scaled
        bodies[Part.HPAS] += hpas

    return replace(wishing(changed(change), resized_by=ResizedBy.KEDA), absent=absent)


def pushed_by(change: Callable[[Body], object]) -> Body:
    made = c.scaled_object()
    change(made)
    return made


KEDA = {
    "no-scaled-object": Case(
        picture=by_keda,
        code=KedaCode.NO_SCALED_OBJECT,
        severity=ERROR,
        object="Fleet serving/spares",
        path="spec.resizedBy",
        message="fleet spares has resizedBy: Keda, and no ScaledObject scales spares",
        mend="kubectl apply -f deploy/keda/scaled-object.yaml -n serving",
    ),
    "two-scaled-objects": Case(
        picture=lambda: by_keda(
            c.scaled_object(), {**c.scaled_object(), "metadata": {"name": "two", "namespace": "serving"}}
        ),
        code=KedaCode.SECOND_WRITER,
        severity=ERROR,
        object="ScaledObject serving/two",
        path="spec.scaleTargetRef",
        message="ScaledObject spares scales spares as well",
        mend="kubectl delete scaledobject two -n serving",
    ),
    "a-scaled-object-that-keda-cant-use": Case(
        picture=lambda: by_keda(
            pushed_by(lambda made: made.update(status={"conditions": [{"type": "Ready", "status": "False"}]}))
        ),
        code=KedaCode.NOT_READY,
        severity=ERROR,
        object="ScaledObject serving/spares",
        path="status.conditions[Ready]",
        message="KEDA can't use the ScaledObject",
        mend="kubectl edit scaledobject spares -n serving  # kubectl describe scaledobject",
    ),
    "a-scaled-object-that-cant-be-read": Case(
        picture=lambda: by_keda(pushed_by(lambda made: made.update(kind="Other"))),
        code=Code.SCALER_UNREADABLE,
        severity=WARNING,
        object="Other serving/spares",
        message="it can't be read: this is no ScaledObject",
        mend="kubectl get other spares -o yaml -n serving",
    ),
    "an-hpa-of-an-old-operator": Case(
        picture=lambda: by_keda(
            c.scaled_object(),
            hpas=(
                {
                    **c.hpa(),
                    "metadata": {
                        **c.hpa()["metadata"],
                        "labels": {"app.kubernetes.io/version": "2.15.1"},
                    },
                },
            ),
        ),
        code=KedaCode.OLD_OPERATOR,
        severity=WARNING,
        object="HorizontalPodAutoscaler serving/keda-hpa-spares",
        path="metadata.labels",
        message="KEDA 2.15.1 is older than 2.20",
        mend="# update the operator",
    ),
    "an-old-operator": Case(
        picture=lambda: with_operator("2.19.0"),
        code=KedaCode.OLD_OPERATOR,
        severity=WARNING,
        object="Deployment keda/keda-operator",
        path="metadata.labels.app.kubernetes.io/version",
        message="KEDA 2.19.0 is older than 2.20",
        mend="helm upgrade keda kedacore/keda --namespace keda",
    ),
}


def with_operator(version: str) -> Picture:
    labels = {"app.kubernetes.io/name": "keda-operator", "app.kubernetes.io/version": version}
    operator = {
        "kind": "Deployment",
        "metadata": {"name": "keda-operator", "namespace": "keda", "labels": labels},
    }
    found = by_keda(c.scaled_object())
    objects = {**found.objects, Part.DEPLOYMENTS: (*found.objects[Part.DEPLOYMENTS], c.Object(operator))}
    return replace(found, objects=objects)


def engines(**capabilities: tuple[str, str]) -> Callable[[], Picture]:
    return lambda: replace(picture(), controller=Controller(seats=(c.seat(**capabilities),) * 2))


ENGINE = {
    "an-engine-that-cant-pause": Case(
        picture=engines(SchedulerPause=("RouteMissing", "POST /pause answers 404")),
        code=Code.ENGINE_CANNOT,
        severity=ERROR,
        object="ScalingPolicy chat",
        path="status.capabilities.SchedulerPause",
        message="it can't be paused, so it can't wait on a spare seat: POST /pause answers 404 (seat spares-0 and 1 more)",
        mend="emberpool engine args --engine VLLM",
    ),
    "an-engine-that-keeps-its-memory": Case(
        picture=engines(KvRelease=("Contradicted", "memory stayed")),
        code=Code.ENGINE_CANNOT,
        severity=ERROR,
        object="ScalingPolicy chat",
        path="status.capabilities.KvRelease",
        message="it keeps its KV memory, which its neighbours on the seat need: memory stayed",
        mend="emberpool engine args --engine VLLM",
    ),
    "an-engine-that-cant-be-proven": Case(
        picture=engines(TokenIds=("NotOfKind", "none")),
        code=Code.ENGINE_CANNOT,
        severity=WARNING,
        object="ScalingPolicy chat",
        path="status.capabilities.TokenIds",
        message="it can't be proven that it computes what it should",
        mend="emberpool engine args --engine VLLM",
    ),
}


def saying(**status: Any) -> Callable[[], Picture]:
    return lambda: replace(picture(), controller=Controller(status={"serving": status}))


TOLD = {
    "policy-files-that-cant-be-loaded": Case(
        picture=saying(
            lastAttempt={
                "outcome": "Rejected",
                "faults": [{"file": "chat.yaml", "path": "spec.mux", "message": "is not a known key"}, {}],
            }
        ),
        code=Code.POLICIES_NOT_LOADED,
        severity=ERROR,
        object="Controller serving/emberpool-controller",
        message="(Rejected), and the last good ones are in force: chat.yaml: spec.mux: is not a known key, and 1 more",
        mend="emberpool policy status -n serving",
    ),
    "a-condition-that-only-the-controller-knows": Case(
        picture=saying(
            lastAttempt={"outcome": "Loaded"},
            conditions=[
                {"fleet": "spares", "type": "SizeDrifted", "message": "somebody else wrote 4"},
                {"fleet": "spares", "type": "PausedResidentsReachable", "message": "Service chat"},
            ],
        ),
        code=Code.CONDITION,
        severity=WARNING,
        object="Fleet serving/spares",
        path="SizeDrifted",
        message="somebody else wrote 4",
        mend="emberpool fleet describe spares -n serving",
    ),
}


def on_node(key: str, count: str) -> Callable[[], Picture]:
    return with_("status", key, "nvidia.com/gpu", value=count, part=Part.NODES)


NODES = {
    "no-device-plugin": Case(
        picture=lambda: changed(lambda bodies: bodies.update({Part.NODES: [c.node(gpus=0)]})),
        code=Code.GPUS_ABSENT,
        severity=ERROR,
        object="Cluster",
        path="status.capacity[nvidia.com/gpu]",
        message="no node offers GPUs, and Deployment serving/spares asks for 1 each",
        mend="helm upgrade --install nvidia-device-plugin",
    ),
    "a-seat-larger-than-any-node": Case(
        picture=with_(*ENGINES, "resources", "limits", "nvidia.com/gpu", value="16"),
        code=Code.GPUS_TOO_FEW,
        severity=ERROR,
        object=SPARES,
        path="spec.template.spec.containers",
        message="a seat asks for 16 GPUs, and no node has more than 8",
        mend="emberpool node get -o wide",
    ),
    "fleets-larger-than-the-cluster": Case(
        picture=lambda: wishing(picture(), max_seats=9),
        code=Code.GPUS_TOO_FEW,
        severity=NOTE,
        object="Cluster",
        path="status.allocatable[nvidia.com/gpu]",
        message="fleets may have seats with 9 GPUs together, and nodes offer 8",
        mend="emberpool node get -o wide",
    ),
    "a-gpu-that-is-withheld": Case(
        picture=on_node("allocatable", "7"),
        code=Code.GPUS_UNHEALTHY,
        severity=WARNING,
        object="Node gpu-a",
        path="status.allocatable[nvidia.com/gpu]",
        message="the device plugin offers 7 of 8 GPUs",
        mend="emberpool node describe gpu-a",
    ),
    "this-machines-clock": Case(
        picture=lambda: replace(
            picture(), clock=Clock(ahead=-5.0, uncertain=0.6), objects=without(Part.NODE_LEASES)
        ),
        code=Code.CLOCK_DIFFERS,
        severity=WARNING,
        object="Machine",
        message="this machine's clock is 5 s ahead of the API server's",
        mend="sudo timedatectl set-ntp true",
    ),
    "a-node-ahead": Case(
        picture=with_("spec", "renewTime", value="2027-01-15T08:00:10.000000Z", part=Part.NODE_LEASES),
        code=Code.NODE_CLOCK_DIFFERS,
        severity=WARNING,
        object="Node gpu-a",
        path="spec.renewTime",
        message="its clock is at least 10 s ahead of the API server's",
        mend="kubectl debug node/gpu-a -it --image=busybox -- chroot /host timedatectl",
    ),
    "a-ready-node-behind": Case(
        picture=with_("spec", "renewTime", value="2027-01-15T07:58:00.000000Z", part=Part.NODE_LEASES),
        code=Code.NODE_CLOCK_DIFFERS,
        severity=WARNING,
        object="Node gpu-a",
        path="spec.renewTime",
        message="its clock is up to 120 s behind the API server's",
        mend="kubectl debug node/gpu-a",
    ),
}


def without(part: Part) -> Any:
    return {each: items for each, items in picture().objects.items() if each is not part}


def refused(**account: Any) -> Callable[[], Picture]:
    missing = tuple(Right(resource="pods", verb=verb, namespace="serving") for verb in ("patch", "delete"))
    return lambda: replace(picture(), rights=(Rights(refused=missing, **account),))


REST = {
    "a-right-that-the-controller-lacks": Case(
        picture=refused(account="emberpool/ctl"),
        code=Code.RIGHT_MISSING,
        severity=ERROR,
        object="ServiceAccount emberpool/ctl",
        path="pods",
        message="the controller's account emberpool/ctl may not patch, delete pods in namespace serving",
        mend="kubectl create role emberpool-pods --verb=patch,delete --resource=pods -n serving && kubectl create rolebinding"
        " emberpool-pods --role=emberpool-pods --serviceaccount=emberpool:ctl -n serving",
    ),
    "a-right-that-whoever-asks-lacks": Case(
        picture=refused(),
        code=Code.RIGHT_MISSING,
        severity=WARNING,
        object="Account",
        path="pods",
        message="whoever asks may not patch, delete pods in namespace serving; the controller needs it",
        mend="kubectl auth can-i --list -n serving",
    ),
    "rights-that-cant-be-asked": Case(
        picture=lambda: replace(picture(), rights=(Rights(unknown="forbidden"),)),
        code=Code.NOT_LOOKED_AT,
        severity=NOTE,
        object="Cluster",
        message="what the controller may do couldn't be asked: forbidden",
        mend="kubectl auth can-i create selfsubjectaccessreviews.authorization.k8s.io",
    ),
    "a-part-that-cant-be-read": Case(
        picture=lambda: replace(picture(), unread={Part.HPAS: "forbidden"}),
        code=Code.NOT_LOOKED_AT,
        severity=NOTE,
        object="Cluster",
        path="horizontalpodautoscalers",
        message="horizontalpodautoscalers couldn't be read, so nothing is said of them: forbidden",
        mend="kubectl auth can-i --list",
    ),
    "a-controller-that-isnt-reached": Case(
        picture=lambda: replace(picture(), controller=Controller(missing="services not found")),
        code=Code.CONTROLLER_NOT_REACHED,
        severity=WARNING,
        object="Service emberpool-controller",
        message="the controller isn't reached, so nothing is said of engines: services not found",
        mend="kubectl get services,pods --all-namespaces -l app.kubernetes.io/name=emberpool",
    ),
    "no-seats-at-all": Case(
        picture=lambda: Picture(now=c.NOW, namespaces=("serving",)),
        code=Code.NOTHING_HERE,
        severity=WARNING,
        object="Cluster",
        message="in namespace serving no pod and no workload has the label emberpool.dev/fleet",
        mend="emberpool doctor --all-namespaces",
    ),
    "a-fleet-that-no-policy-knows": Case(
        picture=lambda: replace(picture(), wishes=Wishes(source="policies/")),
        code=Code.FLEET_UNKNOWN,
        severity=WARNING,
        object=SPARES,
        path="spec.template.metadata.labels.emberpool.dev/fleet",
        message="no Fleet serving/spares is known (policies/)",
        mend="emberpool policy new spares --fleet spares --namespace serving",
    ),
    "a-workload-that-isnt-there": Case(
        picture=lambda: replace(
            picture(),
            wishes=replace(
                c.WISHES,
                fleets=(
                    *c.WISHES.fleets,
                    replace(
                        c.WISHES.fleets[0],
                        name="own",
                        target=c.Target(group="apps", kind="Deployment", name="own"),
                    ),
                ),
            ),
        ),
        code=Code.WORKLOAD_MISSING,
        severity=ERROR,
        object="Fleet serving/own",
        path="spec.target",
        message="its workload, Deployment own, isn't there",
        mend="kubectl get deployments -L emberpool.dev/fleet -n serving",
    ),
    "a-fleet-that-only-the-controller-knows": Case(
        picture=lambda: replace(
            picture(),
            wishes=of_controller([{"name": "spares", "policies": ["chat", "code"]}, {"name": "own"}], []),
        ),
        code=Code.WORKLOAD_MISSING,
        severity=ERROR,
        object="Fleet own",
        message="the controller knows it, and no pod or workload here has the label emberpool.dev/fleet=own",
        mend="kubectl get deployments,statefulsets --all-namespaces -L emberpool.dev/fleet",
    ),
}

CASES = {**SEATS, **REACH, **DISRUPTION, **OWNERS, **KEDA, **ENGINE, **TOLD, **NODES, **REST}


def found_in(of: Picture) -> list[Finding]:
    return [each for each in check(of) if each.code is not KedaCode.NO_FALLBACK and each.code not in PACE]


PACE = {
    KedaCode.SLOW_SCALE_UP,
    KedaCode.WINDOWS_ADD_UP,
    KedaCode.DEAD_ZONE,
    KedaCode.METRIC_MISSING,
    KedaCode.NO_PUSH,
}
"""What `keda check` says of a ScaledObject that is right for something else."""


def test_a_service_of_a_policy_that_lives_elsewhere_reaches_nobody_here() -> None:
    elsewhere = {"selector": {"serving.emberpool.dev/other": "true"}, "ports": [{"port": 8001}]}
    seen = and_(Part.SERVICES, {**c.service("other"), "spec": elsewhere})
    assert [each for each in check(seen()) if each.code is Code.PAUSED_RESIDENTS_REACHABLE] == []


def test_a_cluster_in_which_nothing_is_wrong() -> None:
    assert check(picture()) == ()


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_found_with_its_mend_and_nothing_else_is(name: str) -> None:
    case = CASES[name]
    (found,) = found_in(case.picture())
    assert (found.code, found.severity, found.object, found.path) == (
        case.code,
        case.severity,
        case.object,
        case.path,
    )
    assert case.message in found.message
    assert case.mend in found.mend


def test_no_list_of_residents_is_found() -> None:
    for value, code in (
        (None, Code.RESIDENTS_MISSING),
        ("[{", Code.RESIDENTS_UNREADABLE),
        ("{}", Code.RESIDENTS_UNREADABLE),
    ):
        codes = {each.code for each in check(with_(*RESIDENTS, value=value)())}
        assert code in codes


def test_keda_that_isnt_installed_is_found() -> None:
    def change(bodies: Bodies) -> None:
        del bodies[Part.SCALED_OBJECTS]

    found = replace(
        wishing(changed(change), resized_by=ResizedBy.KEDA), absent=frozenset({Part.SCALED_OBJECTS})
    )
    assert [each.code for each in check(found)] == [Code.KEDA_MISSING]


def test_every_code_has_a_case() -> None:
    tested = {case.code for case in CASES.values()}
    elsewhere = {
        Code.RESIDENTS_MISSING,
        Code.RESIDENTS_UNREADABLE,
        Code.KEDA_MISSING,
        Code.FLEET_LABEL_MISSING,
    }
    assert set(Code) - tested == elsewhere


ALIKE: dict[str, Callable[[], Picture]] = {
    "a-startup-probe-of-the-agent": with_(*POD, "initContainers", 0, "startupProbe", value={}),
    "a-container-that-ends-before": with_(
        *POD, "initContainers", value=[{"name": "copy", "livenessProbe": {}}]
    ),
    "a-grace-of-exactly-what-it-takes": with_(*POD, "terminationGracePeriodSeconds", value=15),
    "a-launcher-that-is-told-nothing": with_(*ENGINES, "command", value=launched()),
    "a-launcher-that-is-told-nonsense": with_(*ENGINES, "command", value=launched("--drain-seconds", "long")),
    "a-grace-by-default": with_(*POD, "terminationGracePeriodSeconds", value=None),
    "a-service-of-another-port": with_("spec", "ports", value=[{"port": 9090}], part=Part.SERVICES),
    "a-service-of-other-pods": with_("spec", "selector", value={"app": "other"}, part=Part.SERVICES),
    "a-service-without-a-selector": with_("spec", "selector", value=None, part=Part.SERVICES),
    "a-service-of-another-namespace": with_("metadata", "namespace", value="other", part=Part.SERVICES),
    "a-network-policy-of-other-pods": with_(
        "spec", value={"podSelector": {"matchLabels": {"app": "other"}}}, part=Part.NETWORK_POLICIES
    ),
    "a-network-policy-of-address-ranges": with_(
        "spec", "ingress", value=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}], part=Part.NETWORK_POLICIES
    ),
    "a-network-policy-of-a-range-of-ports": with_(
        "spec", "ingress", 0, "ports", value=[{"port": 9000, "endPort": 9100}], part=Part.NETWORK_POLICIES
    ),
    "a-network-policy-of-labels-by-expression": with_(
        "spec",
        "ingress",
        0,
        "from",
        value=[
            {
                "namespaceSelector": {},
                "podSelector": {
                    "matchExpressions": [
                        {"key": "app.kubernetes.io/name", "operator": "In", "values": ["emberpool"]}
                    ]
                },
            }
        ],
        part=Part.NETWORK_POLICIES,
    ),
    "a-second-network-policy-that-allows": lambda: changed(
        lambda bodies: bodies[Part.NETWORK_POLICIES].insert(
            0, {**c.network_policy(), "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}
        )
    ),
    "a-budget-of-another-namespace": and_(
        Part.BUDGETS, {**c.budget("all", app="spares"), "metadata": {"name": "all", "namespace": "other"}}
    ),
    "an-hpa-of-another-workload": and_(
        Part.HPAS, {**c.hpa(""), "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "other"}}}
    ),
    "the-controllers-own-writes": with_(
        "metadata", "managedFields", value=managed("emberpool", "Update", "scale")
    ),
    "somebody-who-created-it-once": with_(
        "metadata", "managedFields", value=managed("kubectl-create", "Update")
    ),
    "a-manifest-without-replicas": with_(
        "metadata", "annotations", value={"kubectl.kubernetes.io/last-applied-configuration": '{"spec":{}}'}
    ),
    "a-new-operator": lambda: with_operator("2.20.1"),
    "an-engine-that-wasnt-asked": engines(KvRelease=("NotTried", "not yet")),
    "weights-that-cant-be-parked": engines(WeightsParking=("NotOfKind", "none")),
    "a-seat-without-gpus-in-a-cluster-without": lambda: changed(
        lambda bodies: (
            bodies.update({Part.NODES: []}),
            bodies[Part.DEPLOYMENTS][0]["spec"]["template"]["spec"]["containers"][0].pop("resources"),
        )
    ),
    "a-lost-node-whose-lease-is-old": lambda: changed(
        lambda bodies: (
            bodies[Part.NODE_LEASES][0]["spec"].update(renewTime="2027-01-15T07:00:00.000000Z"),
            bodies[Part.NODES][0]["status"].update(conditions=[{"type": "Ready", "status": "Unknown"}]),
        )
    ),
    "a-policy-that-may-rest": lambda: replace(
        changed(lambda bodies: bodies[Part.BUDGETS].pop(1)),
        wishes=replace(
            c.WISHES,
            policies={
                "chat": PolicyWish(name="chat", port=8001),
                "code": PolicyWish(name="code", port=8002, serving_min=0),
            },
        ),
    ),
    "a-fleet-of-a-namespace-that-isnt-looked-at": lambda: replace(
        picture(),
        namespaces=("serving",),
        wishes=replace(
            c.WISHES,
            fleets=(
                *c.WISHES.fleets,
                replace(c.WISHES.fleets[0], name="own", namespace="elsewhere"),
            ),
        ),
    ),
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_looks_alike_and_is_right(name: str) -> None:
    assert found_in(ALIKE[name]()) == []


def test_argo_cd_is_told_to_leave_the_size_alone() -> None:
    def change(bodies: Bodies) -> None:
        metadata = bodies[Part.DEPLOYMENTS][0]["metadata"]
        metadata["managedFields"] = managed("argocd-controller")
        metadata["annotations"] = {"argocd.argoproj.io/tracking-id": "llm:apps/Deployment:serving/spares"}

    (found,) = check(changed(change))
    assert found.mend == (
        'kubectl patch application llm --type=merge -p \'{"spec":{"ignoreDifferences":[{"group":"apps","kind":"Deployment",'
        '"name":"spares","jsonPointers":["/spec/replicas"]}]}}\' -n argocd'
    )


def test_a_workload_without_the_label_is_found() -> None:
    found = {each.code for each in check(with_(*TEMPLATE, "metadata", "labels", value={"app": "spares"})())}
    assert Code.FLEET_LABEL_MISSING in found


def test_the_gravest_come_first_and_each_once() -> None:
    def change(bodies: Bodies) -> None:
        bodies[Part.DEPLOYMENTS][0]["spec"]["template"]["spec"].pop("readinessGates")
        bodies[Part.SERVICES].append(
            {**c.service("x"), "spec": {"selector": {"app": "spares"}, "ports": [{"port": 8001}]}}
        )
        bodies[Part.BUDGETS].pop(1)

    severities = [each.severity for each in check(changed(change))]
    assert severities == [ERROR, WARNING, NOTE]


def test_the_page_names_every_code() -> None:
    page = (Path(__file__).parents[4] / "docs" / "doctor.md").read_text()
    assert [code for code in Code if f"`{code}`" not in page] == []

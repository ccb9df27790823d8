"""The scheduler: pods without a node are bound to one that takes them.

Looks at what manifests here use: taints and tolerations, cordons, node selectors, required node affinity, resources with GPUs
among them. It evicts nobody for a pod of higher priority, and knows nothing of volumes and resource claims.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scaler.cluster.kube.resources import NODE, POD
from scaler.cluster.kube.times import seconds_text
from scaler.errors import Conflict, NotFound
from scaler.policy.quantity import quantity
from tests.fakes.control_plane import pods as reading
from tests.fakes.control_plane.loops import Caches
from tests.fakes.kube_api.selectors import holds
from tests.fakes.kube_calls import Calls, Object, controller_of, key_of

_KEEPING_OFF = ("NoSchedule", "NoExecute")
_CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def tolerates(pod: Object, taint: Mapping[str, Any]) -> bool:
    """Whether a pod stands a taint."""
    return any(_stands(each, taint) for each in pod["spec"].get("tolerations") or ())


def _stands(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect", taint["effect"]) not in {"", taint["effect"]}:
        return False
    if not toleration.get("key"):
        return bool(toleration.get("operator") == "Exists")
    if toleration["key"] != taint["key"]:
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


def requests_of(pod: Object) -> Counter[str]:
    """What a pod takes of a node: its containers together with its sidecars, or its largest init container where that is more."""
    spec = pod["spec"]
    total: Counter[str] = Counter({"pods": 1})
    for container in spec["containers"]:
        total.update(_requests(container))
    largest: Counter[str] = Counter()
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            total.update(_requests(container))
        else:
            largest |= _requests(container)
    return total | largest


def _requests(container: Object) -> Counter[str]:
    resources = container.get("resources") or {}
    named = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return Counter({name: quantity(value) or 0 for name, value in named.items()})  # type: ignore[misc]


def room_of(node: Object) -> Counter[str]:
    held = (node.get("status") or {}).get("allocatable") or {}
    return Counter({name: quantity(value) or 0 for name, value in held.items()})  # type: ignore[misc]


def refusal(pod: Object, node: Object, taken: Mapping[str, float]) -> str:
    """Return why a node doesn't take a pod, as the real scheduler words it; empty if it does. PURE."""
    spec = node.get("spec") or {}
    if spec.get("unschedulable") and not tolerates(pod, _CORDON):
        return "node(s) were unschedulable"
    for taint in spec.get("taints") or ():
        if taint["effect"] in _KEEPING_OFF and not tolerates(pod, taint):
            return "node(s) had untolerated taint(s)"
    if not _matches(pod, node):
        return "node(s) didn't match Pod's node affinity/selector"
    room = room_of(node)
    for name, amount in requests_of(pod).items():
        if amount and taken.get(name, 0) + amount > room.get(name, 0):
            return "Too many pods" if name == "pods" else f"Insufficient {name}"
    return ""


def _matches(pod: Object, node: Object) -> bool:
    labels = node["metadata"].get("labels") or {}
    wanted = pod["spec"].get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    names = {"metadata.name": node["metadata"]["name"]}
    return any(
        all(holds(each, labels) for each in term.get("matchExpressions") or ())
        and all(holds(each, names) for each in term.get("matchFields") or ())
        for term in required["nodeSelectorTerms"]
    )


class Scheduler:
    """The controller."""

    reads = (POD, NODE)

    def __init__(self) -> None:
        self._bound: dict[str, str] = {}

    async def sync(self, caches: Caches, calls: Calls) -> float | None:
        """See `Controller.sync`."""
        pods, nodes = caches.all(POD), caches.all(NODE)
        shown = {pod["metadata"]["uid"]: pod for pod in pods}
        self._bound = {
            uid: node
            for uid, node in self._bound.items()
            if uid in shown and not shown[uid]["spec"].get("nodeName")
        }
        waiting = [
            pod
            for pod in pods
            if not pod["spec"].get("nodeName")
            and pod["metadata"]["uid"] not in self._bound
            and reading.is_active(pod)
            and pod["spec"].get("schedulerName", "default-scheduler") == "default-scheduler"
        ]
        waiting.sort(key=lambda pod: (-pod["spec"].get("priority", 0), pod["metadata"]["creationTimestamp"]))
        board = _Board(nodes, pods, self._bound)
        for pod in waiting:
            try:
                await self._place(pod, board, calls)
            except (NotFound, Conflict):
                continue  # gone, or bound by somebody else
        return None

    async def _place(self, pod: Object, board: "_Board", calls: Calls) -> None:
        name, why = board.choose(pod)
        if not name:
            await _tell_unschedulable(pod, why, calls)
            return
        target = {"apiVersion": "v1", "kind": "Node", "name": name}
        metadata = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        await calls.post(POD, *key_of(pod), "binding", body)
        self._bound[pod["metadata"]["uid"]] = name
        board.put(pod, name)


class _Board:
    """Who is where, and what is left."""

    def __init__(self, nodes: Sequence[Object], pods: Iterable[Object], bound: Mapping[str, str]) -> None:
        self._nodes = sorted(nodes, key=lambda node: node["metadata"]["name"])
        self._taken: dict[str, Counter[str]] = defaultdict(Counter)
        self._owners: dict[str, Counter[str]] = defaultdict(Counter)
        for pod in pods:
            node = pod["spec"].get("nodeName") or bound.get(pod["metadata"]["uid"])
            if node and reading.phase(pod) not in {"Succeeded", "Failed"}:
                self.put(pod, node)

    def put(self, pod: Object, node: str) -> None:
        self._taken[node].update(requests_of(pod))
        self._owners[node][_owner(pod)] += 1

    def choose(self, pod: Object) -> tuple[str, str]:
        """Return the node for a pod: few siblings, then few pods; or why there is none."""
        reasons: Counter[str] = Counter()
        fit: list[str] = []
        for node in self._nodes:
            name = node["metadata"]["name"]
            why = refusal(pod, node, self._taken[name])
            if why:
                reasons[why] += 1
            else:
                fit.append(name)
        if fit:
            owner = _owner(pod)
            best = min(fit, key=lambda name: (self._owners[name][owner], self._taken[name]["pods"], name))
            return best, ""
        counted = ", ".join(f"{count} {why}" for why, count in sorted(reasons.items()))
        every = len(self._nodes)
        return (
            "",
            f"0/{every} nodes are available: {counted}." if every else "no nodes available to schedule pods",
        )


def _owner(pod: Object) -> str:
    owner = controller_of(pod)
    return str(owner["uid"]) if owner is not None else ""


async def _tell_unschedulable(pod: Object, why: str, calls: Calls) -> None:
    before = reading.condition(pod, "PodScheduled")
    if before.get("status") == "False" and before.get("message") == why:
        return
    at = seconds_text(time.time())
    said = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": why,
        "lastTransitionTime": before.get("lastTransitionTime") if before.get("status") == "False" else at,
    }
    await calls.strategic(POD, *key_of(pod), {"status": {"conditions": [said]}}, "status")

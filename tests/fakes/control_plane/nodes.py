"""The life of nodes as the control plane sees it: taints by their conditions, and what becomes of the pods of those that fell silent."""

import time
from collections.abc import Mapping
from typing import Any

from scaler.cluster.kube.resources import LEASE, NODE, POD
from scaler.cluster.kube.times import seconds_text
from scaler.errors import NotFound
from tests.fakes.control_plane import pods as reading
from tests.fakes.control_plane.loops import Caches
from tests.fakes.control_plane.scheduler import tolerates
from tests.fakes.kube_calls import Calls, Object, key_of

_LEASES = "kube-node-lease"
_NOT_READY = "node.kubernetes.io/not-ready"
_UNREACHABLE = "node.kubernetes.io/unreachable"
_CORDONED = "node.kubernetes.io/unschedulable"
_OURS = frozenset({_NOT_READY, _UNREACHABLE, _CORDONED})
Taint = Mapping[str, Any]


def taints_of(node: Object, now: str) -> list[dict[str, Any]]:
    """Return a node's taints as its conditions and its cordon want them; others' stay. PURE."""
    spec = node.get("spec") or {}
    held = spec.get("taints") or []
    since = {(each["key"], each["effect"]): each for each in held if each["key"] in _OURS}
    status = reading.condition(node, "Ready").get("status", "Unknown")
    wanted: list[tuple[str, str]] = []
    if status != "True":
        key = _NOT_READY if status == "False" else _UNREACHABLE
        wanted += [(key, "NoSchedule"), (key, "NoExecute")]
    if spec.get("unschedulable"):
        wanted.append((_CORDONED, "NoSchedule"))
    made = [since.get(each, {"key": each[0], "effect": each[1], "timeAdded": now}) for each in wanted]
    return [*(each for each in held if each["key"] not in _OURS), *made]


class NodeLife:
    """The controller.

    Args:
        grace: seconds without a heartbeat after which a node counts as unreachable; 50 on a real cluster of today.
    """

    reads = (NODE, POD, LEASE)

    def __init__(self, grace: float = 50.0) -> None:
        self._grace = grace
        self._heard: dict[str, tuple[object, float]] = {}

    async def sync(self, caches: Caches, calls: Calls) -> float | None:
        """See `Controller.sync`."""
        again = self._grace
        for node in caches.all(NODE):
            left = self._left(node, caches)
            again = min(again, left if left > 0 else self._grace)
            if left <= 0 and reading.condition(node, "Ready").get("status") in {"True", "False"}:
                await _mark_unknown(node, calls)
                continue
            taints = taints_of(node, seconds_text(time.time()))
            if taints != (node.get("spec") or {}).get("taints", []):
                version = node["metadata"]["resourceVersion"]
                patch = {"metadata": {"resourceVersion": version}, "spec": {"taints": taints}}
                await calls.merge(NODE, "", node["metadata"]["name"], patch)
                continue
            again = min(again, await _judge_pods(node, caches, calls))
        return max(0.02, again)

    def _left(self, node: Object, caches: Caches) -> float:
        """Seconds until the node counts as silent, by this process's own clock."""
        name, now = node["metadata"]["name"], time.monotonic()
        lease = caches.get(LEASE, _LEASES, name)
        beat = None if lease is None else lease["spec"].get("renewTime")
        if self._heard.get(name, (self, 0.0))[0] != beat:
            self._heard[name] = beat, now
        return self._heard[name][1] + self._grace - now


async def _mark_unknown(node: Object, calls: Calls) -> None:
    at = seconds_text(time.time())
    said = {
        "type": "Ready",
        "status": "Unknown",
        "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status.",
        "lastTransitionTime": at,
    }
    await calls.strategic(NODE, "", node["metadata"]["name"], {"status": {"conditions": [said]}}, "status")


async def _judge_pods(node: Object, caches: Caches, calls: Calls) -> float:
    """Mark pods of a silent node not ready, and delete those that don't stand its taints; return when to look again."""
    again = float("inf")
    evicting = [
        each
        for each in (node.get("spec") or {}).get("taints") or ()
        if each["effect"] == "NoExecute" and each["key"] in _OURS
    ]
    if not evicting:
        return again
    for pod in caches.all(POD):
        if pod["spec"].get("nodeName") != node["metadata"]["name"]:
            continue
        try:
            if reading.is_ready(pod):
                said = {"type": "Ready", "status": "False", "lastTransitionTime": seconds_text(time.time())}
                await calls.strategic(POD, *key_of(pod), {"status": {"conditions": [said]}}, "status")
            left = _stays(pod, evicting, time.time())
            if left <= 0 and not reading.is_terminating(pod):
                await calls.delete(POD, *key_of(pod), uid=pod["metadata"]["uid"])
            again = min(again, left if left > 0 else again)
        except NotFound:
            continue
    return again


def _stays(pod: Object, taints: list[Taint], now: float) -> float:
    """Seconds that a pod may stay on its node."""
    left = float("inf")
    for taint in taints:
        if not tolerates(pod, taint):
            return 0.0
        limits = [
            each["tolerationSeconds"]
            for each in pod["spec"].get("tolerations") or ()
            if each.get("key") in {taint["key"], None, ""} and "tolerationSeconds" in each
        ]
        if limits:
            left = min(left, reading.unix(taint.get("timeAdded")) + min(limits) - now)
    return left

"""ReplicaSets: pods of one template, as many as asked for.

As the real controller does, it reads pods from a cache and waits until the cache shows what it has done itself; whom it removes
first is `ranked`, which follows what Kubernetes documents of scaling down a ReplicaSet.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from scaler.cluster.kube.resources import POD
from scaler.errors import NotFound
from tests.fakes.control_plane import pods as reading
from tests.fakes.control_plane.loops import Caches
from tests.fakes.kube_api.selectors import selects
from tests.fakes.kube_calls import REPLICA_SET, Calls, Object, controller_of, key_of

_COST = "controller.kubernetes.io/pod-deletion-cost"
_EXPECTED_SECONDS = 5.0
"""A pod that was made and isn't seen by then was removed at once, and the cache never showed it."""
_RANK = {"Pending": 0, "Unknown": 1, "Running": 2}


def _cost(pod: Object) -> int:
    text = (pod["metadata"].get("annotations") or {}).get(_COST, "0")
    try:
        return int(text)
    except ValueError:
        return 0


def _age_class(since: float, now: float) -> int:
    """Ages count by powers of two, so that of pods of about the same age any may go."""
    return math.floor(math.log2(max(1.0, now - since))) if since else -1


def ranked(pods: Sequence[Object], now: float) -> list[Object]:
    """Order pods by who is removed first.

    Without a node before with one, Pending before Running, not ready before ready, lower deletion cost, more neighbours of
    the same set on the node, ready for a shorter time, more restarts, younger. PURE.
    """
    neighbours = Counter(pod["spec"].get("nodeName", "") for pod in pods)

    def rank(pod: Object) -> tuple[Any, ...]:
        node = pod["spec"].get("nodeName", "")
        restarts = [each["restartCount"] for each in pod["status"].get("containerStatuses") or ()]
        return (
            bool(node),
            _RANK.get(reading.phase(pod), 2),
            reading.is_ready(pod),
            _cost(pod),
            -neighbours[node],
            _age_class(reading.ready_since(pod), now),
            -max(restarts, default=0),
            _age_class(reading.unix(pod["metadata"]["creationTimestamp"]), now),
            pod["metadata"]["uid"],
        )

    return sorted(pods, key=rank)


def pod_of(owner: Object) -> dict[str, Any]:
    """Make a pod of a ReplicaSet's template."""
    template = owner["spec"]["template"]
    metadata = template.get("metadata") or {}
    return {
        "metadata": {
            "generateName": f"{owner['metadata']['name']}-",
            "labels": metadata.get("labels") or {},
            "annotations": metadata.get("annotations") or {},
            "finalizers": metadata.get("finalizers") or [],
            "ownerReferences": [reference_to(owner, "apps/v1", "ReplicaSet")],
        },
        "spec": template["spec"],
    }


def reference_to(owner: Object, version: str, kind: str) -> dict[str, Any]:
    """Make the reference by which an owner controls an object."""
    return {
        "apiVersion": version,
        "kind": kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


class ReplicaSets:
    """The controller."""

    reads = (REPLICA_SET, POD)

    def __init__(self) -> None:
        self._made: dict[str, dict[str, float]] = defaultdict(dict)
        self._removed: dict[str, set[str]] = defaultdict(set)

    async def sync(self, caches: Caches, calls: Calls) -> float | None:
        """See `Controller.sync`."""
        by_owner: dict[str, list[Object]] = defaultdict(list)
        for pod in caches.all(POD):
            if (owner := controller_of(pod)) is not None:
                by_owner[owner["uid"]].append(pod)
        again = math.inf
        for each in caches.all(REPLICA_SET):
            again = min(again, await self._sync_one(each, by_owner[each["metadata"]["uid"]], calls))
        return None if math.isinf(again) else max(0.01, again)

    async def _sync_one(self, body: Object, owned: Sequence[Object], calls: Calls) -> float:
        uid = body["metadata"]["uid"]
        active = [pod for pod in owned if reading.is_active(pod)]
        if self._caught_up(uid, owned) and not reading.is_terminating(body):
            difference = body["spec"].get("replicas", 1) - len(active)
            if difference > 0:
                await self._grow(body, difference, calls)
            elif difference < 0:
                await self._shrink(uid, ranked(active, time.time())[:-difference], calls)
        return await _tell(body, active, calls)

    def _caught_up(self, uid: str, owned: Sequence[Object]) -> bool:
        """Whether the cache shows what was done here last."""
        seen = {pod["metadata"]["uid"]: pod for pod in owned}
        oldest = time.monotonic() - _EXPECTED_SECONDS
        self._made[uid] = {
            each: at for each, at in self._made[uid].items() if each not in seen and at > oldest
        }
        self._removed[uid] = {
            each for each in self._removed[uid] if each in seen and not reading.is_terminating(seen[each])
        }
        return not self._made[uid] and not self._removed[uid]

    async def _grow(self, body: Object, count: int, calls: Calls) -> None:
        for _ in range(count):
            made = await calls.create(POD, body["metadata"]["namespace"], pod_of(body))
            self._made[body["metadata"]["uid"]][made["metadata"]["uid"]] = time.monotonic()

    async def _shrink(self, uid: str, victims: Sequence[Object], calls: Calls) -> None:
        for victim in victims:
            try:
                await calls.delete(POD, *key_of(victim), uid=victim["metadata"]["uid"])
            except NotFound:
                continue
            self._removed[uid].add(victim["metadata"]["uid"])


async def _tell(body: Object, active: Sequence[Object], calls: Calls) -> float:
    """Write the set's status; return in how many seconds it changes by itself."""
    spec, now = body["spec"], time.time()
    waits = [reading.available_in(pod, spec.get("minReadySeconds", 0), now) for pod in active]
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    wanted = {
        "replicas": len(active),
        "fullyLabeledReplicas": sum(
            selects({"matchLabels": labels}, pod["metadata"].get("labels") or {}) for pod in active
        ),
        "readyReplicas": sum(map(reading.is_ready, active)),
        "availableReplicas": waits.count(0.0),
        "observedGeneration": body["metadata"]["generation"],
    }
    if {**wanted, **(body.get("status") or {})} != wanted or not body.get("status"):
        await calls.merge(REPLICA_SET, *key_of(body), {"status": wanted}, "status")
    return min((wait for wait in waits if wait > 0), default=math.inf)

"""PodDisruptionBudgets: what each allows, as its status says it to whoever evicts."""

import time
from collections.abc import Mapping
from typing import Any

from scaler.cluster.kube.resources import POD
from tests.fakes.control_plane import pods as reading
from tests.fakes.control_plane.loops import Caches
from tests.fakes.kube_api.selectors import selects
from tests.fakes.kube_calls import BUDGET, REPLICA_SET, Calls, Object, controller_of, key_of

_DISRUPTED_SECONDS = 120.0
"""A pod that was evicted and is still there after so long counts again: its deletion never came about."""


def expected(budget: Object, pods: list[Object], sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return how many pods there should be, and how many of them healthy. PURE.

    Args:
        budget: the budget.
        pods: those that it selects.
        sizes: UID of a ReplicaSet → how many pods are asked of it.
    """
    spec = budget["spec"]
    owners = {owner["uid"] for pod in pods if (owner := controller_of(pod)) is not None}
    asked = sum(sizes.get(owner, 0) for owner in owners)
    if "maxUnavailable" in spec:
        return asked, max(0, asked - reading.share(spec["maxUnavailable"], asked, up=True))
    least = spec.get("minAvailable", 1)
    if isinstance(least, int):
        return len(pods), least
    return asked, reading.share(least, asked, up=True)


class Disruptions:
    """The controller."""

    reads = (BUDGET, POD, REPLICA_SET)

    async def sync(self, caches: Caches, calls: Calls) -> float | None:
        """See `Controller.sync`."""
        sizes = {
            each["metadata"]["uid"]: int(each["spec"].get("replicas", 1)) for each in caches.all(REPLICA_SET)
        }
        for budget in caches.all(BUDGET):
            status = self._status(budget, caches, sizes)
            if {**status, **(budget.get("status") or {})} != status or not budget.get("status"):
                version = budget["metadata"]["resourceVersion"]  # an eviction meanwhile rules
                gone = dict.fromkeys((budget.get("status") or {}).get("disruptedPods") or {})
                disrupted = {**gone, **status.get("disruptedPods", {})} or None
                patch = {
                    "metadata": {"resourceVersion": version},
                    "status": {**status, "disruptedPods": disrupted},
                }
                await calls.merge(BUDGET, *key_of(budget), patch, "status")
        return None

    def _status(self, budget: Object, caches: Caches, sizes: Mapping[str, int]) -> dict[str, Any]:
        selector, now = budget["spec"].get("selector"), time.time()
        selected = [
            pod
            for pod in caches.all(POD, budget["metadata"]["namespace"])
            if selects(selector, pod["metadata"].get("labels") or {})
            and reading.phase(pod) not in {"Succeeded", "Failed"}
        ]
        names = {pod["metadata"]["name"] for pod in selected if not reading.is_terminating(pod)}
        disrupted = {
            name: at
            for name, at in ((budget.get("status") or {}).get("disruptedPods") or {}).items()
            if name in names and now - reading.unix(at) < _DISRUPTED_SECONDS
        }
        healthy = sum(
            reading.is_ready(pod)
            and not reading.is_terminating(pod)
            and pod["metadata"]["name"] not in disrupted
            for pod in selected
        )
        asked, wanted = expected(budget, selected, sizes)
        return {
            "currentHealthy": healthy,
            "desiredHealthy": wanted,
            "expectedPods": asked,
            "disruptionsAllowed": max(0, healthy - wanted) if asked else 0,
            "observedGeneration": budget["metadata"]["generation"],
            **({"disruptedPods": disrupted} if disrupted else {}),
        }

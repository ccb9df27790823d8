"""What stands between an eviction and the deletion of its pod: budgets, as a kube-apiserver weighs them.

What a budget allows stands in its status, which a controller writes (`tests.fakes.control_plane`). An eviction takes one from
it at once, so that two that come together don't both get the last one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.fakes.kube_api.kinds import BUDGET
from tests.fakes.kube_api.refusals import Refusal
from tests.fakes.kube_api.selectors import selects
from tests.fakes.kube_api.store import Store

Body = Mapping[str, Any]


def allow(store: Store, pod: Body, now: str) -> dict[str, Any] | None:
    """Return the budget as the eviction leaves it; None where no budget has a say.

    Raises:
        Refusal: 429, it would be too many; 500, more than one budget selects the pod.
    """
    if (
        pod["status"].get("phase") in {"Succeeded", "Failed", "Pending"}
        or "deletionTimestamp" in pod["metadata"]
    ):
        return None
    budgets = _budgets(store, pod)
    if len(budgets) > 1:
        message = (
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
        raise Refusal(500, "InternalError", message)
    if not budgets:
        return None
    (budget,) = budgets
    status = budget.get("status") or {}
    if not _is_ready(pod) and _unhealthy_may_go(budget, status):
        return None
    _check(budget, status)
    disrupted = {**(status.get("disruptedPods") or {}), pod["metadata"]["name"]: now}
    left = {**status, "disruptionsAllowed": status["disruptionsAllowed"] - 1, "disruptedPods": disrupted}
    return {**budget, "status": left}


def _budgets(store: Store, pod: Body) -> Sequence[Body]:
    labels = pod["metadata"].get("labels") or {}
    held = [each.body for each in store.all(BUDGET, pod["metadata"]["namespace"])]
    return [each for each in held if labels and selects(each["spec"].get("selector"), labels)]


def _is_ready(pod: Body) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _unhealthy_may_go(budget: Body, status: Body) -> bool:
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    wanted = status.get("desiredHealthy", 0)
    return 0 < wanted <= status.get("currentHealthy", 0)


def _check(budget: Body, status: Body) -> None:
    name = budget["metadata"]["name"]
    if status.get("observedGeneration", 0) < budget["metadata"]["generation"]:
        raise _too_many(f"The disruption budget {name} is still being processed by the server.", 10)
    if status.get("disruptionsAllowed", 0) <= 0:
        wanted, has = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        raise _too_many(f"The disruption budget {name} needs {wanted} healthy pods and has {has} currently")


def _too_many(why: str, seconds: int = 0) -> Refusal:
    details = {
        "causes": [{"reason": "DisruptionBudget", "message": why}],
        **({"retryAfterSeconds": seconds} if seconds else {}),
    }
    return Refusal(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
        details=details,
        headers={"Retry-After": str(seconds)} if seconds else {},
    )

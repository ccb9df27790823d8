"""When a node took a pod, and when its containers ran, as its status says. Times of Kubernetes are in whole seconds. PURE."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Json = Mapping[str, Any]


class PodStamps(NamedTuple):
    """Times as the API server writes them; empty where there is none.

    Attributes:
        scheduled: a node took the pod.
        running: all its containers ran, for the first time. Nothing where one of them was started again: the time of its first
            start is no longer told.
    """

    scheduled: str = ""
    running: str = ""


def pod_stamps(status: Json) -> PodStamps:
    """Read a pod's status."""
    taken: Json = next(
        (each for each in status.get("conditions") or () if each.get("type") == "PodScheduled"), {}
    )
    starts = list(_starts(status))
    return PodStamps(
        scheduled=str(taken.get("lastTransitionTime") or "") if taken.get("status") == "True" else "",
        running=max(starts) if starts and all(starts) else "",
    )


def _starts(status: Json) -> Iterator[str]:
    """Yield when each container of a pod's own, and each sidecar, began to run; nothing for one that doesn't run, or has restarted."""
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = each.get("state") or {}
        if "terminated" in state and not each.get("restartCount") and not _failed(state):
            continue  # an init container that has done its work
        running = state.get("running") or {}
        yield "" if each.get("restartCount") else str(running.get("startedAt") or "")


def _failed(state: Json) -> bool:
    return bool((state.get("terminated") or {}).get("exitCode"))

"""What controllers ask of pods. PURE."""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

Object = Mapping[str, Any]


def unix(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def condition(body: Object, kind: str) -> Object:
    held = (body.get("status") or {}).get("conditions") or ()
    return next((each for each in held if each["type"] == kind), {})


def phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def is_terminating(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_active(pod: Object) -> bool:
    """It counts for its ReplicaSet: it hasn't ended and isn't on its way out."""
    return phase(pod) not in {"Succeeded", "Failed"} and not is_terminating(pod)


def is_ready(pod: Object) -> bool:
    return condition(pod, "Ready").get("status") == "True"


def ready_since(pod: Object) -> float:
    """Unix time since which it is ready; 0 if it isn't."""
    return unix(condition(pod, "Ready").get("lastTransitionTime")) if is_ready(pod) else 0.0


def available_in(pod: Object, min_ready: float, now: float) -> float:
    """Seconds until a pod has been ready for long enough; 0 once it has, infinite while it isn't ready."""
    if not is_ready(pod):
        return math.inf
    return max(0.0, ready_since(pod) + min_ready - now)


def share(value: int | str, of: int, *, up: bool) -> int:
    """Read a number or a percentage of a number of pods."""
    if isinstance(value, int):
        return value
    exact = of * int(value.removesuffix("%")) / 100
    return math.ceil(exact) if up else math.floor(exact)

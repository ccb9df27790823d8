"""What a pod's status says of containers that end again and again, or can't be started at all. PURE.

A container that is started again waits between its attempts, longer each time, up to five minutes; only meanwhile its status says so.
"""

from collections.abc import Mapping
from typing import Any, Final

from warmpool.seats import Crash

Json = Mapping[str, Any]

LOOPS: Final = "CrashLoopBackOff"
"""The kubelet's word for a container that it starts again and again."""
_WORDS: Final = frozenset(
    {
        *(LOOPS, "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"),
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"),
    }
)
"""The kubelet's words for a container that doesn't come up."""
_MOST_CHARACTERS: Final = 300


def crash_of(status: Json) -> Crash | None:
    """Return which of a pod's containers doesn't come up, the one with the most attempts; None if all do, or did."""
    worst: Crash | None = None
    for key in ("initContainerStatuses", "containerStatuses"):
        for each in status.get(key) or ():
            waiting = (each.get("state") or {}).get("waiting")
            if waiting is None or waiting.get("reason") not in _WORDS:
                continue
            restarts = int(each.get("restartCount") or 0)
            if worst is None or restarts > worst.restarts:
                worst = Crash(
                    container=str(each.get("name", "")),
                    reason=str(waiting["reason"]),
                    restarts=restarts,
                    how=_how(each, waiting)[:_MOST_CHARACTERS],
                )
    return worst


def _how(container: Json, waiting: Json) -> str:
    """Say how it ended last, or why it can't be started."""
    if waiting.get("reason") != LOOPS:
        return str(waiting.get("message") or "")
    ended = (container.get("lastState") or {}).get("terminated")
    if not ended:
        return ""
    reason, code, signal = ended.get("reason"), ended.get("exitCode"), ended.get("signal")
    how = f"it was killed by signal {signal}" if signal else f"it exited with status {code}"
    said = str(ended.get("message") or "").strip()
    known = f"{how} ({reason})" if reason not in {None, "", "Error"} else how
    return f"{known}: {said}" if said else known

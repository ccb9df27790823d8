"""What a pod's status says of containers that end again and again, or can't be started at all. PURE.

A container that is started again waits between its attempts, longer each time, up to five minutes; only meanwhile its status says so.
One that a pre-flight keeps from starting ends with a status of its own, and is told apart.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from warmpool.nodehealth.preflight.findings import REFUSED, was_refused
from warmpool.seats import LOOPS, Crash

Json = Mapping[str, Any]

_WORDS: Final = frozenset(
    {
        *(LOOPS, "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"),
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"),
    }
)
"""The kubelet's words for a container that doesn't come up."""
_MOST_CHARACTERS: Final = 300


def crash_of(status: Json) -> Crash | None:
    """Return which of a pod's containers doesn't come up; None if all do, or did.

    Of several it is the one with the most attempts; those that a pre-flight ended come after all others.
    """
    return max(_crashes(status), key=_rank, default=None)


def _crashes(status: Json) -> Iterator[Crash]:
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (each.get("state") or {}).get("waiting")
        if waiting is not None and waiting.get("reason") in _WORDS:
            yield Crash(
                container=str(each.get("name", "")),
                reason=str(waiting["reason"]),
                restarts=int(each.get("restartCount") or 0),
                how=_how(each, waiting)[:_MOST_CHARACTERS],
                refused=_refused(each, waiting),
            )


def _rank(crash: Crash) -> tuple[bool, int]:
    return not crash.refused, crash.restarts


def _refused(container: Json, waiting: Json) -> bool:
    """Whether a pre-flight ended it last, by its exit status or its last words."""
    ended = (container.get("lastState") or {}).get("terminated")
    if not ended or waiting.get("reason") != LOOPS:
        return False
    return ended.get("exitCode") == REFUSED or was_refused(str(ended.get("message") or ""))


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

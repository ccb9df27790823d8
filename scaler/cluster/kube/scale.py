"""The size of a workload: one writer, which notices when somebody else has written.

A PUT of the whole Scale carries the version that was read, so that two writers never overwrite each other unseen.
"""

from dataclasses import dataclass

import structlog

from scaler.cluster.kube.bodies import scale_body
from scaler.cluster.kube.client import Request
from scaler.cluster.kube.lanes import Lane
from scaler.cluster.kube.resources import Kind
from scaler.cluster.kube.seats import WRITE_SECONDS
from scaler.cluster.kube.views import workload_from_json
from scaler.cluster.kube.writing import MANAGER, Writing
from scaler.errors import Conflict

log = structlog.get_logger(__name__)
_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is sized.

    Attributes:
        kind: its kind, which has a scale.
        namespace: where it is.
        name: its name.
    """

    kind: Kind
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Where its Scale is."""
        return self.kind.path(self.namespace, self.name, "scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """What a resizing found and did.

    Attributes:
        before: replicas that were asked for until now.
        after: that are asked for from now on.
        drifted: what we had asked for last, if somebody else has changed it since; else None.
    """

    before: int
    after: int
    drifted: int | None = None


class Sizer:
    """Writes sizes.

    Args:
        writing: sends the writes.
        lane: the lane that they take.
    """

    def __init__(self, writing: Writing, lane: Lane) -> None:
        self._writing = writing
        self._lane = lane
        self._asked: dict[Target, int] = {}

    async def resize(self, target: Target, total: int) -> Resized:
        """Ask for `total` replicas. Idempotent: a size that is right already is not written.

        Raises:
            NotFound: there is no such workload.
            Conflict: somebody else writes all the time.
            Unreachable: no answer in time.
        """
        for _ in range(_TRIES):
            scale = await self._writing.client.call(Request(path=target.path), seconds=WRITE_SECONDS)
            found = workload_from_json(scale).replicas
            drifted = self._drift(target, found)
            if found != total:
                request = Request(
                    method="PUT",
                    path=target.path,
                    body=scale_body(scale, total),
                    query={"fieldManager": MANAGER},
                )
                try:
                    await self._writing.send(self._lane, request, seconds=WRITE_SECONDS)
                except Conflict:
                    continue
            if not self._writing.dry_run:
                self._asked[target] = total
            return Resized(before=found, after=total, drifted=drifted)
        raise Conflict(f"{target.name}: its size changes faster than it can be written")

    def _drift(self, target: Target, found: int) -> int | None:
        asked = self._asked.get(target)
        if asked is None or asked == found:
            return None
        log.warning("somebody else has changed a size", workload=target.name, asked=asked, found=found)
        return asked

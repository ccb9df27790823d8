"""The size of a workload: one writer, which notices when somebody else has written.

A PUT of the whole Scale carries the version that was read, so that two writers never overwrite each other unseen.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from scaler.cluster.kube.bodies import scale_body
from scaler.cluster.kube.client import Request
from scaler.cluster.kube.errors import Withheld
from scaler.cluster.kube.lanes import Lane
from scaler.cluster.kube.resources import Kind
from scaler.cluster.kube.seats import WRITE_SECONDS
from scaler.cluster.kube.views import Json, workload_from_json
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
        version: of the workload that it speaks of.
        drifted: what we had asked for last, if somebody else has changed it since; else None.
    """

    before: int
    after: int
    version: str = ""
    drifted: int | None = None


def _anything(_: int) -> None:
    """Let every change pass."""


class Sizer:
    """Writes sizes.

    Args:
        writing: sends the writes.
        lane: the lane that they take.
    """

    def __init__(self, writing: Writing, lane: Lane) -> None:
        self._writing = writing
        self._lane = lane
        self._left: dict[Target, tuple[int, ...]] = {}
        self._turns: defaultdict[Target, asyncio.Lock] = defaultdict(asyncio.Lock)

    def forget(self) -> None:
        """Forget what we have asked for: whoever writes from now on is in the right."""
        self._left.clear()

    def drift(self, target: Target, found: int) -> int | None:
        """Return what we had asked for last, if a size that was found can't be ours; else None."""
        left = self._left.get(target)
        return None if left is None or found in left else left[-1]

    async def resize(self, target: Target, total: int, allow: Callable[[int], None] = _anything) -> Resized:
        """Ask for `total` replicas. Idempotent: a size that is right already is not written. What is asked for last stays.

        Args:
            target: of what.
            total: how many.
            allow: is asked right before each write, with the size that was found; may raise to keep it from being sent.

        Raises:
            NotFound: there is no such workload.
            Conflict: somebody else writes all the time.
            Unreachable: no answer in time.
        """
        async with self._turns[target]:
            return await self._resize(target, total, allow)

    async def _resize(self, target: Target, total: int, allow: Callable[[int], None]) -> Resized:
        for _ in range(_TRIES):
            scale = await self._writing.read(Request(path=target.path), seconds=WRITE_SECONDS)
            found = workload_from_json(scale)
            drifted = self._drifted(target, found.replicas)
            if found.replicas != total:
                allow(found.replicas)
                try:
                    scale = await self._write(target, scale, total)
                except Withheld:
                    raise
                except Conflict:
                    continue
            if not self._writing.dry_run:
                self._left[target] = (total,)
            version = workload_from_json(scale).version
            return Resized(before=found.replicas, after=total, version=version, drifted=drifted)
        raise Conflict(f"{target.name}: its size changes faster than it can be written")

    async def _write(self, target: Target, scale: Json, total: int) -> Json:
        body = scale_body(scale, total)
        request = Request(method="PUT", path=target.path, body=body, query={"fieldManager": MANAGER})
        if not self._writing.dry_run:  # from now on either may be found, whatever becomes of the answer
            self._left[target] = (workload_from_json(scale).replicas, total)
        answer: Json = await self._writing.send(self._lane, request, seconds=WRITE_SECONDS, repeatable=True)
        return answer

    def _drifted(self, target: Target, found: int) -> int | None:
        asked = self.drift(target, found)
        if asked is not None:
            log.warning("somebody else has changed a size", workload=target.name, asked=asked, found=found)
        return asked

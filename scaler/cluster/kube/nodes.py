"""Marks on nodes: our taint and our condition, with everybody else's left as they are."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from scaler.cluster.kube import bodies
from scaler.cluster.kube.client import JSON_PATCH, MERGE, STRATEGIC, Request
from scaler.cluster.kube.errors import Rejected, Withheld
from scaler.cluster.kube.lanes import Lane
from scaler.cluster.kube.resources import NODE
from scaler.cluster.kube.seats import HOUSEKEEPING_SECONDS
from scaler.cluster.kube.times import seconds_text
from scaler.cluster.kube.views import Json, Taint
from scaler.cluster.kube.writing import Writing, patch
from scaler.errors import Conflict
from warmpool.nodehealth.marks import (
    CONDITION,
    EFFECT,
    LATCHES_ANNOTATION,
    OWNER_ANNOTATION,
    TAINT_KEY,
    owned_value,
)

GPU_TAINT: Final = TAINT_KEY
"""Keeps new pods off a node with a bad GPU."""
GPU_CONDITION: Final = CONDITION
"""Says why."""
_TRIES = 5


class NodeWriter:
    """Writes nodes.

    Args:
        writing: sends the writes.
        lane: the lane that they take.
        wall: Unix seconds.
        learn: takes each node as the server returned it.
    """

    def __init__(
        self,
        writing: Writing,
        lane: Lane,
        wall: Callable[[], float] = time.time,
        learn: Callable[[Json], object] = lambda _node: None,
    ) -> None:
        self._writing = writing
        self._lane = lane
        self._wall = wall
        self._learn = learn

    async def mark(self, name: str, value: str, owner: str) -> None:
        """Set our taint and the annotation that says that it is ours, in one write. Idempotent.

        Args:
            name: the node.
            value: the taint's.
            owner: the annotation's.

        Raises:
            Conflict: somebody else has set a taint of our key, or others write its taints all the time.
            NotFound: there is no such node.
            Unreachable: no answer in time.
        """
        taint = Taint(key=GPU_TAINT, effect=EFFECT, value=value)
        await self._write_mark(name, lambda taints: bodies.taints_with(taints, taint), owner)

    async def unmark(self, name: str, owner: str | None = None) -> None:
        """Take our taint away, and its annotation, or write another there, in one write; raises as `mark` does. Idempotent."""
        await self._write_mark(name, lambda taints: bodies.taints_without(taints, GPU_TAINT), owner)

    async def _write_mark(
        self, name: str, changed: Callable[[Sequence[Json]], list[Json]], owner: str | None
    ) -> None:
        for _ in range(_TRIES):
            node: Any = await self._writing.read(
                Request(path=NODE.path("", name)), seconds=HOUSEKEEPING_SECONDS
            )
            before: list[Json] = (node.get("spec") or {}).get("taints") or []
            said = (node["metadata"].get("annotations") or {}).get(OWNER_ANNOTATION)
            there = [each.get("value", "") for each in before if each.get("key") == GPU_TAINT]
            if there and there != [owned_value(said)]:
                raise Conflict(f"node {name}: its taint {GPU_TAINT} is somebody else's, and stays")
            after = changed(before)
            if after == before and said == owner:
                return
            operations = bodies.mark_operations(node, after, (OWNER_ANNOTATION, owner))
            if await self._tried(name, operations):
                return
        raise Conflict(f"node {name}: it can't be marked; others write it, or marks are refused")

    async def _tried(self, name: str, operations: list[Json]) -> bool:
        """Send a patch that tests what it replaces; return whether it was still that."""
        try:
            await self._send(patch(NODE.path("", name), operations, JSON_PATCH))
        except Withheld:
            raise
        except (Rejected, Conflict):
            return False  # a test that fails reads as a bad request: look again
        return True

    async def condition(self, name: str, kind: str, *, status: bool, reason: str, message: str) -> None:
        """Set a condition; the others stay.

        Raises:
            NotFound: there is no such node.
            Unreachable: no answer in time.
        """
        body = bodies.condition_patch(
            kind, status=status, reason=reason, message=message, at=seconds_text(self._wall())
        )
        await self._send(patch(NODE.path("", name, "status"), body, STRATEGIC))

    async def keep(self, name: str, copy: str) -> None:
        """Keep a copy of what was found of a node's GPUs, in an annotation; empty: take it away. Idempotent.

        Raises:
            NotFound: there is no such node.
            Unreachable: no answer in time.
        """
        body = {"metadata": {"annotations": {LATCHES_ANNOTATION: copy or None}}}
        await self._send(patch(NODE.path("", name), body, MERGE))

    async def _send(self, request: Request) -> None:
        node = await self._writing.send(self._lane, request, seconds=HOUSEKEEPING_SECONDS, repeatable=True)
        self._learn(node)

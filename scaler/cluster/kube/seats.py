"""Claims and rotation on pod objects: compare-and-swap on the pod's version, of which exactly one wins.

A kubelet's write moves the version too. So a conflict is looked at: where claim, rotation and identity are as they were
read, the same write is tried again at once. An answer that is lost is looked at as well: the pod shows whether the write
took place.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from scaler.cluster.kube import bodies
from scaler.cluster.kube.client import MERGE, STRATEGIC, Request
from scaler.cluster.kube.errors import Rejected, Throttled, Withheld
from scaler.cluster.kube.lanes import Lane, Lanes, lanes
from scaler.cluster.kube.resources import POD
from scaler.cluster.kube.times import seconds_text
from scaler.cluster.kube.views import Json, pod_from_json
from scaler.cluster.kube.writing import Writing, patch
from scaler.errors import Conflict, NotFound, Unreachable
from warmpool.claim import holds, refusal
from warmpool.seats import Claim, PolicyName, Seat, SeatValue

WRITE_SECONDS: Final = 2.0
"""Deadline of a write on the promotion path; the API's usual answer takes 5 ms."""
HOUSEKEEPING_SECONDS: Final = 10.0
_TRIES = 6
"""How often a write is tried that only others' status writes stand against."""


def _ignore(_: Json) -> None:
    """Learn nothing."""


class SeatWriter:
    """Writes seats' pods.

    Args:
        writing: sends the writes.
        namespace: where the pods are.
        through: the lanes that the writes take.
        learn: is told each pod as it was written, so that the cache shows it at once.
        wall: Unix seconds.
    """

    def __init__(
        self,
        writing: Writing,
        namespace: str,
        through: Lanes | None = None,
        learn: Callable[[Json], None] = _ignore,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._writing = writing
        self._namespace = namespace
        self._lanes = through or lanes()
        self._learn = learn
        self._wall = wall

    # ------------------------------------------------------------ the promotion path

    async def claim(self, seat: Seat, claim: Claim) -> Seat:
        """See `scaler.cluster.port.Cluster.claim`."""

        def patched(current: Seat) -> Seat | Json:
            if holds(current, claim):
                return current
            if not _unchanged(seat, current):
                raise Conflict(f"seat {seat.name} has changed since it was read")
            if (why := refusal(current, claim, self._wall())) is not None:
                raise Conflict(why)
            return bodies.claim_patch(current, claim)

        return await self._swap(seat, patched)

    async def settle(self, seat: Seat, claim: Claim, *, serving: PolicyName | None) -> Seat:
        """See `scaler.cluster.port.Cluster.settle`; `seat` is the seat as it was last read."""

        def patched(current: Seat) -> Seat | Json:
            if holds(current, claim):
                return bodies.settlement_patch(current, claim, serving)
            if _settled(current, serving):
                return current
            raise Conflict(f"seat {seat.name} is no longer held by claim {claim.id}")

        return await self._swap(seat, patched)

    async def _swap(self, seat: Seat, patched: Callable[[Seat], Seat | Json]) -> Seat:
        """Write a pod, again if only others' writes stand against it.

        Each try carries the version that it was made for, so that one which arrives late, or twice, changes nothing.

        Args:
            seat: as it was read.
            patched: returns the write for the pod as it is now, or the seat if nothing needs to be written any more. May raise.

        Raises:
            Conflict: others write it all the time.
            NotFound: the seat is gone.
            Unreachable: no answer in time.
        """
        current = seat
        for _ in range(_TRIES):
            body = patched(current)
            if isinstance(body, Seat):
                return body
            try:
                return await self._patch(self._lanes.promotions, current, body)
            except (Withheld, Throttled):
                raise  # nothing was done, and asking again changes nothing
            except Conflict:
                current = await self.read(current)
            except Unreachable:
                found = patched(await self.read(current))
                if isinstance(found, Seat):
                    return found
                raise
        raise Conflict(f"seat {seat.name} changes faster than it can be written")

    async def admit(self, seat: Seat, *, admitted: bool = True, reason: str = "ResidentsProven") -> Seat:
        """Set the readiness gate; the other conditions stay. Idempotent.

        Raises:
            NotFound: the seat is gone.
            Unreachable: no answer in time.
        """
        body = bodies.admission_patch(admitted=admitted, at=seconds_text(self._wall()), reason=reason)
        bound = {**body, "metadata": {"uid": seat.uid}}
        request = patch(POD.path(self._namespace, seat.name, "status"), bound, STRATEGIC)
        try:
            body = await self._writing.send(
                self._lanes.promotions, request, seconds=WRITE_SECONDS, repeatable=True
            )
        except Rejected:
            await self.read(seat)  # another pod of this name refuses the identity
            raise
        return self._written(seat, body)

    async def read(self, seat: Seat) -> Seat:
        """Read the pod anew; what agents have told of the seat is kept.

        Raises:
            NotFound: the seat is gone, or another pod has its name.
            Unreachable: no answer in time.
        """
        request = Request(path=POD.path(self._namespace, seat.name))
        return self._written(seat, await self._writing.read(request, seconds=WRITE_SECONDS))

    async def _patch(self, lane: Lane, seat: Seat, body: Json) -> Seat:
        request = patch(POD.path(self._namespace, seat.name), body, MERGE)
        seconds = WRITE_SECONDS if lane is self._lanes.promotions else HOUSEKEEPING_SECONDS
        return self._written(seat, await self._writing.send(lane, request, seconds=seconds, repeatable=True))

    def _written(self, before: Seat, body: Json) -> Seat:
        found = pod_from_json(body).seat
        if found.uid != before.uid:
            raise NotFound(f"seat {before.name} was replaced by another of the same name")
        if not self._writing.dry_run:
            self._learn(body)
        return replace(
            found,
            residents=before.residents,
            agent=before.agent,
            gpus=before.gpus,
            memory=before.memory,
            verdict=before.verdict,
            node_leaving=before.node_leaving,
            reachable=before.reachable and found.reachable,
        )

    # ------------------------------------------------------------ housekeeping

    async def mark(self, seat: Seat, value: SeatValue) -> Seat:
        """Mirror what a seat is worth in its label and deletion cost, if it is still as it was read.

        Raises:
            Conflict: it isn't; look again.
            NotFound: the seat is gone.
            Unreachable: no answer in time.
        """
        return await self._patch(self._lanes.housekeeping, seat, bodies.mark_patch(seat, value))

    async def free(self, seat: Seat) -> Seat:
        """Take a claim off that nobody can read, if the seat is still as it was read; raises as `mark` does."""
        return await self._patch(self._lanes.housekeeping, seat, bodies.freeing_patch(seat))

    async def delete(self, seat: Seat) -> None:
        """See `scaler.cluster.port.Cluster.delete`: this pod and no other of its name.

        The answer shows the pod as one that is ending. Whoever plans before the watch tells of that mustn't delete it again.
        """
        request = Request(
            method="DELETE",
            path=POD.path(self._namespace, seat.name),
            body={"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": seat.uid}},
        )
        try:
            body = await self._writing.send(
                self._lanes.housekeeping, request, seconds=HOUSEKEEPING_SECONDS, repeatable=True
            )
        except NotFound:
            return
        except Conflict:
            if await self._is_there(seat):
                raise
        else:
            # Of one that is gone at once, servers may answer no more than that.
            if (body or {}).get("metadata", {}).get("uid") == seat.uid and not self._writing.dry_run:
                self._learn(body)

    async def _is_there(self, seat: Seat) -> bool:
        try:
            await self.read(seat)
        except NotFound:
            return False
        return True


def _unchanged(before: Seat, now: Seat) -> bool:
    """Whether nothing that a claim depends on has changed."""
    facts = [(s.claim, s.serving, s.terminating, s.fleet) for s in (before, now)]
    return facts[0] == facts[1]


def _settled(seat: Seat, serving: PolicyName | None) -> bool:
    """Whether a settlement has taken place: the answer to the first write was lost."""
    return seat.claim is None and (serving is None or serving in seat.serving)

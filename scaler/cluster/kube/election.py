"""Leader election: standing for it, renewing, and ending at once what was done in a term that is over.

The API server checks no term. So agents and the store refuse an earlier epoch, a leader asks `Leadership.covers` before it
writes a size, and it gives up while nobody else can have begun.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import structlog

from scaler.cluster.kube.client import KubeClient, Request
from scaler.cluster.kube.lease import (
    Candidate,
    Held,
    Record,
    Sighting,
    Timing,
    bid,
    free_in,
    released,
    seen,
    still_ours,
)
from scaler.cluster.kube.resources import LEASE
from scaler.cluster.kube.times import micro_text
from scaler.cluster.kube.writing import MANAGER
from scaler.errors import ClusterError, Conflict, LeadershipLost, NotFound
from warmpool.claim import Term

log = structlog.get_logger(__name__)
ADDRESS_ANNOTATION: Final = "emberpool.dev/api"
"""Base URL of the holder's API, on the Lease."""
_RELEASE_SECONDS: Final = 1.0
_Found = TypeVar("_Found")


def boot_time() -> float:
    """Return seconds on a clock that nobody sets and that goes on while the machine sleeps, where there is one."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class Leases(Protocol):
    """One lease, wherever it is."""

    async def read(self, seconds: float) -> Record:
        """Return it.

        Raises:
            NotFound: there is none.
            ClusterError: it can't be read now.
        """

    async def write(self, record: Record, seconds: float) -> Record:
        """Create it (no version) or replace it (this version and no other), and return it as written.

        Raises:
            Conflict: somebody else was first.
            ClusterError: it can't be written now, or may have been.
        """


class KubeLeases:
    """A Lease object.

    Args:
        client: reaches the server.
        namespace: where the Lease is.
        name: its name.
        wall: Unix seconds, for people who read the Lease; nothing is decided by them.
    """

    def __init__(
        self, client: KubeClient, namespace: str, name: str, wall: Callable[[], float] = time.time
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._wall = wall
        self._body: dict[str, Any] = {}

    async def read(self, seconds: float) -> Record:
        """See `Leases.read`."""
        request = Request(path=LEASE.path(self._namespace, self._name))
        return self._taken(await self._client.call(request, seconds=seconds))

    async def write(self, record: Record, seconds: float) -> Record:
        """See `Leases.write`."""
        path = (
            LEASE.path(self._namespace, self._name) if record.version else LEASE.collection(self._namespace)
        )
        request = Request(
            method="PUT" if record.version else "POST",
            path=path,
            body=self._written(record),
            query={"fieldManager": MANAGER},
        )
        return self._taken(await self._client.call(request, seconds=seconds))

    def _written(self, record: Record) -> dict[str, Any]:
        now, spec = micro_text(self._wall()), self._body.get("spec") or {}
        acquired = spec.get("acquireTime") if spec.get("leaseTransitions") == record.epoch else None
        kept = self._body.get("metadata") or {} if record.version else {}
        annotations = {**(kept.get("annotations") or {}), ADDRESS_ANNOTATION: record.address}
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.name,
            "metadata": {
                **({"labels": kept["labels"]} if "labels" in kept else {}),
                "annotations": annotations,
                "name": self._name,
                "namespace": self._namespace,
                **({"resourceVersion": record.version} if record.version else {}),
            },
            "spec": {
                "holderIdentity": record.holder,
                "leaseDurationSeconds": int(record.duration),
                "acquireTime": acquired or now,
                "renewTime": now,
                "leaseTransitions": record.epoch,
            },
        }

    def _taken(self, body: dict[str, Any]) -> Record:
        self._body = body
        spec = body.get("spec") or {}
        return Record(
            holder=spec.get("holderIdentity") or "",
            epoch=int(spec.get("leaseTransitions") or 0),
            duration=float(spec.get("leaseDurationSeconds") or 0),
            version=body["metadata"]["resourceVersion"],
            address=str((body["metadata"].get("annotations") or {}).get(ADDRESS_ANNOTATION) or ""),
        )


@dataclass(frozen=True, slots=True)
class Leadership:
    """One term.

    Attributes:
        term: whose and which.
        covers: whether a write that takes at most so many seconds from now on is over before anybody else may lead; no
            longer true of anything once the term has ended.
    """

    term: Term
    covers: Callable[[float], bool]


def _none_told() -> int:
    return 0


def _end_if_cancelled() -> None:
    """End a task that was cancelled while a TaskGroup in it ended by an error: the group raises the error alone.

    Raises:
        CancelledError: it was.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class Elector:
    """Stands for election.

    Args:
        leases: the lease.
        candidate: who we are.
        timing: how long things take.
        clock: seconds that nobody sets.
        highest: the highest term that anybody has told of; see `lease.bid`.
    """

    def __init__(
        self,
        leases: Leases,
        candidate: Candidate,
        timing: Timing | None = None,
        clock: Callable[[], float] = boot_time,
        highest: Callable[[], int] = _none_told,
    ) -> None:
        self._leases = leases
        self._candidate = candidate
        self._timing = timing or Timing()
        self._clock = clock
        self._highest = highest
        self._random = random.Random()
        self._sighting: Sighting | None = None
        self._held: Held | None = None
        self._complaint = ""

    @property
    def leader(self) -> Record | None:
        """The lease of who leads, as far as was seen; None if nobody does. It may have ended since."""
        held = self._held.record if self._held is not None else None
        seen_last = None if self._sighting is None else self._sighting.record
        record = held or seen_last
        return record if record is not None and record.holder else None

    async def run(self, lead: Callable[[Leadership], Awaitable[None]]) -> None:
        """Lead whenever nobody else does, until cancelled or `lead` has ended.

        `lead` is cancelled as soon as the term is over, and called again with the next one. Its own errors end all this,
        and the lease is released: a leader that does nothing must not keep others from leading.
        """
        while True:
            held = await self._acquire()
            try:
                await self._lead(held, lead)
            except* LeadershipLost as lost:
                log.warning("leadership is lost", epoch=held.record.epoch, why=str(lost.exceptions[0]))
            else:
                return
            _end_if_cancelled()

    async def look_on(self) -> None:
        """See who leads and since when, without a wish to lead, until cancelled; `run` goes on from there.

        Whoever looks at a lease for the first time waits for its whole duration, so it had better begin at once.
        """
        while True:
            await self._try(self._look)
            await asyncio.sleep(self._pause(self._timing.retry))

    async def _try(self, step: Callable[[], Awaitable[_Found]]) -> _Found | None:
        """Make a step; None if it failed, which is told unless somebody else was faster."""
        try:
            found = await step()
        except Conflict:
            return None
        except ClusterError as error:
            self._complain("the lease can't be had", error)
            return None
        self._complaint = ""
        return found

    def _complain(self, what: str, error: ClusterError) -> None:
        """Tell of a trouble once, not at each attempt."""
        if (complaint := f"{what}: {error}") != self._complaint:
            self._complaint = complaint
            log.warning(what, error=str(error))

    # ------------------------------------------------------------ acquiring

    async def _acquire(self) -> Held:
        while True:
            found = await self._try(self._bid)
            if isinstance(found, Held):
                return found
            await asyncio.sleep(self._pause(self._timing.retry if found is None else found))

    async def _bid(self) -> Held | float:
        """Take the lease if it is free; return it, or after how many seconds it will be free if nobody renews it.

        Raises:
            ClusterError: it can't be read or written now.
        """
        await self._look()
        sighting = self._sighting
        if sighting is not None:
            wait = free_in(sighting, self._candidate.identity, self._clock())
            if wait > 0:
                return wait
        wanted = bid(sighting, self._candidate, self._timing, floor=self._highest())
        began = self._clock()
        record = await self._leases.write(wanted, self._timing.attempt)
        log.info("leading", identity=self._candidate.identity, epoch=record.epoch)
        self._sighting = seen(sighting, record, self._clock())
        return Held(record=record, renewed=began)

    def _pause(self, wait: float) -> float:
        """Return how long to wait before the next look, if the lease is free in `wait` seconds.

        What was seen late is free late: so it is looked at twice for each renewal. Two who wait for the same moment draw lots.
        """
        between = self._timing.retry / 2
        return (
            between * self._random.uniform(0.8, 1.2)
            if wait > between
            else wait + self._random.uniform(0, 0.1)
        )

    async def _look(self) -> None:
        try:
            record = await self._leases.read(self._timing.attempt)
        except NotFound:
            self._sighting = None
        else:
            self._sighting = seen(self._sighting, record, self._clock())

    # ------------------------------------------------------------ leading

    async def _lead(self, held: Held, lead: Callable[[Leadership], Awaitable[None]]) -> None:
        self._held = held
        term = Term(holder=held.record.holder, epoch=held.record.epoch)
        try:
            async with asyncio.TaskGroup() as tasks:
                renewing = tasks.create_task(self._renew())
                await lead(Leadership(term, partial(self._covers, term)))
                renewing.cancel()
        finally:
            await self._release()

    def _covers(self, term: Term, seconds: float) -> bool:
        held = self._held
        if held is None or held.record.epoch != term.epoch:
            return False
        return held.covers(self._timing, self._clock(), seconds)

    async def _renew(self) -> None:
        """Renew until the term is over.

        Raises:
            LeadershipLost: it is.
        """
        wait = self._timing.retry
        while self._held is not None:
            await asyncio.sleep(wait * self._random.uniform(0.8, 1.0))
            left = self._held.renew_by(self._timing) - self._clock()
            if left <= 0:
                break
            try:
                async with asyncio.timeout(left):
                    self._held = await self._renewed(self._held)
            except TimeoutError:
                break
            except ClusterError as error:
                wait = self._timing.retry / 4
                self._complain("the lease could not be renewed", error)
            else:
                wait, self._complaint = self._timing.retry, ""
        raise LeadershipLost(f"the lease could not be renewed for {self._timing.renew:g} s")

    async def _renewed(self, held: Held) -> Held:
        began = self._clock()
        try:
            record = await self._leases.write(held.record, self._timing.attempt)
        except (Conflict, NotFound):
            found = await self._read_again(held)
            began = self._clock()
            record = await self._leases.write(found, self._timing.attempt)
        return Held(record=record, renewed=began)

    async def _read_again(self, held: Held) -> Record:
        """Return the lease as it is after a conflict, if it is still ours: the answer to a renewal was lost, perhaps."""
        try:
            found = await self._leases.read(self._timing.attempt)
        except NotFound:
            raise LeadershipLost("the lease was deleted") from None
        if not still_ours(held, found):
            raise LeadershipLost(f"{found.holder or 'nobody'} holds the lease in term {found.epoch}")
        return found

    async def _release(self) -> None:
        """Leave the lease to others, if it is still ours: a renewal that was cut off may have taken place."""
        held, self._held = self._held, None
        if held is None or not held.covers(self._timing, self._clock(), 0):
            return
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                try:
                    await self._leases.write(released(held.record), _RELEASE_SECONDS)
                except Conflict:
                    found = await self._leases.read(_RELEASE_SECONDS)
                    if still_ours(held, found):
                        await self._leases.write(released(found), _RELEASE_SECONDS)
        except (ClusterError, TimeoutError) as error:
            log.info("the lease could not be released", error=str(error))

"""Events: what `kubectl describe` shows of what was done and why.

They are told after the fact and in the background: a promotion never waits for one. The same event of the same object
is one object with a count; what comes faster than the limit is dropped and counted.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self
from uuid import uuid4

import structlog

from scaler.cluster.kube.client import MERGE, Request
from scaler.cluster.kube.lanes import Lane
from scaler.cluster.kube.resources import EVENT, Kind
from scaler.cluster.kube.seats import HOUSEKEEPING_SECONDS
from scaler.cluster.kube.times import micro_text
from scaler.cluster.kube.views import Json
from scaler.cluster.kube.writing import Writing, patch
from scaler.errors import ClusterError
from warmpool.seats import PolicyName, Seat

log = structlog.get_logger(__name__)

CONTROLLER: Final = "emberpool.dev/controller"
QUEUE: Final = 1000
"""Events that wait to be written; more are dropped, the newest first."""
SAME_SECONDS: Final = 600.0
"""For how long a repetition is counted on the event that is there; client-go's window."""
_NOTE_LENGTH = 1024
"""What the API takes."""
_KNOWN = 4096
_SERIES_SECONDS = 30.0
"""How often the count of one event is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What an event is about."""

    kind: str
    api_version: str
    namespace: str
    name: str
    uid: str = ""

    @classmethod
    def of(cls, kind: Kind, namespace: str, name: str, uid: str = "") -> Self:
        """Name an object."""
        return cls(kind=kind.name, api_version=kind.api_version, namespace=namespace, name=name, uid=uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event.

    Attributes:
        subject: what it is about.
        action: what was done or tried.
        reason: what came of it, in one word.
        note: for people.
        warning: whether somebody should look.
    """

    subject: Subject
    action: str
    reason: str
    note: str
    warning: bool = False


def promoted(pod: Subject, policy: PolicyName, seconds: float) -> Event:
    """A resident has been brought into rotation."""
    return Event(
        subject=pod,
        action="Promote",
        reason="Promoted",
        note=f"{policy} serves after {seconds * 1000:.0f} ms",
    )


def promotion_failed(pod: Subject, policy: PolicyName, why: str) -> Event:
    """A resident could not be brought into rotation."""
    return Event(
        subject=pod, action="Promote", reason="PromotionFailed", note=f"{policy}: {why}", warning=True
    )


def demoted(pod: Subject, policy: PolicyName) -> Event:
    """A resident has drained and is paused again."""
    return Event(subject=pod, action="Demote", reason="Demoted", note=f"{policy} is paused")


def deleted(pod: Subject, seat: Seat, why: str) -> Event:
    """A seat is given up, and its workload makes another."""
    return Event(
        subject=pod, action="Replace", reason="SeatReplaced", note=f"seat {seat.name}: {why}", warning=True
    )


def resized(workload: Subject, before: int, after: int, why: str) -> Event:
    """A fleet's size has been changed."""
    return Event(
        subject=workload, action="Resize", reason="Resized", note=f"{before} to {after} seats: {why}"
    )


def size_drifted(workload: Subject, asked: int, found: int) -> Event:
    """Somebody else has changed a fleet's size."""
    note = f"{asked} seats were asked for, {found} found: something else writes this workload's size"
    return Event(subject=workload, action="Resize", reason="SizeDrifted", note=note, warning=True)


def freed(pod: Subject, why: str) -> Event:
    """A claim has been taken off that nobody could read."""
    return Event(subject=pod, action="Free", reason="ClaimUnreadable", note=why, warning=True)


def said(workload: Subject, condition: str, message: str) -> Event:
    """Something is so of a fleet that people should know."""
    return Event(subject=workload, action="Watch", reason=condition, note=message, warning=True)


def quarantined(node: Subject, why: str) -> Event:
    """A node gets no new pods."""
    return Event(subject=node, action="Quarantine", reason="GpuUnhealthy", note=why, warning=True)


def not_excluded(node: Subject, why: str) -> Event:
    """A GPU should be kept from new pods and isn't."""
    return Event(subject=node, action="Quarantine", reason="GpuNotExcluded", note=why, warning=True)


def readmitted(node: Subject, why: str) -> Event:
    """A node gets new pods again."""
    return Event(subject=node, action="Readmit", reason="GpuHealthy", note=why)


@dataclass(slots=True)
class _Told:
    """An event that is there, and its repetitions."""

    name: str
    at: float
    count: int = 1
    written: int = 1
    written_at: float = 0.0


@dataclass
class Recorder:
    """Takes events at once and writes them when there is time; `run` inside a TaskGroup.

    Attributes:
        writing: sends the writes.
        lane: the lane that they take, which limits their rate.
        instance: who reports.
        wall: Unix seconds.
        dropped: events that nobody will see: the queue was full, or the server refused them.
    """

    writing: Writing
    lane: Lane
    instance: str
    wall: Callable[[], float] = time.time
    dropped: int = 0
    _queue: asyncio.Queue[Event] = field(default_factory=lambda: asyncio.Queue(QUEUE))
    _told: dict[Event, _Told] = field(default_factory=dict)

    def tell(self, event: Event) -> None:
        """Take an event; never waits and never fails."""
        known = self._told.get(event)
        now = self.wall()
        if known is not None and now - known.at < SAME_SECONDS:
            known.count += 1
            if now - known.written_at < _SERIES_SECONDS:
                return
            known.written_at = now
        else:
            self._remember(event, now)
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            self.dropped += 1

    def _remember(self, event: Event, now: float) -> None:
        self._told.pop(event, None)
        while len(self._told) >= _KNOWN:
            del self._told[next(iter(self._told))]
        name = f"{event.subject.name[:200]}.{uuid4().hex[:16]}"
        self._told[event] = _Told(name=name, at=now, written=0, written_at=now)

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            event = await self._queue.get()
            try:
                await self._write(event)
            except ClusterError as error:
                self.dropped += 1
                log.info(
                    "an event is lost", reason=event.reason, subject=event.subject.name, error=str(error)
                )
            finally:
                self._queue.task_done()

    async def drain(self) -> None:
        """Wait until everything told so far is written or given up."""
        await self._queue.join()

    async def _write(self, event: Event) -> None:
        told = self._told.get(event)
        if told is None:
            return
        namespace = event.subject.namespace or "default"
        count = told.count
        if told.written == 0:
            request = Request(
                method="POST", path=EVENT.collection(namespace), body=self._body(event, told.name, told.at)
            )
        else:
            series = {"series": {"count": count, "lastObservedTime": micro_text(self.wall())}}
            request = patch(EVENT.path(namespace, told.name), series, MERGE)
        await self.writing.send(self.lane, request, seconds=HOUSEKEEPING_SECONDS)
        told.written = count

    def _body(self, event: Event, name: str, at: float) -> Json:
        subject = event.subject
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.name,
            "metadata": {"name": name, "namespace": subject.namespace or "default"},
            "eventTime": micro_text(at),
            "reportingController": CONTROLLER,
            "reportingInstance": self.instance[:128],
            "action": event.action,
            "reason": event.reason,
            "regarding": {
                "kind": subject.kind,
                "apiVersion": subject.api_version,
                "namespace": subject.namespace,
                "name": subject.name,
                **({"uid": subject.uid} if subject.uid else {}),
            },
            "note": event.note[:_NOTE_LENGTH],
            "type": "Warning" if event.warning else "Normal",
        }

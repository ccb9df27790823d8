"""The cluster port over Kubernetes: pods are seats, their labels rotation, their workloads' scale the size.

Reflectors keep pods, nodes, workloads and Services; agents push their states, and are asked by their pods' addresses when they
are silent; the roster joins all that by the pods' UIDs. Every replica of the controller reads; the one that leads also writes
sizes, keeps pods as they should be, and tells Events.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import structlog

from scaler.cluster.kube import events, lowering
from scaler.cluster.kube.caretaker import Caretaker, Charge
from scaler.cluster.kube.client import KubeClient
from scaler.cluster.kube.conditions import Condition
from scaler.cluster.kube.election import Leadership
from scaler.cluster.kube.errors import Withheld
from scaler.cluster.kube.fleet_watch import FleetWatch, Watcher
from scaler.cluster.kube.fleets import KubeFleet
from scaler.cluster.kube.lanes import Lanes, lanes
from scaler.cluster.kube.polling import Polling
from scaler.cluster.kube.reflector import Reflector
from scaler.cluster.kube.resources import NODE, POD
from scaler.cluster.kube.resources import Collection as Objects
from scaler.cluster.kube.roster import Roster
from scaler.cluster.kube.rotation import Rotation
from scaler.cluster.kube.scale import Sizer
from scaler.cluster.kube.seats import WRITE_SECONDS, SeatWriter
from scaler.cluster.kube.views import Node, node_from_json, pod_from_json
from scaler.cluster.kube.writing import Writing
from scaler.cluster.reports import Reader
from scaler.cluster.subscribers import Subscribers
from scaler.errors import ClusterError, NotFound
from warmpool.claim import holds, leaves
from warmpool.nodehealth.others import Heeded
from warmpool.seats import FLEET_LABEL, Claim, FleetName, Operation, PolicyName, Seat, SeatName, Verdict

log = structlog.get_logger(__name__)

_TICK_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where and as whom a controller works.

    Attributes:
        client: reaches the API server.
        namespace: of all its fleets.
        instance: who reports Events; unique to the process.
        dry_run: have the server check every write, and carry none out.
        through: the lanes that writes take.
        wall: Unix seconds.
        clock: seconds that nobody sets; terms are counted by them, so in a controller they go on while its machine sleeps.
    """

    client: KubeClient
    namespace: str
    instance: str = "emberpool"
    dry_run: bool = False
    through: Lanes = field(default_factory=lanes)
    wall: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic


class KubeCluster:
    """Seats of the fleets of one namespace.

    `run` inside a TaskGroup, and inside that `leading` for as long as this controller leads.

    Args:
        place: where and as whom.
        fleets: what it works on; `adopt` takes others.
        reader: asks agents for their states.
    """

    def __init__(self, place: Place, fleets: Sequence[KubeFleet], reader: Reader) -> None:
        self._place = place
        self._subscribers = Subscribers()
        self._roster = Roster(place.wall, place.clock)
        self._polling = Polling(self._roster, reader, self.report, place.clock)
        selected = Objects(kind=POD, namespace=place.namespace, selectors={"labelSelector": FLEET_LABEL})
        self._pods = Reflector(place.client, selected, pod_from_json)
        self._nodes = Reflector(place.client, Objects(kind=NODE), node_from_json)
        writing = Writing(place.client, dry_run=place.dry_run)
        self._writer = SeatWriter(writing, place.namespace, place.through, self._pods.learn, place.wall)
        self._rotation = Rotation(self._roster.shelf, self._writer)
        self._sizer = Sizer(writing, place.through.promotions)
        self._recorder = events.Recorder(writing, place.through.events, place.instance, place.wall)
        self._watch = FleetWatch(
            Watcher(
                client=place.client,
                namespace=place.namespace,
                sizer=self._sizer,
                wall=place.wall,
                clock=place.clock,
                changed=self._changed,
                say=self._tell,
            )
        )
        self._caretaker = Caretaker(
            Charge(
                roster=self._roster,
                writer=self._writer,
                tended=self._watch.tended,
                lent=lambda name: name in self._lent,
                freed=self._freed,
            )
        )
        self._leadership: Leadership | None = None
        self._lent: frozenset[SeatName] = frozenset()
        self._news = False
        self._asked_everybody = False
        self._all_seen = asyncio.Event()
        self._pods.touch(self._pod_touched)
        self._nodes.touch(self._node_touched)
        self._pods.subscribe(self._pods_changed)
        self._nodes.subscribe(self._pods_changed)
        self.adopt(fleets)

    # -------------------------------------------------------------- port: reading

    @property
    def synced(self) -> bool:
        """Whether all objects have been seen, and every agent heard or asked, once."""
        return self._asked_everybody and all(each.synced for each in self._reflectors())

    @property
    def age(self) -> float:
        """Seconds since the server last said something of every kind of object; infinite before it has."""
        return max(each.age for each in self._reflectors())

    async def wait_synced(self) -> None:
        """Wait until everything has been seen once."""
        await self._all_seen.wait()

    @property
    def waits_for(self) -> str:
        """What hasn't been seen yet, and what keeps it from being seen, in words; empty once everything has been."""
        waiting = [str(each) for each in self._reflectors() if not each.synced]
        return "; ".join(waiting) or ("" if self.synced else "the agents' first answers")

    def seats(self) -> Sequence[Seat]:
        """See `Cluster.seats`."""
        return tuple(self._roster.shelf)

    def stock(self) -> Mapping[FleetName, Sequence[Seat]]:
        """See `Cluster.stock`."""
        return self._roster.shelf.stock()

    def seat(self, name: SeatName) -> Seat | None:
        """See `Cluster.seat`."""
        return self._roster.shelf.get(name)

    def uid(self, name: str) -> str:
        """Return a seat's UID by its name; empty where it is gone."""
        pod = self._roster.pod(SeatName(name))
        return "" if pod is None else pod.seat.uid

    def replicas(self, fleet: FleetName) -> int:
        """See `Cluster.replicas`; 0 while the workload isn't there, which a condition tells."""
        return self._watch.replicas(fleet)

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """See `Cluster.subscribe`."""
        return self._subscribers.add(changed)

    @property
    def fleets(self) -> Mapping[FleetName, KubeFleet]:
        """The fleets that it works on."""
        return self._watch.fleets

    @property
    def conditions(self) -> Mapping[FleetName, tuple[Condition, ...]]:
        """What is to be known of fleets beside their numbers; fleets of which there is nothing to say are missing."""
        return self._watch.conditions.all()

    @property
    def nodes(self) -> Reflector[Node]:
        """The cluster's nodes."""
        return self._nodes

    @property
    def recorder(self) -> events.Recorder:
        """Takes Events; whoever tells one sees to it that only the leader does, and none of a fleet in mode Observe."""
        return self._recorder

    # -------------------------------------------------------------- port: writing

    async def claim(self, seat: Seat, claim: Claim) -> Seat:
        """See `Cluster.claim`.

        Raises:
            Withheld: the fleet's mode is Observe, or a Service could reach its paused residents and the claim is no demotion; or
                somebody would leave rotation who is the last to serve, as it turns out.
        """
        self._watch.check_writable(seat.fleet, whatever=claim.operation is Operation.DEMOTE)
        leaving = leaves(claim)
        if leaving is None or leaving not in seat.serving:
            return await self._writer.claim(seat, claim)
        async with self._rotation.left(seat, leaving):
            return await self._writer.claim(seat, claim)

    async def settle(self, name: SeatName, claim: Claim, *, serving: PolicyName | None) -> Seat:
        """See `Cluster.settle`; whoever is promoted first lets the pod become Ready.

        Raises:
            Withheld: the fleet's mode is Observe.
        """
        seat = self._roster.shelf.get(name)
        if seat is None:
            raise NotFound(f"seat {name} is gone")
        self._watch.check_writable(seat.fleet)
        if not holds(seat, claim):  # the cache may not show yet what an answer that was lost has done
            seat = await self._writer.read(seat)
        settled = await self._writer.settle(seat, claim, serving=serving)
        if serving is None or settled.admitted or not self._watch.tended(settled.fleet).admits:
            return settled
        try:
            return await self._writer.admit(settled, reason="Promoted")
        except ClusterError as error:
            log.info("the readiness gate is left to housekeeping", seat=name, error=str(error))
            return settled

    async def resize(self, fleet: FleetName, total: int) -> None:
        """See `Cluster.resize`.

        Raises:
            Withheld: somebody else sizes the fleet, its mode is Observe, a Service could reach its paused residents, this
                controller doesn't lead for long enough, or a lower size could cost a seat that serves.
        """
        entry = self._watch.check_writable(fleet, whatever=False)
        if not entry.resized:
            raise Withheld(f"fleet {fleet} has resizedBy: Keda; its size is a ScaledObject's to write")
        self._check_lowering(fleet, total, self._watch.replicas(fleet))
        allow = partial(self._check_size, fleet, total)
        with self._watch.asking(fleet, total):
            self._watch.wrote(entry, await self._sizer.resize(entry.target, total, allow))

    def _check_size(self, fleet: FleetName, total: int, found: int) -> None:
        """Let a size be written, or say why not.

        Raises:
            Withheld: it isn't.
        """
        leadership = self._leadership
        if leadership is None or not leadership.covers(WRITE_SECONDS):
            raise Withheld(f"fleet {fleet}: sizes are written by the leader alone, well within its term")
        self._check_lowering(fleet, total, found)

    def _check_lowering(self, fleet: FleetName, total: int, found: int) -> None:
        """Let a size be written as far as it isn't lower than one that was found, or could cost nobody who serves.

        Raises:
            Withheld: it isn't.
        """
        if total < found and (why := self.lowering_refused(fleet, total)):
            raise Withheld(f"fleet {fleet} stays at {found} seats for now: {why}")

    def lowering_refused(self, fleet: FleetName, total: int) -> str:
        """Say why a fleet had better not be asked for as few as `total` seats now, whoever asks; empty if it may.

        For totals that are published for others to write as well.
        """
        standings = self._roster.standings(fleet)
        return lowering.refusal(standings, total, now=self._place.clock(), wall=self._place.wall()) or ""

    async def delete(self, seat: Seat, *, reason: str) -> None:
        """See `Cluster.delete`.

        Raises:
            Withheld: the fleet's mode is Observe.
        """
        self._watch.check_writable(seat.fleet)
        await self._writer.delete(seat)
        log.info("seat deleted", seat=seat.name, reason=reason)
        self._tell(seat.fleet, events.deleted(self._subject(seat), seat, reason))

    # -------------------------------------------------------------- what others tell

    def adopt(self, fleets: Sequence[KubeFleet]) -> None:
        """Work on other fleets from now on. Seats of fleets that are in it no more are left as they are."""
        self._watch.adopt(fleets)
        self._changed()

    def report(self, body: Mapping[str, Any]) -> None:
        """Take over an agent's report (the body of its `/v1/state`).

        Raises:
            BadOrder: it is malformed, of a pod that isn't known (yet), or of engines that nobody can reach.
        """
        if self._roster.report(body):
            self._changed()

    def lend(self, names: Collection[SeatName]) -> None:
        """Take the names of all seats that are lent at present, which their labels then say."""
        before, self._lent = self._lent, frozenset(names)
        if before != self._lent:
            self._caretaker.lent(before ^ self._lent)

    def judge(self, verdicts: Mapping[str, Verdict]) -> None:
        """Take what is thought of GPUs, by UUID; a GPU that is missing is Ok."""
        if self._roster.judge(verdicts):
            self._changed()

    def fence(self, gpus: Collection[str]) -> None:
        """Take the GPUs that the scheduler gives nobody, by UUID."""
        if self._roster.fence(gpus):
            self._changed()

    def heed(self, heeded: Heeded) -> None:
        """Take what others say of nodes that counts."""
        if self._roster.heed(heeded):
            self._changed()

    def observe_health(self, fleets: Collection[FleetName]) -> None:
        """See `ReportedCluster.observe_health`."""
        if self._roster.observe_health(fleets):
            self._changed()

    @property
    def highest_epoch(self) -> int:
        """The highest term that an agent has told of."""
        return self._roster.term.epoch

    async def superseded(self, epoch: int) -> int:
        """Wait until an agent tells of a later term than `epoch`, and return that."""
        return await self._roster.term.superseded(epoch)

    # -------------------------------------------------------------- running

    async def run(self) -> None:
        """Keep the cache current until cancelled; no failure of the server or of an agent ends it."""
        async with asyncio.TaskGroup() as tasks:
            for part in (self._pods.run(), self._nodes.run(), self._watch.run(), self._recorder.run()):
                tasks.create_task(part)
            await self._pods.wait_synced()
            await self._polling.everybody()
            self._asked_everybody = True
            self._changed()
            tasks.create_task(self._polling.run())
            while True:
                await asyncio.sleep(_TICK_SECONDS)
                self._pass_time()

    def _pass_time(self) -> None:
        if self._roster.pass_time():
            self._changed()
        self._watch.pass_time(self._roster.aging())

    @asynccontextmanager
    async def leading(self, leadership: Leadership) -> AsyncIterator[None]:
        """Lead while the context is open: sizes may be written in this term, pods are kept as they should be, Events told."""
        async with asyncio.TaskGroup() as tasks:
            self._leadership = leadership
            self._watch.begin()
            keeping = tasks.create_task(self._keep())
            try:
                yield
            finally:
                self._leadership = None
                self._watch.end()
                keeping.cancel()

    async def _keep(self) -> None:
        await self.wait_synced()
        await self._caretaker.run()

    # -------------------------------------------------------------- news

    def _pod_touched(self, key: str) -> None:
        name = SeatName(key.rpartition("/")[2])
        self._news |= self._roster.take_pod(name, self._pods.get(key))

    def _node_touched(self, name: str) -> None:
        self._news |= self._roster.take_node(name, self._nodes.get(name))

    def _pods_changed(self) -> None:
        news, self._news = self._news, False
        self._caretaker.changed()
        if news or self.synced != self._all_seen.is_set():
            self._changed()

    def _changed(self) -> None:
        """Tell the subscribers; that everything has been seen is news too."""
        if self.synced:
            self._all_seen.set()
        else:
            self._all_seen.clear()
        self._caretaker.changed()
        self._subscribers.tell()

    # -------------------------------------------------------------- Events

    def _tell(self, fleet: FleetName, event: events.Event) -> None:
        """Tell an Event, if this controller leads and the fleet isn't only observed."""
        if self._leadership is not None and self._watch.tended(fleet).writes:
            self._recorder.tell(event)

    def _freed(self, seat: Seat, why: str) -> None:
        log.warning("a claim that nobody can read was taken off", seat=seat.name, why=why)
        self._tell(seat.fleet, events.freed(self._subject(seat), why))

    def _subject(self, seat: Seat) -> events.Subject:
        return events.Subject.of(POD, self._place.namespace, seat.name, seat.uid)

    def _reflectors(self) -> list[Reflector[Any]]:
        return [self._pods, self._nodes, *self._watch.reflectors]

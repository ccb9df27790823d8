"""Fleets as the cluster shows them beside their pods: their workloads' sizes, who else writes these, and which Services reach in.

What it finds is kept as conditions. Each new one is told to `say`, which decides whether anybody is to read of it.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import structlog

from scaler.cluster.kube import events
from scaler.cluster.kube.caretaker import Tended
from scaler.cluster.kube.client import KubeClient
from scaler.cluster.kube.conditions import Conditions, ConditionType
from scaler.cluster.kube.errors import Withheld
from scaler.cluster.kube.fleets import KubeFleet
from scaler.cluster.kube.joining import UNSCHEDULABLE_SECONDS, unschedulable
from scaler.cluster.kube.pools import PoolWatch
from scaler.cluster.kube.reach import reaching
from scaler.cluster.kube.reflector import Reflector
from scaler.cluster.kube.resources import SERVICE, Collection, Kind
from scaler.cluster.kube.scale import Resized, Sizer
from scaler.cluster.kube.views import Pod, Service, Workload, service_from_json, workload_from_json
from scaler.errors import NotFound
from warmpool.seats import FleetName, Seat, SeatName

log = structlog.get_logger(__name__)

DRIFT_SECONDS: Final = 600.0
"""For how long a fleet's condition tells that somebody else has written its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """What a watch works with.

    Attributes:
        client: reaches the server.
        namespace: of all fleets.
        sizer: knows which sizes we have written.
        wall: Unix seconds.
        clock: monotonic seconds.
        changed: is called after each change of a workload, and of what may be done for a fleet.
        say: takes an Event about a fleet.
    """

    client: KubeClient
    namespace: str
    sizer: Sizer
    wall: Callable[[], float]
    clock: Callable[[], float]
    changed: Callable[[], None]
    say: Callable[[FleetName, events.Event], None]


class FleetWatch:
    """Fleets, by name; `run` inside a TaskGroup.

    Args:
        watcher: what it works with.

    Attributes:
        conditions: what is so of fleets.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._fleets: Mapping[FleetName, KubeFleet] = {}
        self._workloads: dict[Kind, Reflector[Workload]] = {}
        self._following: dict[Kind, asyncio.Task[None]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        objects = Collection(kind=SERVICE, namespace=watcher.namespace)
        self._services: Reflector[Service] = Reflector(watcher.client, objects, service_from_json)
        self._services.subscribe(self._services_changed)
        self._pools = PoolWatch(watcher.client, watcher.namespace, self._services_changed)
        self._asked: dict[FleetName, int] = {}
        self._written: dict[FleetName, Resized] = {}
        self._drifted: dict[FleetName, float] = {}
        self.conditions = Conditions(watcher.wall)

    # ------------------------------------------------------------ what there is

    @property
    def fleets(self) -> Mapping[FleetName, KubeFleet]:
        """The fleets."""
        return self._fleets

    @property
    def reflectors(self) -> Sequence[Reflector[Any]]:
        """What has to be seen for its fleets. InferencePools aren't among it: they hold nothing up."""
        return [self._services, *self._workloads.values()]

    async def run(self) -> None:
        """Follow what there is to see of its fleets, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                tasks.create_task(self._services.run())
                tasks.create_task(self._pools.run())
                for kind in self._workloads:
                    self._follow(kind)
                await asyncio.Event().wait()
            finally:
                self._tasks = None
                self._following.clear()

    def _follow(self, kind: Kind) -> None:
        if self._tasks is not None:
            self._following[kind] = self._tasks.create_task(self._workloads[kind].run())

    def adopt(self, fleets: Iterable[KubeFleet]) -> None:
        """Watch other fleets from now on. What isn't a fleet any more is forgotten, and so is a kind that no fleet is of."""
        before, self._fleets = self._fleets, {fleet.name: fleet for fleet in fleets}
        for entry in before.values():
            if not self._is_still(entry):
                self._written.pop(entry.name, None)
                self._drifted.pop(entry.name, None)
                self.conditions.set(entry.name, ConditionType.SIZE_DRIFTED, "")
        self.conditions.forget(self._fleets)
        self._adopt_kinds()
        self._look()

    def _is_still(self, entry: KubeFleet) -> bool:
        """Whether a fleet is there as it was, as far as its workload goes."""
        now = self._fleets.get(entry.name)
        return now is not None and now.target == entry.target

    def _adopt_kinds(self) -> None:
        kinds = {fleet.target.kind for fleet in self._fleets.values()}
        for kind in self._workloads.keys() - kinds:
            del self._workloads[kind]
            if (task := self._following.pop(kind, None)) is not None:
                task.cancel()
        for kind in kinds - self._workloads.keys():
            objects = Collection(kind=kind, namespace=self._watcher.namespace)
            reflector = Reflector(self._watcher.client, objects, workload_from_json)
            reflector.subscribe(self._workloads_changed)
            self._workloads[kind] = reflector
            self._follow(kind)

    def get(self, name: FleetName) -> KubeFleet:
        """Return a fleet.

        Raises:
            NotFound: no such fleet.
        """
        try:
            return self._fleets[name]
        except KeyError:
            raise NotFound(f"no fleet {name}") from None

    def replicas(self, name: FleetName) -> int:
        """Return what a fleet's workload is asked for, from when that is on its way to the server; 0 while it isn't there.

        Raises:
            NotFound: no such fleet.
        """
        workload, written = self._workload(self.get(name)), self._written.get(name)
        if name in self._asked:
            return self._asked[name]
        if workload is None:
            return 0
        if written is not None and _newer(written.version, workload.version):
            return written.after  # the watch hasn't told yet of what we wrote
        return workload.replicas

    def subject(self, name: FleetName) -> events.Subject:
        """Name a fleet's workload, for Events."""
        entry = self._fleets[name]
        workload, target = self._workload(entry), entry.target
        uid = "" if workload is None else workload.uid
        return events.Subject.of(target.kind, target.namespace, target.name, uid)

    # ------------------------------------------------------------ what may be done

    def tended(self, name: FleetName) -> Tended:
        """Return what may be done for the pods of a fleet; nothing for one that isn't known."""
        entry = self._fleets.get(name)
        writes = entry is not None and not entry.observe
        return Tended(writes=writes, admits=writes and self._services.synced and not self.refused(name))

    def refused(self, name: FleetName) -> str:
        """Say why a fleet is refused; empty if it isn't."""
        found = self.conditions.get(name, ConditionType.PAUSED_RESIDENTS_REACHABLE)
        return "" if found is None else found.message

    def check_writable(self, name: FleetName, *, whatever: bool = True) -> KubeFleet:
        """Return a fleet for which something is to be written.

        Args:
            name: the fleet.
            whatever: it may be written for a refused fleet too.

        Raises:
            NotFound: no such fleet.
            Withheld: its mode is Observe, or it is refused.
        """
        entry = self.get(name)
        if entry.observe:
            raise Withheld(f"fleet {name} has mode: Observe; nothing is written for it")
        if not whatever and (why := self.refused(name)):
            raise Withheld(f"fleet {name} is refused: {why}")
        return entry

    # ------------------------------------------------------------ sizes

    @contextmanager
    def asking(self, name: FleetName, total: int) -> Iterator[None]:
        """Count a size as asked for while the context is open, so that nobody asks for it once more before it is answered."""
        self._asked[name] = total
        try:
            yield
        finally:
            if self._asked.get(name) == total:
                del self._asked[name]

    def wrote(self, entry: KubeFleet, done: Resized) -> None:
        """Take note of a size that we have written, unless the fleet has gone meanwhile or is of another workload."""
        if not self._is_still(entry):
            return
        self._written[entry.name] = done
        if done.drifted is not None:
            self._saw_drift(entry.name, done.drifted, done.before)

    def _saw_drift(self, name: FleetName, asked: int, found: int) -> None:
        self._drifted[name] = self._watcher.clock()
        workload = self._fleets[name].target.name
        message = (
            f"{asked} seats were asked for, {found} found: something else writes the size of {workload}; "
            "remove it, or set resizedBy: Keda"
        )
        if self.conditions.set(name, ConditionType.SIZE_DRIFTED, message):
            log.warning("somebody else writes a size", fleet=name, asked=asked, found=found)
            self._watcher.say(name, events.size_drifted(self.subject(name), asked, found))

    def pass_time(self, seats: Iterable[tuple[Pod, Seat]]) -> None:
        """Let time pass: drift is forgotten, and pods that no node takes are late."""
        now = self._watcher.clock()
        for name in [name for name, at in self._drifted.items() if now - at >= DRIFT_SECONDS]:
            del self._drifted[name]
            self.conditions.set(name, ConditionType.SIZE_DRIFTED, "")
        wall, late = self._watcher.wall(), dict[FleetName, list[SeatName]]()
        for pod, seat in seats:
            if pod.unschedulable_since is not None and unschedulable(pod, wall):
                late.setdefault(seat.fleet, []).append(seat.name)
        for name in self._fleets:
            self._say(name, ConditionType.SEATS_UNSCHEDULABLE, _late(late.get(name, ())))

    # ------------------------------------------------------------ terms

    def begin(self) -> None:
        """Begin a term: sizes that others have written until now were theirs to write, and what is so is told once more."""
        self._watcher.sizer.forget()
        for name, conditions in self.conditions.all().items():
            for each in conditions:
                self._watcher.say(name, events.said(self.subject(name), str(each.type), each.message))

    def end(self) -> None:
        """End a term: sizes are others' to write."""
        self._watcher.sizer.forget()

    # ------------------------------------------------------------ news

    def _workloads_changed(self) -> None:
        self._look()
        self._watcher.changed()

    def _services_changed(self) -> None:
        self._look_at_services()
        self._watcher.changed()

    def _look(self) -> None:
        for entry in self._fleets.values():
            if self._workloads[entry.target.kind].synced:
                self._look_at_workload(entry)
        self._look_at_services()

    def _look_at_workload(self, entry: KubeFleet) -> None:
        name, target, workload = entry.name, entry.target, self._workload(entry)
        missing = f"{target.kind.name} {target.name} isn't there" if workload is None else ""
        self._say(name, ConditionType.WORKLOAD_MISSING, missing)
        if workload is None or not entry.resized or entry.observe:
            return
        written = self._written.get(name)
        if written is not None and _newer(written.version, workload.version):
            return
        if (asked := self._watcher.sizer.drift(target, workload.replicas)) is not None:
            self._saw_drift(name, asked, workload.replicas)

    def _look_at_services(self) -> None:
        """Refuse fleets whose paused residents a Service or an InferencePool could reach."""
        if not self._services.synced:
            return
        services = [*self._services.values(), *self._pools.values()]
        for entry in self._fleets.values():
            workload = self._workload(entry)
            found = () if workload is None else reaching(workload, services, entry.name)
            self._say(entry.name, ConditionType.PAUSED_RESIDENTS_REACHABLE, "; ".join(found))

    def _say(self, name: FleetName, kind: ConditionType, message: str) -> None:
        if self.conditions.set(name, kind, message) and message:
            log.warning("condition", fleet=name, type=str(kind), message=message)
            self._watcher.say(name, events.said(self.subject(name), str(kind), message))

    def _workload(self, entry: KubeFleet) -> Workload | None:
        return self._workloads[entry.target.kind].get(f"{entry.target.namespace}/{entry.target.name}")


def _late(names: Sequence[SeatName]) -> str:
    if not names:
        return ""
    return (
        f"no node has taken {len(names)} of its pods for {UNSCHEDULABLE_SECONDS / 60:.0f} minutes, {min(names)} first; "
        "`kubectl describe pod` says why"
    )


def _newer(version: str, than: str) -> bool:
    """Whether one version of an object is later than another; API servers declare them comparable as numbers."""
    return version.isdigit() and than.isdigit() and int(version) > int(than)

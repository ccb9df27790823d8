"""The cluster port over processes: a fleet is a number of seats, a seat an agent process.

It plays the part that a Deployment's controller and the kubelets play elsewhere: it keeps each fleet at its size, picks
the victims by deletion cost, replaces a seat whose agent died, and gives each seat what its template says.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from scaler.cluster.local import processes
from scaler.cluster.local.processes import SeatProcess
from scaler.cluster.objects import SeatObjects, ToldSeat
from scaler.cluster.reports import words_of
from scaler.errors import NotFound
from warmpool.errors import BadOrder
from warmpool.seats import DELETION_COST, Claim, FleetName, PolicyName, Seat, SeatName, seat_value
from warmpool.wire import budget_from_json, resident_from_json

log = structlog.get_logger(__name__)

_REPORT_MAX_AGE_SECONDS = 6.0
"""Three missed heartbeats of an agent; a seat that is silent for longer is no candidate."""

_RESTART_BACKOFF_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Pause before a seat whose agent died is replaced, by how many died in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatTemplate:
    """What every seat of one fleet is made from.

    Attributes:
        fleet: the fleet.
        residents: agent configuration of each resident (see `warmpool.agent.config`), in order.
        placements: GPUs per seat slot; a seat takes a free slot. One empty tuple per seat on a machine without GPUs.
        environment: environment of the agents and so of their engines.
        settings: what the agents' configuration says of the seat beside that: its memory, and who tells of it.
    """

    fleet: FleetName
    residents: Sequence[Mapping[str, Any]]
    placements: Sequence[tuple[str, ...]]
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Fleet:
    template: SeatTemplate
    replicas: int = 0
    deaths: int = 0
    running: dict[SeatName, SeatProcess] = field(default_factory=dict)
    slots: dict[SeatName, int] = field(default_factory=dict)
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class LocalCluster:
    """Seats of this machine.

    Run it with `run()` inside a TaskGroup; cancelling that ends every process that it started.

    Args:
        templates: one per fleet.
        directory: where configurations and logs go.
        controllers: URLs that agents report to.
    """

    def __init__(
        self, templates: Sequence[SeatTemplate], directory: Path, controllers: Sequence[str]
    ) -> None:
        self._fleets = {template.fleet: _Fleet(template) for template in templates}
        self._directory = directory
        self._controllers = list(controllers)
        self._objects = SeatObjects()
        self._observed: frozenset[str] = frozenset()
        self._uids = itertools.count(1)
        self._ordinals: dict[FleetName, itertools.count[int]] = {
            template.fleet: itertools.count(0) for template in templates
        }
        self._tasks: asyncio.TaskGroup | None = None
        self._closing = False

    # -------------------------------------------------------------- port: reading

    @property
    def synced(self) -> bool:
        """Whether everything has been seen: always, the objects live here."""
        return True

    @property
    def age(self) -> float:
        """Seconds since the cache was current: none."""
        return 0.0

    def seats(self) -> Sequence[Seat]:
        """See `Cluster.seats`."""
        return self._objects.all()

    def stock(self) -> Mapping[FleetName, Sequence[Seat]]:
        """See `Cluster.stock`."""
        return self._objects.stock()

    def seat(self, name: SeatName) -> Seat | None:
        """See `Cluster.seat`."""
        return self._objects.find(name)

    def replicas(self, fleet: FleetName) -> int:
        """See `Cluster.replicas`."""
        return self._fleet(fleet).replicas

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """See `Cluster.subscribe`."""
        return self._objects.subscribe(changed)

    # -------------------------------------------------------------- port: writing

    async def claim(self, seat: Seat, claim: Claim) -> Seat:
        """See `Cluster.claim`."""
        return self._objects.claim(seat, claim)

    async def settle(self, name: SeatName, claim: Claim, *, serving: PolicyName | None) -> Seat:
        """See `Cluster.settle`."""
        return self._objects.settle(name, claim, serving)

    async def resize(self, fleet: FleetName, total: int) -> None:
        """See `Cluster.resize`."""
        entry = self._fleet(fleet)
        entry.replicas = total
        entry.wake.set()

    async def delete(self, seat: Seat, *, reason: str) -> None:
        """See `Cluster.delete`."""
        current = next((s for s in self._objects.all() if s.name == seat.name and s.uid == seat.uid), None)
        if current is not None:
            log.info("seat deleted", seat=seat.name, reason=reason)
            self._end(current)

    # -------------------------------------------------------------- agents' reports

    def report(self, body: Mapping[str, Any]) -> None:
        """Take over an agent's report (the body of its `/v1/state`).

        Raises:
            BadOrder: it is malformed.
        """
        try:
            residents = [resident_from_json(item) for item in body["residents"]]
            memory = None if body.get("memory") is None else budget_from_json(body["memory"])
            name, uid = SeatName(str(body["seat"])), str(body["uid"])
            sequence, agent = int(body["seq"]), str(body["agent"])
            told = ToldSeat(
                memory=memory, words=words_of(body), observed=str(body["fleet"]) in self._observed
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadOrder(f"not an agent's report: {error!r}") from error
        self._objects.report(name, uid, sequence, agent, residents, told)

    def observe_health(self, fleets: Collection[FleetName]) -> None:
        """See `ReportedCluster.observe_health`; a seat follows with its agent's next report."""
        self._observed = frozenset(fleets)

    # -------------------------------------------------------------- the workloads' controller

    async def run(self) -> None:
        """Keep every fleet at its size until cancelled; on the way out every process that was started is ended."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                for fleet in self._fleets.values():
                    tasks.create_task(self._keep(fleet))
                tasks.create_task(self._expire())
                try:
                    await asyncio.Event().wait()
                finally:
                    self._closing = True  # before the group's own tasks end: a start under way sees it
        finally:
            self._tasks = None
            await self._stop_all()

    async def _stop_all(self) -> None:
        async with asyncio.TaskGroup() as ending:
            for fleet in self._fleets.values():
                for process in list(fleet.running.values()):
                    ending.create_task(processes.stop(process))
        for seat in self._objects.all():
            self._objects.remove(seat.name)

    def kill_all(self) -> None:
        """SIGKILL everything, now: the second Ctrl-C."""
        for fleet in self._fleets.values():
            for process in fleet.running.values():
                processes.kill(process, processes.descendants(process.pid))

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_MAX_AGE_SECONDS / 3)
            self._objects.expire_reports(_REPORT_MAX_AGE_SECONDS)

    async def _keep(self, fleet: _Fleet) -> None:
        while True:
            await fleet.wake.wait()
            fleet.wake.clear()
            present = [
                s for s in self._objects.all() if s.fleet == fleet.template.fleet and not s.terminating
            ]
            for seat in self._victims(present, len(present) - fleet.replicas):
                self._end(seat)
            for _ in range(fleet.replicas - len(present)):
                if not await self._start(fleet):
                    break

    def _victims(self, seats: Sequence[Seat], surplus: int) -> Sequence[Seat]:
        """Pick who leaves: lowest deletion cost, then the youngest, as a ReplicaSet does."""
        ranked = sorted(seats, key=lambda seat: (DELETION_COST[seat_value(seat)], -seat.created_at))
        return ranked[: max(0, surplus)]

    async def _start(self, fleet: _Fleet) -> bool:
        slot = next((n for n in range(len(fleet.template.placements)) if n not in fleet.slots.values()), None)
        if slot is None:
            return False  # a terminating seat still holds it; its end wakes us
        template = fleet.template
        name = SeatName(f"{template.fleet}-{next(self._ordinals[template.fleet])}")
        seat = Seat(
            name=name,
            uid=f"{int(time.time())}-{next(self._uids)}",
            version="",
            fleet=template.fleet,
            gpus=template.placements[slot],
            created_at=time.time(),
        )
        fleet.slots[name] = slot
        self._objects.add(seat)
        process = await processes.start(
            name, self._config(seat, template), self._directory, self._environment(seat, template)
        )
        fleet.running[name] = process
        if self._tasks is None or self._closing:
            return False  # we are ending: whoever ends us stops this one too, and nobody needs to watch it
        self._tasks.create_task(self._watch(fleet, seat, process))
        return True

    def _config(self, seat: Seat, template: SeatTemplate) -> dict[str, Any]:
        # The order in which residents start rotates from seat to seat, so that after a fresh start each policy is
        # promotable somewhere as soon as the first resident of each seat is proven.
        turn = sum(
            1 for other in self._objects.all() if other.fleet == seat.fleet and other.name != seat.name
        )
        turn %= max(1, len(template.residents))
        return {
            **template.settings,
            "seat": seat.name,
            "fleet": seat.fleet,
            "uid": seat.uid,
            "host": "127.0.0.1",
            "port": 0,
            "controllers": self._controllers,
            "gpus": list(seat.gpus),
            "logDirectory": str(self._directory / "logs"),
            "exclusive": True,
            "residents": [*template.residents[turn:], *template.residents[:turn]],
        }

    def _environment(self, seat: Seat, template: SeatTemplate) -> dict[str, str]:
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(seat.gpus)} if seat.gpus else {}
        return {**template.environment, **visible}

    async def _watch(self, fleet: _Fleet, seat: Seat, process: SeatProcess) -> None:
        """Wait for the agent's end; a seat that wasn't told to end is replaced after a pause."""
        code = await process.process.wait()
        if self._closing:
            return
        expected = any(s.name == seat.name and s.terminating for s in self._objects.all())
        processes.close(process)
        fleet.running.pop(seat.name, None)
        self._objects.remove(seat.name)
        fleet.slots.pop(seat.name, None)
        if expected:
            fleet.deaths = 0
        else:
            log.warning("agent died", seat=seat.name, exit_code=code, log=process.log.name)
            await asyncio.sleep(
                _RESTART_BACKOFF_SECONDS[min(fleet.deaths, len(_RESTART_BACKOFF_SECONDS) - 1)]
            )
            fleet.deaths += 1
        fleet.wake.set()

    def _end(self, seat: Seat) -> None:
        fleet = self._fleet(seat.fleet)
        process = fleet.running.get(seat.name)
        self._objects.mark_terminating(seat.name)
        if process is not None and self._tasks is not None:
            self._tasks.create_task(processes.stop(process))

    def _fleet(self, name: FleetName) -> _Fleet:
        try:
            return self._fleets[name]
        except KeyError:
            raise NotFound(f"no fleet {name}") from None

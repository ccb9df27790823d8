"""The cluster port over a list of agents: what the list has is what there is.

Agents push their state; one that is silent is asked. Claims and rotation live in this process's memory, so exactly one
controller works with a list at a time; after a restart rotation is read off the agents: a resident that serves is in
rotation. Nobody here can start or end a seat, so a wish for another size is recorded and nothing else, and a seat that
shall be deleted rests instead, until its agent begins anew or `REST_SECONDS` have passed.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from scaler.cluster.objects import SeatObjects, ToldSeat
from scaler.cluster.reports import HighestTerm, Life, Reader, Report, follow, parse, routable
from scaler.cluster.static.listing import AgentList, ListedSeat
from scaler.errors import NotFound, Unreachable
from warmpool.errors import BadOrder
from warmpool.seats import Claim, FleetName, PolicyName, Resident, Seat, SeatName, Verdict
from warmpool.states import ResidentState

log = structlog.get_logger(__name__)

SILENT_SECONDS = 3.0
"""An agent that hasn't told its state for this long (it does each 2 s) is asked for it."""
ASK_SECONDS = 2.0
"""And again after this long."""
REPORT_MAX_AGE_SECONDS = 6.0
"""A seat that nothing has been heard of for this long is no candidate."""
REST_SECONDS = 60.0
"""How long a seat rests that elsewhere would have been deleted and made anew."""


class StaticCluster:
    """Seats of a list of agents.

    `discover` once, then `run` inside a TaskGroup.

    Args:
        listed: the list.
        reader: asks agents for their states.
        wall: Unix seconds.
    """

    def __init__(self, listed: AgentList, reader: Reader, wall: Callable[[], float] = time.time) -> None:
        self._reader = reader
        self._wall = wall
        self._objects = SeatObjects(wall)
        self._listed: dict[SeatName, tuple[FleetName, ListedSeat]] = {}
        self._lives: dict[SeatName, Life] = {}
        self._heard: dict[SeatName, float] = {}
        self._resting: dict[SeatName, float] = {}
        self._complained: dict[SeatName, str] = {}
        self._synced = False
        self._term = HighestTerm()
        for fleet in listed.spec.fleets:
            for seat in fleet.seats:
                self._listed[SeatName(seat.name)] = (FleetName(fleet.name), seat)
                self._objects.add(self._unheard(FleetName(fleet.name), seat))
        self._observed: frozenset[FleetName] = frozenset()
        self._sizes = {FleetName(fleet.name): len(fleet.seats) for fleet in listed.spec.fleets}
        self._asked = dict(self._sizes)

    def _unheard(self, fleet: FleetName, listed: ListedSeat) -> Seat:
        """Return a seat of which nothing is known: it takes its place and can serve nobody."""
        return Seat(
            name=SeatName(listed.name),
            uid="",
            version="",
            fleet=fleet,
            node=listed.node or listed.host,
            gpus=listed.gpus,
            reachable=False,
            created_at=self._wall(),
            agent=listed.agent,
        )

    # -------------------------------------------------------------- port: reading

    @property
    def synced(self) -> bool:
        """Whether every agent has been heard or asked once."""
        return self._synced

    @property
    def age(self) -> float:
        """Seconds since the cache was current: none, the objects live here."""
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
        """Return what the fleet was last asked for; what it has is what the list says (`drift` is the difference)."""
        self._size(fleet)
        return self._asked[fleet]

    def drift(self, fleet: FleetName) -> int:
        """Return how many seats more were asked for than the list has; below zero: fewer.

        Raises:
            NotFound: no such fleet.
        """
        return self._asked[fleet] - self._size(fleet)

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
        """Record the wish; the list decides how many seats there are.

        Raises:
            NotFound: no such fleet.
        """
        has = self._size(fleet)
        if self._asked[fleet] != total:
            self._asked[fleet] = total
            log.info("the list decides a fleet's size", fleet=fleet, listed=has, asked=total)

    async def delete(self, seat: Seat, *, reason: str) -> None:
        """Let the seat rest: it takes no promotion until its agent begins anew or `REST_SECONDS` have passed."""
        current = next((s for s in self._objects.all() if s.name == seat.name and s.uid == seat.uid), None)
        if current is None or seat.name in self._resting:
            return
        log.warning(
            "seat rests, for nobody here can replace it; restart its agent",
            seat=seat.name,
            agent=current.agent,
            reason=reason,
            seconds=REST_SECONDS,
        )
        self._resting[seat.name] = self._wall() + REST_SECONDS
        self._objects.add(replace(current, verdict=Verdict.SUSPECT))

    # -------------------------------------------------------------- agents' reports

    @property
    def highest_epoch(self) -> int:
        """The highest term that an agent has told of."""
        return self._term.epoch

    async def superseded(self, epoch: int) -> int:
        """Wait until an agent tells of a later term than `epoch`, and return that."""
        return await self._term.superseded(epoch)

    def report(self, body: Mapping[str, Any]) -> None:
        """Take over an agent's report (the body of its `/v1/state`).

        Raises:
            BadOrder: it is malformed, of a seat that isn't listed, or of engines that nobody can reach.
        """
        told = parse(body)
        name = SeatName(told.seat)
        fleet, listed = self._place(told)
        residents = tuple(routable(resident, listed.host, listed.name) for resident in told.residents)
        self._term.told(told.epoch)
        self._heard[name] = self._wall()
        before = self._lives.get(name)
        placed = follow(before, told)
        if placed is None:
            return
        life, begun = placed
        self._lives[name] = life
        if before is None or before.uid != life.uid:
            self._adopt(fleet, listed, told, residents)
        elif begun:
            self._rested(name)
        also = ToldSeat(
            memory=told.memory,
            words=told.gpu_words,
            observed=fleet in self._observed,
            verdict=Verdict.SUSPECT if name in self._resting else Verdict.OK,
        )
        self._objects.report(name, life.uid, life.number, listed.agent, residents, also)

    def observe_health(self, fleets: Collection[FleetName]) -> None:
        """See `ReportedCluster.observe_health`; a seat follows with its agent's next report."""
        self._observed = frozenset(fleets)

    def _place(self, told: Report) -> tuple[FleetName, ListedSeat]:
        found = self._listed.get(SeatName(told.seat))
        if found is None:
            raise BadOrder(f"seat {told.seat} is not in the list of agents")
        if told.fleet != found[0]:
            raise BadOrder(
                f"seat {told.seat} is listed under fleet {found[0]}; its agent says {told.fleet}: mend either"
            )
        return found

    def _adopt(
        self, fleet: FleetName, listed: ListedSeat, told: Report, residents: tuple[Resident, ...]
    ) -> None:
        """Take a seat over as its agent describes it: what serves is in rotation, whoever put it there."""
        self._resting.pop(SeatName(listed.name), None)
        serving = frozenset(r.policy for r in residents if r.state is ResidentState.SERVING)
        if serving:
            log.info("found in rotation", seat=listed.name, policies=sorted(serving))
        self._objects.add(
            replace(
                self._unheard(fleet, listed),
                uid=told.uid,
                gpus=listed.gpus or told.gpus,
                residents=residents,
                serving=serving,
                reachable=True,
            )
        )

    # -------------------------------------------------------------- time

    async def discover(self) -> None:
        """Ask every agent once, all at the same time; from then on the cache is synced."""
        async with asyncio.TaskGroup() as tasks:
            for _, seat in self._listed.values():
                tasks.create_task(self._ask(seat))
        self._synced = True

    async def run(self) -> None:
        """Ask agents that are silent, and let time pass over what they said, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _, seat in self._listed.values():
                tasks.create_task(self._listen(seat))
            while True:
                await asyncio.sleep(REPORT_MAX_AGE_SECONDS / 6)
                self._objects.expire_reports(REPORT_MAX_AGE_SECONDS)
                now = self._wall()
                for name in [name for name, until in self._resting.items() if until <= now]:
                    self._rested(name)

    async def _listen(self, listed: ListedSeat) -> None:
        name = SeatName(listed.name)
        while True:
            silent = max(0.0, self._wall() - self._heard.get(name, -math.inf))
            if silent < SILENT_SECONDS:
                await asyncio.sleep(SILENT_SECONDS - silent)
                continue
            await self._ask(listed)
            await asyncio.sleep(ASK_SECONDS)

    async def _ask(self, listed: ListedSeat) -> None:
        name = SeatName(listed.name)
        try:
            body = await self._reader.read(listed.agent)
            if body.get("seat") != listed.name:
                raise BadOrder(f"{listed.agent} is the agent of seat {body.get('seat')}")
            self.report(body)
        except (Unreachable, BadOrder) as error:
            if self._complained.get(name) != str(error):
                self._complained[name] = str(error)
                log.warning("agent tells nothing", seat=name, error=str(error))
        else:
            self._complained.pop(name, None)

    def _rested(self, name: SeatName) -> None:
        if self._resting.pop(name, None) is not None:
            seat = self._objects.get(name)
            told = ToldSeat(memory=seat.memory, words=seat.gpu_words, observed=seat.health_observed)
            self._objects.add(told.put_on(seat))

    def _size(self, fleet: FleetName) -> int:
        try:
            return self._sizes[fleet]
        except KeyError:
            raise NotFound(f"no fleet {fleet}") from None

"""A cluster and its agents in memory, in whatever time the event loop keeps.

Seats take `start_seconds` a resident to warm up; orders to agents take as long as real ones do, and can be told to fail.
The contract suites run on these fakes and on the real adapters alike.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from scaler.cluster.agents import Done
from scaler.cluster.objects import SeatObjects
from scaler.cluster.port import Stock
from scaler.errors import NotFound
from warmpool.errors import AgentBusy, DeadlineExceeded, EngineLost, StaleEpoch, UnknownResident, WrongState
from warmpool.seats import DELETION_COST, Claim, FleetName, PolicyName, Resident, Seat, SeatName, seat_value
from warmpool.states import COMPUTING, ResidentState, transition

S = ResidentState


@dataclass
class Timing:
    """How long things take, in seconds of the loop's time."""

    start: float = 5.0
    resume: float = 0.03
    pause: float = 0.02
    park: float = 1.0
    unpark: float = 0.5
    poll: float = 0.005


@dataclass
class Engines:
    """What the agents of all seats know: the truth behind the reports."""

    objects: SeatObjects
    wall: Callable[[], float]
    timing: Timing = field(default_factory=Timing)
    in_flight: dict[tuple[SeatName, PolicyName], int] = field(default_factory=dict)
    refuse: Callable[[str, SeatName, PolicyName], Exception | None] = lambda *_: None
    sequence: itertools.count = field(default_factory=lambda: itertools.count(1))
    epochs: dict[SeatName, int] = field(default_factory=dict)
    operating: set[SeatName] = field(default_factory=set)
    drains: dict[tuple[SeatName, PolicyName], str] = field(default_factory=dict)

    def state(self, name: SeatName, policy: PolicyName) -> ResidentState:
        resident = self.objects.get(name).resident(policy)
        if resident is None:
            raise UnknownResident(f"seat {name} has no {policy}")
        return resident.state

    def move(self, name: SeatName, policy: PolicyName, to: ResidentState, *, failure: str = "") -> None:
        seat = self.objects.get(name)
        residents = []
        for resident in seat.residents:
            if resident.policy != policy:
                residents.append(resident)
                continue
            proven = self.wall() if to in {S.PAUSED, S.SERVING} else resident.proven_at
            residents.append(
                replace(
                    resident,
                    state=transition(resident.state, to),
                    since=self.wall(),
                    proven_at=proven,
                    kv_released=to in {S.PAUSED, S.PARKING, S.PARKED, S.UNPARKING},
                    failure=failure,
                )
            )
        computing = [r.policy for r in residents if r.state in COMPUTING and r.state is not S.WARMING]
        assert len(computing) <= 1, f"two residents compute on {name}: {computing}"
        self.objects.report(name, seat.uid, next(self.sequence), seat.agent, residents)


class MemoryCluster:
    """The `Cluster` port in memory, with a workload controller."""

    def __init__(
        self,
        fleets: dict[FleetName, Sequence[PolicyName]],
        wall: Callable[[], float],
        timing: Timing | None = None,
    ) -> None:
        self.objects = SeatObjects(wall)
        self.engines = Engines(self.objects, wall, timing or Timing())
        self._fleets = fleets
        self._wall = wall
        self._replicas = dict.fromkeys(fleets, 0)
        self._ordinal = itertools.count(0)
        self._tasks: asyncio.TaskGroup | None = None
        self._births: dict[SeatName, asyncio.Task] = {}

    synced = True
    age = 0.0

    def seats(self) -> Sequence[Seat]:
        return self.objects.all()

    def stock(self) -> Stock:
        return self.objects.stock()

    def seat(self, name: SeatName) -> Seat | None:
        return self.objects.find(name)

    def replicas(self, fleet: FleetName) -> int:
        if fleet not in self._replicas:
            raise NotFound(f"no fleet {fleet}")
        return self._replicas[fleet]

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        return self.objects.subscribe(changed)

    async def claim(self, seat: Seat, claim: Claim) -> Seat:
        return self.objects.claim(seat, claim)

    async def settle(self, name: SeatName, claim: Claim, *, serving: PolicyName | None) -> Seat:
        return self.objects.settle(name, claim, serving)

    async def resize(self, fleet: FleetName, total: int) -> None:
        self.replicas(fleet)
        self._replicas[fleet] = total
        self._reconcile(fleet)

    async def delete(self, seat: Seat, *, reason: str) -> None:
        assert reason
        if any(s.uid == seat.uid for s in self.objects.all()):
            self._remove(seat.name)
            self._reconcile(seat.fleet)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for fleet in self._fleets:
                self._reconcile(fleet)
            await asyncio.Event().wait()

    def kill_engine(self, name: SeatName, policy: PolicyName) -> None:
        """The engine dies as by SIGKILL; its agent notices and restarts it when nothing serves on the seat."""
        self.engines.in_flight.pop((name, policy), None)
        self.engines.move(name, policy, S.FAILED, failure="killed by signal 9")
        assert self._tasks is not None
        self._tasks.create_task(self._restart(name, policy))

    def _reconcile(self, fleet: FleetName) -> None:
        if self._tasks is None:
            return
        present = [seat for seat in self.objects.all() if seat.fleet == fleet]
        surplus = len(present) - self._replicas[fleet]
        ranked = sorted(present, key=lambda seat: (DELETION_COST[seat_value(seat)], -seat.created_at))
        for seat in ranked[: max(0, surplus)]:
            self._remove(seat.name)
        for _ in range(-surplus):
            name = SeatName(f"{fleet}-{next(self._ordinal)}")
            now = self._wall()
            self.objects.add(
                Seat(
                    name=name,
                    uid=f"uid-{name}",
                    version="",
                    fleet=fleet,
                    created_at=now,
                    agent=f"http://{name}",
                    residents=tuple(
                        Resident(
                            policy=policy, state=S.STARTING, since=now, address=f"http://{name}/{policy}"
                        )
                        for policy in self._fleets[fleet]
                    ),
                )
            )
            self._births[name] = self._tasks.create_task(self._live(name))

    def _remove(self, name: SeatName) -> None:
        self._births.pop(name).cancel()
        self.objects.remove(name)

    async def _live(self, name: SeatName) -> None:
        for policy in self._fleets[self.objects.get(name).fleet]:
            await self._start(name, policy)

    async def _restart(self, name: SeatName, policy: PolicyName) -> None:
        try:
            await self._when_idle(name)
            self.engines.move(name, policy, S.STARTING)
            await self._start(name, policy)
        except NotFound:
            return

    async def _start(self, name: SeatName, policy: PolicyName) -> None:
        engines, timing = self.engines, self.engines.timing
        for state in (S.LOADING, S.WARMING, S.PROVING, S.PAUSED):
            await asyncio.sleep(timing.start / 4)
            if state is not S.LOADING:
                await self._when_idle(name, but=policy)
            engines.move(name, policy, state)

    async def _when_idle(self, name: SeatName, but: PolicyName | None = None) -> None:
        def idle() -> bool:
            seat = self.objects.get(name)
            return seat.claim is None and not any(
                r.state in COMPUTING and r.policy != but for r in seat.residents
            )

        while not idle():
            await asyncio.sleep(self.engines.timing.poll * 10)


class MemoryAgents:
    """The `Agents` port over `Engines`."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self.orders: list[tuple[str, SeatName, PolicyName]] = []

    async def _begin(self, verb: str, seat: Seat, claim: Claim, policy: PolicyName) -> None:
        self.orders.append((verb, seat.name, policy))
        highest = self.engines.epochs.get(seat.name, 0)
        if claim.epoch < highest:
            raise StaleEpoch(f"epoch {claim.epoch} is below {highest}")
        self.engines.epochs[seat.name] = claim.epoch
        refusal = self.engines.refuse(verb, seat.name, policy)
        if refusal is not None:
            raise refusal
        try:
            self.engines.state(seat.name, policy)
        except NotFound as error:
            raise EngineLost(str(error)) from error

    async def resume(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        await self._begin("resume", seat, claim, policy)
        engines, name = self.engines, seat.name
        match engines.state(name, policy):
            case S.SERVING:
                return Done()
            case S.DRAINING:
                engines.move(name, policy, S.SERVING)
                return Done(phases={"open": 0.0})
            case S.PAUSED | S.PARKED:
                pass
            case S.PARKING | S.UNPARKING:
                while name in engines.operating:
                    await asyncio.sleep(engines.timing.poll)
            case state:
                raise WrongState(f"{policy} is {state}")
        self._take_seat(name)
        try:
            if engines.state(name, policy) is S.PARKED:
                await self._moved(name, policy, S.UNPARKING, S.PAUSED)
            engines.move(name, policy, S.PROMOTING)
            try:
                async with asyncio.timeout(deadline):
                    await asyncio.sleep(engines.timing.resume)
            except TimeoutError as error:
                engines.move(name, policy, S.PAUSED)
                raise DeadlineExceeded("resume") from error
            if engines.state(name, policy) is not S.PROMOTING:
                raise EngineLost(f"{policy} died")
            engines.move(name, policy, S.SERVING)
        except NotFound as error:
            raise EngineLost(str(error)) from error
        finally:
            engines.operating.discard(name)
        return Done(phases={"kv": engines.timing.resume / 2, "canary": engines.timing.resume / 2})

    def _take_seat(self, name: SeatName) -> None:
        if name in self.engines.operating:
            raise AgentBusy(f"{name} is busy")
        self.engines.operating.add(name)

    async def _moved(self, name: SeatName, policy: PolicyName, via: S, to: S) -> None:
        timing = self.engines.timing
        try:
            self.engines.move(name, policy, via)
            await asyncio.sleep(timing.park if via is S.PARKING else timing.unpark)
            self.engines.move(name, policy, to)
        except NotFound as error:
            raise EngineLost(str(error)) from error

    async def _change_depth(self, name: SeatName, policy: PolicyName, via: S, to: S) -> Done:
        state = self.engines.state(name, policy)
        if state is to:
            return Done()
        if state not in {S.PAUSED, S.PARKED}:
            raise WrongState(f"{policy} is {state}")
        self._take_seat(name)
        try:
            await self._moved(name, policy, via, to)
        finally:
            self.engines.operating.discard(name)
        return Done(phases={"park" if to is S.PARKED else "unpark": 0.0})

    async def park(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        assert deadline > 0
        await self._begin("park", seat, claim, policy)
        return await self._change_depth(seat.name, policy, S.PARKING, S.PARKED)

    async def unpark(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        assert deadline > 0
        await self._begin("unpark", seat, claim, policy)
        return await self._change_depth(seat.name, policy, S.UNPARKING, S.PAUSED)

    async def drain(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        await self._begin("drain", seat, claim, policy)
        engines, key = self.engines, (seat.name, policy)
        if engines.state(*key) is S.SERVING:
            engines.move(*key, S.DRAINING)
        elif engines.state(*key) is not S.DRAINING:
            raise WrongState(f"{policy} is {engines.state(*key)}")
        engines.drains[key] = claim.id
        until = asyncio.get_running_loop().time() + deadline
        while engines.in_flight.get(key, 0) and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(engines.timing.poll)
            try:
                if engines.state(*key) is not S.DRAINING:
                    raise WrongState("recalled")
                if engines.drains[key] != claim.id:
                    raise WrongState("taken over")
            except NotFound as error:
                raise EngineLost(str(error)) from error
        return Done(aborted=engines.in_flight.pop(key, 0))

    async def pause(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        assert deadline > 0
        await self._begin("pause", seat, claim, policy)
        await asyncio.sleep(self.engines.timing.pause)
        try:
            self.engines.move(seat.name, policy, S.PAUSED)
        except NotFound as error:
            raise EngineLost(str(error)) from error
        return Done(phases={"pause": self.engines.timing.pause})

    async def prove(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        assert deadline > 0
        await self._begin("prove", seat, claim, policy)
        self.engines.move(seat.name, policy, S.PROVING)
        await asyncio.sleep(self.engines.timing.resume)
        self.engines.move(seat.name, policy, S.PAUSED)
        return Done(phases={"proof": self.engines.timing.resume})

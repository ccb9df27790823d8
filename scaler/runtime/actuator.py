"""Carrying out a plan: claims, orders to agents, settlements. One task an action, one action a seat.

Every action is idempotent and has a precondition (the seat's version), and ends settled: in rotation, or given back.
What fails is not retried here: the next tick looks at the world again and takes the next candidate. A seat that failed a
promotion rests for a while first.
"""

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import structlog

from scaler.cluster.agents import Agents
from scaler.cluster.port import Cluster, Stock
from scaler.errors import ClusterError, Conflict, LeadershipLost
from scaler.runtime.clock import Clock
from scaler.runtime.events import EventLog, PromotionRecord, Trigger
from warmpool.claim import Errand, Resolution, Term, apply_claim, holds, new_claim, overtakes, resolve_orphan
from warmpool.errors import AgentBusy, GpuUnfit, NeedsWitness, NoRoom, StaleEpoch, WarmpoolError, WrongState
from warmpool.plan import (
    Action,
    Demote,
    Park,
    Promote,
    Prove,
    Recall,
    Release,
    Replace,
    Resize,
    Switch,
    Unpark,
)
from warmpool.seats import Claim, FleetName, Operation, PolicyName, Resident, Seat, SeatName
from warmpool.states import Depth, ResidentState
from warmpool.warmth import Place

log = structlog.get_logger(__name__)

_FAILURES_BEFORE_REPLACE = 3
"""Promotions in a row that may fail on a seat before it is replaced."""
_AT_ONCE_SECONDS = 0.05
"""What requests on a lent seat that is wanted back have to end by themselves, where their policy says Abort."""
_REST_SECONDS = 2.0
"""How long a seat rests after a failed promotion, doubled with each further one."""
_AGAIN_SECONDS = 0.2
"""How long a seat stays taken after an action that failed: what is refused at once would otherwise be tried without end."""
_REMEMBERED_SECONDS = 600.0
"""How long after its rest it is remembered how often promotions on a seat have failed in a row."""
_ALONE_SECONDS = 5.0
"""How long a resident is left alone after a failed parking, unparking or proof, doubled with each further one."""
_LONGEST_ALONE_SECONDS = 300.0
"""Room comes and goes: what was refused is asked for again every five minutes."""
_PAUSE_MARGIN_SECONDS = 2.0
"""What a demotion keeps of a terminating seat's grace for pausing and settling, once the requests have ended."""
_DELETED_SECONDS = 600.0
"""A seat that was deleted is not deleted again for so long: plans still name it until the cluster tells that it is ending."""
_MOST_COMPLAINTS = 1000
"""Seats of which it is remembered what failed there last."""
_WAKES_BEFORE_LATE = 4.0
"""A wake that takes so many times what wakes have taken hangs; one that has to make room first takes some two of them."""
_OPERATIONS: Mapping[type[Action], Operation] = {
    Recall: Operation.RECALL,
    Promote: Operation.PROMOTE,
    Switch: Operation.SWITCH,
    Park: Operation.PARK,
    Unpark: Operation.UNPARK,
}
_ASLEEP = (ResidentState.PARKED, ResidentState.PARKING, ResidentState.UNPARKING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long each operation may take, in seconds.

    Attributes:
        promote: claim to rotation, the drain of a switch included; a parked resident has `unpark` more.
        drain: what a demotion gives the accepted requests.
        pause: pausing and releasing KV memory.
        prove: one proof.
        park: moving weights to host memory: 140 GB at 3 GB/s, which one thread copies into memory that isn't pinned.
        unpark: moving them back, after others made room.
    """

    promote: float = 10.0
    drain: float = 30.0
    pause: float = 10.0
    prove: float = 20.0
    park: float = 60.0
    unpark: float = 120.0

    def draining(self, seat: Seat, now: float) -> float:
        """Return what a demotion gives the accepted requests of a seat: of one that is terminating, no more than its grace.

        Args:
            seat: the seat.
            now: Unix seconds.
        """
        if seat.leaves_by is None:
            return self.drain
        return max(_AT_ONCE_SECONDS, min(self.drain, seat.leaves_by - _PAUSE_MARGIN_SECONDS - now))

    def unparking(self, resident: Resident | None) -> float:
        """Return what a promotion gets for unparking a resident: 0 for one that isn't parked.

        One that was seen to take less before gets no more than some of those times: a promotion that hangs keeps the next
        candidate waiting.
        """
        if resident is None or resident.state not in _ASLEEP:
            return 0.0
        seen = resident.wake_seconds.get(Depth.PARKED, math.inf)
        return min(self.unpark, max(self.promote, _WAKES_BEFORE_LATE * seen))


@dataclass(slots=True)
class _Rest:
    failures: int = 0
    until: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Taking:
    """A claim on its way to a seat."""

    fleet: FleetName
    claim: Claim


@dataclass(frozen=True, slots=True, eq=False)
class _Ticket:
    """The right to work on a seat; compared by identity, so that an overtaken operation can't give back another's."""

    operation: Operation
    policy: PolicyName | None
    leaving: PolicyName | None = None

    def overtakes(self, running: "_Ticket") -> bool:
        """Whether it may begin while another works on the seat."""
        if self.policy is None:
            return False
        errand = Errand(operation=self.operation, policy=self.policy, leaving=self.leaving)
        return overtakes(errand, running.operation, running.policy)


@dataclass(slots=True)
class Ports:
    """What the actuator works with."""

    cluster: Cluster
    agents: Agents
    clock: Clock
    events: EventLog
    queued: Callable[[PolicyName], int] = field(default=lambda _policy: 0)


class Actuator:
    """Carries out actions inside the TaskGroup of its `run()`.

    Args:
        ports: what it works with.
        term: in whose name.
        ended: called when an action on a seat of a fleet has ended, so that the loop looks at the fleet again.
        deadlines: how long each operation may take.
    """

    def __init__(
        self, ports: Ports, term: Term, ended: Callable[[FleetName], None], deadlines: Deadlines | None = None
    ) -> None:
        self._ports = ports
        self._term = term
        self._ended = ended
        self._deadlines = deadlines or Deadlines()
        self._busy: dict[SeatName, _Ticket] = {}
        self._at_work: Counter[SeatName] = Counter()  # those that were overtaken included
        self._rests: dict[SeatName, _Rest] = {}
        self._taking: dict[SeatName, _Taking] = {}
        self._left_alone: dict[Place, _Rest] = {}
        self._complaints: dict[SeatName, str] = {}
        self._awaited: dict[tuple[SeatName, PolicyName], PromotionRecord] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._numbers = itertools.count(1)
        self._settled: dict[SeatName, float] = {}
        self._deleted: dict[str, float] = {}

    async def run(self) -> None:
        """Hold the actions' TaskGroup open until cancelled; cancelling ends every action."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                await asyncio.Event().wait()
            finally:
                self._tasks = None

    def candidates(self, seats: Iterable[Seat]) -> Sequence[Seat]:
        """Return the seats that may be planned with: all but those that rest after a failed promotion."""
        now = self._ports.clock.wall()
        return [seat for seat in seats if not self._rests_now(seat, now)]

    def candidates_of(self, stock: Stock) -> Stock:
        """Return the same fleet by fleet, with seats that are being claimed as they will be once that is known.

        It is the stock itself while nothing rests and nothing is being claimed, which is so nearly always.
        """
        now = self._ports.clock.wall()
        for fleet in {taking.fleet for taking in self._taking.values()} & stock.keys():
            stock = {**stock, fleet: tuple(map(self._as_taken, stock[fleet]))}
        if all(rest.until <= now for rest in self._rests.values()):
            return stock
        return {
            fleet: self.candidates(seats) if any(seat.name in self._rests for seat in seats) else seats
            for fleet, seats in stock.items()
        }

    def _as_taken(self, seat: Seat) -> Seat:
        """Return a seat as it will be when the claim has succeeded that is on its way to it."""
        taking = self._taking.get(seat.name)
        return seat if taking is None or seat.claim is not None else apply_claim(seat, taking.claim)

    async def _take(self, seat: Seat, claim: Claim) -> Seat:
        """Claim a seat. Until it is known what came of that, plans count it as taken: else a tick in between takes one too many."""
        taking = self._taking[seat.name] = _Taking(seat.fleet, claim)
        try:
            return await self._ports.cluster.claim(seat, claim)
        finally:
            if self._taking.get(seat.name) is taking:
                del self._taking[seat.name]

    def works_on(self, seat: SeatName) -> bool:
        """Whether an action is under way on a seat."""
        return seat in self._busy

    def _was_deleted(self, seat: Seat) -> bool:
        at = self._deleted.get(seat.uid)
        return at is not None and self._ports.clock.wall() - at < _DELETED_SECONDS

    def _rests_now(self, seat: Seat, now: float) -> bool:
        rest = self._rests.get(seat.name)
        return rest is not None and now < rest.until and not seat.serving and seat.claim is None

    @property
    def left_alone(self) -> Collection[Place]:
        """Residents that have just failed to be parked, unparked or proven."""
        now = self._ports.clock.wall()
        forgotten = now - _LONGEST_ALONE_SECONDS
        self._left_alone = {place: rest for place, rest in self._left_alone.items() if rest.until > forgotten}
        return {place for place, rest in self._left_alone.items() if now < rest.until}

    def start(self, actions: Sequence[Action], triggers: Mapping[PolicyName, Trigger]) -> None:
        """Begin each action in a task of its own; one that is under way already is left alone."""
        for action in actions:
            self._start(action, triggers)

    def _start(self, action: Action, triggers: Mapping[PolicyName, Trigger]) -> None:
        match action:
            case Resize(fleet=fleet, total=total):
                self._spawn(self._resize(fleet, total))
            case Recall(policy=policy) | Promote(policy=policy) | Switch(policy=policy):
                leaving = action.leaving if isinstance(action, Switch) else None
                ticket = _Ticket(_OPERATIONS[type(action)], policy, leaving)
                self._begin(action.seat, ticket, lambda: self._promote(action, triggers))
            case Park(policy=policy) | Unpark(policy=policy):
                ticket = _Ticket(_OPERATIONS[type(action)], policy)
                self._begin(action.seat, ticket, lambda: self._move(action))
            case Demote(seat=seat, policy=policy):
                self._begin(seat, _Ticket(Operation.DEMOTE, policy), lambda: self._demote(seat, policy))
            case Release(seat=seat, policy=policy):
                self._begin(seat, _Ticket(Operation.DEMOTE, policy), lambda: self._release(seat, policy))
            case Prove(seat=seat, policy=policy):
                self._begin(seat, _Ticket(Operation.PROVE, policy), lambda: self._prove(seat, policy))
            case Replace(seat=seat, reason=reason) if not self._was_deleted(seat):
                self._begin(seat, _Ticket(Operation.DEMOTE, None), lambda: self._replace(seat, reason))

    def _begin(self, seat: Seat, ticket: "_Ticket", work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run one operation on a seat unless another runs there that it may not overtake.

        Before `run` and after it nothing begins: the next tick looks again.
        """
        if self._tasks is None:
            return
        running = self._busy.get(seat.name)
        if running is not None and not ticket.overtakes(running):
            return
        self._busy[seat.name] = ticket
        self._at_work[seat.name] += 1
        self._spawn(self._guarded(seat, ticket, work))

    async def _guarded(
        self, seat: Seat, ticket: "_Ticket", work: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        name = seat.name
        try:
            await work()
            self._complaints.pop(name, None)
        except (WarmpoolError, ClusterError) as error:
            self._complain(name, ticket, error)
            if isinstance(error, StaleEpoch):
                raise LeadershipLost(str(error)) from error
            self._ended(seat.fleet)  # another seat may do instead
            await asyncio.sleep(_AGAIN_SECONDS)
        finally:
            if self._busy.get(name) is ticket:
                del self._busy[name]
            self._at_work[name] -= 1
            if not self._at_work[name]:
                del self._at_work[name]
            self._ended(seat.fleet)

    def _complain(self, name: SeatName, ticket: "_Ticket", error: Exception) -> None:
        """Tell of a failure, and not again while the same one comes back on the same seat."""
        what = f"{ticket.operation}: {error}"
        if self._complaints.get(name) == what:
            return
        if len(self._complaints) >= _MOST_COMPLAINTS:
            self._complaints.clear()  # and so some are told again
        self._complaints[name] = what
        log.warning("action failed", seat=name, operation=str(ticket.operation), error=str(error))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        if self._tasks is None:
            work.close()
            return
        self._tasks.create_task(work)

    def adopt(self, seats: Iterable[Seat]) -> None:
        """End claims that nobody carries out any more: of an earlier term, or of ours whose settlement didn't get through."""
        now = self._ports.clock.wall()
        for seat in seats:
            if seat.claim is None or seat.name in self._at_work:
                continue
            resolution = resolve_orphan(seat, now, self._judging(seat.claim))
            if resolution is not None:
                log.info(
                    "orphaned claim resolved", seat=seat.name, claim=resolution.claim.id, why=resolution.why
                )
                ticket = _Ticket(resolution.claim.operation, resolution.claim.policy)
                self._begin(seat, ticket, partial(self._resolve, seat, resolution))

    def _judging(self, claim: Claim) -> int:
        """Return the term that says what becomes of a claim on a seat where nothing is under way.

        To one of our own that was left there we come like those that lead next: nobody else will end it before its deadline.
        """
        left_by_us = (claim.holder, claim.epoch) == (self._term.holder, self._term.epoch)
        return self._term.epoch + left_by_us

    async def _resolve(self, seat: Seat, resolution: Resolution) -> None:
        await self._settle(seat.name, resolution.claim, resolution.serving)

    # -------------------------------------------------------------- promotion, switch, recall

    async def _promote(
        self, action: Promote | Recall | Switch, triggers: Mapping[PolicyName, Trigger]
    ) -> None:
        seat, policy, deadlines = action.seat, action.policy, self._deadlines
        operation = self._busy[seat.name].operation
        switch = action if isinstance(action, Switch) else None
        drain = _AT_ONCE_SECONDS if switch is not None and switch.at_once else deadlines.promote / 2
        errand = Errand(
            operation=operation,
            policy=policy,
            leaving=None if switch is None else switch.leaving,
            displace=None if isinstance(action, Recall) else action.displace,
        )
        claim = self._claim(errand, deadlines.promote + deadlines.unparking(seat.resident(policy)))
        now = self._ports.clock.wall()
        record = PromotionRecord(
            claim=claim.id,
            operation=operation,
            policy=policy,
            fleet=seat.fleet,
            seat=seat.name,
            trigger=triggers.get(policy) or Trigger(sample=now, decision=now),
        )
        try:
            await self._carry_out(seat, claim, record, drain)
        except Conflict:
            # somebody else was faster, or it is withheld: nothing was begun, and another seat may do instead
            self._put_off(seat, _AGAIN_SECONDS)
            raise
        except (WarmpoolError, ClusterError) as error:
            record.error = str(error) or type(error).__name__
            self._ports.events.promotion(record)
            await self._rest(seat, error)
            raise
        self._rests.pop(seat.name, None)
        self._ports.events.promotion(record)

    async def _carry_out(self, seat: Seat, claim: Claim, record: PromotionRecord, drain: float) -> None:
        clock, agents = self._ports.clock, self._ports.agents
        claimed = await self._take(seat, claim)
        record.claimed = clock.wall()
        serving: PolicyName | None = None
        try:
            if claim.leaving is not None:
                await agents.drain(claimed, claim, claim.leaving, deadline=drain)
                await agents.pause(claimed, claim, claim.leaving, deadline=self._deadlines.pause)
            left = max(0.5, claim.deadline - clock.wall())
            done = await agents.resume(claimed, claim, claim.policy, deadline=left)
            record.canary = clock.wall()
            record.resumed = record.canary - done.phases.get("canary", 0.0) - done.phases.get("open", 0.0)
            record.phases = done.phases
            serving = claim.policy
        finally:
            record.waiting = self._ports.queued(claim.policy)
            await self._settle(claimed.name, claim, serving)
        record.rotation = clock.wall()
        self._awaited[seat.name, claim.policy] = record

    async def _settle(self, name: SeatName, claim: Claim, serving: PolicyName | None) -> None:
        """End the claim even while we are being cancelled: a claim left behind blocks the seat until its deadline."""
        self._settled[name] = self._ports.clock.wall()  # before the write: its subscribers may tick within it
        await asyncio.shield(self._ports.cluster.settle(name, claim, serving=serving))
        self._settled[name] = self._ports.clock.wall()

    @property
    def settled(self) -> Mapping[SeatName, float]:
        """When each seat was last settled, in Unix seconds: for a while its labels are newer than its agent's report."""
        return self._settled

    async def _rest(self, seat: Seat, error: Exception) -> None:
        """Leave a seat alone for a while after a failed promotion; replace it when it fails again and again.

        One that has no room, no time or no witness at the moment is no worse than another would be in its place, nor is one
        of which the cluster can't be told; and one on a GPU that its node calls unfit is replaced by what the verdict says, not
        by how often it refuses.
        """
        rest = self._put_off(seat, 0.0)
        rest.failures += not isinstance(error, NoRoom | AgentBusy | NeedsWitness | GpuUnfit | ClusterError)
        rest.until = self._ports.clock.wall() + _REST_SECONDS * 2 ** max(0, rest.failures - 1)
        if rest.failures >= _FAILURES_BEFORE_REPLACE:
            del self._rests[seat.name]
            await self._replace(seat, f"{rest.failures} promotions in a row failed")
        else:
            self._ports.events.rested(seat)

    def _put_off(self, seat: Seat, seconds: float) -> _Rest:
        """Plan no promotion on a seat for a while, and return its rest."""
        now = self._ports.clock.wall()
        forgotten = now - _REMEMBERED_SECONDS
        self._rests = {name: rest for name, rest in self._rests.items() if rest.until > forgotten}
        rest = self._rests.setdefault(seat.name, _Rest())
        rest.until = max(rest.until, now + seconds)
        return rest

    def _holds(self, name: SeatName, claim: Claim) -> bool:
        seat = self._ports.cluster.seat(name)
        return seat is not None and holds(seat, claim)

    def first_content(
        self, policy: PolicyName, seat: SeatName, dispatched: float, queued_since: float, at: float
    ) -> None:
        """Record the first content that a promoted resident sent to a client; later ones cost a dictionary look-up."""
        awaited = self._awaited.get((seat, policy))
        if awaited is None:
            return
        del self._awaited[seat, policy]
        self._ports.events.first_token(
            awaited, dispatched=dispatched, first=at, waited=queued_since < awaited.rotation
        )

    # -------------------------------------------------------------- the other operations

    async def _demote(self, seat: Seat, policy: PolicyName) -> None:
        deadlines = self._deadlines
        seconds = deadlines.draining(seat, self._ports.clock.wall())
        claim = self._claim(Errand(operation=Operation.DEMOTE, policy=policy), seconds + deadlines.pause)
        claimed = await self._take(seat, claim)
        outcome, phases = "Failed", dict[str, float]()
        try:
            drained = await self._ports.agents.drain(claimed, claim, policy, deadline=seconds)
            paused = await self._ports.agents.pause(claimed, claim, policy, deadline=deadlines.pause)
            outcome, phases = "Demoted", {**drained.phases, **paused.phases}
        except (WrongState, AgentBusy):
            if not (how := self._overtaken(claimed.name, claim)):
                raise
            outcome = how
        finally:
            with suppress(Conflict):  # whoever overtook it holds the seat by now
                await self._settle(claimed.name, claim, None)
            self._ports.events.demotion(claim, seat.name, outcome, phases)

    def _overtaken(self, name: SeatName, claim: Claim) -> str:
        """Say how a demotion ended whose claim another took over, which cut its drain short; empty if none did.

        A recall took the resident back; a switch went on with the drain in less time.
        """
        seat = self._ports.cluster.seat(name)
        if seat is None:
            return "Demoted"
        if holds(seat, claim):
            return ""
        back = claim.policy in seat.serving or (seat.claim is not None and seat.claim.policy == claim.policy)
        return "Recalled" if back else "Demoted"

    async def _release(self, seat: Seat, policy: PolicyName) -> None:
        """Take a dead resident out of rotation; there is nothing to drain."""
        claim = self._claim(Errand(operation=Operation.DEMOTE, policy=policy), self._deadlines.pause)
        claimed = await self._take(seat, claim)
        await self._settle(claimed.name, claim, None)
        self._ports.events.demotion(claim, seat.name, "Released", {})

    async def _prove(self, seat: Seat, policy: PolicyName) -> None:
        claim = self._claim(Errand(operation=Operation.PROVE, policy=policy), self._deadlines.prove)
        claimed = await self._take(seat, claim)
        try:
            await self._ports.agents.prove(claimed, claim, policy, deadline=self._deadlines.prove)
        except (WarmpoolError, ClusterError):
            self._leave_alone((seat.name, policy))
            raise
        finally:
            await self._settle(claimed.name, claim, None)

    async def _move(self, action: Park | Unpark) -> None:
        """Park or unpark a resident; one that can't be moved is left alone for a while, and costs its seat nothing else."""
        seat, policy, agents = action.seat, action.policy, self._ports.agents
        if isinstance(action, Unpark):
            errand = Errand(operation=Operation.UNPARK, policy=policy, displace=action.displace)
            order, seconds = agents.unpark, self._deadlines.unpark
        else:
            errand = Errand(operation=Operation.PARK, policy=policy)
            order, seconds = agents.park, self._deadlines.park
        claim = self._claim(errand, seconds)
        claimed = await self._take(seat, claim)
        outcome = "Failed"
        phases: Mapping[str, float] = {}
        try:
            phases = (await order(claimed, claim, policy, deadline=seconds)).phases
            outcome = "Moved"
            self._left_alone.pop((seat.name, policy), None)
        except (WarmpoolError, ClusterError):
            if self._holds(seat.name, claim):
                self._leave_alone((seat.name, policy))
                raise
            outcome = "Overtaken"
        finally:
            with suppress(Conflict):  # a promotion holds the seat by now
                await self._settle(claimed.name, claim, None)
            self._ports.events.moved(claim, seat, outcome, phases)

    def _leave_alone(self, place: Place) -> None:
        rest = self._left_alone.setdefault(place, _Rest())
        wait = _ALONE_SECONDS * 2**rest.failures
        rest.failures += wait < _LONGEST_ALONE_SECONDS
        rest.until = self._ports.clock.wall() + min(wait, _LONGEST_ALONE_SECONDS)

    async def _replace(self, seat: Seat, why: str) -> None:
        await self._ports.cluster.delete(seat, reason=why)
        now = self._ports.clock.wall()
        self._deleted = {uid: at for uid, at in self._deleted.items() if now - at < _DELETED_SECONDS} | {
            seat.uid: now
        }
        self._ports.events.replaced(seat, why)

    async def _resize(self, fleet: FleetName, total: int) -> None:
        before = self._ports.cluster.replicas(fleet)
        try:
            await self._ports.cluster.resize(fleet, total)
        except ClusterError as error:
            log.warning("resize failed", fleet=fleet, total=total, error=str(error))
            return
        self._ports.events.record("resize", fleet=fleet, to=total, **{"from": before})

    def _claim(self, errand: Errand, seconds: float) -> Claim:
        return new_claim(
            errand, self._term, number=next(self._numbers), now=self._ports.clock.wall(), seconds=seconds
        )

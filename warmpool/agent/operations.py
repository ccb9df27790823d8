"""The orders, carried out: resume (promotion or recall), drain, pause, prove, park, unpark.

Each has one deadline, and a part of it is kept back for undoing what was begun. What an engine doesn't answer in time is undone
(`DeadlineExceeded`); an engine that answers wrongly, says no or can't be undone is failed and its process killed, which is the
undoing that always works.
"""

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from warmpool.agent.board import Record
from warmpool.agent.config import GpuHealth
from warmpool.agent.equipment import Equipment
from warmpool.agent.failure import fail, give_up_memory
from warmpool.agent.interruption import Interrupted
from warmpool.agent.orders import Order, OrderKind, Refused, Result
from warmpool.agent.phases import Phases
from warmpool.agent.probing import probe
from warmpool.agent.slot import Running
from warmpool.engines.deadline import Deadline
from warmpool.errors import (
    AgentBusy,
    AgentError,
    DeadlineExceeded,
    EngineError,
    EngineTimeout,
    GpuUnfit,
    NeedsWitness,
    NoRoom,
    ProofFailed,
    WrongState,
)
from warmpool.states import MOVING, Depth, ResidentState
from warmpool.tiers import Tier

PROOF_PROMPTS: Final = 2
"""Prompts that an ordered proof asks."""
_UNDO_SHARE = 0.3
_UNDO_AT_MOST_SECONDS = 2.0
_POLL_FIRST_SECONDS = 0.001
_POLL_LAST_SECONDS = 0.005
_S = ResidentState


@dataclass(frozen=True, slots=True)
class _Work:
    """One order under way.

    Attributes:
        record: its resident.
        running: the order, with the slot.
        deadline: by when it must have been carried out or undone.
        arrived: when it came, on the loop's clock.
        phases: where the time goes.
    """

    record: Record
    running: Running
    deadline: Deadline
    arrived: float
    phases: Phases = field(default_factory=Phases)

    @property
    def order(self) -> Order:
        return self.running.order

    @property
    def by_successor(self) -> str:
        """By whom it was cut short, for messages."""
        successor = self.running.successor
        return "" if successor is None else f" by claim {successor.order.claim}"


class Operations:
    """Carries out orders on one seat.

    Args:
        equipment: the seat's parts.
    """

    def __init__(self, equipment: Equipment) -> None:
        self._board = equipment.board
        self._slot = equipment.slot
        self._reader = equipment.reader
        self._enforce_health = equipment.config.gpu_health is GpuHealth.ENFORCE
        self._room = equipment.room
        self._changes = equipment.changes
        self._mover = equipment.mover

    async def carry_out(self, order: Order) -> Result:
        """Carry out one order.

        Raises:
            Refused: nothing was begun; its error says why.
            AgentError: it was not carried out in time or was cut short; what was begun has been undone.
            EngineError: the engine failed, and so has its resident.
        """
        arrived = asyncio.get_running_loop().time()
        deadline = Deadline.after(order.deadline_seconds)
        try:
            record = self._board.record(order.policy)
            running = await self._slot.acquire(order, deadline)
        except AgentError as error:
            raise Refused(error) from error
        self._board.touch()
        try:
            return await self._dispatch(_Work(record, running, deadline, arrived))
        except EngineError as error:
            if isinstance(error, ProofFailed):
                await self._reader.tell_proof(record, passed=False)
            told = await fail(self._board, record, error)
            if told is error:
                raise
            raise told from error
        finally:
            self._slot.release(running)
            self._board.touch()

    async def _dispatch(self, work: _Work) -> Result:
        carry_out = {
            OrderKind.RESUME: self._resume,
            OrderKind.DRAIN: self._drain,
            OrderKind.PAUSE: self._pause,
            OrderKind.PROVE: self._prove,
            OrderKind.PARK: self._park,
            OrderKind.UNPARK: self._unpark,
        }[work.order.kind]
        aborted = await carry_out(work)
        record = work.record
        return Result(policy=record.policy, state=record.state, phases=work.phases.seconds, aborted=aborted)

    # ------------------------------------------------------------------ resume

    async def _resume(self, work: _Work) -> int:
        record = work.record
        await self._arrived(work)
        if record.leaves_by is not None:
            raise Refused(
                WrongState(f"{record.policy} can't be promoted: its container has been told to end")
            )
        if record.state in {_S.PAUSED, _S.PARKED, _S.PROVING}:
            await self._require_fit(work)
        if record.state in {_S.PAUSED, _S.PARKED, _S.PROVING} and record.prover.missing:
            raise Refused(NeedsWitness(f"{record.policy} can't be promoted: {record.prover.missing}"))
        await self._clear_seat(work)
        match record.state:
            case _S.SERVING:
                pass
            case _S.DRAINING:
                await self._recall(work)
            case _S.PARKED:
                await self._wake(work)
                await self._promote(work, Depth.PARKED)
            case _S.PAUSED:
                await self._make_room(work, Tier.AWAKE)
                await self._promote(work, record.depth)
            case _S.PROVING:
                await self._promote(work, None)
            case _:
                raise Refused(WrongState(_no_candidate(record)))
        return 0

    async def _require_fit(self, work: _Work) -> None:
        """See that the node says nothing against the seat's GPUs: what serves there may finish, and nobody begins.

        Raises:
            Refused: one of them is Suspect or Bad.
        """
        if why := await self._unfit(work):
            raise Refused(GpuUnfit(f"{work.record.policy} can't be promoted: {why}"))

    async def _unfit(self, work: _Work) -> str:
        """Say what the node has against the seat's GPUs, where that is acted on."""
        said = work.order.gpu_health
        enforced = self._enforce_health if said is None else said == "Enforce"
        return await self._reader.unfit() if enforced else ""

    async def _arrived(self, work: _Work) -> None:
        """Wait until a resident whose weights are on their way has arrived: nothing else can be done with it before."""
        record = work.record
        if record.state not in MOVING:
            return
        with work.phases.step("preempt"):
            try:
                async with asyncio.timeout(max(0.0, work.deadline.left_seconds)):
                    await self._board.until(lambda: record.state not in MOVING)
            except TimeoutError:
                raise DeadlineExceeded(
                    f"{record.policy} is {record.state} and has not arrived in time; nothing was begun"
                ) from None

    async def _clear_seat(self, work: _Work) -> None:
        """Make sure that nobody else computes: a start-up gives way, a neighbour that has the seat doesn't."""
        record = work.record
        self._require_free(record)
        warming = self._slot.warming
        if warming is None or record.state not in {_S.PAUSED, _S.PARKED, _S.PROVING}:
            return
        warming.keep_awake = warming.record is record
        warming.interruption.request()
        try:
            with work.phases.step("preempt"):
                async with asyncio.timeout(work.deadline.left_seconds):
                    await self._board.until(lambda: self._slot.warming is None)
        except TimeoutError:
            raise DeadlineExceeded(
                f"{warming.record.policy} was starting up on this seat and has not stopped in time; nothing was begun"
            ) from None

    def _require_free(self, record: Record) -> None:
        rival = self._board.rival(record)
        if rival is not None:
            raise Refused(
                AgentBusy(
                    f"{rival.policy} is {rival.state} on this seat, and one resident computes at a time"
                )
            )

    async def _recall(self, work: _Work) -> None:
        record, deadline = work.record, work.deadline
        try:
            with work.phases.step("open"):
                await record.engine.open_guard(deadline=_for_work(deadline))
        except EngineTimeout as error:
            await record.engine.close_guard(deadline=deadline)
            raise DeadlineExceeded(
                f"open: {error}; the guard is closed and {record.policy} still draining"
            ) from error
        self._board.advance(record, _S.SERVING)

    async def _promote(self, work: _Work, depth: Depth | None) -> None:
        """Bring a paused resident into service, or one that computes already because it is being proven.

        Args:
            work: the order.
            depth: from how deep it is woken; None if it computes already.
        """
        record, phases = work.record, work.phases
        work_until = _for_work(work.deadline)
        self._board.advance(record, _S.PROMOTING)
        unfit = ""
        try:
            if depth is not None or record.unsure:
                with phases.step("kv" if record.kv_released else "resume"):
                    await self._changes.resume(record, deadline=work_until)
            with phases.step("canary"):
                unfit = await self._canary(work, work_until)
            if not unfit:
                if depth is not None:
                    record.wakes.note(depth, asyncio.get_running_loop().time() - work.arrived)
                with phases.step("open"):
                    await record.engine.open_guard(deadline=work_until)
        except EngineTimeout as error:
            await self._undo_promotion(record, work.deadline, f"{phases.current}: {error}")
        if unfit:
            await self._undo_promotion(record, work.deadline, unfit, GpuUnfit)
        record.proven_at = time.time()
        self._board.advance(record, _S.SERVING)

    async def _canary(self, work: _Work, deadline: Deadline) -> str:
        """Ask for a token, and look at the engine's memory meanwhile; nothing waits for that look.

        The node is asked again meanwhile, too: what happened to the seat's GPUs since the order came is what it says now.

        Returns:
            What the node has against the seat's GPUs; empty if nothing, or nothing is known.

        Raises:
            EngineError: it answered otherwise, not at all, or holds more memory than computing takes.
        """
        record = work.record
        most = self._room.most(record)
        try:
            async with asyncio.TaskGroup() as tasks:
                looking = tasks.create_task(self._changes.check_awake(record, most))
                asking = tasks.create_task(self._unfit(work))
                await record.prover.canary(record.engine, deadline=deadline)
                looking.cancel()
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        return asking.result()

    async def _undo_promotion(
        self,
        record: Record,
        deadline: Deadline,
        reason: str,
        kind: type[AgentError] = DeadlineExceeded,
    ) -> None:
        try:
            await record.engine.close_guard(deadline=deadline)
            await self._changes.pause(record, deadline=deadline)
        except EngineError as error:
            raise EngineTimeout(f"{reason}; undoing it failed too: {error}") from error
        record.proven_at = None  # it may be promoted again, after those whose proof is fresh
        self._board.advance(record, _S.PAUSED)
        raise kind(f"{reason}; {record.policy} is paused again")

    # ------------------------------------------------------------------ drain and pause

    async def _drain(self, work: _Work) -> int:
        record = work.record
        if record.state in {_S.PAUSED, _S.PARKED}:
            return 0
        _require_state(record, {_S.SERVING, _S.DRAINING}, "a serving resident can be drained")
        if record.state is _S.SERVING:
            self._board.advance(record, _S.DRAINING)
        try:
            return await work.running.interruption.run(
                lambda: self.close_and_wait(record, work.deadline, work.phases)
            )
        except Interrupted:
            raise WrongState(_cut_short(work)) from None

    async def close_and_wait(self, record: Record, deadline: Deadline, phases: Phases) -> int:
        """Close a draining resident's guard, wait for what it accepted, and end early what isn't finished in time.

        Returns:
            How many requests were ended early.

        Raises:
            DeadlineExceeded: even those have not ended.
            EngineError: the engine failed.
        """
        engine, work = record.engine, _for_work(deadline)
        with phases.step("drain"):
            self._board.note_in_flight(record, (await engine.close_guard(deadline=deadline)).in_flight)
            if await self._wait_drained(record, work):
                return 0
        aborted = record.in_flight
        with phases.step("abort"):
            await engine.abort(deadline=deadline)
            if await self._wait_drained(record, deadline):
                return aborted
        raise DeadlineExceeded(
            f"{record.in_flight} of {aborted} aborted requests have not ended; {record.policy} is still draining, its guard closed"
        )

    async def _wait_drained(self, record: Record, deadline: Deadline) -> bool:
        interval = _POLL_FIRST_SECONDS
        while record.in_flight > 0:
            if deadline.left_seconds <= interval:
                return False
            await asyncio.sleep(interval)
            interval = min(_POLL_LAST_SECONDS, interval * 1.5)
            try:
                state = await record.engine.guard(deadline=deadline)
            except EngineTimeout:
                return False
            self._board.note_in_flight(record, state.in_flight)
        return True

    async def _pause(self, work: _Work) -> int:
        record, phases = work.record, work.phases
        if record.state is _S.PAUSED:
            return 0
        _require_state(record, {_S.DRAINING}, "a drained resident can be paused")
        try:
            with phases.step("pause"):
                await self._changes.pause(record, deadline=_for_work(work.deadline))
        except EngineTimeout as error:
            with phases.step("undo"):
                await self._changes.resume(record, deadline=work.deadline)
            raise DeadlineExceeded(
                f"pause: {error}; {record.policy} computes again and is still draining"
            ) from error
        self._board.advance(record, _S.PAUSED)
        return 0

    # ------------------------------------------------------------------ prove

    async def _prove(self, work: _Work) -> int:
        record, phases = work.record, work.phases
        self._require_unlent(record)
        engine, until = record.engine, _for_work(work.deadline)
        self._board.advance(record, _S.PROVING)
        late = ""
        try:
            with phases.step("kv" if record.kv_released else "resume"):
                await self._changes.resume(record, deadline=until)
            with phases.step("proof"):
                await work.running.interruption.run(
                    lambda: record.prover.prove(engine, prompts=PROOF_PROMPTS, deadline=until)
                )
            record.proven_at = time.time()
            await work.running.interruption.run(lambda: self._reader.tell_proof(record, passed=True))
            if record.capabilities is None:  # a claim cut the first probe short
                with phases.step("probe"):
                    await work.running.interruption.run(lambda: probe(self._board, record, until))
        except Interrupted:
            raise WrongState(f"taken over{work.by_successor}: {record.policy} is promoted") from None
        except EngineTimeout as error:
            late = f"{phases.current}: {error}; {record.policy} is paused again"
            record.proven_at = None
        with phases.step("pause"):
            await self._changes.pause(record, deadline=work.deadline)
        self._board.advance(record, _S.PAUSED)
        if late:
            raise DeadlineExceeded(late)
        return 0

    def _require_unlent(self, record: Record) -> None:
        _require_state(record, {_S.PAUSED}, "a paused resident can be proven")
        self._require_free(record)
        warming = self._slot.warming
        if warming is not None:
            raise Refused(AgentBusy(f"{warming.record.policy} is starting up on this seat"))
        try:
            record.prover.require_known()
            self._room.require(record, Tier.AWAKE)
        except AgentError as error:
            raise Refused(error) from error

    # ------------------------------------------------------------------ park and unpark

    async def _park(self, work: _Work) -> int:
        record = work.record
        await self._arrived(work)
        if record.state is _S.PARKED:
            record.displaced = False  # whoever orders it wants it to stay there
            return 0
        _require_state(record, {_S.PAUSED}, "a paused resident can be parked")
        try:
            self._mover.require_parking(record)
        except AgentError as error:
            raise Refused(error) from error
        with work.phases.step("park"):
            await self._mover.park(record, deadline=work.deadline)
        return 0

    async def _unpark(self, work: _Work) -> int:
        record = work.record
        await self._arrived(work)
        if record.state is _S.PAUSED:
            return 0
        _require_state(record, {_S.PARKED}, "a parked resident can be unparked")
        await self._wake(work)
        return 0

    async def _wake(self, work: _Work) -> None:
        """Make room for a parked resident, and unpark it."""
        await self._make_room(work, Tier.PAUSED)
        with work.phases.step("unpark"):
            await self._mover.unpark(work.record, deadline=work.deadline)

    async def _make_room(self, work: _Work, tier: Tier) -> None:
        """Park others for a resident where the seat's memory isn't enough.

        Raises:
            Refused: that would not be enough either, or can't be done.
            DeadlineExceeded: it can't be done in time.
        """
        record, deadline = work.record, work.deadline
        while not self._room.fits(record, tier):
            try:
                for other in self._room.displaced(record, tier, work.order.displace):
                    with work.phases.step("displace"):
                        await self._mover.give_room(other, to=record, deadline=deadline)
            except NoRoom as error:
                if not await self._clear_memory(work, tier):
                    raise Refused(error) from error
            except DeadlineExceeded as error:
                raise DeadlineExceeded(
                    f"displace: {error}; {record.policy} is {record.state} as before"
                ) from error
        try:
            await self._room.look(record, tier, deadline=deadline)
        except NoRoom as error:
            raise Refused(error) from error

    async def _clear_memory(self, work: _Work, tier: Tier) -> bool:
        """Have those give up memory who only prepare something: weights on their way arrive first, and start-ups end.

        Returns:
            Whether anybody did.
        """
        record = work.record
        if self._mover.moving:
            with work.phases.step("displace"):
                try:
                    async with asyncio.timeout(max(0.0, work.deadline.left_seconds)):
                        await self._board.until(lambda: not self._mover.moving)
                except TimeoutError:
                    return False
            return True
        if work.order.kind is not OrderKind.RESUME:
            return False
        for other in self._board.records:
            if other.starting and self._room.fits_without(other, record, tier, work.order.displace):
                with work.phases.step("displace"):
                    reason = f"its start-up gave way: {record.policy} is promoted and needs the memory"
                    await give_up_memory(self._board, other, reason)
                return True
        return False


def _cut_short(work: _Work) -> str:
    """Say in words what became of a drain that another order cut short."""
    successor, policy = work.running.successor, work.record.policy
    if successor is not None and successor.order.kind is OrderKind.DRAIN:
        return f"taken over{work.by_successor}: {policy} goes on draining, for {successor.order.deadline_seconds:g} s at most"
    return f"recalled{work.by_successor}: {policy} goes back into service"


def _require_state(record: Record, states: Collection[ResidentState], words: str) -> None:
    """See that an order makes sense in a resident's state.

    Raises:
        Refused: it doesn't; `words` say in which it would.
    """
    if record.state not in states:
        raise Refused(WrongState(f"{record.policy} is {record.state}; only {words}"))


def _no_candidate(record: Record) -> str:
    why = record.failure or record.waiting
    told = f": {why}" if why else ""
    return (
        f"{record.policy} is {record.state}{told}; only a paused, parked or draining resident can be resumed"
    )


def _for_work(deadline: Deadline) -> Deadline:
    """Return the part of a deadline that the work itself may use; the rest is kept for undoing it."""
    return deadline.earlier(min(_UNDO_AT_MOST_SECONDS, _UNDO_SHARE * max(0.0, deadline.left_seconds)))

"""The orders, carried out: resume (promotion or recall), drain, pause, prove.

Each has one deadline, and a part of it is kept back for undoing what was begun. What an engine doesn't answer in time is undone
(`DeadlineExceeded`); an engine that answers wrongly, says no or can't be undone is failed and its process killed, which is the
undoing that always works.
"""

import asyncio
import time
from collections.abc import Callable

from warmpool.agent.board import Board, Record
from warmpool.agent.interruption import Interrupted
from warmpool.agent.orders import Order, OrderKind, Refused, Result
from warmpool.agent.phases import Phases
from warmpool.agent.proof import Prover
from warmpool.agent.slot import Running, Slot
from warmpool.engines.capabilities import Capabilities, Capability, Ground
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import KvWhenPaused
from warmpool.errors import (
    AgentBusy,
    AgentError,
    DeadlineExceeded,
    EngineContradicted,
    EngineError,
    EngineLost,
    EngineTimeout,
    EngineUnfit,
    WarmpoolError,
    WrongState,
)
from warmpool.states import ResidentState

PROOF_PROMPTS = 2
"""Prompts that an ordered proof asks."""
PROBE_SECONDS = 180.0
"""How long finding out what an engine can be told may take, with the undoing."""
_UNDO_SHARE = 0.3
_UNDO_AT_MOST_SECONDS = 2.0
_EXIT_NOTICE_SECONDS = 0.5
_POLL_FIRST_SECONDS = 0.001
_POLL_LAST_SECONDS = 0.005
_S = ResidentState
_ENDED = frozenset({_S.FAILED, _S.TERMINATING})


class Operations:
    """Carries out orders on one seat.

    Args:
        board: the residents.
        slot: who may work on them.
        prover: makes the prover of a resident.
    """

    def __init__(self, board: Board, slot: Slot, prover: Callable[[Record], Prover]) -> None:
        self._board = board
        self._slot = slot
        self._prover = prover

    async def carry_out(self, order: Order) -> Result:
        """Carry out one order.

        Raises:
            Refused: nothing was begun; its error says why.
            AgentError: it was not carried out in time or was cut short; what was begun has been undone.
            EngineError: the engine failed, and so has its resident.
        """
        deadline = Deadline.after(order.deadline_seconds)
        try:
            record = self._board.record(order.policy)
            running = await self._slot.acquire(order)
        except AgentError as error:
            raise Refused(error) from error
        self._board.touch()
        try:
            return await self._dispatch(record, running, deadline)
        except EngineError as error:
            told = await self.fail(record, error)
            if told is error:
                raise
            raise told from error
        finally:
            self._slot.release(running)
            self._board.touch()

    async def fail(self, record: Record, error: WarmpoolError) -> WarmpoolError:
        """Fail a resident for what went wrong, and end its engine for good.

        Returns:
            The error to tell: the process's own end, where that is what was behind it.
        """
        process = record.process
        if isinstance(error, EngineLost) and process is not None:
            # A dying process closes its sockets a little before it can be reaped, and its exit tells more than they do.
            try:
                async with asyncio.timeout(_EXIT_NOTICE_SECONDS):
                    await self._board.until(lambda: record.state in _ENDED)
            except TimeoutError:
                pass
            else:
                return EngineLost(record.failure or str(error))
        if isinstance(error, EngineContradicted):
            record.verification = error.verification
        if record.state not in _ENDED:
            record.failure = str(error)
            self._board.move(record, _S.FAILED)
        if process is not None:
            await process.stop(grace_seconds=0)
        return error

    async def probe(self, record: Record) -> None:
        """Find out what a resident's engine can be told. Only out of rotation, and while it may compute.

        Raises:
            EngineUnfit: it lacks what its seat needs.
            EngineError: it failed, or can't be brought back to computing.
        """
        await self._probe(record, Deadline.after(PROBE_SECONDS))

    async def _probe(self, record: Record, deadline: Deadline) -> None:
        found = record.capabilities = await record.engine.probe(record.kv, deadline=deadline)
        self._board.touch()
        lacks = _lacks(found, record.kv)
        if lacks:
            raise EngineUnfit(f"{record.policy}: {'; '.join(lacks)}")

    async def _dispatch(self, record: Record, running: Running, deadline: Deadline) -> Result:
        work = {
            OrderKind.RESUME: self._resume,
            OrderKind.DRAIN: self._drain,
            OrderKind.PAUSE: self._pause,
            OrderKind.PROVE: self._prove,
        }[running.order.kind]
        phases = Phases()
        aborted = await work(record, running, deadline, phases)
        return Result(policy=record.policy, state=record.state, phases=phases.seconds, aborted=aborted)

    # ------------------------------------------------------------------ resume

    async def _resume(self, record: Record, running: Running, deadline: Deadline, phases: Phases) -> int:
        del running
        await self._clear_seat(record, deadline, phases)
        match record.state:
            case _S.SERVING:
                pass
            case _S.DRAINING:
                await self._recall(record, deadline, phases)
            case _S.PROVING | _S.PAUSED:
                await self._promote(record, deadline, phases)
            case _S.FAILED:
                raise Refused(WrongState(f"{record.policy} is Failed: {record.failure}"))
            case other:
                raise Refused(
                    WrongState(
                        f"{record.policy} is {other}; only a paused or draining resident can be resumed"
                    )
                )
        return 0

    async def _clear_seat(self, record: Record, deadline: Deadline, phases: Phases) -> None:
        """Make sure that nobody else computes: a start-up gives way, a neighbour that has the seat doesn't."""
        self._require_free(record)
        warming = self._slot.warming
        if warming is None or record.state not in {_S.PAUSED, _S.PROVING}:
            return
        warming.keep_awake = warming.record is record
        warming.interruption.request()
        try:
            with phases.step("preempt"):
                async with asyncio.timeout(deadline.left_seconds):
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

    async def _recall(self, record: Record, deadline: Deadline, phases: Phases) -> None:
        try:
            with phases.step("open"):
                await record.engine.open_guard(deadline=_for_work(deadline))
        except EngineTimeout as error:
            await record.engine.close_guard(deadline=deadline)
            raise DeadlineExceeded(
                f"open: {error}; the guard is closed and {record.policy} still draining"
            ) from error
        self._board.advance(record, _S.SERVING)

    async def _promote(self, record: Record, deadline: Deadline, phases: Phases) -> None:
        asleep = record.state is _S.PAUSED
        engine, prover = record.engine, self._prover(record)
        work = _for_work(deadline)
        self._board.advance(record, _S.PROMOTING)
        try:
            if asleep:
                with phases.step("kv" if record.kv_released else "resume"):
                    record.verification = await engine.resume(record.kv, deadline=work)
                record.kv_released = False
            with phases.step("canary"):
                await prover.canary(engine, deadline=work)
            with phases.step("open"):
                await engine.open_guard(deadline=work)
        except EngineTimeout as error:
            await self._undo_promotion(record, deadline, f"{phases.current}: {error}")
        record.proven_at = time.time()
        self._board.advance(record, _S.SERVING)

    async def _undo_promotion(self, record: Record, deadline: Deadline, reason: str) -> None:
        try:
            await record.engine.close_guard(deadline=deadline)
            record.verification = await record.engine.pause(record.kv, deadline=deadline)
        except EngineError as error:
            raise EngineTimeout(f"{reason}; undoing it failed too: {error}") from error
        record.kv_released = record.releases_kv
        record.proven_at = None  # it may be promoted again, after those whose proof is fresh
        self._board.advance(record, _S.PAUSED)
        raise DeadlineExceeded(f"{reason}; {record.policy} is paused again")

    # ------------------------------------------------------------------ drain and pause

    async def _drain(self, record: Record, running: Running, deadline: Deadline, phases: Phases) -> int:
        if record.state is _S.PAUSED:
            return 0
        if record.state not in {_S.SERVING, _S.DRAINING}:
            raise Refused(
                WrongState(f"{record.policy} is {record.state}; only a serving resident can be drained")
            )
        if record.state is _S.SERVING:
            self._board.advance(record, _S.DRAINING)
        try:
            return await running.interruption.run(lambda: self.close_and_wait(record, deadline, phases))
        except Interrupted:
            successor = running.successor
            by = "" if successor is None else f" by claim {successor.order.claim}"
            raise WrongState(f"recalled{by}: {record.policy} goes back into service") from None

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
            self._note_in_flight(record, (await engine.close_guard(deadline=deadline)).in_flight)
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
            self._note_in_flight(record, state.in_flight)
        return True

    def _note_in_flight(self, record: Record, in_flight: int) -> None:
        if record.in_flight != in_flight:
            record.in_flight = in_flight
            self._board.touch()

    async def _pause(self, record: Record, running: Running, deadline: Deadline, phases: Phases) -> int:
        del running
        if record.state is _S.PAUSED:
            return 0
        if record.state is not _S.DRAINING:
            raise Refused(
                WrongState(f"{record.policy} is {record.state}; only a drained resident can be paused")
            )
        try:
            with phases.step("pause"):
                record.verification = await record.engine.pause(record.kv, deadline=_for_work(deadline))
        except EngineTimeout as error:
            with phases.step("undo"):
                record.verification = await record.engine.resume(record.kv, deadline=deadline)
            raise DeadlineExceeded(
                f"pause: {error}; {record.policy} computes again and is still draining"
            ) from error
        record.kv_released = record.releases_kv
        self._board.advance(record, _S.PAUSED)
        return 0

    # ------------------------------------------------------------------ prove

    async def _prove(self, record: Record, running: Running, deadline: Deadline, phases: Phases) -> int:
        self._require_unlent(record)
        engine, prover, work = record.engine, self._prover(record), _for_work(deadline)
        self._board.advance(record, _S.PROVING)
        late = ""
        try:
            with phases.step("kv" if record.kv_released else "resume"):
                record.verification = await engine.resume(record.kv, deadline=work)
            record.kv_released = False
            with phases.step("proof"):
                await running.interruption.run(
                    lambda: prover.prove(engine, prompts=PROOF_PROMPTS, deadline=work)
                )
            record.proven_at = time.time()
            if record.capabilities is None:  # a claim cut the first probe short
                with phases.step("probe"):
                    await running.interruption.run(lambda: self._probe(record, work))
        except Interrupted:
            successor = running.successor
            by = "" if successor is None else f" by claim {successor.order.claim}"
            raise WrongState(f"taken over{by}: {record.policy} is promoted") from None
        except EngineTimeout as error:
            late = f"{phases.current}: {error}; {record.policy} is paused again"
            record.proven_at = None
        with phases.step("pause"):
            record.verification = await engine.pause(record.kv, deadline=deadline)
        record.kv_released = record.releases_kv
        self._board.advance(record, _S.PAUSED)
        if late:
            raise DeadlineExceeded(late)
        return 0

    def _require_unlent(self, record: Record) -> None:
        if record.state is not _S.PAUSED:
            raise Refused(
                WrongState(f"{record.policy} is {record.state}; only a paused resident can be proven")
            )
        self._require_free(record)
        warming = self._slot.warming
        if warming is not None:
            raise Refused(AgentBusy(f"{warming.record.policy} is starting up on this seat"))


def _lacks(found: Capabilities, kv: KvWhenPaused) -> list[str]:
    """Return what an engine would need for its seat and doesn't have, with the reasons.

    An engine that can't pause at all may be kept out of rotation on a seat of its own, and wants nothing more.
    """
    needed = {Capability.TOKEN_IDS, Capability.SCHEDULER_PAUSE}
    if kv is KvWhenPaused.RELEASE:
        needed.add(Capability.KV_RELEASE)
    elif found.finding(Capability.SCHEDULER_PAUSE).ground is Ground.NOT_OF_KIND:
        needed.discard(Capability.SCHEDULER_PAUSE)
    return [
        f"{capability} is refused ({finding.ground}): {finding.reason}"
        for capability in Capability
        if capability in needed and not (finding := found.finding(capability)).granted
    ]


def _for_work(deadline: Deadline) -> Deadline:
    """Return the part of a deadline that the work itself may use; the rest is kept for undoing it."""
    return deadline.earlier(min(_UNDO_AT_MOST_SECONDS, _UNDO_SHARE * max(0.0, deadline.left_seconds)))

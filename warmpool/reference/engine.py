"""The compute thread: takes requests and orders in, computes step after step, and reports what came out.

Everything that touches the model happens on this one thread, so nothing in it is locked. Requests, cancellations and orders
come in through one inbox that the thread empties before every step; results leave through one callback per step. There is no
asyncio here, and no torch: a `Runner` made on the thread computes.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from warmpool.expectations import Ownership
from warmpool.reference.errors import EngineStopped, ReferenceEngineError, WrongEngineState
from warmpool.reference.graphs import Graphs
from warmpool.reference.place import Place
from warmpool.reference.scheduler import Move, PauseMode, Room, Scheduler, SchedulerState
from warmpool.reference.sequence import FinishReason, Load, Output, Sampled, Sequence
from warmpool.reference.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class Runner(Protocol):
    """What computes: the model, its KV memory and the sampler."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Turns text to tokens and back."""

    @property
    def bos_token(self) -> int | None:
        """What every prompt starts with, if anything."""

    @property
    def ownership(self) -> Ownership:
        """What it computes with."""

    @property
    def weights_bytes(self) -> int:
        """Bytes that the weights take."""

    @property
    def kv_bytes(self) -> int:
        """Bytes that the KV memory takes when it is taken."""

    @property
    def eos_tokens(self) -> frozenset[int]:
        """Tokens that end a sequence."""

    @property
    def kv_is_taken(self) -> bool:
        """Whether the KV memory is there."""

    @property
    def kv_taken_bytes(self) -> int:
        """Bytes of the KV memory that are there now. Any thread may ask."""

    @property
    def kv_kind(self) -> str:
        """Where the KV memory comes from."""

    @property
    def weights_place(self) -> Place:
        """Where the weights are. Any thread may ask."""

    @property
    def weights_taken_bytes(self) -> int:
        """Device memory that the weights take now. Any thread may ask."""

    @property
    def parked_bytes(self) -> int:
        """Host memory that a copy of the weights takes, parked or not. Any thread may ask."""

    @property
    def cannot_park(self) -> str:
        """Why the weights can't be parked; empty if they can."""

    @property
    def kv_positions(self) -> int:
        """How many tokens' keys and values fit, over all places."""

    @property
    def kv_room(self) -> Room:
        """KV memory that new sequences can have now."""

    def prefill(self, sequence: Sequence, place: int) -> Sampled:
        """Compute all tokens of a sequence and choose the next one."""

    def decode(self, sequences: list[Sequence], due: set[int]) -> list[Sampled | None]:
        """Compute one more token for the sequences at the places in `due`; sequence i is at place i."""

    def free(self, place: int) -> None:
        """Take back the KV memory of the sequence at a place, which has ended."""

    def move(self, move: Move) -> None:
        """Let a sequence's KV memory follow it to another place, which is free."""

    @property
    def graphs(self) -> Graphs:
        """Whether graphs are captured. Any thread may ask."""

    def capture_next(self) -> bool:
        """Capture one more graph, while nothing else is computed and the KV memory is there; return whether there are more.

        Raises:
            NotEnoughMemory: the device has none for it; what has been captured stays.
        """

    def take_kv(self, grown: Callable[[], None]) -> None:
        """Take the KV memory, or as much as first sequences need; `grown` is called on another thread when there is more."""

    def give_back_kv(self) -> None:
        """Return the KV memory to the system."""

    def close(self) -> None:
        """End what computes elsewhere for it. Nothing is computed afterwards."""

    def park(self) -> None:
        """Move the weights to host memory.

        Raises:
            NotEnoughHostMemory: the host can't take them; nothing has changed.
            WrongEngineState: they can't be parked.
        """

    def unpark(self) -> None:
        """Bring the weights back to where they were.

        Raises:
            NotEnoughMemory: the device has too little; they stay parked.
            WeightsDamaged: what came back is not what left; they stay parked.
        """


Report = Callable[[list[Output], Load], None]
"""Called on the compute thread after whatever changed: the outputs, and how busy the engine is now. Must not block."""


@dataclass(frozen=True, slots=True)
class _Order:
    """Something to do on the compute thread, and the future that tells how it went."""

    action: Callable[[], None]
    future: Future[Any]

    def run(self) -> None:
        try:
            self.action()
        except ReferenceEngineError as error:
            self.future.set_exception(error)
        except BaseException as error:
            self.future.set_exception(error)
            raise

    def refuse(self) -> None:
        self.future.set_exception(EngineStopped("the engine has stopped"))


class Engine:
    """A scheduler and a runner on a thread of their own.

    Args:
        make_runner: makes the runner; called on the compute thread when it starts.
        scheduler: decides what is computed.
        report: gets all outputs.
    """

    def __init__(self, make_runner: Callable[[], Runner], scheduler: Scheduler, report: Report) -> None:
        self._make_runner = make_runner
        self._scheduler = scheduler
        self._report = report
        self._inbox: list[_Order] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._failure: ReferenceEngineError | None = None
        self._pauses: list[Future[None]] = []
        self._capture: Future[None] | None = None
        self._runner: Runner | None = None
        self._thread = threading.Thread(target=self._main, name="compute", daemon=True)
        self.ready: Future[None] = Future()
        """Done when the runner is made; carries the error if it couldn't be."""
        self.ended: Future[None] = Future()
        """Done when the thread has ended; carries the error that ended it, if one did."""

    def start(self) -> None:
        """Start the compute thread."""
        self._thread.start()

    def submit(self, sequence: Sequence) -> Future[None]:
        """Queue a sequence; its outputs come through the report.

        Returns:
            Done when it is queued.

        Raises:
            RequestRejected: in the future: the queue is full.
            EngineStopped: the engine takes nothing in any more.
        """
        return self.order(lambda: self._add(sequence))

    def cancel(self, key: int) -> None:
        """End a sequence at the next step; it frees its place and reports `abort`. Unknown keys are ignored: it may just have ended."""
        try:
            self.order(lambda: self._cancel(key))
        except EngineStopped:
            return

    def pause(self, mode: PauseMode) -> Future[None]:
        """Pause.

        Returns:
            Done when nothing is computed any more; fails with WrongEngineState if somebody resumed before.
        """
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()
        self.order(lambda: self._pause(mode, done))
        return done

    def resume(self) -> Future[None]:
        """Go on computing. Fails with WrongEngineState while the KV memory is given back."""
        return self.order(self._resume)

    def give_back_kv(self) -> Future[None]:
        """Return the KV memory to the system. Fails with WrongEngineState unless a pause is complete and the memory is there."""
        return self.order(self._give_back_kv)

    def wake_up(self) -> Future[None]:
        """Take the KV memory if it was given back, and go on computing. Fails with NotEnoughMemory and stays paused."""
        return self.order(self._wake_up)

    def park(self) -> Future[None]:
        """Move the weights to host memory, and return the KV memory to the system.

        Fails with WrongEngineState unless a pause is complete, and with NotEnoughHostMemory; either way it is as it was.
        """
        return self.order(self._park)

    def unpark(self) -> Future[None]:
        """Bring the weights back; it stays paused, without KV memory. Fails with NotEnoughMemory or WeightsDamaged, and stays parked."""
        return self.order(self.runner.unpark)

    def capture(self) -> Future[None]:
        """Capture the graphs that are pending, one after the other, whenever nothing else is to be computed.

        Returns:
            Done when none is pending. Whoever cancels it ends that after the graph that is being captured; what has been
            captured stays, and the next call goes on. Fails with WrongEngineState unless weights and KV memory are there all the
            while, and with NotEnoughMemory.
        """
        done: Future[None] = Future()
        self.order(lambda: self._begin_capture(done))
        return done

    def state(self) -> Future[tuple[SchedulerState, bool]]:
        """The scheduler's state, and whether the KV memory is there."""
        return self.order(lambda: (self._scheduler.state, self.runner.kv_is_taken))

    def order(self, action: Callable[[], ResultT]) -> Future[ResultT]:
        """Run `action` on the compute thread between two steps.

        Raises:
            EngineStopped: the engine takes nothing in any more.
        """
        future: Future[ResultT] = Future()
        future.set_running_or_notify_cancel()
        with self._changed:
            if self._stopping:
                raise EngineStopped("the engine is stopping")
            self._inbox.append(_Order(lambda: future.set_result(action()), future))
            self._changed.notify()
        return future

    @property
    def failure(self) -> ReferenceEngineError | None:
        """What it can't go on after, told by `fail`; it may be a while until the thread has ended."""
        return self._failure

    def fail(self, error: ReferenceEngineError) -> None:
        """End: without what has failed elsewhere nothing can be computed. What hasn't ended is reported as an error. Doesn't wait."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify()

    def stop(self) -> None:
        """Stop after the step that runs now; what hasn't ended is reported as aborted. Doesn't wait: `ended` tells."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread to end; whether it did."""
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    @property
    def runner(self) -> Runner:
        """What computes. Other threads read its constants only, and only once `ready` is done."""
        assert self._runner is not None
        return self._runner

    # ------------------------------------------------------------ on the compute thread

    def _main(self) -> None:
        self.ready.set_running_or_notify_cancel()
        self.ended.set_running_or_notify_cancel()
        try:
            self._runner = self._make_runner()
        except BaseException as error:  # noqa: BLE001 (whatever ended it must reach the process, which decides)
            self.ready.set_exception(error)
            self._refuse_inbox()
            self.ended.set_result(None)
            return
        self.ready.set_result(None)
        try:
            while self._take_inbox():
                self._step()
            self._end_all(FinishReason.ABORT, None)
            self._runner.close()
        except BaseException as error:  # noqa: BLE001 (as above)
            cause = self._failure or error  # what the step says then is only what followed from it
            _log.critical("the compute thread failed: %s", cause, exc_info=error)
            self._end_all(FinishReason.ERROR, f"the engine failed: {cause}")
            self._refuse_inbox()
            with contextlib.suppress(Exception):
                self._runner.close()
            self.ended.set_exception(cause)
            return
        self._refuse_inbox()
        self.ended.set_result(None)

    def _take_inbox(self) -> bool:
        """Wait until there is something to do, do what came in, and say whether to go on."""
        with self._changed:
            while not (self._inbox or self._stopping or self._failure or self._capture):
                now = time.monotonic()
                work_at = self._scheduler.next_at(now, self.runner.kv_room)
                if work_at is not None and work_at <= now:
                    break
                self._changed.wait(None if work_at is None else work_at - now)
            inbox, self._inbox = self._inbox, []
        for order in inbox:
            order.run()
        if self._failure is not None:
            raise self._failure
        self._settle()
        return not self._stopping

    def _step(self) -> None:
        now = time.monotonic()
        step = self._scheduler.plan(now, self.runner.kv_room)
        if self._capture is not None and not step.prefills and not step.decodes:
            self._capture_next(self._capture)
        for sequence in step.prefills:
            place = self._scheduler.place_of(sequence)
            if sequence.started is None:
                sequence.started = now
            sampled = self.runner.prefill(sequence, place)
            sequence.due = self._scheduler.pacer.due_after_first(time.monotonic())
            output = self._advance(sequence, sampled)
            if output.finish is not None:
                self._free(place)
            self._tell([output])
        if step.decodes:
            self._decode(set(step.decodes), now)

    def _decode(self, due: set[int], now: float) -> None:
        # Prompts of this same step may already have ended again; those in `due` came before them and kept their places.
        running = self._scheduler.running[: max(due) + 1]
        outputs: list[Output] = []
        finished: list[int] = []
        for place, sampled in enumerate(self.runner.decode(running, due)):
            if sampled is None:
                continue
            sequence = running[place]
            sequence.due = self._scheduler.pacer.due_after(now)
            output = self._advance(sequence, sampled)
            outputs.append(output)
            if output.finish is not None:
                finished.append(place)
        for place in reversed(finished):
            self._free(place)
        self._settle()
        self._tell(outputs)

    def _advance(self, sequence: Sequence, sampled: Sampled) -> Output:
        """Append a token and see whether the sequence ends with it."""
        token, sampling = sampled.token, sequence.sampling
        sequence.generated.append(token)
        ended = token in self.runner.eos_tokens and not sampling.ignore_eos
        text = "" if ended else sequence.text.push(token)
        finish = None
        if ended or sequence.text.stopped_by is not None:
            finish = FinishReason.STOP
        elif len(sequence.generated) >= sampling.max_tokens:
            finish = FinishReason.LENGTH
        if finish is not None:
            text += sequence.text.flush()
        return Output(
            key=sequence.key,
            token=token,
            text=text,
            logprobs=sampled.logprobs,
            finish=finish,
            stop_reason=sequence.text.stopped_by,
        )

    def _free(self, place: int) -> None:
        self.runner.free(place)
        move = self._scheduler.release(place)
        if move is not None:
            self.runner.move(move)

    def _begin_capture(self, done: Future[None]) -> None:
        if self._capture is not None and not self._capture.cancelled():
            _fail(done, WrongEngineState("graphs are being captured already"))
        else:
            self._capture = done

    def _capture_next(self, done: Future[None]) -> None:
        """Capture one graph, if somebody still waits for them."""
        runner = self.runner
        try:
            if done.cancelled():
                more = False
            elif runner.weights_place is not Place.HELD or not runner.kv_is_taken:
                raise WrongEngineState("graphs are captured while weights and KV memory are there")
            else:
                more = runner.capture_next()
        except ReferenceEngineError as error:
            self._capture = None
            _fail(done, error)
        else:
            if not more:
                self._capture = None
                if done.set_running_or_notify_cancel():
                    done.set_result(None)

    def _add(self, sequence: Sequence) -> None:
        self._scheduler.add(sequence)
        self._tell([])

    def _cancel(self, key: int) -> None:
        found = self._scheduler.find(key)
        if found is None:
            return
        sequence, place = found
        if place is None:
            self._scheduler.waiting.remove(sequence)
        else:
            self._free(place)
        self._settle()
        self._tell([Output(key=key, finish=FinishReason.ABORT)])

    def _pause(self, mode: PauseMode, done: Future[None]) -> None:
        if mode is PauseMode.ABORT:
            self._end_all(FinishReason.ABORT, None)
        self._scheduler.pause(mode)
        self._pauses.append(done)
        self._settle()

    def _settle(self) -> None:
        """Answer those who wait for a pause, once it is complete."""
        if self._pauses and self._scheduler.settle():
            pauses, self._pauses = self._pauses, []
            self._tell([])
            for done in pauses:
                done.set_result(None)

    def _resume(self) -> None:
        self._require_weights()
        if not self.runner.kv_is_taken:
            raise WrongEngineState(
                "the KV memory has been given back; POST /wake_up?tags=kv_cache takes it and resumes"
            )
        self._scheduler.resume()
        self._break_pauses("the engine was resumed before the pause was complete")
        self._tell([])

    def _break_pauses(self, why: str) -> None:
        pauses, self._pauses = self._pauses, []
        for done in pauses:
            done.set_exception(WrongEngineState(why))

    def _give_back_kv(self) -> None:
        if not self.runner.kv_is_taken:
            raise WrongEngineState("the KV memory has been given back already")
        self._scheduler.unplace_all()
        self.runner.give_back_kv()
        self._tell([])

    def _park(self) -> None:
        if self._scheduler.state is not SchedulerState.PAUSED:
            raise WrongEngineState("the engine isn't paused; POST /pause and wait for its answer first")
        self.runner.park()  # first, for it may fail
        if self.runner.kv_is_taken:
            self._give_back_kv()

    def _require_weights(self) -> None:
        if self.runner.weights_place is not Place.HELD:
            raise WrongEngineState("the weights are parked; POST /wake_up?tags=weights brings them back")

    def _wake_up(self) -> None:
        self._require_weights()
        self.runner.take_kv(self._look_again)
        self._resume()

    def _look_again(self) -> None:
        """Let the compute thread see whether there is something to do now. Any thread may call it."""
        with self._changed:
            self._changed.notify()

    def _end_all(self, reason: FinishReason, error: str | None) -> None:
        scheduler = self._scheduler
        outputs = [
            Output(key=sequence.key, finish=reason, error=error)
            for sequence in (*scheduler.running, *scheduler.waiting)
        ]
        for place in range(len(scheduler.running)):
            self.runner.free(place)
        scheduler.running.clear()
        scheduler.waiting.clear()
        self._tell(outputs)

    def _tell(self, outputs: Iterable[Output]) -> None:
        scheduler = self._scheduler
        held = scheduler.state is SchedulerState.PAUSED
        tokens = sum(sequence.length for sequence in scheduler.running)
        self._report(
            list(outputs),
            Load(
                running=len(scheduler.running),
                waiting=0 if held else len(scheduler.waiting),
                kv_usage=tokens / self.runner.kv_positions,
            ),
        )

    def _refuse_inbox(self) -> None:
        with self._changed:
            self._stopping = True
            inbox, self._inbox = self._inbox, []
        self._break_pauses("the engine has stopped")
        if self._capture is not None:
            _fail(self._capture, EngineStopped("the engine has stopped"))
        for order in inbox:
            order.refuse()


def _fail(done: Future[None], error: Exception) -> None:
    """Tell whoever waits that it failed, if anybody still does."""
    if done.set_running_or_notify_cancel():
        done.set_exception(error)

"""Which sequences run: a queue in order of arrival, places without gaps, and three ways to pause.

Every step first takes in what has arrived, as far as there are places and KV memory, and computes those prompts; the next step
decodes them together with all others. Running sequences keep places 0 to n-1: when one ends, the last one moves into its place. The
scheduler computes nothing and waits for nothing; the clock's readings are arguments.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from enum import StrEnum

from warmpool.reference.errors import RequestRejected, WrongEngineState
from warmpool.reference.pacing import Pacer
from warmpool.reference.sequence import Sequence


class PauseMode(StrEnum):
    """What a pause does to sequences that run, as vLLM names it."""

    ABORT = "abort"
    WAIT = "wait"
    KEEP = "keep"


class SchedulerState(StrEnum):
    """Whether new sequences start and running ones go on."""

    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the batch.

    Attributes:
        max_num_seqs: sequences that run at once.
        max_queued: sequences that wait for a place before further ones are refused.
        max_prefill_tokens: prompt tokens per step; one prompt is always taken, so that a long one gets its turn.
    """

    max_num_seqs: int
    max_queued: int = 1024
    max_prefill_tokens: int = 2048


@dataclass(frozen=True, slots=True)
class Room:
    """KV memory that can be handed out now.

    Attributes:
        tokens: whose keys and values fit.
        block: it is handed out in multiples of so many tokens.
    """

    tokens: int
    block: int = 1

    def left_by(self, sequence: Sequence) -> int:
        """The tokens that are left when a sequence has got what it may come to need; negative if it doesn't fit."""
        return self.tokens - -(-sequence.most // self.block) * self.block


@dataclass(frozen=True, slots=True)
class Step:
    """What to compute now.

    Attributes:
        prefills: sequences that have just been given a place; their prompts are to be computed.
        decodes: places of running sequences that are due for another token.
    """

    prefills: tuple[Sequence, ...] = ()
    decodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Move:
    """A sequence has changed its place; its KV memory must follow."""

    source: int
    target: int
    length: int


@dataclass(slots=True)
class Scheduler:
    """The queue and the places. One thread only."""

    limits: Limits
    pacer: Pacer = field(default_factory=Pacer)
    running: list[Sequence] = field(default_factory=list)
    waiting: deque[Sequence] = field(default_factory=deque)
    state: SchedulerState = SchedulerState.RUNNING

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; while paused too, it is then held until the engine resumes.

        Raises:
            RequestRejected: the queue is full.
        """
        if len(self.waiting) >= self.limits.max_queued:
            raise RequestRejected(
                f"{len(self.waiting)} requests wait already; the limit is --max-num-queued-reqs {self.limits.max_queued}",
                status=503,
                kind="ServiceUnavailableError",
            )
        self.waiting.append(sequence)

    def plan(self, now: float, room: Room) -> Step:
        """Give free places to those that wait longest, as far as `room` goes, and say what to compute at `now` (seconds)."""
        if self.state is SchedulerState.PAUSED:
            return Step()
        prefills = self._admit(room) if self.state is SchedulerState.RUNNING else ()
        before = len(self.running) - len(prefills)
        decodes = tuple(place for place in range(before) if self.pacer.is_due(self.running[place].due, now))
        return Step(prefills, decodes)

    def next_at(self, now: float, room: Room) -> float | None:
        """When there will be something to compute: `now` for at once, None for "when something arrives or `room` grows"."""
        if self.state is SchedulerState.PAUSED:
            return None
        if self._has_place and self.waiting and room.left_by(self.waiting[0]) >= 0:
            return now
        if not self.running:
            return None
        first = min(sequence.due for sequence in self.running)
        return now if self.pacer.is_due(first, now) else self.pacer.time_of(first)

    @property
    def _has_place(self) -> bool:
        return self.state is SchedulerState.RUNNING and len(self.running) < self.limits.max_num_seqs

    def _admit(self, room: Room) -> tuple[Sequence, ...]:
        admitted: list[Sequence] = []
        budget = self.limits.max_prefill_tokens
        while self.waiting and len(self.running) < self.limits.max_num_seqs:
            if admitted and self.waiting[0].length > budget:
                break
            left = room.left_by(self.waiting[0])
            if left < 0:
                break
            sequence = self.waiting.popleft()
            budget -= sequence.length
            room = replace(room, tokens=left)
            self.running.append(sequence)
            admitted.append(sequence)
        return tuple(admitted)

    def place_of(self, sequence: Sequence) -> int:
        """The place of a running sequence."""
        return next(place for place, other in enumerate(self.running) if other is sequence)

    def release(self, place: int) -> Move | None:
        """Free a place.

        Returns:
            The move of the last running sequence into it, unless it was the last.
        """
        last = self.running.pop()
        if place == len(self.running):
            return None
        self.running[place] = last
        return Move(source=len(self.running), target=place, length=last.most)

    def find(self, key: int) -> tuple[Sequence, int | None] | None:
        """A sequence that runs (with its place) or waits (with None)."""
        for place, sequence in enumerate(self.running):
            if sequence.key == key:
                return sequence, place
        for sequence in self.waiting:
            if sequence.key == key:
                return sequence, None
        return None

    def pause(self, mode: PauseMode) -> None:
        """Begin to pause. `settle` says when it is complete. The caller ends sequences where the mode is abort."""
        self.state = SchedulerState.PAUSING if mode is PauseMode.WAIT else SchedulerState.PAUSED
        self.settle()

    def settle(self) -> bool:
        """Complete a pause that waited for running sequences, once there are none; whether the scheduler is paused."""
        if self.state is SchedulerState.PAUSING and not self.running:
            self.state = SchedulerState.PAUSED
        return self.state is SchedulerState.PAUSED

    def resume(self) -> None:
        """Go on: with those that were frozen in place, then with those that were held."""
        self.state = SchedulerState.RUNNING

    def unplace_all(self) -> None:
        """Put running sequences back at the head of the queue: their KV memory is going away and will be computed again.

        Raises:
            WrongEngineState: the scheduler isn't paused.
        """
        if self.state is not SchedulerState.PAUSED:
            raise WrongEngineState("the engine isn't paused; POST /pause and wait for its answer first")
        self.waiting.extendleft(reversed(self.running))
        self.running.clear()

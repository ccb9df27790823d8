"""How much memory each engine holds: of the device where the node tells it, else of the host.

On a machine without accelerators that is the resident memory of an engine's process tree. On one with, it takes the node's memory
service, which knows whose process holds what; without one, or where it can't tell, nothing is known and nothing is guessed.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import psutil

from warmpool.agent.board import Board, Record
from warmpool.agent.processes import Process, descendants
from warmpool.agent.staging import StageDaemon
from warmpool.engines.deadline import Deadline
from warmpool.nodehealth.client import GpuMemory, NodeMemory, SeatHealth, SeatMemory
from warmpool.seats import UNKNOWN, GpuWord, Verdict
from warmpool.standins import forks_of

HEALTH_SECONDS: Final = 0.05
"""How long a promotion waits for the node's word on its GPUs, which comes from memory within a millisecond or two."""
HEALTH_MAX_AGE_SECONDS: Final = 10.0
"""For how long the node's word on GPUs counts when it says nothing more: it is asked every second."""
READ_SECONDS: Final = 0.25
"""How long a reading may take: an order waits for it. The service's own calls take 0.5 ms when nothing hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading.

    Attributes:
        held: bytes that each resident's engine holds, by policy; who is missing is unknown.
        device: what is known of the seat's devices; None where there are none.
        reason: why somebody is missing; empty if nobody is.
        spread: bytes that each holds on each of the seat's GPUs, in the order in which those are told; who is missing is unknown.
    """

    held: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    spread: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    device: SeatMemory | None = None
    reason: str = ""


class MemoryReader:
    """Reads what the seat's engines hold, and notes it on the board.

    Args:
        board: the residents.
        gpus: the seat's GPUs; empty where the node knows them.
        node: where device memory is asked for; None on a machine without GPUs.
        stage: the node's stage daemon, which has memory of those GPUs, too; None if nobody is to be asked.

    Attributes:
        last: the last reading.
        total_bytes: device memory of the seat's GPUs, once it has been told; None before.
        gpus: each of them, as it was told last; empty before.
    """

    def __init__(
        self, board: Board, gpus: Sequence[str], node: NodeMemory | None, stage: StageDaemon | None = None
    ) -> None:
        self._board = board
        self._gpus = tuple(gpus)
        self._node = node
        self._stage = stage
        self.last = Reading(reason="not measured yet")
        self.total_bytes: int | None = None
        self.gpus: Sequence[GpuMemory] = ()
        self._words: tuple[GpuWord, ...] = ()
        self._words_at = 0.0

    @property
    def of_device(self) -> bool:
        """Whether it is device memory that is read."""
        return self._node is not None

    @property
    def answers(self) -> bool:
        """Whether devices were told of the last time: asking for them again won't cost an order time for nothing."""
        return self.last.device is not None and self.last.device.total_bytes is not None

    @property
    def stage_bytes(self) -> int:
        """What the stage daemon takes of the seat's GPUs, by what it said last."""
        return 0 if self._stage is None else self._stage.taken_bytes(self._uuids)

    def stage_bytes_on(self, gpu: str) -> int:
        """Return what the stage daemon takes of one GPU, by its UUID and by what it said last."""
        return 0 if self._stage is None else self._stage.taken_bytes([gpu])

    @property
    def stage_reason(self) -> str:
        """Why that isn't known, or isn't known anew; empty if it is, or nobody is asked."""
        if self._stage is None:
            return ""
        if not self._stage.reason and self._stage.has_devices and not self._uuids:
            return "what the stage daemon takes isn't counted: nobody has told the UUIDs of the seat's GPUs"
        return self._stage.reason

    def lacks_copy(self, checkpoint: str) -> bool:
        """Whether the node's stage daemon is known to hold no copy of a checkpoint on the seat's GPUs."""
        return self._stage is not None and self._stage.lacks(checkpoint, self._uuids)

    @property
    def _uuids(self) -> Sequence[str]:
        """The seat's GPUs: those that the node told of, else the configured ones, unless they are indices."""
        told = [word.uuid for word in self._words]
        return told or [gpu for gpu in self._gpus if not gpu.isdigit()]

    async def close(self) -> None:
        """Let go of the way to the node."""
        if self._node is not None:
            await self._node.close()

    async def unfit(self, *, seconds: float = HEALTH_SECONDS) -> str:
        """Say why nobody may be promoted onto the seat's GPUs; empty if somebody may, or nothing is known."""
        if self._node is None:
            return ""
        health = await self._node.health(self._gpus, deadline=Deadline.after(seconds))
        self._note_health(health)
        return "" if health.verdict is Verdict.OK else health.reason

    @property
    def words(self) -> Sequence[tuple[GpuWord, float]]:
        """What the node said last of the seat's GPUs, and how many seconds ago; nothing where it never did."""
        age = asyncio.get_running_loop().time() - self._words_at
        return [(word, age) for word in self._words]

    def _note_health(self, health: SeatHealth) -> None:
        """Take what the node says; what it said before is unknown once it is silent for too long. What changes is told."""
        now, before = asyncio.get_running_loop().time(), self._words
        if health.words:
            self._words, self._words_at = health.words, now
        elif now - self._words_at > HEALTH_MAX_AGE_SECONDS:
            self._words = tuple(
                replace(word, word=UNKNOWN, reason="the node agent doesn't answer") for word in before
            )
        if self._words != before:
            self._board.touch()

    async def tell_proof(self, record: Record, *, passed: bool) -> None:
        """Tell the node what came of a proof or canary: a GPU that was mended is tried by it, and one that computes wrong is found."""
        if self._node is not None:
            proof, deadline = record.prover.identity(record.running), Deadline.after(READ_SECONDS)
            await self._node.canary(self._gpus, passed=passed, proof=proof, deadline=deadline)

    async def tell_fault(self, gpu: str, text: str) -> None:
        """Tell the node what a pre-flight has found of one of the seat's GPUs, which its driver tells nobody."""
        if self._node is not None:
            gpus = (gpu,) if gpu else self._gpus
            await self._node.fault(gpus, text=text, deadline=Deadline.after(READ_SECONDS))

    async def read(self, *, seconds: float = READ_SECONDS) -> Reading:
        """Read what is held now, within `seconds`."""
        reading, _ = await asyncio.gather(self._read(seconds), self._ask_stage(seconds))
        self.last = reading
        if self.answers and reading.device is not None:
            self.total_bytes = reading.device.total_bytes
            self.gpus = reading.device.gpus
        for record in self._board.records:
            self._note(record, reading)
        return reading

    async def _read(self, seconds: float) -> Reading:
        if self._node is None:
            return Reading(held=MappingProxyType(await self._resident()))
        return self._of_device(await self._node.read(self._gpus, deadline=Deadline.after(seconds)))

    async def _ask_stage(self, seconds: float) -> None:
        if self._stage is not None:
            await self._stage.ask(seconds=seconds)

    def _note(self, record: Record, reading: Reading) -> None:
        process = record.process
        record.memory_bytes = reading.held.get(record.policy)
        if record.memory_bytes is not None:
            record.memory_reason = ""
        elif process is None or process.exited:
            record.memory_reason = "its engine is not running"
        elif self._node is None and process.visible_pid is None:
            record.memory_reason = "its engine runs in another PID namespace"
        else:
            record.memory_reason = reading.reason or "nothing is told of its processes"

    def _of_device(self, told: SeatMemory) -> Reading:
        running = [
            (record, process) for record in self._board.records if (process := _running(record)) is not None
        ]
        held = {
            record.policy: size
            for record, process in running
            if (size := _of_engine(told, process)) is not None
        }
        spread = {
            record.policy: sizes
            for record, process in running
            if record.policy in held and (sizes := _spread_of_engine(told, process)) is not None
        }
        return Reading(
            held=MappingProxyType(held),
            spread=MappingProxyType(spread),
            device=told,
            reason=told.reason,
        )

    # ------------------------------------------------------------------ host memory

    async def _resident(self) -> dict[str, int]:
        pids = {
            record.policy: process.visible_pid
            for record in self._board.records
            if (process := _running(record)) is not None and process.visible_pid is not None
        }
        return await asyncio.to_thread(_resident_memory, pids)


def _running(record: Record) -> Process | None:
    process = record.process
    return None if process is None or process.exited else process


def _of_engine(told: SeatMemory, process: Process) -> int | None:
    """Return what an engine holds; one that was forked isn't under the process that stands for it."""
    forks = () if process.visible_pid is None else forks_of(process.visible_pid)
    sizes = [told.held_by(process.pid, process.namespace), *map(told.held_by, forks)]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _spread_of_engine(told: SeatMemory, process: Process) -> tuple[int, ...] | None:
    """Return what an engine holds on each GPU, as `_of_engine` has it of all."""
    forks = () if process.visible_pid is None else forks_of(process.visible_pid)
    each = [told.held_on(process.pid, process.namespace), *map(told.held_on, forks)]
    known = [sizes for sizes in each if sizes is not None]
    return tuple(map(sum, zip(*known, strict=True))) if known and len(known) == len(each) else None


def _resident_memory(pids: Mapping[str, int]) -> dict[str, int]:
    held: dict[str, int] = {}
    for policy, pid in pids.items():
        try:
            held[policy] = int(psutil.Process(pid).memory_info().rss)
        except psutil.Error:  # it has just ended
            continue
        for process in descendants(pid):
            try:
                held[policy] += int(process.memory_info().rss)
            except psutil.Error:  # it ended meanwhile and holds nothing
                continue
    return held

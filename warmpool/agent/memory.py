"""How much memory an engine holds, as far as it can be told from outside.

On a machine without accelerators that is the resident memory of its process tree.
"""

import asyncio
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Memory:
    """What was measured.

    Attributes:
        held_bytes: memory held; None if it can't be told.
        reason: why it can't be told; empty if it can.
    """

    held_bytes: int | None
    reason: str = ""


async def measure(pid: int, *, gpus: bool) -> Memory:
    """Measure what the process `pid` and its descendants hold.

    Args:
        pid: the engine's process.
        gpus: whether the seat has GPUs, so that the memory that matters is theirs.
    """
    if gpus:
        return Memory(None, "the seat has GPUs, and device memory per process isn't measured by this agent")
    return await asyncio.to_thread(_resident_memory, pid)


def _resident_memory(pid: int) -> Memory:
    try:
        root = psutil.Process(pid)
        held = int(root.memory_info().rss)
        descendants = root.children(recursive=True)
    except psutil.Error as error:
        return Memory(None, f"process {pid} can't be read: {error}")
    for process in descendants:
        try:
            held += int(process.memory_info().rss)
        except psutil.Error:  # it ended meanwhile and holds nothing
            continue
    return Memory(held)

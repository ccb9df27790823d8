"""What the machine can still give this process: the least of its free memory and of what the control groups above it may take.

A limit that is passed isn't refused: the kernel ends the process instead. So whoever needs gigabytes asks here first.
`loader.sources.limits` reads the machine.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loader.sources.limits import host_room
from warmpool.reference.errors import NotEnoughHostMemory

SPARE_BYTES: Final = 256 << 20
"""What is left to everybody else on the machine or in the group, whatever is asked for."""
_UNKNOWN_BYTES: Final = 1 << 62
"""What is taken for free on a machine that doesn't tell."""


@dataclass(frozen=True, slots=True)
class Available:
    """What can still be taken.

    Attributes:
        nbytes: bytes.
        bound: what sets the bound, as messages name it.
    """

    nbytes: int
    bound: str


def available(root: Path = Path("/")) -> Available:
    """Return what this process can still take of the machine's memory.

    Args:
        root: where /proc and /sys are found.
    """
    room = host_room(root)
    if room is None:
        return Available(_UNKNOWN_BYTES, "the machine")
    return Available(room.nbytes, f"the limit of control group {room.group}" if room.group else "the machine")


def require(nbytes: int, what: str, root: Path = Path("/")) -> None:
    """See that memory can be taken, with something left over.

    Args:
        nbytes: how much is about to be taken.
        what: what for, as messages name it.
        root: where /proc and /sys are found.

    Raises:
        NotEnoughHostMemory: taking it could end this process, or another.
    """
    there = available(root)
    if nbytes + SPARE_BYTES > there.nbytes:
        raise NotEnoughHostMemory(
            f"{what} needs {nbytes / 2**20:.0f} MiB of host memory; {there.nbytes / 2**20:.0f} MiB are left by {there.bound},"
            f" and {SPARE_BYTES / 2**20:.0f} MiB stay free for others",
            hint="raise the memory limit, or park fewer residents here",
        )

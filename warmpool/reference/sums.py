"""Sums over blocks of memory, cheap enough to be taken each time that weights move.

A block's sum is that of its 64-bit words, wrapping around. A single changed bit changes a word by a power of two, and so the sum of its
block, whichever bit it is. Blocks that have changed places, or that are another block's copy, differ as well, because each has its own.
Two changes in one block that cancel each other are not seen: this finds faults of memory and of copying, and is no signature.
"""

from typing import Final

import torch
from torch import Tensor

BLOCK_BYTES: Final = 64 << 10
"""Memory per sum; 16 GB have 2 MB of sums."""
_WORD_BYTES: Final = 8


def block_sums(memory: Tensor) -> Tensor:
    """Return one sum for each block.

    Args:
        memory: contiguous bytes, a multiple of `BLOCK_BYTES`.
    """
    return memory.view(torch.int64).view(-1, BLOCK_BYTES // _WORD_BYTES).sum(dim=1)


def first_difference(before: Tensor, after: Tensor) -> int | None:
    """Return where the first block begins whose sums differ, in bytes; None if all agree."""
    if torch.equal(before, after):
        return None
    return int((before != after).nonzero()[0, 0]) * BLOCK_BYTES

"""What is written to a GPU's memory and has to be read there again, word by word. PURE.

A pattern says for each address which 64 bits belong there. The first is the address itself: a word that lands elsewhere, by a
broken address line, is found wherever it lands. The others walk one bit through the words. Each comes with its complement right
after it, so that every bit was read once as 0 and once as 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

WORD_BYTES: Final = 8
ALL_BITS: Final = 2**64 - 1
OF_ADDRESSES: Final = 64
"""The turn that no walking bit has: the word is its address."""


@dataclass(frozen=True)
class Pattern:
    """Which word belongs where.

    Attributes:
        turn: by how many places the walking bit is ahead of a word's number, 0 to 63; `OF_ADDRESSES`: the word is its address.
        mask: bits in which the word is turned round.
    """

    turn: int
    mask: int = 0

    def word(self, address: int) -> int:
        """Return the word that belongs at an address, which is a multiple of 8."""
        if self.turn == OF_ADDRESSES:
            return address ^ self.mask
        return (1 << ((address // WORD_BYTES + self.turn) % 64)) ^ self.mask

    def complement(self) -> Pattern:
        """Return the pattern with every bit turned round."""
        return Pattern(self.turn, self.mask ^ ALL_BITS)


def pairs() -> Iterator[tuple[Pattern, Pattern]]:
    """Return all patterns, each with its complement, those first that find the most."""
    for turn in (OF_ADDRESSES, *_spread()):
        pattern = Pattern(turn)
        yield pattern, pattern.complement()


def _spread() -> Iterator[int]:
    """Return 0 to 63 so that the first few are far from each other: 0, 32, 16, 48, 8 and so on."""
    for number in range(64):
        yield int(f"{number:06b}"[::-1], 2)

"""Which blocks of the KV memory belong to whom. Pure: numbers only.

Memory is taken from its beginning on, so what can be used is always the first so many blocks. Blocks that have been used go out
again before fresh ones: the less is touched, the less must have been taken.
"""


class BlockPool:
    """Blocks 0 to `blocks` - 1, of which the first `usable` may be handed out. One thread only.

    Args:
        blocks: how many there are.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._usable = 0
        self._fresh = 0
        self._returned: list[int] = []

    @property
    def free(self) -> int:
        """How many can be handed out now."""
        return len(self._returned) + self._usable - self._fresh

    def grow(self, usable: int) -> None:
        """Let the first `usable` blocks be handed out; never fewer than before."""
        self._usable = max(self._usable, min(usable, self.blocks))

    def take(self, count: int) -> list[int]:
        """Hand out `count` blocks.

        Raises:
            ValueError: there are fewer; ask `free` first.
        """
        if count > self.free:
            raise ValueError(f"{count} blocks are wanted and {self.free} are free")
        again = min(count, len(self._returned))
        taken = [self._returned.pop() for _ in range(again)]
        taken += range(self._fresh, self._fresh + count - again)
        self._fresh += count - again
        return taken

    def give_back(self, blocks: list[int]) -> None:
        """Take blocks back that `take` has handed out."""
        self._returned += reversed(blocks)

    def reset(self) -> None:
        """Forget who has what, and that anything can be used."""
        self._usable = self._fresh = 0
        self._returned.clear()

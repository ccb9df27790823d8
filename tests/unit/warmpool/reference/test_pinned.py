"""The page-locked copy over a link that is played: what is locked before it is copied into, and what is undone after a refusal."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from warmpool.reference.driver import DriverError
from warmpool.reference.errors import NotEnoughHostMemory, NotEnoughMemory
from warmpool.reference.pinned import PinnedCopy
from warmpool.reference.sums import BLOCK_BYTES, block_sums

PIECE = 8 * BLOCK_BYTES
PIECES = 7
NBYTES = PIECES * PIECE - 2 * BLOCK_BYTES  # the last one is shorter


class Played:
    """A link whose copies happen when somebody waits for them."""

    def __init__(self, refuses_at: int = PIECES) -> None:
        self.refuses_at = refuses_at
        self.locked: dict[int, int] = {}
        self.most_locked = 0
        self.queue: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def lock(self, address: int, nbytes: int) -> None:
        with self._lock:
            if self.most_locked >= self.refuses_at:
                raise DriverError("cuMemHostRegister_v2: CUDA_ERROR_OUT_OF_MEMORY (2)")
            self.locked[address] = nbytes
            self.most_locked += 1

    def unlock(self, address: int) -> None:
        self.locked.pop(address)

    def copy(self, target: Tensor, source: Tensor) -> None:
        host = {target.data_ptr(), source.data_ptr()} & self.locked.keys()
        assert host, "copied to or from memory that isn't locked"
        assert {self.locked[address] for address in host} == {target.nbytes}
        self.queue.append(lambda: target.copy_(source))

    def then(self, work: Callable[[], Tensor]) -> Tensor:
        self.finish()
        return work()

    def finish(self) -> None:
        for work in self.queue:
            work()
        self.queue.clear()


@pytest.fixture
def whole() -> Tensor:
    return torch.randint(0, 256, (NBYTES,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def anywhere(_nbytes: int) -> None:
    """All of the device's memory is there."""


def test_bytes_come_back_with_their_sums(whole: Tensor) -> None:
    before = whole.clone()
    copy = PinnedCopy(whole, Played(), PIECE)
    whole.zero_()
    assert torch.equal(copy.fetch(whole, anywhere), block_sums(before))
    assert torch.equal(whole, before)


def test_memory_is_locked_piece_by_piece_and_stays(whole: Tensor) -> None:
    link = Played()
    copy = PinnedCopy(whole, link, PIECE)
    assert sum(link.locked.values()) == copy.nbytes == NBYTES
    assert max(link.locked.values()) == PIECE
    copy.fetch(whole, anywhere)
    assert len(link.locked) == PIECES


@pytest.mark.parametrize("refused", range(PIECES))
def test_a_refusal_undoes_whatever_was_locked_and_says_so(whole: Tensor, refused: int) -> None:
    link = Played(refuses_at=refused)
    with pytest.raises(NotEnoughHostMemory, match=r"refuses to page-lock .*OUT_OF_MEMORY") as error:
        PinnedCopy(whole, link, PIECE)
    assert "ulimit -l" in error.value.hint
    assert (link.locked, link.queue) == ({}, [])


def test_nothing_is_touched_before_the_memory_for_it_has_come(whole: Tensor) -> None:
    copy = PinnedCopy(whole, Played(), PIECE)
    reached: list[int] = []
    whole.zero_()

    def reach(nbytes: int) -> None:
        assert not whole[nbytes - 1 :].any()
        reached.append(nbytes)

    copy.fetch(whole, reach)
    assert reached == [*range(PIECE, NBYTES, PIECE), NBYTES]


def test_memory_that_does_not_come_leaves_nothing_on_its_way(whole: Tensor) -> None:
    link = Played()
    copy = PinnedCopy(whole, link, PIECE)

    def reach(nbytes: int) -> None:
        if nbytes > 3 * PIECE:
            raise NotEnoughMemory("none is left", hint="")

    with pytest.raises(NotEnoughMemory):
        copy.fetch(whole, reach)
    assert link.queue == []

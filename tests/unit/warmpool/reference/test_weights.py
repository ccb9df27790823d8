"""Weights that leave their memory and come back to it, on CPU, and over memory that is played."""

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor

from warmpool.reference.copies import FileCopy
from warmpool.reference.errors import (
    NotEnoughHostMemory,
    NotEnoughMemory,
    WeightsDamaged,
    WrongEngineState,
)
from warmpool.reference.place import Place
from warmpool.reference.sums import BLOCK_BYTES, block_sums
from warmpool.reference.weights import AllocatedWeights, AnonymousMemory, FixedWeights, bytes_for

MIB = 1 << 20
SHAPES = [(512, 1024), (7,), (3, 5), (1024, 4096)]
DTYPE = torch.float32


@pytest.fixture
def weights() -> FixedWeights:
    return FixedWeights(AnonymousMemory(bytes_for(SHAPES, DTYPE)), FileCopy)


@pytest.fixture
def tensors(weights: FixedWeights) -> list[Tensor]:
    made = [weights.empty(shape, DTYPE) for shape in SHAPES]
    generator = torch.Generator().manual_seed(1)
    for tensor in made:
        tensor.normal_(generator=generator)
    return made


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def test_tensors_lie_side_by_side_where_kernels_want_them(tensors: list[Tensor]) -> None:
    starts = [tensor.data_ptr() for tensor in tensors]
    assert starts == sorted(starts)
    assert all(start % 64 == 0 for start in starts)
    assert [tuple(tensor.shape) for tensor in tensors] == SHAPES


def test_they_come_back_to_where_they_were_as_they_were(weights: FixedWeights, tensors: list[Tensor]) -> None:
    before = [tensor.clone() for tensor in tensors]
    for _ in range(3):
        weights.park()
        weights.unpark()
        assert all(torch.equal(tensor, kept) for tensor, kept in zip(tensors, before, strict=True))


def test_parking_gives_the_memory_back_to_the_system() -> None:
    nbytes = 96 * MIB
    weights = FixedWeights(AnonymousMemory(nbytes), FileCopy)
    weights.empty((nbytes,), torch.uint8).fill_(7)
    held = resident_bytes()
    for _ in range(2):
        weights.park()
        assert held - resident_bytes() > 0.9 * nbytes
        weights.unpark()
        assert held - resident_bytes() < 0.1 * nbytes


def test_it_is_told_where_they_are_and_what_they_take(weights: FixedWeights, tensors: list[Tensor]) -> None:
    whole = weights.taken_bytes
    assert whole >= sum(tensor.nbytes for tensor in tensors)
    assert (weights.place, weights.parked_bytes) == (Place.HELD, 0)
    weights.park()
    assert (weights.place, weights.taken_bytes, weights.parked_bytes) == (Place.PARKED, 0, whole)
    weights.unpark()
    assert (weights.place, weights.taken_bytes, weights.parked_bytes) == (Place.HELD, whole, whole)


@pytest.mark.usefixtures("tensors")
def test_parking_and_unparking_twice_is_once(weights: FixedWeights) -> None:
    for _ in range(2):
        weights.park()
    assert weights.place is Place.PARKED
    for _ in range(2):
        weights.unpark()
    assert weights.place is Place.HELD


def test_a_copy_is_made_once_for_weights_do_not_change() -> None:
    made = []

    def make(whole: Tensor) -> FileCopy:
        made.append(whole.nbytes)
        return FileCopy(whole)

    weights = FixedWeights(AnonymousMemory(MIB), make)
    for _ in range(3):
        weights.park()
        weights.unpark()
    assert made == [MIB]


@pytest.mark.parametrize("bit", [0, 5, 7])
def test_a_flipped_bit_in_the_copy_is_seen_and_nothing_is_computed_with_it(
    weights: FixedWeights, tensors: list[Tensor], bit: int
) -> None:
    weights.park()
    place = tensors[0].nbytes + 17
    file: int = weights._copy._descriptor  # type: ignore[union-attr]
    os.pwrite(file, bytes([os.pread(file, 1, place)[0] ^ 1 << bit]), place)
    with pytest.raises(WeightsDamaged, match=f"from byte {place // BLOCK_BYTES * BLOCK_BYTES};"):
        weights.unpark()
    assert (weights.place, weights.taken_bytes) == (Place.PARKED, 0)


@pytest.mark.usefixtures("tensors")
def test_a_copy_that_has_become_shorter_is_seen(weights: FixedWeights) -> None:
    weights.park()
    os.ftruncate(weights._copy._descriptor, 3 * MIB)  # type: ignore[union-attr]
    with pytest.raises(WeightsDamaged, match=f"ends at byte {3 * MIB}"):
        weights.unpark()


@pytest.fixture
def short_files() -> Iterator[None]:
    """Let the system refuse files of more than a MiB, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("tensors", "short_files")
def test_a_directory_without_room_leaves_them_where_they_are(weights: FixedWeights) -> None:
    with pytest.raises(NotEnoughHostMemory, match="File too large") as refused:
        weights.park()
    assert "TMPDIR" in refused.value.hint
    assert (weights.place, weights.parked_bytes) == (Place.HELD, 0)


def test_the_copy_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = FileCopy(torch.zeros(MIB, dtype=torch.uint8))
    assert kept.nbytes == MIB
    assert list(tmp_path.iterdir()) == []


def test_weights_of_torch_s_allocator_cannot_be_parked_and_say_why() -> None:
    weights = AllocatedWeights(torch.device("cpu"), "they have no fixed address")
    weights.empty((4, 4), DTYPE)
    with pytest.raises(WrongEngineState, match="no fixed address"):
        weights.park()
    assert (weights.place, weights.taken_bytes) == (Place.HELD, 64)


# ---------------------------------------------------------------- over a device that is played


class Played:
    """Device memory that comes in parts, when it is told to."""

    def __init__(self, parts: int = 4) -> None:
        self.nbytes = parts * BLOCK_BYTES
        self.taken_bytes = 0
        self.coming = [self.nbytes]
        self.refuses = False
        self._bytes = torch.zeros(self.nbytes, dtype=torch.uint8)
        self._grown: Callable[[], None] = lambda: None

    def take(self, grown: Callable[[], None]) -> Tensor:
        if self.refuses:
            raise NotEnoughMemory("none is left", hint="")
        self._grown = grown
        self.taken_bytes = self.coming.pop(0)
        return self._bytes

    def grow(self) -> None:
        self.taken_bytes = self.coming.pop(0)
        self._grown()

    def give_back(self) -> None:
        self.taken_bytes = 0
        self._bytes.zero_()


class Kept:
    """A copy that is fetched part by part."""

    def __init__(self, whole: Tensor) -> None:
        self.nbytes = whole.nbytes
        self._bytes = whole.clone()
        self.before_part: Callable[[int], None] = lambda _: None

    def fetch(self, whole: Tensor, reach: Callable[[int], None]) -> Tensor:
        for begin in range(0, self.nbytes, BLOCK_BYTES):
            self.before_part(begin)
            reach(begin + BLOCK_BYTES)
            whole[begin : begin + BLOCK_BYTES] = self._bytes[begin : begin + BLOCK_BYTES]
        return block_sums(whole)


@pytest.fixture
def played() -> tuple[Played, FixedWeights]:
    home = Played()
    weights = FixedWeights(home, Kept)
    weights.empty((home.nbytes,), torch.uint8).fill_(9)
    return home, weights


def test_bytes_come_back_as_the_memory_for_them_comes(played: tuple[Played, FixedWeights]) -> None:
    home, weights = played
    weights.park()
    home.coming = [BLOCK_BYTES, 3 * BLOCK_BYTES, 4 * BLOCK_BYTES]
    seen: list[tuple[int, int]] = []

    def note(begin: int) -> None:
        seen.append((begin // BLOCK_BYTES, home.taken_bytes // BLOCK_BYTES))
        if begin in {BLOCK_BYTES, 3 * BLOCK_BYTES}:
            home.grow()

    kept: Any = weights._copy
    kept.before_part = note
    weights.unpark()
    assert seen == [(0, 1), (1, 1), (2, 3), (3, 3)]
    assert int(home._bytes.min()) == 9


def test_a_device_without_room_leaves_them_parked_and_may_be_asked_again(
    played: tuple[Played, FixedWeights],
) -> None:
    home, weights = played
    weights.park()
    home.refuses = True
    with pytest.raises(NotEnoughMemory):
        weights.unpark()
    assert (weights.place, home.taken_bytes) == (Place.PARKED, 0)
    home.refuses, home.coming = False, [home.nbytes]
    weights.unpark()
    assert (weights.place, int(home._bytes.min())) == (Place.HELD, 9)


def test_memory_that_stays_out_is_given_up_and_all_of_it_given_back(
    played: tuple[Played, FixedWeights],
) -> None:
    home, weights = played
    weights.park()
    home.coming = [2 * BLOCK_BYTES]
    with pytest.raises(NotEnoughMemory, match="could be taken"):
        weights.unpark()
    assert (weights.place, home.taken_bytes) == (Place.PARKED, 0)

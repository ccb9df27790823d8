"""Tensors are allocated while others are filled: chunk by chunk, a few ahead of the threads, and given back if that fails."""

import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from threading import Event, current_thread, main_thread
from weakref import ref

import pytest
import safetensors.torch
import torch

import loader
from loader.checkpoint import TensorEntry
from loader.control import Control
from loader.copiers import crew
from loader.copiers.crew import CopyChunk
from loader.copiers.destinations import Addresses, Allocation, memory_errors
from loader.copiers.job import Job, Readers
from loader.copiers.pinned import runs
from loader.copiers.windows import Driver, Room, Stretch, Team, open_windows
from loader.errors import DtypeUnsupported, OutOfMemory
from loader.header import Dtype
from loader.plan import Chunk, Piece, plan_reads
from loader.sources.files import FILES

PATIENCE = 60  # seconds; what is waited for comes at once or never


class Coming:
    """Chunks that tell when they are taken."""

    def __init__(self, count: int, taking: Callable[[int], object] = lambda _: None) -> None:
        self.taken = 0
        self._count = count
        self._taking = taking

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Chunk]:
        for number in range(self._count):
            assert current_thread() is main_thread()
            self._taking(number)
            self.taken += 1
            yield Chunk(file="f", begin=number, nbytes=1, pieces=())


def copy_all(chunks: crew.Chunks, copy: CopyChunk, *, threads: int = 1) -> list[int]:
    seen: list[Chunk] = []
    crew.run(
        chunks,
        threads=threads,
        open_worker=lambda: nullcontext(copy),
        report=seen.append,
        control=Control(),
    )
    return sorted(chunk.begin for chunk in seen)


def test_the_first_chunk_is_copied_while_the_next_are_made_ready() -> None:
    first = Event()

    def wait_for_the_first(number: int) -> None:
        if number == 1:
            assert first.wait(PATIENCE)

    assert copy_all(Coming(5, wait_for_the_first), lambda _: first.set()) == list(range(5))


def test_chunks_are_made_ready_a_few_ahead_and_no_more() -> None:
    third = Event()
    ahead: list[int] = []

    def copy(chunk: Chunk) -> None:
        if chunk.begin == 0:
            assert third.wait(PATIENCE)
        ahead.append(coming.taken - chunk.begin)

    coming = Coming(40, lambda number: third.set() if number == 2 else None)
    assert copy_all(coming, copy) == list(range(40))
    # One that is copied and two that lie ready.
    assert max(ahead) == 3


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("fails_at", [0, 1, 7])
def test_threads_that_wait_for_chunks_end_when_none_can_be_made_ready(threads: int, fails_at: int) -> None:
    class Failed(Exception):
        pass

    copied = Event()

    def fail(number: int) -> None:
        if number == fails_at:
            assert not fails_at or copied.wait(PATIENCE)
            raise Failed

    with pytest.raises(Failed):
        copy_all(Coming(20, fail), lambda _: copied.set(), threads=threads)


@pytest.mark.parametrize("threads", [1, 4])
def test_threads_that_wait_for_chunks_end_when_one_fails(threads: int) -> None:
    class Failed(Exception):
        pass

    def copy(chunk: Chunk) -> None:
        if chunk.begin == 5:
            raise Failed

    with pytest.raises(Failed):
        copy_all(Coming(20), copy, threads=threads)


def entry(name: str, begin: int, nbytes: int, dtype: Dtype = Dtype.U8) -> TensorEntry:
    return TensorEntry(name, dtype, (nbytes // dtype.element_bytes,), "f", begin, begin + nbytes)


def checkpoint_of(*entries: TensorEntry) -> loader.Checkpoint:
    return loader.Checkpoint(
        root="/nowhere",
        path="/nowhere",
        shards={},
        tensors={each.name: each for each in entries},
        config={},
        metadata={},
        declared_bytes=None,
    )


def chunk_of(*entries: TensorEntry) -> Chunk:
    pieces = tuple(Piece(each.name, 0, each.nbytes) for each in entries)
    return Chunk("f", entries[0].begin, sum(each.nbytes for each in entries), pieces)


def test_memory_that_runs_out_in_mid_load_is_all_given_back_though_the_error_is_kept() -> None:
    small, huge = entry("small", 0, 4096), entry("huge", 4096, 2**46)
    kept = []

    def fill() -> None:
        with (
            memory_errors("/nowhere"),
            Allocation(checkpoint_of(small, huge), torch.device("cpu")) as allocation,
        ):
            assert allocation.prepare(chunk_of(small))
            kept.append(ref(allocation.destinations["small"].tensor))
            allocation.prepare(chunk_of(huge))

    with pytest.raises(OutOfMemory, match="no memory") as caught:
        fill()
    assert caught.value.__traceback__ is not None
    assert [kept_one() for kept_one in kept] == [None]


def test_memory_is_taken_once_for_a_tensor() -> None:
    one, other = entry("one", 0, 64), entry("other", 64, 64)
    with Allocation(checkpoint_of(one, other), torch.device("cpu")) as allocation:
        assert allocation.prepare(chunk_of(one))
        tensor = allocation.destinations["one"].tensor
        assert allocation.prepare(chunk_of(one, other))
        assert not allocation.prepare(chunk_of(one, other))
        assert allocation.destinations["one"].tensor is tensor
        addresses = Addresses(allocation.destinations)
        assert addresses["one"] == tensor.data_ptr() != addresses["other"]


def test_tensors_alike_have_memory_of_their_own_and_come_in_the_checkpoints_order() -> None:
    entries = [entry("empty", 0, 0), entry("b", 0, 64), entry("a", 64, 64), entry("last", 128, 0)]
    with Allocation(checkpoint_of(*entries), torch.device("cpu")) as allocation:
        allocation.prepare(chunk_of(entries[2]))
        tensors = allocation.complete()
    assert list(tensors) == ["empty", "b", "a", "last"]
    storages = {tensors[name].untyped_storage().data_ptr() for name in "ab"}
    assert len(storages) == 2
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in tensors.values())


def test_a_dtype_that_torch_lacks_is_told_before_anything_is_allocated() -> None:
    with pytest.raises(DtypeUnsupported, match="F6_E2M3"):
        Allocation(checkpoint_of(entry("a", 0, 64), entry("b", 64, 3, Dtype.F6_E2M3)), torch.device("cpu"))


@pytest.mark.parametrize("threads", [1, 3])
def test_thousands_of_tensors_of_many_shapes_arrive(tmp_path: Path, threads: int) -> None:
    expected = {f"w{n}": torch.full((n % 7, 1 + n % 5), float(n)) for n in range(3000)}
    safetensors.torch.save_file(expected, tmp_path / "m.safetensors")
    checkpoint = loader.open_checkpoint(tmp_path)
    loaded = loader.load(checkpoint, run=loader.Run(threads=threads)).tensors
    assert list(loaded) == list(checkpoint.tensors)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())


@pytest.mark.skipif(open_windows() is None, reason="the C part isn't built: no C compiler")
def test_the_c_part_is_fed_as_tensors_come(tmp_path: Path) -> None:
    expected = {f"w{n}": torch.randn(1 + n % 3, 333) for n in range(900)}
    safetensors.torch.save_file(expected, tmp_path / "m.safetensors")
    checkpoint = loader.open_checkpoint(tmp_path)
    chunks = plan_reads(checkpoint.tensors.values(), chunk_bytes=2**16)
    waits: list[int] = []
    with FILES.open(checkpoint) as reader, Allocation(checkpoint, torch.device("cpu")) as allocation:
        job = Job(
            reader=reader,
            chunks=chunks,
            destinations=allocation.destinations,
            readers=Readers(threads=2, read_bytes=2**16),
            report=lambda _: None,
            control=Control(),
            prepare=allocation.prepare,
        )
        addresses = Addresses(allocation.destinations)

        def bring(team: Team, chunk: Chunk) -> None:
            copies = [
                (target, chunk.begin + at, nbytes) for target, at, nbytes in runs(chunk.pieces, addresses)
            ]
            stretch = Stretch(reader.descriptor(chunk.file), chunk.begin, chunk.nbytes, copies)
            team.bring(stretch, lambda _: None)

        @contextmanager
        def worker() -> Iterator[CopyChunk]:
            with team_on_the_host() as team:
                yield partial(bring, team)

        job.share_out(worker, prepared=lambda: waits.append(len(allocation.destinations)))
        loaded = allocation.complete()
    assert len(waits) == len({*waits}) > 10
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())


@contextmanager
def team_on_the_host() -> Iterator[Team]:
    """Two readers whose device's memory is the host's."""
    done = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
    copying = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_ulonglong, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
    )(lambda target, source, nbytes, _: 0 * ctypes.memmove(target, source, nbytes))
    nothing, copy = (ctypes.cast(function, ctypes.c_void_p).value for function in (done, copying))
    driver = Driver(nothing, nothing, copy, nothing, nothing, 0, 0)
    memory = [mmap.mmap(-1, 2**15) for _ in range(2)]
    rooms = [Room(ctypes.addressof(ctypes.c_char.from_buffer(each)), 2**15, 1, True) for each in memory]
    with Team(driver, rooms, 2, 2**13) as team:
        yield team

"""GPUDirect Storage, tried on a library that reads into host memory: what is read, what is left to the other copier, and why."""

import ctypes
import mmap
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch

import loader
from loader import Fallback, Run
from loader.checkpoint import Checkpoint
from loader.copiers import cufile, gds, host
from loader.copiers.cufile import CuFileMissing, CuFileRefused
from loader.copiers.destinations import allocate, match
from loader.copiers.job import Job, Readers
from loader.plan import PAGE_BYTES, plan_reads
from loader.sources.files import ShardReader


class HostLibrary:
    """Does what cuFile does, into the host's memory.

    Args:
        refused: numbers of files, in the order in which they are registered, that it doesn't take.
        most: bytes that one read delivers at the most.
        wrong: whether reads deliver other bytes.
        fails_at: file offset from which on reads fail.
        ends_at: file offset at which files seem to end.
    """

    def __init__(
        self,
        refused: tuple[int, ...] = (),
        most: int = 2**30,
        *,
        wrong: bool = False,
        fails_at: int = 2**62,
        ends_at: int = 2**62,
    ) -> None:
        self._refused = refused
        self._most = most
        self._wrong = wrong
        self._fails_at = fails_at
        self._ends_at = ends_at
        self.registered: set[int] = set()
        self._asked = 0
        self.nbytes = 0

    def register(self, descriptor: int) -> int:
        self._asked += 1
        if self._asked - 1 in self._refused:
            raise CuFileRefused("cuFileHandleRegister: 5027, driver 0")
        self.registered.add(descriptor)
        return descriptor

    def deregister(self, handle: int) -> None:
        self.registered.remove(handle)

    def read(self, handle: int, address: int, nbytes: int, offset: int) -> int:
        assert handle in self.registered
        if offset >= self._fails_at:
            raise CuFileRefused("cuFileRead: -5, errno 5")
        nbytes = max(0, min(nbytes, self._most if offset else nbytes, self._ends_at - offset))
        begin = offset // PAGE_BYTES * PAGE_BYTES
        first = offset - begin
        span = -(-(first + nbytes) // PAGE_BYTES) * PAGE_BYTES
        pages = mmap.mmap(-1, span + PAGE_BYTES)  # whole pages, for the file is open with O_DIRECT
        count = os.preadv(handle, [memoryview(pages)[:span]], begin) if span else 0
        data = pages[first : max(first, min(first + nbytes, count))]
        if self._wrong:
            data = bytes(len(data))
        ctypes.memmove(address, data, len(data))
        self.nbytes += len(data)
        return len(data)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    for number in (1, 2):
        tensors = {f"w{number}.{n}": torch.randn(50, 60) for n in range(3)}
        safetensors.torch.save_file(
            {**tensors, f"b{number}": torch.randn(7)}, tmp_path / f"model-{number:05d}-of-00002.safetensors"
        )
    return loader.open_checkpoint(tmp_path)


def load(
    library: HostLibrary, checkpoint: Checkpoint, into: dict[str, torch.Tensor] | None = None
) -> tuple[dict[str, torch.Tensor], set[Fallback], int]:
    tensors = into if into is not None else allocate(checkpoint, torch.device("cpu"))
    with ShardReader(checkpoint) as reader:
        job = Job(
            reader=reader,
            chunks=plan_reads(checkpoint.tensors.values(), chunk_bytes=8192),
            destinations=match(checkpoint, tensors, convert=True),
            readers=Readers(threads=2, read_bytes=8192),
            report=lambda _: None,
            control=loader.Control(),
        )
        rest = 0

        def otherwise(left: Job) -> int:
            nonlocal rest
            rest = sum(chunk.nbytes for chunk in left.chunks)
            return host.copy(left)

        try:
            gds.copy_with(library, job, otherwise=otherwise)
        finally:
            assert library.registered == set(), "a handle was left"
    return tensors, job.fallbacks, rest


def expected_of(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return dict(loader.load(checkpoint).tensors)


@pytest.mark.parametrize("most", [2**30, 1000])
def test_every_byte_is_read_past_the_host(checkpoint: Checkpoint, most: int) -> None:
    library = HostLibrary(most=most)
    tensors, fallbacks, rest = load(library, checkpoint)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in expected_of(checkpoint).items())
    assert (fallbacks, rest) == (set(), 0)
    assert library.nbytes >= checkpoint.total_bytes


def test_a_file_that_does_not_take_part_goes_the_other_way(checkpoint: Checkpoint) -> None:
    tensors, fallbacks, rest = load(HostLibrary(refused=(1,)), checkpoint)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in expected_of(checkpoint).items())
    assert fallbacks == {Fallback.GDS_REFUSED}
    assert rest == checkpoint.total_bytes // 2


def test_a_library_that_reads_something_else_is_not_used(checkpoint: Checkpoint) -> None:
    tensors, fallbacks, rest = load(HostLibrary(wrong=True), checkpoint)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in expected_of(checkpoint).items())
    assert fallbacks == {Fallback.GDS_REFUSED}
    assert rest == checkpoint.total_bytes


def test_columns_are_read_without_what_lies_between(checkpoint: Checkpoint) -> None:
    part = loader.rank_part(checkpoint.tensors["w1.0"], dim=1, rank=1, ranks=2)
    wanted = loader.take_parts(checkpoint, {"w1.0": part}).only(["w1.0"])
    tensors, _, _ = load(HostLibrary(), wanted)
    assert torch.equal(tensors["w1.0"], expected_of(checkpoint)["w1.0"][:, 30:])


def test_conversion(checkpoint: Checkpoint) -> None:
    expected = expected_of(checkpoint)
    into = {name: torch.empty(tensor.shape, dtype=torch.float64) for name, tensor in expected.items()}
    load(HostLibrary(), checkpoint, into)
    assert all(torch.equal(into[name], tensor.double()) for name, tensor in expected.items())


def test_a_read_that_fails_in_mid_load_is_a_typed_error(checkpoint: Checkpoint) -> None:
    with pytest.raises(loader.ReadFailed, match="errno 5"):
        load(HostLibrary(fails_at=9000), checkpoint)


def test_a_file_that_ends_too_early_is_a_typed_error(checkpoint: Checkpoint) -> None:
    with pytest.raises(loader.ShortRead, match="too early"):
        load(HostLibrary(ends_at=9000), checkpoint)


@pytest.mark.skipif(Path("/dev/nvidia-fs0").exists(), reason="this machine has the driver")
def test_a_machine_without_the_driver_is_told() -> None:
    with pytest.raises(CuFileMissing, match="no nvidia-fs driver") as caught:
        cufile.open_cufile()
    assert not caught.value.has_driver


def test_it_is_off_unless_asked_for(checkpoint: Checkpoint) -> None:
    assert not Run().gds
    assert loader.load(checkpoint, run=Run(gds=True)).fallbacks == frozenset()  # of no use on the CPU


def test_standard_descriptors_are_kept_open() -> None:
    child = os.fork()
    if child == 0:
        os.close(1)
        cufile._keep_standard_descriptors()
        os.fstat(1)
        os._exit(0 if os.open(os.devnull, os.O_RDONLY) > 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

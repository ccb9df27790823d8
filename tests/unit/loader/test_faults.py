"""What goes wrong in mid-load ends as one typed error, gives everything back, and the next load works."""

import errno
import gc
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import safetensors.torch
import torch

import loader
from loader import (
    Checkpoint,
    FileChanged,
    LoaderError,
    LoadError,
    OutOfMemory,
    Progress,
    ReadFailed,
    Run,
    ShortRead,
)
from loader.checkpoint import FileIdentity, Shard, TensorEntry
from loader.copiers.destinations import allocate
from loader.header import Dtype, Header, TensorSpec
from loader.sources.files import FILES, ShardReader

Fault = Callable[[], object]


def fail_with(error: BaseException) -> Fault:
    def fail() -> None:
        raise error

    return fail


def fail_afresh() -> None:
    raise ReadFailed("x", file="f")


class Faulty(ShardReader):
    """Files of which the third read fails."""

    def __init__(self, checkpoint: Checkpoint, fault: Fault) -> None:
        super().__init__(checkpoint)
        self._fault = fault
        self._reads = 0

    def read(self, file: str, begin: int, buffers: Sequence[memoryview]) -> None:
        self._reads += 1
        if self._reads == 3:
            self._fault()
        super().read(file, begin, buffers)


class FaultySource:
    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def open(self, checkpoint: Checkpoint) -> Faulty:
        return Faulty(checkpoint, self._fault)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Five chunks."""
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file({f"w{n}": torch.arange(2**19) + n for n in range(4)}, path)
    return path


@contextmanager
def nothing_left() -> Iterator[None]:
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        pytest.param(
            fail_with(ReadFailed("cannot be read: Input/output error", file="f")), ReadFailed, id="EIO"
        ),
        pytest.param(fail_with(ShortRead("ended 5 bytes too early", file="f")), ShortRead, id="short read"),
        pytest.param(fail_with(MemoryError()), OutOfMemory, id="no memory"),
        pytest.param(
            fail_with(torch.OutOfMemoryError("CUDA out of memory.")), OutOfMemory, id="no device memory"
        ),
        pytest.param(
            fail_with(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried …")),
            OutOfMemory,
            id="torch's own words for it",
        ),
    ],
)
def test_a_fault_in_mid_load(weights: Path, fault: Fault, error: type[LoaderError]) -> None:
    checkpoint = loader.open_checkpoint(weights)
    with nothing_left(), pytest.raises(error) as caught:
        loader.load(checkpoint, run=Run(source=FaultySource(fault)))
    assert isinstance(caught.value, LoadError)
    assert torch.equal(loader.load(checkpoint).tensors["w3"], torch.arange(2**19) + 3)


def test_what_is_no_fault_of_the_load_stays_what_it_is(weights: Path) -> None:
    with pytest.raises(RuntimeError, match="else"):
        loader.load(
            loader.open_checkpoint(weights), run=Run(source=FaultySource(fail_with(RuntimeError("else"))))
        )


def test_the_first_error_is_the_one_that_is_raised(weights: Path) -> None:
    faults = iter([ReadFailed("first", file="f")])

    def fail() -> None:
        raise next(faults)

    with pytest.raises(ReadFailed, match="first"):
        loader.load(loader.open_checkpoint(weights), run=Run(source=FaultySource(fail), threads=4))


def test_memory_is_given_back_without_waiting_for_the_garbage_collector(weights: Path) -> None:
    into = {f"w{n}": torch.empty(2**19, dtype=torch.int64) for n in range(4)}
    kept = [weakref.ref(tensor) for tensor in into.values()]
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(ReadFailed):
            loader.load(
                loader.open_checkpoint(weights),
                into=into,
                run=Run(source=FaultySource(fail_afresh)),
            )
        del into
        assert [reference() for reference in kept] == [None] * 4
    finally:
        gc.enable()


def test_a_real_error_of_a_device(weights: Path) -> None:
    """A descriptor that is closed under the load's feet: what the system says comes through as a typed error."""
    checkpoint = loader.open_checkpoint(weights)

    class Closed(ShardReader):
        def read(self, file: str, begin: int, buffers: Sequence[memoryview]) -> None:  # noqa: ARG002
            null = os.open("/proc/self/mem", os.O_RDONLY)
            try:
                os.dup2(null, self.descriptor(file))
            finally:
                os.close(null)
            super().read(file, 4096, buffers)

    class Source:
        def open(self, checkpoint: Checkpoint) -> Closed:
            return Closed(checkpoint)

    with pytest.raises(ReadFailed) as caught:
        loader.load(checkpoint, run=Run(source=Source()))
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EIO
    assert caught.value.offset == 4096


def test_a_file_cut_in_mid_load_and_restored(weights: Path) -> None:
    raw = weights.read_bytes()
    checkpoint = loader.open_checkpoint(weights)

    def cut(_: Progress) -> None:
        os.truncate(weights, 5000)

    with nothing_left(), pytest.raises(FileChanged):
        loader.load(checkpoint, run=Run(progress=cut, threads=1))
    weights.write_bytes(raw)
    assert loader.load(loader.open_checkpoint(weights)).nbytes == 4 * 2**22


def test_a_tensor_larger_than_all_memory(tmp_path: Path) -> None:
    nbytes = 2**46
    spec = TensorSpec(name="x", dtype=Dtype.U8, shape=(nbytes,), begin=0, end=nbytes)
    shard = Shard(
        file="f",
        header=Header(tensors=(spec,), metadata={}, payload_begin=100),
        identity=FileIdentity(size_bytes=nbytes + 100, mtime_ns=1, device=1, inode=1),
        header_digest="0" * 32,
    )
    entry = TensorEntry(name="x", dtype=Dtype.U8, shape=(nbytes,), file="f", begin=100, end=100 + nbytes)
    checkpoint = Checkpoint(
        root=str(tmp_path),
        path=str(tmp_path),
        shards={"f": shard},
        tensors={"x": entry},
        config={},
        metadata={},
        declared_bytes=None,
    )
    with pytest.raises(OutOfMemory, match="no memory"):
        allocate(checkpoint, torch.device("cpu"))


def test_a_load_that_cannot_fit_is_refused_before_it_reads(tmp_path: Path) -> None:
    nbytes = 2**43
    header = b'{"x":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (nbytes, nbytes)
    path = tmp_path / "huge.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + nbytes)
    checkpoint = loader.open_checkpoint(path)
    with pytest.raises(loader.LoadRefused) as caught:
        loader.load(checkpoint)
    assert caught.value.reasons == (loader.Reason.HOST_MEMORY,)


def test_into_parameters_takes_no_memory_of_its_own(weights: Path) -> None:
    checkpoint = loader.open_checkpoint(weights)
    into = {f"w{n}": torch.empty(2**19, dtype=torch.int64) for n in range(4)}
    assert loader.footprint(checkpoint, into=into) == loader.Needs()
    assert loader.footprint(checkpoint).host == checkpoint.total_bytes


def test_every_open_file_is_the_readers_own(weights: Path) -> None:
    with nothing_left(), FILES.open(loader.open_checkpoint(weights)) as reader:
        reader.verify()

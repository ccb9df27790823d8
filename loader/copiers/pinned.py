"""Into CUDA tensors: threads of `preadv` into page-locked slots, each with a stream that copies on from there.

The slots are registered with the driver once per process, because registering costs several times more than copying.
Device memory is never staged but for tensors that are converted, one chunk per thread.
"""

import mmap
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import cast

import torch

from loader.copiers import crew, numa
from loader.copiers.crew import CopyChunk
from loader.copiers.destinations import aligned, converted, converted_bytes, memory_of
from loader.copiers.job import Job
from loader.errors import DeviceUnavailable, LoadError, OutOfMemory
from loader.plan import MAX_GAP_BYTES, PAGE_BYTES, Chunk, Piece
from loader.sources.port import Fallback

CHUNK_BYTES = 16 * 2**20
"""The size of a slot. Measured on one H200 with PCIe Gen5: 16 threads with slots of 16 MiB copy 40 GB/s from tmpfs."""
SLOT_BYTES = CHUNK_BYTES + 2 * PAGE_BYTES
"""A read past the page cache begins and ends on pages, which may be some bytes more at either side."""
DEFAULT_THREADS = 16
SLOTS_PER_THREAD = 2
"""One is read into while the other is copied from."""
_HOST_REGISTER_PORTABLE = (
    1  # cudaHostRegisterPortable: page-locked for every device's context, not the current one's
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One page-locked buffer of SLOT_BYTES, on a page boundary.

    Attributes:
        data: as a tensor of bytes on the CPU.
        memory: the same bytes, writable.
    """

    data: torch.Tensor
    memory: memoryview


class PinnedPool:
    """Page-locked slots of this process, by NUMA node; they grow to the most that loads used at once and stay."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._free: dict[int | None, list[Slot]] = {}
        self._elsewhere: set[int] = set()

    @contextmanager
    def lend(self, count: int, node: int | None) -> Iterator[Sequence[Slot]]:
        """Slots for one load; nothing may be copying from them when they are given back.

        Args:
            count: how many.
            node: the NUMA node that they should be on; None for any.

        Raises:
            LoadError: the driver refuses to register more memory.
        """
        with self._lock:
            free = self._free.setdefault(node, [])
            missing = count - len(free)
            if missing > 0:
                free.extend(self._register(missing, node))
            slots = [free.pop() for _ in range(count)]
        try:
            yield slots
        finally:
            with self._lock:
                free.extend(slots)

    def is_elsewhere(self, node: int | None) -> bool:
        """Whether the kernel refused to put slots on this node."""
        with self._lock:
            return node in self._elsewhere

    def _register(self, count: int, node: int | None) -> list[Slot]:
        """Map and page-lock memory for this many slots, in one piece."""
        nbytes = count * SLOT_BYTES
        # Not torch's pinned allocator: it rounds to powers of two, and can lock almost twice what is asked for.
        try:
            mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, MemoryError) as error:
            raise OutOfMemory(f"{nbytes} bytes of host memory can't be mapped: {error}") from error
        block = torch.frombuffer(mapping, dtype=torch.uint8)
        if node is not None and not numa.prefer_node(block.data_ptr(), nbytes, node):
            self._elsewhere.add(node)
        _lock_pages(block)
        slices = (block[start : start + SLOT_BYTES] for start in range(0, nbytes, SLOT_BYTES))
        return [Slot(data=data, memory=memory_of(data)) for data in slices]

    def missing_bytes(self, count: int, node: int | None) -> int:
        """How much would have to be registered to lend this many slots."""
        with self._lock:
            return max(0, count - len(self._free.get(node, ()))) * SLOT_BYTES


POOL = PinnedPool()


def prepare(device: torch.device) -> torch.device:
    """The device with its index, once it is known to work.

    Raises:
        DeviceUnavailable: there is no such CUDA device here.
    """
    if not torch.cuda.is_available():
        raise DeviceUnavailable(
            "CUDA is not available in this process",
            hint="check `nvidia-smi` and that torch is a CUDA build, or load with device='cpu'",
        )
    index = cast("int | None", device.index)
    if index is None:
        index = torch.cuda.current_device()
    if index >= torch.cuda.device_count():
        raise DeviceUnavailable(
            f"there is no CUDA device {index}; this process sees {torch.cuda.device_count()}",
            hint="check CUDA_VISIBLE_DEVICES",
        )
    return torch.device("cuda", index)


def needs(chunks: Sequence[Chunk], device: torch.device, threads: int) -> int:
    """Bytes that a copy would page-lock beyond what this process holds already."""
    return POOL.missing_bytes(SLOTS_PER_THREAD * min(threads, len(chunks)), numa.node_of(device))


def copy(job: Job) -> int:
    """Fill the destinations; the bytes of buffers that this took besides them, on host and device together.

    All copies are complete when this returns; no stream of the caller's needs to wait.

    Raises:
        LoadError: reading or registering memory failed; some destinations are filled, some partly.
    """
    workers = min(job.threads, len(job.chunks))
    if workers == 0:
        return 0
    device = next(iter(job.destinations.values())).flat.device
    node = numa.node_of(device)
    with torch.cuda.device(device), POOL.lend(SLOTS_PER_THREAD * workers, node) as slots:
        if POOL.is_elsewhere(node):
            job.fallbacks.add(Fallback.NUMA_UNBOUND)
        pinned = _PinnedCopy(job, slots, device, node)
        crew.run(
            job.chunks, threads=workers, open_worker=pinned.worker, report=job.report, control=job.control
        )
    return workers * (SLOTS_PER_THREAD * SLOT_BYTES + pinned.staging_bytes)


class _PinnedCopy:
    def __init__(self, job: Job, slots: Sequence[Slot], device: torch.device, node: int | None) -> None:
        self._job = job
        self._destinations = job.destinations
        self._slots = deque(slots)
        self._device = device
        self._node = node
        self._bytes = {
            name: destination.flat.view(torch.uint8)
            for name, destination in job.destinations.items()
            if not destination.converts
        }
        names = converted(job.destinations)
        self.staging_bytes = max(converted_bytes(chunk, names) for chunk in job.chunks)
        # The allocator may hand out memory that work queued on the caller's stream still uses: copies wait for it.
        self._ready = _event()
        self._ready.record(torch.cuda.current_stream(device))

    @contextmanager
    def worker(self) -> Iterator[CopyChunk]:
        if self._node is not None:
            numa.stay_on(self._node)
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_event(self._ready)
        turns = deque((self._slots.popleft(), _event()) for _ in range(SLOTS_PER_THREAD))
        with torch.cuda.stream(stream):
            staging = torch.empty(self.staging_bytes, dtype=torch.uint8, device=self._device)

            def copy_chunk(chunk: Chunk) -> None:
                slot, copied = turns[0]
                turns.rotate(-1)
                copied.synchronize()
                begin = self._read(chunk, slot)
                self._enqueue(chunk, slot.data[begin:], staging)
                copied.record(stream)

            try:
                yield copy_chunk
            finally:
                # Also after an error: slots and destinations must not be touched once they are given back.
                stream.synchronize()

    def _read(self, chunk: Chunk, slot: Slot) -> int:
        """Read a chunk's wanted bytes, one behind the other; where in the slot they begin."""
        reader = self._job.reader
        if not any(piece.gap for piece in chunk.pieces):
            if self._job.past_cache:
                return reader.read_past_cache(chunk.file, chunk.begin, chunk.nbytes, slot.memory)
            reader.read(chunk.file, chunk.begin, [slot.memory[: chunk.nbytes]])
            return 0
        dropped = memoryview(bytearray(MAX_GAP_BYTES))
        reader.read(chunk.file, chunk.begin, chunk.packed(slot.memory, dropped))
        return 0

    def _enqueue(self, chunk: Chunk, data: torch.Tensor, staging: torch.Tensor) -> None:
        """Queue a chunk's copies on the current stream."""
        position = used = 0
        for piece in _joined(chunk.pieces):
            source = data[position : position + piece.nbytes]
            position += piece.nbytes
            direct = self._bytes.get(piece.tensor)
            if direct is not None:
                direct[piece.offset : piece.offset + piece.nbytes].copy_(source, non_blocking=True)
                continue
            staged = staging[used : used + piece.nbytes]
            used += aligned(piece.nbytes)
            staged.copy_(source, non_blocking=True)
            self._destinations[piece.tensor].convert(staged, piece.offset)


def _joined(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Runs of one tensor that follow each other, as one piece: they lie together in the slot and in the tensor."""
    last: Piece | None = None
    for piece in pieces:
        if last is not None and (last.tensor, last.offset + last.nbytes) == (piece.tensor, piece.offset):
            last = Piece(tensor=last.tensor, offset=last.offset, nbytes=last.nbytes + piece.nbytes)
            continue
        if last is not None:
            yield last
        last = piece
    if last is not None:
        yield last


def _event() -> torch.cuda.Event:
    """An event that is waited for without spinning: other threads need the cores."""
    return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]


def _lock_pages(block: torch.Tensor) -> None:
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    status = int(cudart.cudaHostRegister(block.data_ptr(), block.numel(), _HOST_REGISTER_PORTABLE))
    if status:
        raise LoadError(
            f"the CUDA driver refuses to page-lock {block.numel()} bytes (cudaError {status})",
            hint="check the memory limit of the container and `ulimit -l`, or load with fewer threads",
        )

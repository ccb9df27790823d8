"""Into CUDA tensors: threads of `preadv` into page-locked slots, each with a stream that copies on from there.

The slots are registered with the driver once per process, because registering costs several times more than copying.
Device memory is never staged but for tensors that are converted, one chunk per thread.
"""

import mmap
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import cast

import torch

from loader.copiers import crew
from loader.copiers.crew import CopyChunk
from loader.copiers.destinations import Destination, memory_of
from loader.errors import DeviceUnavailable, LoadError
from loader.plan import Chunk
from loader.sources.files import ShardReader

CHUNK_BYTES = 16 * 2**20
"""The size of a slot. Measured on one H200 with PCIe Gen5: 16 threads with slots of 16 MiB copy 40 GB/s from tmpfs."""
DEFAULT_THREADS = 16
SLOTS_PER_THREAD = 2
"""One is read into while the other is copied from."""
_HOST_REGISTER_PORTABLE = (
    1  # cudaHostRegisterPortable: page-locked for every device's context, not the current one's
)
_ALIGNMENT = 16  # bytes; a multiple of every element's size


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One page-locked buffer of CHUNK_BYTES.

    Attributes:
        data: as a tensor of bytes on the CPU.
        memory: the same bytes, writable.
    """

    data: torch.Tensor
    memory: memoryview


class PinnedPool:
    """Page-locked slots of this process; they grow to the most that loads used at once and stay."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._free: list[Slot] = []

    @contextmanager
    def lend(self, count: int) -> Iterator[Sequence[Slot]]:
        """Slots for one load; nothing may be copying from them when they are given back.

        Raises:
            LoadError: the driver refuses to register more memory.
        """
        with self._lock:
            missing = count - len(self._free)
            if missing > 0:
                self._free.extend(_register(missing))
            slots = [self._free.pop() for _ in range(count)]
        try:
            yield slots
        finally:
            with self._lock:
                self._free.extend(slots)


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


def copy(
    reader: ShardReader,
    chunks: Sequence[Chunk],
    destinations: Mapping[str, Destination],
    *,
    threads: int,
    report: Callable[[Chunk], None],
) -> int:
    """Fill the destinations; the bytes of buffers that this took besides them, on host and device together.

    All copies are complete when this returns; no stream of the caller's needs to wait.

    Raises:
        LoadError: reading or registering memory failed; some destinations are filled, some partly.
    """
    workers = min(threads, len(chunks))
    if workers == 0:
        return 0
    device = next(iter(destinations.values())).flat.device
    with torch.cuda.device(device), POOL.lend(SLOTS_PER_THREAD * workers) as slots:
        pinned = _PinnedCopy(reader, destinations, slots, device)
        staging_bytes = max(pinned.staging_bytes(chunk) for chunk in chunks)
        crew.run(chunks, threads=workers, open_worker=lambda: pinned.worker(staging_bytes), report=report)
    return workers * (SLOTS_PER_THREAD * CHUNK_BYTES + staging_bytes)


class _PinnedCopy:
    def __init__(
        self,
        reader: ShardReader,
        destinations: Mapping[str, Destination],
        slots: Sequence[Slot],
        device: torch.device,
    ) -> None:
        self._reader = reader
        self._destinations = destinations
        self._slots = deque(slots)
        self._device = device
        self._bytes = {
            name: destination.flat.view(torch.uint8)
            for name, destination in destinations.items()
            if not destination.converts
        }
        # The allocator may hand out memory that work queued on the caller's stream still uses: copies wait for it.
        self._ready = _event()
        self._ready.record(torch.cuda.current_stream(device))

    def staging_bytes(self, chunk: Chunk) -> int:
        """Device memory that a chunk's converted pieces need."""
        return sum(_aligned(piece.nbytes) for piece in chunk.pieces if piece.tensor not in self._bytes)

    @contextmanager
    def worker(self, staging_bytes: int) -> Iterator[CopyChunk]:
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_event(self._ready)
        turns = deque((self._slots.popleft(), _event()) for _ in range(SLOTS_PER_THREAD))
        with torch.cuda.stream(stream):
            staging = torch.empty(staging_bytes, dtype=torch.uint8, device=self._device)

            def copy_chunk(chunk: Chunk) -> None:
                slot, copied = turns[0]
                turns.rotate(-1)
                copied.synchronize()
                self._reader.read(chunk.file, chunk.begin, [slot.memory[: chunk.nbytes]])
                self._enqueue(chunk, slot, staging)
                copied.record(stream)

            try:
                yield copy_chunk
            finally:
                # Also after an error: slots and destinations must not be touched once they are given back.
                stream.synchronize()

    def _enqueue(self, chunk: Chunk, slot: Slot, staging: torch.Tensor) -> None:
        """Queue a chunk's copies on the current stream."""
        position = used = 0
        for piece in chunk.pieces:
            source = slot.data[position : position + piece.nbytes]
            position += piece.nbytes
            direct = self._bytes.get(piece.tensor)
            if direct is not None:
                direct[piece.offset : piece.offset + piece.nbytes].copy_(source, non_blocking=True)
                continue
            staged = staging[used : used + piece.nbytes]
            used += _aligned(piece.nbytes)
            staged.copy_(source, non_blocking=True)
            destination = self._destinations[piece.tensor]
            values = staged.view(destination.source_dtype)
            first = piece.offset // destination.source_dtype.itemsize
            destination.flat[first : first + values.numel()].copy_(values)


def _event() -> torch.cuda.Event:
    """An event that is waited for without spinning: other threads need the cores."""
    return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]


def _register(count: int) -> list[Slot]:
    """Map and page-lock memory for this many slots, in one piece."""
    nbytes = count * CHUNK_BYTES
    # Not torch's pinned allocator: it rounds to powers of two, and can lock almost twice what is asked for.
    mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block = torch.frombuffer(mapping, dtype=torch.uint8)
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    status = int(cudart.cudaHostRegister(block.data_ptr(), nbytes, _HOST_REGISTER_PORTABLE))
    if status:
        raise LoadError(
            f"the CUDA driver refuses to page-lock {nbytes} bytes (cudaError {status})",
            hint="check the memory limit of the container and `ulimit -l`, or load with fewer threads",
        )
    slices = (block[start : start + CHUNK_BYTES] for start in range(0, nbytes, CHUNK_BYTES))
    return [Slot(data=data, memory=memory_of(data)) for data in slices]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT

"""Into CPU tensors: `preadv` straight into the memory of the destination, on several threads.

No byte is kept twice. Only tensors that are converted pass through a buffer, one per thread and no larger than a chunk.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from loader.copiers import crew
from loader.copiers.crew import CopyChunk
from loader.copiers.destinations import Destination, memory_of
from loader.plan import Chunk, Piece
from loader.sources.files import ShardReader

CHUNK_BYTES = 4 * 2**20
"""Large enough that a system call's fixed cost vanishes, small enough that a core's last chunk doesn't keep others
waiting."""
MIN_THREADS = 4
"""More than a small machine has cores, so that a disk has several requests in flight."""
MAX_THREADS = 16
_ALIGNMENT = 16
"""Bytes; a multiple of every element's size."""


def default_threads() -> int:
    """One per core that this process may use, within bounds."""
    return max(MIN_THREADS, min(MAX_THREADS, len(os.sched_getaffinity(0))))


def copy(
    reader: ShardReader,
    chunks: Sequence[Chunk],
    destinations: Mapping[str, Destination],
    *,
    threads: int,
    report: Callable[[Chunk], None],
) -> int:
    """Fill the destinations; the bytes of buffers that this took besides them.

    Raises:
        LoadError: reading failed; some destinations are filled, some partly.
    """
    host = _HostCopy(reader, destinations)
    buffer_bytes = max((host.staging_bytes(chunk) for chunk in chunks), default=0)
    crew.run(chunks, threads=threads, open_worker=lambda: host.worker(buffer_bytes), report=report)
    return buffer_bytes * min(threads, len(chunks))


class _HostCopy:
    def __init__(self, reader: ShardReader, destinations: Mapping[str, Destination]) -> None:
        self._reader = reader
        self._destinations = destinations
        self._memory = {
            name: memory_of(destination.flat)
            for name, destination in destinations.items()
            if not destination.converts
        }

    def staging_bytes(self, chunk: Chunk) -> int:
        """Buffer space that a chunk's converted pieces need."""
        return sum(_aligned(piece.nbytes) for piece in chunk.pieces if piece.tensor not in self._memory)

    @contextmanager
    def worker(self, buffer_bytes: int) -> Iterator[CopyChunk]:
        staging = torch.empty(buffer_bytes, dtype=torch.uint8)
        staging_memory = memory_of(staging)

        def copy_chunk(chunk: Chunk) -> None:
            buffers: list[memoryview] = []
            staged: list[tuple[Piece, int]] = []
            used = 0
            for piece in chunk.pieces:
                memory = self._memory.get(piece.tensor)
                if memory is not None:
                    buffers.append(memory[piece.offset : piece.offset + piece.nbytes])
                else:
                    buffers.append(staging_memory[used : used + piece.nbytes])
                    staged.append((piece, used))
                    used += _aligned(piece.nbytes)
            self._reader.read(chunk.file, chunk.begin, buffers)
            for piece, start in staged:
                _convert(self._destinations[piece.tensor], piece, staging[start : start + piece.nbytes])

        yield copy_chunk


def _convert(destination: Destination, piece: Piece, staged: torch.Tensor) -> None:
    values = staged.view(destination.source_dtype)
    first = piece.offset // destination.source_dtype.itemsize
    destination.flat[first : first + values.numel()].copy_(values)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT

"""Into CPU tensors: `preadv` straight into the memory of the destination, on several threads.

No byte is kept twice. Only tensors that are converted pass through a buffer, one per thread and no larger than a chunk.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import torch

from loader.copiers.crew import CopyChunk
from loader.copiers.destinations import aligned, converted, converted_bytes, memory_of
from loader.copiers.job import Job
from loader.plan import Chunk, Piece

CHUNK_BYTES = 4 * 2**20
"""Large enough that a system call's fixed cost vanishes, small enough that a core's last chunk doesn't keep others
waiting."""
MIN_THREADS = 4
"""More than a small machine has cores, so that a disk has several requests in flight."""
MAX_THREADS = 16


def default_threads() -> int:
    """One per core that this process may use, within bounds."""
    return max(MIN_THREADS, min(MAX_THREADS, len(os.sched_getaffinity(0))))


def needs(chunks: Sequence[Chunk], names: Collection[str], threads: int) -> int:
    """Bytes of buffers that a copy takes besides the destinations: for what is converted, and for gaps.

    Args:
        chunks: what is read.
        names: of tensors that are converted.
        threads: how many read at once.
    """
    return _worker_bytes(chunks, names) * min(threads, len(chunks))


def copy(job: Job) -> int:
    """Fill the destinations; the bytes of buffers that this took besides them.

    Raises:
        LoadError: reading failed; some destinations are filled, some partly.
    """
    worker_bytes = _worker_bytes(job.chunks, converted(job.destinations))
    copying = _HostCopy(job, worker_bytes)
    job.share_out(copying.worker)
    return worker_bytes * job.most_workers


def _worker_bytes(chunks: Sequence[Chunk], names: Collection[str]) -> int:
    return max((converted_bytes(chunk, names) + _longest_gap(chunk) for chunk in chunks), default=0)


def _longest_gap(chunk: Chunk) -> int:
    return max(piece.gap for piece in chunk.pieces) if chunk.gap_bytes else 0


class _HostCopy:
    def __init__(self, job: Job, buffer_bytes: int) -> None:
        self._reader = job.reader
        self._destinations = job.destinations
        self._buffer_bytes = buffer_bytes

    @contextmanager
    def worker(self) -> Iterator[CopyChunk]:
        staging = torch.empty(self._buffer_bytes, dtype=torch.uint8)

        def copy_chunk(chunk: Chunk) -> None:
            buffers, staged = self._buffers(chunk, memory_of(staging))
            self._reader.read(chunk.file, chunk.begin, buffers)
            for piece, start in staged:
                self._destinations[piece.tensor].convert(staging[start : start + piece.nbytes], piece.offset)

        yield copy_chunk

    def _buffers(self, chunk: Chunk, staging: memoryview) -> tuple[list[memoryview], list[tuple[Piece, int]]]:
        """Where a chunk's bytes go, and which of them are converted from where in the staging buffer."""
        buffers: list[memoryview] = []
        staged: list[tuple[Piece, int]] = []
        used = 0
        # All gaps land in the same bytes behind what is staged; nobody looks at them.
        dropped = len(staging) - _longest_gap(chunk)
        for piece in chunk.pieces:
            if piece.gap:
                buffers.append(staging[dropped : dropped + piece.gap])
            destination = self._destinations[piece.tensor]
            if not destination.converts:
                memory = memory_of(destination.tensor)
                buffers.append(memory[piece.offset : piece.offset + piece.nbytes])
            else:
                buffers.append(staging[used : used + piece.nbytes])
                staged.append((piece, used))
                used += aligned(piece.nbytes)
        return buffers, staged

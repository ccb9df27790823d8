"""From tensors that a device holds into others, on the same device or another one: no byte passes through the host.

The copies are queued in pieces, so that a load can be slowed, paused and called off between them, and progress shows.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch

from loader.checkpoint import TensorEntry
from loader.copiers import crew
from loader.copiers.crew import CopyChunk
from loader.copiers.job import Job
from loader.plan import Chunk, Piece

PIECE_BYTES = 64 * 2**20
"""A fifth of a millisecond on NVLink: long against what queueing it takes, short against a pause."""


def plan(entries: Sequence[TensorEntry]) -> tuple[Chunk, ...]:
    """What is copied, piece by piece; runs of a part stay whole.

    Args:
        entries: the tensors, all of them resident.
    """
    return tuple(chunk for entry in entries for chunk in _pieces(entry))


def _pieces(entry: TensorEntry) -> Iterator[Chunk]:
    step = PIECE_BYTES
    if entry.runs is not None:
        step = max(1, PIECE_BYTES // entry.runs.nbytes) * entry.runs.nbytes
    for offset in range(0, entry.nbytes, step):
        nbytes = min(step, entry.nbytes - offset)
        piece = Piece(tensor=entry.name, offset=offset, nbytes=nbytes)
        yield Chunk(file=entry.file, begin=entry.begin + offset, nbytes=nbytes, pieces=(piece,))


def copy(job: Job, resident: Mapping[str, torch.Tensor]) -> None:
    """Fill the destinations of the job's chunks, which `plan` made; all copies are complete when this returns.

    Args:
        job: its reader is not used.
        resident: by tensor, its bytes in one dimension, or a row per run.

    Raises:
        LoadCancelled: it was called off.
    """
    copying = _ResidentCopy(job, resident)
    # One thread: it only queues.
    crew.run(job.chunks, threads=1, open_worker=copying.worker, report=job.report, control=job.control)


class _ResidentCopy:
    def __init__(self, job: Job, resident: Mapping[str, torch.Tensor]) -> None:
        self._destinations = job.destinations
        self._resident = resident
        tensors = [destination.tensor for destination in job.destinations.values()] + list(resident.values())
        devices = dict.fromkeys(tensor.device for tensor in tensors if tensor.is_cuda)
        # What is queued on the caller's streams may still use the memory on either side: copies wait for it.
        self._ready = {device: torch.cuda.current_stream(device).record_event() for device in devices}

    @contextmanager
    def worker(self) -> Iterator[CopyChunk]:
        streams = []
        with ExitStack() as streaming:
            for device, ready in self._ready.items():
                stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                stream.wait_event(ready)
                streaming.enter_context(torch.cuda.stream(stream))
                streams.append(stream)
            try:
                yield self._copy
            finally:
                # Also after an error: neither side's memory may be used once this returns.
                for stream in streams:
                    stream.synchronize()

    def _copy(self, chunk: Chunk) -> None:
        for piece in chunk.pieces:
            source = _part(self._resident[piece.tensor], piece)
            destination = self._destinations[piece.tensor]
            if destination.converts:
                destination.convert(source.reshape(-1), piece.offset)
                continue
            target = destination.data[piece.offset : piece.offset + piece.nbytes]
            target.view(source.shape).copy_(source, non_blocking=True)


def _part(data: torch.Tensor, piece: Piece) -> torch.Tensor:
    """A piece of a tensor's bytes; of rows, whole ones."""
    width = 1 if data.dim() == 1 else data.shape[1]
    return data[piece.offset // width : (piece.offset + piece.nbytes) // width]

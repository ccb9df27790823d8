"""Which bytes to read, in what pieces: every byte of every tensor once, in file order, in reads of bounded size.

Neighbouring small tensors share one read; a large tensor is cut into several. A cut lies on a page boundary of the
file where the tensors' alignment allows it, and never inside an element, so that each piece can be converted alone.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from loader.checkpoint import TensorEntry

PAGE_BYTES = 4096
MAX_PIECES = 512
"""Pieces of one read; the kernel takes at most 1024 (IOV_MAX)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A run of one tensor's bytes inside a chunk.

    Attributes:
        tensor: name of the tensor.
        offset: where the run starts in the tensor, in bytes.
        nbytes: how long it is.
    """

    tensor: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One contiguous read.

    Attributes:
        file: name of the shard.
        begin: first byte, from the start of the file.
        nbytes: how many bytes; the sum of the pieces'.
        pieces: where the bytes belong, in file order.
    """

    file: str
    begin: int
    nbytes: int
    pieces: tuple[Piece, ...]


def plan_reads(entries: Iterable[TensorEntry], *, chunk_bytes: int) -> tuple[Chunk, ...]:
    """The chunks that together hold every byte of these tensors exactly once.

    Args:
        entries: the wanted tensors, in any order; bytes between them are not read.
        chunk_bytes: upper bound of one read; a multiple of 4096, at least 8192.

    Raises:
        ValueError: chunk_bytes is not such a number.
    """
    if chunk_bytes % PAGE_BYTES or chunk_bytes < 2 * PAGE_BYTES:
        raise ValueError(
            f"chunk_bytes {chunk_bytes} is not a multiple of {PAGE_BYTES} from {2 * PAGE_BYTES} up"
        )
    ordered = sorted(
        (entry for entry in entries if entry.nbytes), key=lambda entry: (entry.file, entry.begin)
    )
    return tuple(
        chunk
        for file, group in groupby(ordered, key=lambda entry: entry.file)
        for chunk in _chunks(file, group, chunk_bytes)
    )


def _chunks(file: str, entries: Iterable[TensorEntry], chunk_bytes: int) -> Iterator[Chunk]:
    begin = limit = position = 0
    pieces: list[Piece] = []
    for entry in entries:
        start = entry.begin
        while start < entry.end:
            stop = _cut(entry, start, limit)
            if start != position or stop <= start or len(pieces) == MAX_PIECES:
                if pieces:
                    yield Chunk(file=file, begin=begin, nbytes=position - begin, pieces=tuple(pieces))
                pieces = []
                begin = start
                limit = (begin + chunk_bytes) // PAGE_BYTES * PAGE_BYTES
                stop = _cut(entry, start, limit)
            pieces.append(Piece(tensor=entry.name, offset=start - entry.begin, nbytes=stop - start))
            start = position = stop
    if pieces:
        yield Chunk(file=file, begin=begin, nbytes=position - begin, pieces=tuple(pieces))


def _cut(entry: TensorEntry, start: int, limit: int) -> int:
    """How far a read from start may go in this tensor: to its end, or to the last whole element before the limit."""
    if entry.end <= limit:
        return entry.end
    return max(start, limit - (limit - entry.begin) % entry.dtype.element_bytes)

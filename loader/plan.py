"""Which bytes to read, in what pieces: every wanted byte once, in file order, in reads of bounded size.

Neighbouring small tensors share one read; a large tensor is cut into several. A cut lies on a page boundary of the
file where the tensors' alignment allows it, and never inside an element, so that each piece can be converted alone.
Parts of tensors are runs with gaps between them: short gaps are read and dropped, long ones skipped. Pure.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from loader.checkpoint import TensorEntry

PAGE_BYTES = 4096
MAX_PIECES = 512
"""Pieces of one read; with a gap before each they are no more buffers than the kernel takes (IOV_MAX, 1024)."""
MAX_GAP_BYTES = 32 * 1024
"""Reading over this much of the page cache takes about as long as another system call; a disk reads ahead that far
anyway."""


class Piece(NamedTuple):
    """A run of one tensor's bytes inside a chunk.

    Attributes:
        tensor: name of the tensor.
        offset: where the run starts in the tensor, in bytes.
        nbytes: how long it is.
        gap: bytes of the file before it, inside the chunk, that nobody wants.
    """

    tensor: str
    offset: int
    nbytes: int
    gap: int = 0


class Chunk(NamedTuple):
    """One contiguous read.

    Attributes:
        file: name of the shard.
        begin: first byte, from the start of the file.
        nbytes: how many bytes are wanted of it; the sum of the pieces'.
        pieces: where the bytes belong, in file order.
    """

    file: str
    begin: int
    nbytes: int
    pieces: tuple[Piece, ...]

    @property
    def end(self) -> int:
        """The byte after the last, from the start of the file."""
        return self.begin + self.nbytes + sum(piece.gap for piece in self.pieces)

    def packed(self, memory: memoryview, dropped: memoryview) -> list[memoryview]:
        """Buffers for a read after which the pieces lie one behind the other.

        Args:
            memory: where they lie then, from its beginning.
            dropped: `MAX_GAP_BYTES` in which all gaps land; nobody looks at them.
        """
        buffers: list[memoryview] = []
        used = 0
        for piece in self.pieces:
            buffers += (dropped[: piece.gap], memory[used : used + piece.nbytes])
            used += piece.nbytes
        return buffers


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


def _cut(entry: TensorEntry, begin: int, limit: int) -> int:
    """How far a read of a run may go that doesn't end before the limit: to the last whole element."""
    return limit - (limit - begin) % entry.dtype.element_bytes


def _chunks(file: str, entries: Iterable[TensorEntry], chunk_bytes: int) -> Iterator[Chunk]:
    begin = limit = position = 0
    pieces: list[Piece] = []
    tensor = ""
    for entry in entries:
        name = entry.name
        # Most checkpoints are thousands of whole tensors, so nothing is made for a run but its pieces.
        for run_begin, run_end, offset in entry.spans():
            start = run_begin
            while start < run_end:
                stop = run_end if run_end <= limit else _cut(entry, run_begin, limit)
                # A gap is read over inside a tensor only: whoever leaves tensors out reads nothing of them.
                gap = start - position
                joins = gap == 0 or (0 < gap <= MAX_GAP_BYTES and tensor == name)
                if not joins or stop <= start or len(pieces) == MAX_PIECES:
                    if pieces:
                        yield _chunk(file, begin, pieces)
                    pieces = []
                    begin, gap = start, 0
                    limit = (begin + chunk_bytes) // PAGE_BYTES * PAGE_BYTES
                    stop = run_end if run_end <= limit else _cut(entry, run_begin, limit)
                tensor = name
                pieces.append(Piece(name, offset + start - run_begin, stop - start, gap))
                start = position = stop
    if pieces:
        yield _chunk(file, begin, pieces)


def _chunk(file: str, begin: int, pieces: list[Piece]) -> Chunk:
    nbytes = sum(piece.nbytes for piece in pieces)
    return Chunk(file=file, begin=begin, nbytes=nbytes, pieces=tuple(pieces))

"""Which bytes to read, in what pieces: every wanted byte once, in file order, in reads of bounded size.

Neighbouring small tensors share one read; a large tensor is cut into several. A cut lies on a page boundary of the
file where the tensors' alignment allows it, and never inside an element, so that each piece can be converted alone.
Parts of tensors are runs with gaps between them: short gaps are read and dropped, long ones skipped. Pure.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, repeat
from operator import attrgetter, sub
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


_new_piece: Callable[[Iterable[object]], Piece] = partial(tuple.__new__, Piece)
"""From values in the order of the fields; `Piece._make` does the same at three times the cost."""


class Chunk(NamedTuple):
    """One contiguous read.

    Attributes:
        file: name of the shard.
        begin: first byte, from the start of the file.
        nbytes: how many bytes are wanted of it; the sum of the pieces'.
        pieces: where the bytes belong, in file order.
        gap_bytes: the sum of the pieces' gaps.
    """

    file: str
    begin: int
    nbytes: int
    pieces: tuple[Piece, ...]
    gap_bytes: int = 0

    @property
    def end(self) -> int:
        """The byte after the last, from the start of the file."""
        return self.begin + self.nbytes + self.gap_bytes

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
    by_file: dict[str, list[TensorEntry]] = {}
    for file, group in groupby(entries, key=attrgetter("file")):
        by_file.setdefault(file, []).extend(entry for entry in group if entry.begin < entry.end)
    chunks: list[Chunk] = []
    for file in sorted(by_file):
        ordered = sorted(by_file[file], key=attrgetter("begin"))
        chunks += _chunks_of_whole(file, ordered, chunk_bytes) or _chunks(file, ordered, chunk_bytes)
    return tuple(chunks)


def _chunks_of_whole(file: str, entries: Sequence[TensorEntry], chunk_bytes: int) -> list[Chunk]:
    """What `_chunks` would plan, where whole tensors follow each other without a gap; nothing where they don't.

    Only where chunks begin and end is looked for, so that ten thousand tensors cost little more than their pieces.
    """
    begins = [entry.begin for entry in entries]
    ends = [entry.end for entry in entries]
    if begins[1:] != ends[:-1] or any(map(attrgetter("runs"), entries)):
        return []
    names = [entry.name for entry in entries]
    chunks: list[Chunk] = []
    begin, first, count = begins[0] if entries else 0, 0, len(entries)
    while first < count:
        limit = (begin + chunk_bytes) // PAGE_BYTES * PAGE_BYTES
        # The tensor in which the chunk ends, and where in it.
        last = min(bisect_right(ends, limit), first + MAX_PIECES)
        end = ends[last - 1] if last > first else begin
        if last < count and last - first < MAX_PIECES:
            end = max(end, _cut(entries[last], begins[last], limit))
        stop = last + (end > begins[last]) if last < count else count
        starts = [begin, *begins[first + 1 : stop]]
        stops = [*ends[first : stop - 1], end]
        offsets = [begin - begins[first], *repeat(0, stop - first - 1)]
        pieces = map(
            _new_piece, zip(names[first:stop], offsets, map(sub, stops, starts), repeat(0), strict=False)
        )
        chunks.append(Chunk(file, begin, end - begin, tuple(pieces)))
        begin, first = end, last
    return chunks


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
    gap_bytes = sum(piece.gap for piece in pieces)
    return Chunk(file=file, begin=begin, nbytes=nbytes, pieces=tuple(pieces), gap_bytes=gap_bytes)

"""The read plan: every wanted byte exactly once, in order, in reads of bounded size."""

import math
from collections import defaultdict
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.checkpoint import TensorEntry
from loader.header import Dtype
from loader.plan import MAX_GAP_BYTES, MAX_PIECES, PAGE_BYTES, plan_reads
from loader.slicing import Part, take_part

UNTIMED = settings(deadline=None, max_examples=50)  # a busy machine is no failure
CHUNK_SIZES = st.integers(2, 6).map(lambda pages: pages * PAGE_BYTES)


@st.composite
def checkpoints(draw: st.DrawFn) -> list[TensorEntry]:
    """Tensors that tile one to three files from an arbitrary payload start, aligned or not."""
    entries = []
    for file in range(draw(st.integers(1, 3))):
        position = draw(st.integers(8, 10_000))
        for tensor in range(draw(st.integers(0, 8))):
            dtype = draw(st.sampled_from([Dtype.U8, Dtype.F4, Dtype.BF16, Dtype.F32, Dtype.F64]))
            elements = draw(st.integers(0, 3) | st.integers(0, 9000))
            end = position + elements * dtype.element_bytes
            entries.append(
                TensorEntry(
                    name=f"{file}.{tensor}",
                    dtype=dtype,
                    shape=(elements,),
                    file=str(file),
                    begin=position,
                    end=end,
                )
            )
            position = end
    return draw(st.permutations(entries))


@UNTIMED
@given(entries=checkpoints(), chunk_bytes=CHUNK_SIZES, data=st.data())
def test_every_wanted_byte_exactly_once(
    entries: list[TensorEntry], chunk_bytes: int, data: st.DataObject
) -> None:
    wanted = {entry.name: entry for entry in entries if data.draw(st.booleans())}
    covered: dict[str, int] = defaultdict(int)
    read = 0
    for chunk in plan_reads(wanted.values(), chunk_bytes=chunk_bytes):
        position = chunk.begin
        for piece in chunk.pieces:
            entry = wanted[piece.tensor]
            assert (chunk.file, position) == (entry.file, entry.begin + piece.offset)
            assert piece.offset == covered[piece.tensor], "pieces of a tensor come in order and without a gap"
            covered[piece.tensor] += piece.nbytes
            position += piece.nbytes
        assert position == chunk.begin + chunk.nbytes
        read += chunk.nbytes
    assert {name: covered[name] for name in wanted} == {name: entry.nbytes for name, entry in wanted.items()}
    assert read == sum(entry.nbytes for entry in wanted.values())


@UNTIMED
@given(entries=checkpoints(), chunk_bytes=CHUNK_SIZES)
def test_reads_are_bounded_ordered_and_cut_between_elements(
    entries: list[TensorEntry], chunk_bytes: int
) -> None:
    by_name = {entry.name: entry for entry in entries}
    chunks = plan_reads(entries, chunk_bytes=chunk_bytes)
    assert [(chunk.file, chunk.begin) for chunk in chunks] == sorted(
        (chunk.file, chunk.begin) for chunk in chunks
    )
    for chunk in chunks:
        assert 0 < chunk.nbytes <= chunk_bytes
        assert 0 < len(chunk.pieces) <= MAX_PIECES
        for piece in chunk.pieces:
            unit = by_name[piece.tensor].dtype.element_bytes
            assert piece.nbytes > 0
            assert piece.offset % unit == piece.nbytes % unit == 0


@UNTIMED
@given(entries=checkpoints(), chunk_bytes=CHUNK_SIZES)
def test_neighbours_are_not_split_into_needless_reads(entries: list[TensorEntry], chunk_bytes: int) -> None:
    """Two neighbouring reads together are always more than one could hold, but for a page and an element of slack."""
    chunks = plan_reads(entries, chunk_bytes=chunk_bytes)
    for first, second in pairwise(chunks):
        if first.file == second.file and first.begin + first.nbytes == second.begin:
            assert first.nbytes + second.nbytes > chunk_bytes - PAGE_BYTES - 8


@st.composite
def parts(draw: st.DrawFn) -> tuple[TensorEntry, Part]:
    """A tensor of up to three dimensions, and a part along one of them."""
    shape = tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)))
    shape = (*shape[:-1], shape[-1] * draw(st.sampled_from([1, 7, 500])))
    dtype = draw(st.sampled_from([Dtype.U8, Dtype.BF16, Dtype.F64]))
    begin = draw(st.integers(8, 10_000))
    nbytes = math.prod(shape) * dtype.element_bytes
    entry = TensorEntry(name="w", dtype=dtype, shape=shape, file="f", begin=begin, end=begin + nbytes)
    dim = draw(st.integers(0, len(shape) - 1))
    start = draw(st.integers(0, shape[dim]))
    return entry, Part(dim=dim, start=start, stop=draw(st.integers(start, shape[dim])))


@UNTIMED
@given(case=parts(), chunk_bytes=CHUNK_SIZES)
def test_a_part_reads_the_bytes_that_slicing_the_whole_would_give(
    case: tuple[TensorEntry, Part], chunk_bytes: int
) -> None:
    whole, part = case
    # Every byte of the file is told apart from its neighbours by where it lies.
    places = np.arange(whole.begin, whole.end).reshape(*whole.shape, whole.dtype.element_bytes)
    cut = [slice(None)] * len(whole.shape)
    cut[part.dim] = slice(part.start, part.stop)
    expected = places[tuple(cut)].reshape(-1)
    entry = take_part(whole, part)
    found = np.full(entry.nbytes, -1)
    for chunk in plan_reads([entry], chunk_bytes=chunk_bytes):
        position = chunk.begin
        for piece in chunk.pieces:
            assert 0 <= piece.gap <= MAX_GAP_BYTES
            position += piece.gap
            found[piece.offset : piece.offset + piece.nbytes] = np.arange(position, position + piece.nbytes)
            position += piece.nbytes
        assert position == chunk.end
        assert chunk.end - chunk.begin <= chunk_bytes
        assert chunk.nbytes == sum(piece.nbytes for piece in chunk.pieces)
    assert entry.nbytes == expected.size
    assert np.array_equal(found, expected)

"""The read plan: every wanted byte exactly once, in order, in reads of bounded size."""

from collections import defaultdict
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from loader.checkpoint import TensorEntry
from loader.header import Dtype
from loader.plan import MAX_PIECES, PAGE_BYTES, plan_reads

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

import pytest

from loader.checkpoint import TensorEntry
from loader.header import Dtype
from loader.plan import MAX_PIECES, Piece, plan_reads


def entry(name: str, begin: int, end: int, *, file: str = "a", dtype: Dtype = Dtype.U8) -> TensorEntry:
    return TensorEntry(name=name, dtype=dtype, shape=(), file=file, begin=begin, end=end)


def test_small_neighbours_share_a_read() -> None:
    (chunk,) = plan_reads([entry("y", 150, 200), entry("x", 100, 150)], chunk_bytes=8192)
    assert (chunk.begin, chunk.nbytes) == (100, 100)
    assert chunk.pieces == (Piece(tensor="x", offset=0, nbytes=50), Piece(tensor="y", offset=0, nbytes=50))


def test_bytes_of_unwanted_tensors_are_not_read() -> None:
    chunks = plan_reads([entry("x", 100, 150), entry("z", 200, 250)], chunk_bytes=8192)
    assert [(chunk.begin, chunk.nbytes) for chunk in chunks] == [(100, 50), (200, 50)]


def test_large_tensor_is_cut_on_pages() -> None:
    chunks = plan_reads([entry("x", 100, 30_000)], chunk_bytes=8192)
    assert [chunk.begin for chunk in chunks] == [100, 8192, 16384, 24576]


def test_cut_leaves_elements_whole_where_the_tensor_is_unaligned() -> None:
    chunks = plan_reads([entry("x", 101, 101 + 40_000, dtype=Dtype.F64)], chunk_bytes=8192)
    assert len(chunks) > 1
    assert all(piece.offset % 8 == 0 for chunk in chunks for piece in chunk.pieces)


def test_files_are_read_one_after_the_other() -> None:
    chunks = plan_reads([entry("y", 8, 16, file="b"), entry("x", 8, 16, file="a")], chunk_bytes=8192)
    assert [chunk.file for chunk in chunks] == ["a", "b"]


def test_a_read_has_no_more_pieces_than_the_kernel_takes() -> None:
    chunks = plan_reads([entry(str(n), n, n + 1) for n in range(1200)], chunk_bytes=8192)
    assert [len(chunk.pieces) for chunk in chunks] == [MAX_PIECES, MAX_PIECES, 1200 - 2 * MAX_PIECES]


@pytest.mark.parametrize("chunk_bytes", [0, 4096, 10_000])
def test_chunk_size_must_be_pages(chunk_bytes: int) -> None:
    with pytest.raises(ValueError, match="multiple of 4096"):
        plan_reads([], chunk_bytes=chunk_bytes)

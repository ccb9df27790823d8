"""Which bytes of a slot are copied to the device at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from loader.copiers.pinned import runs
from loader.plan import Piece

A, B = 0x1000, 0x9000


def piece(tensor: str, offset: int, nbytes: int) -> Piece:
    return Piece(tensor=tensor, offset=offset, nbytes=nbytes)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([], []),
        ([piece("a", 16, 8)], [(A + 16, 0, 8)]),
        # parts of one tensor that follow each other
        ([piece("a", 0, 8), piece("a", 8, 4)], [(A, 0, 12)]),
        # tensors that don't lie together
        ([piece("a", 0, 8), piece("b", 0, 4)], [(A, 0, 8), (B, 8, 4)]),
        # a part is left out between two
        ([piece("a", 0, 8), piece("a", 16, 4)], [(A, 0, 8), (A + 16, 8, 4)]),
        # back and forth
        ([piece("b", 0, 8), piece("a", 0, 4), piece("a", 4, 4)], [(B, 0, 8), (A, 8, 8)]),
    ],
)
def test_what_lies_together_on_both_sides_is_copied_at_once(
    pieces: list[Piece], expected: list[tuple[int, int, int]]
) -> None:
    assert list(runs(pieces, {"a": A, "b": B})) == expected


def test_tensors_that_were_allocated_as_one_are_filled_as_one() -> None:
    assert list(runs([piece("a", 0, 8), piece("b", 0, 8)], {"a": A, "b": A + 8})) == [(A, 0, 16)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(1, 4)), max_size=12))
def test_each_byte_goes_where_it_goes_piece_by_piece(parts: list[tuple[str, int, int]]) -> None:
    addresses = {"a": 100, "b": 104, "c": 300}
    pieces = [piece(*part) for part in parts]
    alone: list[tuple[int, int]] = []
    position = 0
    for each in pieces:
        start = addresses[each.tensor] + each.offset
        alone += [(start + byte, position + byte) for byte in range(each.nbytes)]
        position += each.nbytes
    together = [
        (target + byte, begin + byte)
        for target, begin, nbytes in runs(pieces, addresses)
        for byte in range(nbytes)
    ]
    assert together == alone

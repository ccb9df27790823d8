"""However a chunk is cut into windows, every byte is copied once, from where its window put it to where it belongs."""

from hypothesis import given
from hypothesis import strategies as st

from loader.copiers.pinned import cut, runs
from loader.plan import Piece

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@given(sizes=SIZES, apart=st.lists(st.integers(0, 3), min_size=12, max_size=12), window=st.integers(1, 50))
def test_every_byte_is_copied_to_its_place(sizes: list[int], apart: list[int], window: int) -> None:
    pieces, addresses, address = [], {}, 1000
    for number, size in enumerate(sizes):
        address += apart[number]  # 0 lies right behind the one before
        name = f"t{number}"
        addresses[name] = address - 5
        pieces.append(Piece(tensor=name, offset=5, nbytes=size, gap=0))
        address += size
    file = bytes(byte % 251 for byte in range(sum(sizes)))
    memory: dict[int, int] = {}
    windows = list(cut(runs(pieces, addresses), window))
    assert len(windows) == -(-len(file) // window)
    for number, copies in enumerate(windows):
        slot = file[number * window : (number + 1) * window]
        for target, position, nbytes in copies:
            assert 0 <= position < position + nbytes <= len(slot)
            for byte in range(nbytes):
                assert target + byte not in memory
                memory[target + byte] = slot[position + byte]
    expected, begin = {}, 0
    for piece in pieces:
        for byte in range(piece.nbytes):
            expected[addresses[piece.tensor] + 5 + byte] = file[begin + byte]
        begin += piece.nbytes
    assert memory == expected


@given(sizes=SIZES)
def test_neighbours_are_copied_at_once(sizes: list[int]) -> None:
    pieces, addresses, address = [], {}, 64
    for number, size in enumerate(sizes):
        addresses[f"t{number}"] = address
        pieces.append(Piece(tensor=f"t{number}", offset=0, nbytes=size, gap=0))
        address += size
    assert list(runs(pieces, addresses)) == [(64, 0, sum(sizes))]

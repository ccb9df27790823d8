import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.reference.blocks import BlockPool


def test_only_what_can_be_used_is_handed_out() -> None:
    pool = BlockPool(10)
    assert pool.free == 0
    pool.grow(3)
    assert pool.take(2) == [0, 1]
    with pytest.raises(ValueError, match="2 blocks are wanted and 1 are free"):
        pool.take(2)
    pool.grow(20)
    assert (pool.free, pool.take(8)) == (8, list(range(2, 10)))


def test_used_blocks_go_out_before_fresh_ones() -> None:
    pool = BlockPool(10)
    pool.grow(10)
    pool.give_back(pool.take(3))
    assert pool.take(4) == [0, 1, 2, 3]


def test_after_a_reset_nothing_can_be_used() -> None:
    pool = BlockPool(4)
    pool.grow(4)
    pool.take(3)
    pool.reset()
    assert pool.free == 0
    pool.grow(2)
    assert pool.take(2) == [0, 1]


@given(st.lists(st.tuples(st.sampled_from(["take", "give", "grow"]), st.integers(0, 12)), max_size=60))
def test_no_block_belongs_to_two_and_none_is_lost(moves: list[tuple[str, int]]) -> None:
    pool, owned, usable = BlockPool(32), [], 0  # type: ignore[var-annotated]
    for kind, number in moves:
        if kind == "grow":
            usable = max(usable, min(number * 3, 32))
            pool.grow(number * 3)
        elif kind == "take" and number <= pool.free:
            owned.append(pool.take(number))
        elif kind == "give" and owned:
            pool.give_back(owned.pop(number % len(owned)))
        held = [block for blocks in owned for block in blocks]
        assert len(set(held)) == len(held)
        assert all(0 <= block < usable for block in held)
        assert pool.free + len(held) == usable

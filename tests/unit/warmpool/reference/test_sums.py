"""Sums over blocks: whatever a single bit does to them, and blocks that have changed places."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from warmpool.reference.sums import BLOCK_BYTES, block_sums, first_difference

BLOCKS = 5


@pytest.fixture(scope="module")
def memory() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 256, (BLOCKS * BLOCK_BYTES,), dtype=torch.uint8, generator=generator)


@settings(deadline=None)
@given(place=st.integers(0, BLOCKS * BLOCK_BYTES - 1), bit=st.integers(0, 7))
def test_a_single_flipped_bit_is_seen_and_its_block_is_named(memory: Tensor, place: int, bit: int) -> None:
    before = block_sums(memory)
    memory[place] ^= 1 << bit
    after = block_sums(memory)
    memory[place] ^= 1 << bit
    assert first_difference(before, after) == place // BLOCK_BYTES * BLOCK_BYTES


def test_the_same_bytes_have_the_same_sums(memory: Tensor) -> None:
    assert first_difference(block_sums(memory), block_sums(memory.clone())) is None


def test_blocks_that_have_changed_places_are_seen(memory: Tensor) -> None:
    swapped = memory.view(BLOCKS, -1)[[0, 3, 2, 1, 4]].reshape(-1)
    assert first_difference(block_sums(memory), block_sums(swapped)) == BLOCK_BYTES


def test_a_block_that_is_another_one_s_copy_is_seen(memory: Tensor) -> None:
    copied = memory.clone().view(BLOCKS, -1)
    copied[4] = copied[0]
    assert first_difference(block_sums(memory), block_sums(copied.view(-1))) == 4 * BLOCK_BYTES

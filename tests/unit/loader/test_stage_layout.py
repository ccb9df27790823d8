from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

import loader
from loader.stage.layout import (
    Move,
    contiguous_strides,
    cut,
    joined,
    moves_from_block,
    pack,
    place_shards,
    place_tensors,
    whole_moves,
)


@given(st.lists(st.integers(0, 2000)))
def test_what_is_packed_begins_on_256_bytes_and_does_not_overlap(sizes: list[int]) -> None:
    offsets, size = pack(sizes)
    ends = [offset + nbytes for offset, nbytes in zip(offsets, sizes, strict=True)]
    assert all(offset % 256 == 0 for offset in [*offsets, size])
    assert all(end <= begin for end, begin in zip(ends, [*offsets, size][1:], strict=True))
    assert size <= sum(sizes) + 255 * len(sizes)


def test_nothing_takes_nothing() -> None:
    assert pack([]) == ([], 0)


SOURCES = {"a": bytes(range(200)), "b": bytes(range(255, 55, -1))}
MOVES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 100), st.integers(0, 100), st.integers(0, 300)),
    max_size=8,
)


def copied(moves: list[Move]) -> bytes:
    target = bytearray(400)
    for file, begin, nbytes, offset in moves:
        target[offset : offset + nbytes] = SOURCES[file][begin : begin + nbytes]
    return bytes(target)


@given(MOVES)
def test_joined_copies_are_the_same_copies(moves: list[Move]) -> None:
    assert copied(list(joined(moves))) == copied(moves)


@given(MOVES, st.integers(1, 120))
def test_cut_copies_are_the_same_copies_and_cross_no_border(moves: list[Move], piece: int) -> None:
    parts = list(cut(moves, piece))
    assert copied(parts) == copied(moves)
    assert all(
        nbytes > 0 and begin // piece == (begin + nbytes - 1) // piece for _, begin, nbytes, _ in parts
    )


def test_copies_that_follow_each_other_on_both_sides_are_one() -> None:
    moves = [("a", 0, 4, 0), ("a", 4, 4, 4), ("a", 8, 0, 8), ("a", 8, 4, 256), ("b", 12, 4, 260)]
    assert list(joined(moves)) == [("a", 0, 8, 0), ("a", 8, 4, 256), ("b", 12, 4, 260)]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (4, 1, 5), (2, 0, 3)])
def test_strides_are_torch_s(shape: tuple[int, ...]) -> None:
    view = torch.as_strided(torch.arange(60), shape, contiguous_strides(shape))
    assert view.is_contiguous()
    assert torch.equal(view, torch.arange(60)[: view.numel()].view(shape))


def test_a_shard_whose_tensors_are_a_multiple_of_256_bytes_is_one_copy(tmp_path: Path) -> None:
    tensors = {f"w{n}": torch.full((64, 4), n, dtype=torch.int64) for n in range(5)}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    shards = loader.open_checkpoint(tmp_path).shards
    moves = whole_moves(shards, place_shards(shards)[0])
    assert len(moves) == 5
    assert [(nbytes, offset) for _, _, nbytes, offset in joined(moves)] == [(5 * 64 * 4 * 8, 0)]


def test_some_tensors_lie_where_they_lie_among_all(tmp_path: Path) -> None:
    for number in range(2):
        tensors = {f"{number}.{n}": torch.zeros(n + 1) for n in range(4)}
        safetensors.torch.save_file(tensors, tmp_path / f"m-0000{number + 1}-of-00002.safetensors")
    checkpoint = loader.open_checkpoint(tmp_path)
    bases, size = place_shards(checkpoint.shards)
    everywhere = place_tensors(checkpoint, bases)
    assert sorted(everywhere.values()) == list(range(0, size, 256))
    few = checkpoint.only(["1.2", "1.0"])
    assert place_tensors(few, bases) == {name: everywhere[name] for name in few.tensors}
    part = loader.take_parts(few, {"1.2": loader.Part(dim=0, start=1, stop=2)})
    assert place_tensors(part, bases)["1.2"] == everywhere["1.2"] + 4


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    wanted=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=6),
)
def test_copies_out_of_a_block_take_the_same_bytes_as_copies_out_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], wanted: list[tuple[int, int]]
) -> None:
    directory = tmp_path_factory.mktemp("m")
    tensors = {f"t{n}": torch.full((size,), n + 1, dtype=torch.int8) for n, size in enumerate(sizes)}
    safetensors.torch.save_file(tensors, directory / "model.safetensors")
    checkpoint = loader.open_checkpoint(directory)
    bases, size = place_shards(checkpoint.shards)
    file = (directory / "model.safetensors").read_bytes()
    block = bytearray(size)
    for _, begin, nbytes, offset in whole_moves(checkpoint.shards, bases):
        block[offset : offset + nbytes] = file[begin : begin + nbytes]
    first = next(iter(checkpoint.shards.values())).header.payload_begin
    moves: list[Move] = []
    for begin, end in wanted:
        low, high = sorted((min(first + begin, len(file)), min(first + end, len(file))))
        moves.append(("model.safetensors", low, high - low, 400 * len(moves)))
    expected, found = bytearray(3000), bytearray(3000)
    for _, begin, nbytes, offset in moves:
        expected[offset : offset + nbytes] = file[begin : begin + nbytes]
    for begin, nbytes, offset in moves_from_block(checkpoint.shards, bases, moves):
        found[offset : offset + nbytes] = block[begin : begin + nbytes]
    assert found == expected

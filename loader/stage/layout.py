"""Where tensors lie in one block of device memory, and what is copied from where to fill it. PURE.

The tensors of a shard follow each other in the order of their bytes in the file, each beginning on 256 bytes. Where the file's own
tensors have such sizes, a shard's payload lies in the block as it does in the file, and is one copy.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from types import MappingProxyType

from loader.checkpoint import Checkpoint, Shard

Move = tuple[str, int, int, int]
"""A copy: a shard, the first byte in it, how many, and where in the block they go."""
LAYOUT = "InOrder256"
"""Name of this layout; two processes that share a block must mean the same one."""
_ALIGNMENT = 256


def pack(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Where each of these sizes begins in one block, and the block's size; in bytes."""
    *offsets, size = accumulate((-(-nbytes // _ALIGNMENT) * _ALIGNMENT for nbytes in sizes), initial=0)
    return offsets, size


def place_shards(shards: Mapping[str, Shard]) -> tuple[Mapping[str, int], int]:
    """Where each shard's tensors begin in one block, and the block's size; in bytes."""
    bases, size = pack(pack(_sizes(shard))[1] for shard in shards.values())
    return MappingProxyType(dict(zip(shards, bases, strict=True))), size


def place_tensors(checkpoint: Checkpoint, bases: Mapping[str, int]) -> dict[str, int]:
    """Where each tensor of a checkpoint, or the part of it, begins in a block.

    Args:
        checkpoint: with whatever tensors and parts.
        bases: where its shards begin, at least.
    """
    placed = {}
    for file, shard in checkpoint.shards.items():
        offsets, _ = pack(_sizes(shard))
        for spec, offset in zip(shard.header.tensors, offsets, strict=True):
            entry = checkpoint.tensors.get(spec.name)
            if entry is not None:
                inside = entry.begin - shard.header.payload_begin - spec.begin
                placed[spec.name] = bases[file] + offset + inside
    return placed


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor whose elements follow each other."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def whole_moves(shards: Mapping[str, Shard], bases: Mapping[str, int]) -> list[Move]:
    """What fills a block with every tensor of these shards."""
    moves = []
    for file, shard in shards.items():
        begin = shard.header.payload_begin
        offsets, _ = pack(_sizes(shard))
        moves += [
            (file, begin + spec.begin, spec.end - spec.begin, bases[file] + offset)
            for spec, offset in zip(shard.header.tensors, offsets, strict=True)
        ]
    return moves


def moves_from_block(
    shards: Mapping[str, Shard], bases: Mapping[str, int], moves: Iterable[Move]
) -> Iterator[tuple[int, int, int]]:
    """Copies out of a block that has every tensor of these shards, as it is laid out.

    Args:
        shards: of the whole checkpoint.
        bases: where they begin in the block.
        moves: what of the files is wanted; what isn't a tensor's is left out.

    Yields:
        Each where it begins in the block, how many bytes, and where they go.
    """
    placed: dict[str, list[tuple[int, int, int]]] = {file: [] for file in shards}
    for file, begin, nbytes, offset in whole_moves(shards, bases):
        if nbytes:
            placed[file].append((begin, begin + nbytes, offset))
    starts = {file: [first for first, _, _ in tensors] for file, tensors in placed.items()}
    for file, begin, nbytes, target in moves:
        at = max(0, bisect_right(starts[file], begin) - 1)
        for first, last, place in placed[file][at:]:
            if first >= begin + nbytes:
                break
            low, high = max(begin, first), min(begin + nbytes, last)
            if low < high:
                yield place + low - first, high - low, target + low - begin


def joined(moves: Iterable[Move]) -> Iterator[Move]:
    """The same copies with those made one that follow each other on both sides, and empty ones left out."""
    last: Move | None = None
    for file, begin, nbytes, offset in moves:
        if not nbytes:
            continue
        if last is not None and (last[0], last[1] + last[2], last[3] + last[2]) == (file, begin, offset):
            last = (file, last[1], last[2] + nbytes, last[3])
            continue
        if last is not None:
            yield last
        last = (file, begin, nbytes, offset)
    if last is not None:
        yield last


def cut(moves: Iterable[Move], piece_bytes: int) -> Iterator[Move]:
    """The same copies with none that crosses a multiple of `piece_bytes` in its shard."""
    for file, begin, nbytes, offset in moves:
        first = begin
        while first < begin + nbytes:
            last = min(begin + nbytes, (first // piece_bytes + 1) * piece_bytes)
            yield file, first, last - first, offset + first - begin
            first = last


def _sizes(shard: Shard) -> Iterator[int]:
    return (spec.end - spec.begin for spec in shard.header.tensors)

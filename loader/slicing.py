"""Parts of tensors, read straight from files that nobody has split: what one rank of a tensor-parallel group needs.

A part along the first dimension is one run of bytes. Along any other it is many runs of equal length at equal distance,
one for each index of the dimensions before it. Both are read as they lie: no rank reads what it doesn't need but for
short gaps, over which reading costs less than skipping. Pure.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from loader.checkpoint import Checkpoint, Runs, TensorEntry
from loader.errors import SliceInvalid, TensorMissing, shown, some


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The indices from `start` to before `stop` of one dimension.

    Attributes:
        dim: the dimension, from 0 (rows of a matrix; 1 are its columns).
        start: first index.
        stop: index after the last.
    """

    dim: int
    start: int
    stop: int


def rank_part(entry: TensorEntry, *, dim: int, rank: int, ranks: int) -> Part:
    """The part of one rank where all ranks get equally much.

    Raises:
        SliceInvalid: the tensor has no such dimension, or it can't be divided evenly.
    """
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} of {ranks}")
    if not 0 <= dim < len(entry.shape) or entry.shape[dim] % ranks:
        raise _invalid(entry, f"shape {list(entry.shape)} can't be divided by {ranks} along dimension {dim}")
    each = entry.shape[dim] // ranks
    return Part(dim=dim, start=rank * each, stop=(rank + 1) * each)


def take_parts(checkpoint: Checkpoint, parts: Mapping[str, Part]) -> Checkpoint:
    """The same checkpoint with only these parts of the tensors named; the other tensors stay whole.

    Raises:
        TensorMissing: one of the names is not in the checkpoint.
        SliceInvalid: a part is out of range, or doesn't begin and end on a whole byte.
    """
    absent = sorted(parts.keys() - checkpoint.tensors.keys())
    if absent:
        raise TensorMissing(
            f"no tensor {some(absent)} in this checkpoint",
            file=checkpoint.root,
            tensor=absent[0],
            hint="`python -m loader inspect` lists the names",
        )
    tensors = {
        name: take_part(entry, parts[name]) if name in parts else entry
        for name, entry in checkpoint.tensors.items()
    }
    return replace(checkpoint, tensors=MappingProxyType(tensors))


def take_part(entry: TensorEntry, part: Part) -> TensorEntry:
    """The entry of a part of a whole tensor.

    Raises:
        SliceInvalid: the part is out of range, or doesn't begin and end on a whole byte.
    """
    if entry.runs is not None:
        raise _invalid(entry, "it is a part already")
    if not 0 <= part.dim < len(entry.shape):
        raise _invalid(entry, f"shape {list(entry.shape)} has no dimension {part.dim}")
    size = entry.shape[part.dim]
    if not 0 <= part.start <= part.stop <= size:
        raise _invalid(entry, f"{part.start} to {part.stop} is out of range of a dimension of {size}")
    shape = (*entry.shape[: part.dim], part.stop - part.start, *entry.shape[part.dim + 1 :])
    if math.prod(shape) == 0:
        return entry._replace(shape=shape, end=entry.begin)
    inner_bits = math.prod(entry.shape[part.dim + 1 :]) * entry.dtype.bits
    bounds = (inner_bits * part.start, inner_bits * part.stop, inner_bits * size)
    count = math.prod(entry.shape[: part.dim])
    if any(bound % 8 for bound in (bounds if count > 1 else bounds[:2])):
        raise _invalid(entry, f"a part of {entry.dtype} values begins or ends inside a byte")
    first, last, pitch = (bound // 8 for bound in bounds)
    begin = entry.begin + first
    end = begin + pitch * (count - 1) + last - first
    whole = count == 1 or last - first == pitch
    runs = None if whole else Runs(nbytes=last - first, pitch=pitch, count=count)
    return entry._replace(shape=shape, begin=begin, end=end, runs=runs)


def _invalid(entry: TensorEntry, what: str) -> SliceInvalid:
    return SliceInvalid(
        f"tensor {shown(entry.name)}: {what}",
        file=entry.file,
        tensor=entry.name,
        hint="check dimension, rank and number of ranks against the tensor's shape",
    )

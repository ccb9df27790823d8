from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

import loader
from loader import Part, SliceInvalid, rank_part, take_parts
from loader.checkpoint import Runs, TensorEntry
from loader.copiers.mapped import map_tensors
from loader.header import Dtype
from loader.slicing import take_part

WriteRaw = Callable[..., Path]


def entry(*shape: int, dtype: Dtype = Dtype.U8) -> TensorEntry:
    nbytes = dtype.bits // 8 or 1
    for size in shape:
        nbytes *= size
    if dtype is Dtype.F4:
        nbytes //= 2
    return TensorEntry(name="w", dtype=dtype, shape=shape, file="f", begin=100, end=100 + nbytes)


@pytest.mark.parametrize(
    ("whole", "part", "begin", "end", "runs"),
    [
        pytest.param(entry(8, 10), Part(dim=0, start=2, stop=4), 120, 140, None, id="rows lie together"),
        pytest.param(
            entry(8, 10),
            Part(dim=1, start=5, stop=10),
            105,
            180,
            Runs(nbytes=5, pitch=10, count=8),
            id="columns are runs",
        ),
        pytest.param(entry(1, 10), Part(dim=1, start=5, stop=10), 105, 110, None, id="columns of one row"),
        pytest.param(entry(8, 10), Part(dim=1, start=0, stop=10), 100, 180, None, id="all columns"),
        pytest.param(
            entry(2, 3, 4),
            Part(dim=1, start=1, stop=2),
            104,
            120,
            Runs(nbytes=4, pitch=12, count=2),
            id="the middle of three",
        ),
        pytest.param(
            entry(4, 8, dtype=Dtype.F4),
            Part(dim=1, start=2, stop=4),
            101,
            114,
            Runs(nbytes=1, pitch=4, count=4),
            id="values of half a byte, in pairs",
        ),
        pytest.param(entry(8, 10), Part(dim=1, start=3, stop=3), 100, 100, None, id="nothing"),
    ],
)
def test_where_a_part_lies(whole: TensorEntry, part: Part, begin: int, end: int, runs: Runs | None) -> None:
    found = take_part(whole, part)
    assert (found.begin, found.end, found.runs) == (begin, end, runs)
    assert found.shape[part.dim] == part.stop - part.start


@pytest.mark.parametrize(
    ("whole", "part", "what"),
    [
        pytest.param(entry(8), Part(dim=1, start=0, stop=1), "no dimension 1", id="dimension"),
        pytest.param(entry(8), Part(dim=0, start=4, stop=9), "out of range", id="past the end"),
        pytest.param(entry(8), Part(dim=0, start=4, stop=3), "out of range", id="backwards"),
        pytest.param(
            entry(2, 8, dtype=Dtype.F4), Part(dim=1, start=1, stop=3), "inside a byte", id="half a byte"
        ),
    ],
)
def test_a_part_that_is_not_there(whole: TensorEntry, part: Part, what: str) -> None:
    with pytest.raises(SliceInvalid, match=what):
        take_part(whole, part)


def test_what_does_not_divide_evenly_is_refused() -> None:
    with pytest.raises(SliceInvalid, match="divided by 3"):
        rank_part(entry(8, 10), dim=0, rank=0, ranks=3)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "wide": torch.randn(300, 40_000, generator=generator).to(torch.bfloat16),
        "narrow": torch.randn(900, 16, generator=generator),
        "deep": torch.randn(4, 6, 50, generator=generator).to(torch.float64),
        "bias": torch.randn(7, generator=generator),
    }
    safetensors.torch.save_file(tensors, path)
    return path


def slices(rank: int, ranks: int, checkpoint: loader.Checkpoint, dims: dict[str, int]) -> dict[str, Part]:
    return {
        name: rank_part(checkpoint.tensors[name], dim=dim, rank=rank, ranks=ranks)
        for name, dim in dims.items()
    }


@pytest.mark.parametrize("dims", [{"wide": 0, "narrow": 0, "deep": 1}, {"wide": 1, "narrow": 1, "deep": 2}])
def test_ranks_together_have_every_value_once(weights: Path, dims: dict[str, int]) -> None:
    whole = safetensors.torch.load_file(weights)
    checkpoint = loader.open_checkpoint(weights)
    parts = [
        loader.load(take_parts(checkpoint, slices(rank, 2, checkpoint, dims))).tensors for rank in range(2)
    ]
    for name, dim in dims.items():
        assert torch.equal(torch.cat([part[name] for part in parts], dim=dim), whole[name])
    assert all(torch.equal(part["bias"], whole["bias"]) for part in parts)


def test_columns_may_be_converted(weights: Path) -> None:
    whole = safetensors.torch.load_file(weights)["wide"]
    checkpoint = loader.open_checkpoint(weights).only(["wide"])
    part = take_parts(checkpoint, {"wide": Part(dim=1, start=100, stop=7100)})
    into = {"wide": torch.empty(300, 7000)}
    loader.load(part, into=into, convert=True)
    assert torch.equal(into["wide"], whole[:, 100:7100].float())


def test_a_part_reads_no_more_than_short_gaps(weights: Path) -> None:
    checkpoint = loader.open_checkpoint(weights).only(["wide"])
    part = take_parts(checkpoint, {"wide": Part(dim=1, start=0, stop=5000)})
    assert loader.load(part).nbytes == 300 * 5000 * 2


def test_mapped_columns(weights: Path) -> None:
    checkpoint = loader.open_checkpoint(weights).only(["narrow"])
    part = take_parts(checkpoint, {"narrow": Part(dim=1, start=4, stop=8)})
    mapped = map_tensors(part, threads=2)["narrow"]
    assert torch.equal(mapped, safetensors.torch.load_file(weights)["narrow"][:, 4:8])


def test_a_part_of_nothing_known_is_an_error(weights: Path) -> None:
    with pytest.raises(loader.TensorMissing, match="'x'"):
        take_parts(loader.open_checkpoint(weights), {"x": Part(dim=0, start=0, stop=1)})

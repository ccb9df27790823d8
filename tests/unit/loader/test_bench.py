"""What is measured is measured on the same bytes; the command itself starts processes and is tried by hand."""

import math
from pathlib import Path

import pytest
import safetensors.torch
import torch

import loader
from loader.bench import limits, ways
from loader.bench.child import measure
from loader.bench.shapes import make, shapes


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file({"a": torch.arange(100_000), "b": torch.ones(13, dtype=torch.bfloat16)}, path)
    return path


def test_all_ways_come_to_the_same_sum(weights: Path) -> None:
    figures = {name: measure(name, weights, "cpu") for name in ways.available("cpu")}
    assert {"safetensors load_file", "loader.load", "loader.torch.load_file"} <= figures.keys()
    assert len({figure["sum"] for figure in figures.values()}) == 1
    assert all(
        figure["bytes"] == 800_026 and 0 < figure["load"] <= figure["all"] for figure in figures.values()
    )


@pytest.mark.parametrize("name", limits.available("cpu"))
def test_a_limit_reads_all_bytes(weights: Path, name: str) -> None:
    assert limits.is_limit(name)
    assert measure(name, weights, "cpu")["bytes"] == weights.stat().st_size


@pytest.mark.parametrize("layout", ["experts", "one"])
def test_layouts_to_measure_with_are_checkpoints(tmp_path: Path, layout: str) -> None:
    make(tmp_path / layout, shapes(0.0015)[layout])
    checkpoint = loader.open_checkpoint(tmp_path / layout)
    assert {entry.dtype for entry in checkpoint.tensors.values()} == {"BF16"}


@pytest.mark.parametrize(("layout", "tensors"), [("dense", 290), ("experts", 10_000), ("one", 1)])
def test_full_layouts_are_of_the_size_that_is_measured(layout: str, tensors: int) -> None:
    found = [shape for shard in shapes()[layout] for shape in shard.values()]
    nbytes = sum(2 * math.prod(shape) for shape in found)
    assert len(found) == tensors
    assert 16.5e9 < nbytes < 18e9

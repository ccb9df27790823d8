"""Recorded answers: made apart from serving, and different for a checkpoint with one wrong tensor."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from warmpool.reference.checkpoints import make_checkpoint
from warmpool.reference.expect import PROMPTS, expectations
from warmpool.reference.options import ModelOptions


def options(directory: Path) -> ModelOptions:
    return ModelOptions(
        checkpoint=directory, device="cpu", dtype="auto", threads=1, max_num_seqs=1, max_model_len=2
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("expect") / "tiny", "tiny", seed=1)


def test_every_prompt_has_an_answer_and_they_differ(checkpoint: Path) -> None:
    record = expectations(options(checkpoint))
    assert {entry["prompt"] for entry in record} <= set(PROMPTS)
    assert len(record) >= len(PROMPTS) // 2
    assert len({tuple(entry["tokens"]) for entry in record}) > 1  # type: ignore[arg-type]


def test_the_record_is_the_same_each_time(checkpoint: Path) -> None:
    assert expectations(options(checkpoint)) == expectations(options(checkpoint))


def test_one_swapped_tensor_changes_the_record(checkpoint: Path, tmp_path: Path) -> None:
    swapped = shutil.copytree(checkpoint, tmp_path / "swapped")
    for shard in swapped.glob("*.safetensors"):
        tensors = load_file(shard)
        name = next((name for name in tensors if name.endswith("0.mlp.up_proj.weight")), None)
        if name is not None:
            tensors[name] = torch.flip(tensors[name], [0]).contiguous()
            save_file(tensors, shard, metadata={"format": "pt"})
            break
    assert expectations(options(swapped)) != expectations(options(checkpoint))

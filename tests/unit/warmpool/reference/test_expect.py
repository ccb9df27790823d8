"""Recorded answers: made apart from serving, and different for a checkpoint with one wrong tensor."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from warmpool.expectations import PROMPTS
from warmpool.reference.checkpoints import make_checkpoint
from warmpool.reference.cli import app
from warmpool.reference.errors import BadCheckpoint
from warmpool.reference.expect import record
from warmpool.reference.options import ModelOptions


def options(directory: Path) -> ModelOptions:
    return ModelOptions(
        checkpoint=directory, device="cpu", dtype="auto", threads=1, max_num_seqs=1, max_model_len=2
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("expect") / "tiny", "tiny", seed=1)


def test_every_prompt_has_an_answer_and_they_differ(checkpoint: Path) -> None:
    answers = record(options(checkpoint)).answers
    assert {answer.prompt for answer in answers} <= set(PROMPTS)
    assert len(answers) >= len(PROMPTS) // 2
    assert len({answer.tokens for answer in answers}) > 1


def test_the_record_is_the_same_each_time(checkpoint: Path) -> None:
    assert record(options(checkpoint)) == record(options(checkpoint))


def test_one_swapped_tensor_changes_the_record(checkpoint: Path, tmp_path: Path) -> None:
    swapped = shutil.copytree(checkpoint, tmp_path / "swapped")
    for shard in swapped.glob("*.safetensors"):
        tensors = load_file(shard)
        name = next((name for name in tensors if name.endswith("0.mlp.up_proj.weight")), None)
        if name is not None:
            tensors[name] = torch.flip(tensors[name], [0]).contiguous()
            save_file(tensors, shard, metadata={"format": "pt"})
            break
    wrong, right = record(options(swapped)), record(options(checkpoint))
    assert wrong.answers != right.answers
    assert wrong.ownership.differences(right.ownership) == (
        f"weights digest {right.ownership.weights_digest} where {wrong.ownership.weights_digest} was recorded",
    )


def test_a_record_belongs_to_the_weights_however_their_files_are_cut(
    checkpoint: Path, tmp_path: Path
) -> None:
    cut = make_checkpoint(tmp_path / "cut", "tiny", seed=1, shards=5)
    assert record(options(cut), PROMPTS[:1]).ownership == record(options(checkpoint), PROMPTS[:1]).ownership


def test_a_record_belongs_to_a_number_format(checkpoint: Path) -> None:
    others = replace(options(checkpoint), dtype="bfloat16")
    ownership = record(others, PROMPTS[:1]).ownership
    assert ownership.dtype == "bfloat16"
    assert ownership.differences(record(options(checkpoint), PROMPTS[:1]).ownership)


def test_it_answers_the_prompts_that_it_is_given(checkpoint: Path) -> None:
    (answer,) = record(options(checkpoint), ["2 + 2 ="]).answers
    assert answer.prompt == "2 + 2 ="


# ------------------------------------------------------------------ damaged checkpoints


def damaged(checkpoint: Path, copy: Path, harm: Callable[[Tensor], Tensor]) -> Path:
    """Copy a checkpoint with another last layer norm: all logits come through it."""
    shutil.copytree(checkpoint, copy)
    for shard in copy.glob("*.safetensors"):
        tensors = load_file(shard)
        if "model.norm.weight" in tensors:
            tensors["model.norm.weight"] = harm(tensors["model.norm.weight"])
            save_file(tensors, shard, metadata={"format": "pt"})
            return copy
    raise AssertionError("no shard has the tensor")


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        pytest.param(float("nan"), "the weights compute no finite numbers", id="not-a-number"),
        pytest.param(float("inf"), "the weights compute no finite numbers", id="infinite"),
        pytest.param(0.0, "its logits are flat", id="zeros"),
    ],
)
def test_weights_that_compute_nothing_make_no_record(
    checkpoint: Path, tmp_path: Path, factor: float, said: str
) -> None:
    broken = damaged(checkpoint, tmp_path / "broken", lambda tensor: torch.full_like(tensor, factor))
    with pytest.raises(BadCheckpoint, match=said) as raised:
        record(options(broken))
    assert "python -m loader verify PATH --values" in raised.value.hint


def test_answers_that_are_as_good_as_chance_are_doubted(checkpoint: Path, tmp_path: Path) -> None:
    faint = damaged(checkpoint, tmp_path / "faint", lambda tensor: tensor * 1e-4)
    made = record(options(faint))
    assert made.answers
    assert "every recorded token is about as likely as any other" in made.doubt
    assert not record(options(checkpoint)).doubt
    said = CliRunner().invoke(app, ["expect", "--checkpoint", str(faint)])
    assert said.exit_code == 0
    assert said.stderr == f"warning: {made.doubt}\n"
    assert json.loads(said.stdout)["prompts"]

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import loader
from warmpool.reference.checkpoints import COMPLETE, SHAPES, make_checkpoint


def _weights(directory: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor for file in directory.glob("*.safetensors") for name, tensor in load_file(file).items()
    }


def test_shards_and_index_are_whole(tmp_path: Path) -> None:
    made = make_checkpoint(tmp_path / "made", "tiny", seed=1, shards=3)
    index = json.loads((made / "model.safetensors.index.json").read_text())
    assert sorted({*index["weight_map"].values()}) == [
        f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)
    ]
    checkpoint = loader.open_checkpoint(made)
    assert {name: tuple(entry.shape) for name, entry in checkpoint.tensors.items()} == SHAPES[
        "tiny"
    ].tensor_shapes()


def test_weights_follow_from_the_seed_and_not_from_the_shards(tmp_path: Path) -> None:
    one = _weights(make_checkpoint(tmp_path / "one", "tiny", seed=1, shards=1))
    same = _weights(make_checkpoint(tmp_path / "same", "tiny", seed=1, shards=4))
    other = _weights(make_checkpoint(tmp_path / "other", "tiny", seed=2, shards=1))
    name = "model.layers.0.mlp.up_proj.weight"
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one[name], other[name])


def test_a_complete_checkpoint_is_used_again(tmp_path: Path) -> None:
    made = make_checkpoint(tmp_path / "made", "tiny", seed=1)
    before = {file.name: file.stat().st_mtime_ns for file in made.iterdir()}
    make_checkpoint(made, "tiny", seed=1)
    assert {file.name: file.stat().st_mtime_ns for file in made.iterdir()} == before


@pytest.mark.parametrize("seed", [pytest.param(1, id="incomplete"), pytest.param(2, id="another-seed")])
def test_something_else_is_never_overwritten(tmp_path: Path, seed: int) -> None:
    made = make_checkpoint(tmp_path / "made", "tiny", seed=1)
    if seed == 1:
        (made / COMPLETE).unlink()
    with pytest.raises(FileExistsError, match="made"):
        make_checkpoint(made, "tiny", seed=seed)


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shards"):
        make_checkpoint(tmp_path / "made", "tiny", seed=1, shards=0)
    assert list(tmp_path.iterdir()) == []

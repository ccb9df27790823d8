"""Records of what residents must answer: what is computed is said, and what is doubtful is said each time."""

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from scaler.errors import UserError
from scaler.runtime.proofs import Served, expectations
from tests.fakes import engine_zygote
from warmpool.reference.checkpoints import make_checkpoint
from warmpool.seats import PolicyName

CHAT, CODE = PolicyName("chat"), PolicyName("code")


def scaled(directory: Path, factor: float) -> Path:
    """Make a checkpoint all of whose logits are scaled."""
    make_checkpoint(directory, "tiny", seed=1)
    for shard in directory.glob("*.safetensors"):
        tensors = load_file(shard)
        if "model.norm.weight" in tensors:
            tensors["model.norm.weight"] *= factor
            save_file(tensors, shard, metadata={"format": "pt"})
    return directory


def both(directory: Path) -> dict[PolicyName, Served]:
    served = Served(directory=directory, device="cpu", dtype="auto")
    return {CHAT: served, CODE: served}


async def test_a_record_is_said_while_it_is_computed_and_its_doubts_whenever_it_is_used(
    tmp_path: Path,
) -> None:
    served, said = both(scaled(tmp_path / "faint", 1e-4)), list[str]()
    first = await expectations(served, tmp_path, engine_zygote.asked(), said.append)
    assert said[0] == f"computing what chat, code must answer, from {tmp_path / 'faint'} (cpu)"
    assert said[1].startswith("computed what chat, code must answer in ")
    assert said[2].startswith(f"warning: {tmp_path / 'faint'}: every recorded token is about as likely")
    assert len(said) == 3
    said.clear()
    assert await expectations(served, tmp_path, engine_zygote.asked(), said.append) == first
    assert [line.partition(":")[0] for line in said] == ["warning"]


async def test_a_checkpoint_that_computes_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its logits are flat"):
        await expectations(
            both(scaled(tmp_path / "zeros", 0.0)), tmp_path, engine_zygote.asked(), lambda _: None
        )

from pathlib import Path

import pytest
from typer.testing import CliRunner

from warmpool.reference.cli import app
from warmpool.reference.errors import CannotStart, NotEnoughMemory
from warmpool.reference.opening import open_model
from warmpool.reference.options import ModelOptions
from warmpool.reference.runner import build
from warmpool.reference.startup import Startup


def test_make_checkpoint_makes_one(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["make-checkpoint", "--shape", "tiny", "--seed", "3", str(tmp_path / "made")]
    )
    assert (result.exit_code, result.stdout.strip()) == (0, str(tmp_path / "made"))
    assert open_model(ModelOptions(checkpoint=tmp_path / "made")).config.hidden_size == 192


def test_an_unknown_shape_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["make-checkpoint", "--shape", "huge", str(tmp_path / "made")])
    assert result.exit_code == 2
    assert "llama-8b" in result.stderr


def test_a_directory_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    result = CliRunner().invoke(app, ["make-checkpoint", "--shape", "tiny", str(tmp_path)])
    assert isinstance(result.exception, CannotStart)
    assert (tmp_path / "notes.txt").exists()


def test_too_little_memory_is_said_before_anything_is_loaded(
    tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ModelOptions(checkpoint=tiny, device="cpu", max_num_seqs=10**8, max_model_len=2048)
    with pytest.raises(NotEnoughMemory, match="MiB of KV memory") as caught:
        build(open_model(options), options, Startup())
    assert "--max-num-seqs" in caught.value.hint
    assert '"weights"' not in capfd.readouterr().err


@pytest.mark.parametrize("device", ["cuda:7", "abacus"])
def test_a_device_that_is_not_there_is_named(tiny: Path, device: str) -> None:
    options = ModelOptions(checkpoint=tiny, device=device)
    with pytest.raises(CannotStart, match=device) as caught:
        build(open_model(options), options, Startup())
    assert "cpu" in caught.value.hint


@pytest.mark.parametrize("option", ["kernels", "kv_memory"])
def test_what_only_cuda_devices_have_is_refused_on_cpu(tiny: Path, option: str) -> None:
    asked = {"kernels": "fused", "kv_memory": "mapped"}[option]
    options = ModelOptions(checkpoint=tiny, device="cpu", **{option: asked})  # type: ignore[arg-type]
    with pytest.raises(CannotStart, match=f"--{option.replace('_', '-')} {asked} needs a CUDA device"):
        build(open_model(options), options, Startup())


def test_a_stage_daemon_that_is_no_socket_of_this_machine_is_refused(tiny: Path) -> None:
    asked = ["serve", "--model", "m", "--checkpoint", str(tiny), "--stage", "http://other:1"]
    result = CliRunner().invoke(app, asked)
    assert isinstance(result.exception, CannotStart)
    assert "--stage http://other:1" in str(result.exception)

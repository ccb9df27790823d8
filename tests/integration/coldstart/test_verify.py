"""A real engine is started once, and every step of that is told."""

import importlib.util
import json
from pathlib import Path

import pytest

from scaler.cli.app import main
from tests.fakes.engine_subjects import make_checkpoint

STEPS = ["device", "process", "import", "context", "weights", "kernels", "first-request", "total"]
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="the reference engine needs torch"
)


@pytest.mark.long
@needs_torch
@pytest.mark.parametrize("zygote", [True, False])
def test_each_step_is_timed_and_they_add_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, zygote: bool
) -> None:
    make_checkpoint(tmp_path / "model")
    flag = "--zygote" if zygote else "--no-zygote"
    arguments = ["coldstart", "verify", "-c", str(tmp_path / "model"), "--device", "cpu", flag, "-o", "json"]
    assert main([*arguments, "--target", "total=600"]) == 0
    told = json.loads(capsys.readouterr().out)
    steps = {each["step"]: each for each in told["steps"]}
    assert list(steps) == STEPS
    assert (told["passed"], told["gpu"], told["zygote"]) == (True, False, zygote)
    assert (steps["import"]["seconds"] == 0.0) is zygote
    parts = [steps[each]["seconds"] for each in STEPS[1:-1]]
    assert sum(parts) == pytest.approx(steps["total"]["seconds"], abs=0.01)
    assert steps["total"]["met"]
    assert steps["weights"]["seconds"] > 0
    assert told["weightsBytes"] > 0


@pytest.mark.long
@needs_torch
def test_a_step_that_takes_too_long_is_a_failed_check_and_an_engine_that_cannot_start_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_checkpoint(tmp_path / "model")
    command = ["coldstart", "verify", "-c", str(tmp_path / "model"), "--device", "cpu", "--no-zygote"]
    assert main([*command, "--target", "total=0"]) == 1
    captured = capsys.readouterr()
    lines = [line.split() for line in captured.out.splitlines()]
    assert lines[0] == ["STEP", "TOOK", "TARGET", "MET", "NOTE"]
    assert lines[-1][2:4] == ["0ms", "no"]
    assert "on CPU: 1 of 1 target missed" in captured.err
    for shard in (tmp_path / "model").glob("*.safetensors"):
        shard.write_bytes(b"no weights")
    assert main(command) == 1
    assert "error: the engine doesn't start: engine process" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--target", "total=soon"], "error: --target 'total=soon': 'soon' is no number of seconds"),
        (["--checkpoint", "/nowhere"], "error: --checkpoint: /nowhere holds no config.json"),
    ],
)
def test_what_cannot_be_used_is_told_before_anything_is_started(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["coldstart", "verify", *arguments]) == 2
    assert said in capsys.readouterr().err

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loader.__main__ import app

WriteRaw = Callable[..., Path]
TABLE = {
    "__metadata__": {"format": "pt"},
    "model.embed.weight": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
    "scale": {"dtype": "F32", "shape": [], "data_offsets": [12, 16]},
}


@pytest.fixture
def weights(write_raw: WriteRaw) -> Path:
    return write_raw("m.safetensors", TABLE, bytes(16))


def test_inspect_prints_tensors_dtypes_and_totals(weights: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", str(weights)])
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["model.embed.weight", "BF16", "[2,", "3]", "12", "bytes", "m.safetensors"] in lines
    assert ["BF16", "1", "12", "bytes"] in lines
    assert "2 tensors, 16 bytes in 1 file" in result.stdout


def test_inspect_as_json(weights: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", str(weights), "-o", "json"])
    document = json.loads(result.stdout)
    assert document["totalBytes"] == 16
    assert document["metadata"] == {"format": "pt"}
    assert [tensor["name"] for tensor in document["tensors"]] == ["model.embed.weight", "scale"]
    assert document["tensors"][0]["end"] - document["tensors"][0]["begin"] == 12


def test_names_cannot_drive_the_terminal(write_raw: WriteRaw) -> None:
    table = {"\x1b[31m[bold]x[/bold]": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    result = CliRunner().invoke(app, ["inspect", str(write_raw("m.safetensors", table, b"x"))])
    assert "\x1b" not in result.stdout
    assert "[bold]x[/bold]" in result.stdout


def test_verify_a_good_checkpoint(weights: Path) -> None:
    result = CliRunner().invoke(app, ["verify", str(weights)])
    assert (result.exit_code, result.stdout) == (0, "ok: 2 tensors, 16 bytes, 1 file\n")


def test_verify_notes_a_wrong_declared_total(weights: Path) -> None:
    weight_map = dict.fromkeys(("model.embed.weight", "scale"), "m.safetensors")
    index = {"metadata": {"total_size": 8}, "weight_map": weight_map}
    (weights.parent / "model.safetensors.index.json").write_text(json.dumps(index))
    result = CliRunner().invoke(app, ["verify", str(weights.parent)])
    assert result.exit_code == 0
    assert result.stderr.startswith("note: the index declares 8 bytes and the tensors have 16")


def test_invalid_checkpoint_is_exit_1_with_place_and_mend(write_raw: WriteRaw) -> None:
    path = write_raw("m.safetensors", TABLE, bytes(15))
    run = subprocess.run(
        [sys.executable, "-m", "loader", "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout) == (1, "")
    message, empty, hint = run.stderr.splitlines()
    assert message.startswith(f"{path}: the tensors end at byte ")
    assert empty == ""
    assert hint.startswith("hint: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "/no/such/path"],
        ["verify"],
        ["inspect", ".", "-o", "xml"],
        ["load", ".", "--rate", "0"],
        ["stage", "."],
        ["stage", "--budget", "1"],
        ["dance"],
    ],
    ids=str,
)
def test_wrong_usage_is_exit_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2

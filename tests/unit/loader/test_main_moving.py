"""Commands that read every byte: `digest`, `verify --values`, `load`, `bench`."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from typer.testing import CliRunner, Result

from loader.__main__ import app


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    tensors = {"a": torch.arange(300_000), "layers.0.b": torch.ones(7), "layers.1.b": torch.zeros(7)}
    safetensors.torch.save_file(tensors, directory / "model.safetensors")
    return directory


def test_a_digest_is_written_and_proves(weights: Path) -> None:
    assert call("digest", weights).stdout == f"ok: 3 tensors in {weights / 'model.emberpool.json'}\n"
    result = call("verify", weights, "--values")
    assert (result.exit_code, result.stdout) == (
        0,
        "ok: 3 tensors, 2400056 bytes, 1 file, as in the manifest, every value read\n",
    )


def test_a_digest_may_be_written_elsewhere(weights: Path, tmp_path: Path) -> None:
    to = tmp_path / "there.json"
    assert call("digest", weights, "--to", to).exit_code == 0
    assert not (weights / "model.emberpool.json").exists()
    assert call("verify", weights, "--values", "--manifest", to).exit_code == 0


@pytest.mark.parametrize("to", ["/proc/none/at/all", "/dev/null/below/a/file"])
def test_a_place_that_cannot_be_written_to(weights: Path, to: str) -> None:
    result = call("digest", weights, "--to", to)
    assert result.exit_code == 1
    assert "cannot be written" in result.stderr


def flip_a_bit(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-100] ^= 1
    path.write_bytes(raw)


def test_a_flipped_bit_is_exit_1_and_names_the_tensor(weights: Path) -> None:
    call("digest", weights)
    flip_a_bit(weights / "model.safetensors")
    assert call("verify", weights).exit_code == 0, "headers are right"
    result = call("verify", weights, "--values", "-o", "json")
    assert result.exit_code == 1
    error = json.loads(result.stdout)["error"]
    assert (error["type"], error["tensors"]) == ("DigestMismatch", ["a"])
    assert call("load", weights).exit_code == 1


def test_values_without_a_manifest_say_what_to_do(weights: Path) -> None:
    result = call("verify", weights, "--values")
    assert result.exit_code == 1
    assert f"python -m loader digest {weights}" in result.stderr


def test_load_says_where_the_time_went(weights: Path) -> None:
    call("digest", weights)
    result = call("load", weights, "-o", "json")
    document = json.loads(result.stdout)
    assert (document["bytes"], document["tensors"], document["proven"]) == (2_400_056, 3, 3)
    assert set(document["secondsByStep"]) == {"Open", "Plan", "Allocate", "Copy", "Finish", "Prove"}
    assert "3 tensors" in call("load", weights).stdout


def test_load_takes_a_part_and_a_cap(weights: Path) -> None:
    result = call("load", weights, "--tensors", "layers.*.b", "--rate", "1", "-o", "json")
    assert json.loads(result.stdout)["bytes"] == 56


@pytest.mark.parametrize(
    ("arguments", "what"),
    [(["--tensors", "x*"], "no tensor's name matches 'x*'"), (["--device", "meta"], "meta is not supported")],
)
def test_load_that_cannot_be(weights: Path, arguments: list[str], what: str) -> None:
    result = call("load", weights, *arguments)
    assert result.exit_code == 1
    assert what in result.stderr


def test_a_broken_header_has_its_code_in_json(weights: Path) -> None:
    (weights / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}x")
    result = call("inspect", weights, "-o", "json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["fault"] == "TrailingBytes"


def test_links_out_of_the_directory_on_request(weights: Path, tmp_path: Path) -> None:
    (weights / "model.safetensors").rename(tmp_path / "elsewhere")
    (weights / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    assert call("verify", weights).exit_code == 1
    assert call("verify", weights, "--follow-links").exit_code == 0

"""`python -m loader stage …` with a daemon on a device without a GPU."""

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
import safetensors.torch
import torch
from typer.testing import CliRunner, Result

import loader
from loader.__main__ import app
from loader.cuda.nvml import Basis, ContextCost
from loader.cuda.opening import Opened
from loader.stage.client import HeldCopy, StageClient
from loader.stage.daemon import Daemon
from loader.stage.device import Devices
from loader.stage.holder import Holder
from loader.stage.pool import Pool
from tests.unit.loader.stage_device import UUID, MemoryFileDevice


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m").mkdir()
    safetensors.torch.save_file({"w": torch.arange(9000)}, tmp_path / "m" / "model.safetensors")
    return tmp_path / "m"


@pytest.fixture
def socket_path(model: Path, tmp_path: Path) -> Iterator[Path]:
    cost = ContextCost(nbytes=512_000_000, basis=Basis.PROCESS)
    devices = Devices([Opened(device=MemoryFileDevice(), ordinal=0, context=cost)])
    holder = Holder(Pool(2**26, (str(model),), ready=devices.lock), devices, 2**24)
    daemon = Daemon(holder.pool, tmp_path / "s.sock", holder=holder)
    thread = Thread(target=daemon.serve)
    thread.start()
    yield tmp_path / "s.sock"
    daemon.close()
    thread.join()


def call(socket_path: Path, *arguments: str | Path) -> Result:
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(app, ["stage", words[0], "--socket", str(socket_path), *words[1:]])


def test_held_listed_verified_and_released(socket_path: Path, model: Path) -> None:
    held = call(socket_path, "hold", model, "--device", "0")
    assert held.stdout == f"ok: 2.1 MB held on {UUID}, with the digests of what was read\n"
    assert call(socket_path, "verify", model, "--device", UUID).stdout.startswith("ok: every tensor")
    table = call(socket_path, "list").stdout
    assert [line.split()[0] for line in table.splitlines() if line.split()[0].isupper()] == [
        "STAGED",
        "HELD",
        "DEVICE",
    ]
    assert "512.0 MB" in table
    assert call(socket_path, "release", model, "--device", "0").stdout == "ok: 2.1 MB given back\n"
    assert "HELD " not in call(socket_path, "list").stdout.splitlines()[0]


def test_the_list_for_programs(socket_path: Path, model: Path) -> None:
    call(socket_path, "hold", model, "--device", "0")
    copy = HeldCopy(loader.open_checkpoint(model), MemoryFileDevice(), StageClient(socket_path))
    document = json.loads(call(socket_path, "list", "-o", "json").stdout)
    assert document["devices"] == [
        {
            "device": UUID,
            "ordinal": 0,
            "contextBytes": 512_000_000,
            "contextBasis": "Process",
            "heldBytes": copy.nbytes,
            "budgetBytes": 2**24,
        }
    ]
    (held,) = document["held"]
    assert (held["path"], held["device"], held["state"]) == (str(model), UUID, "Held")
    assert [sorted(peer) for peer in held["attached"]] == [["connection", "process", "user"]]
    (staged,) = document["staged"]
    assert (staged["state"], staged["doneBytes"]) == ("Staged", staged["totalBytes"])


def test_what_is_in_use_is_not_released(socket_path: Path, model: Path) -> None:
    call(socket_path, "hold", model, "--device", "0")
    copy = HeldCopy(loader.open_checkpoint(model), MemoryFileDevice(), StageClient(socket_path))
    refused = call(socket_path, "release", model, "--device", "0", "-o", "json")
    assert copy.nbytes
    assert (refused.exit_code, json.loads(refused.stdout)["error"]["type"]) == (1, "HeldInUse")


@pytest.mark.parametrize("verb", ["release", "verify"])
def test_what_is_not_held(socket_path: Path, model: Path, verb: str) -> None:
    result = call(socket_path, verb, model, "--device", "0")
    assert result.exit_code == 1
    assert "not held" in result.stderr
    assert "python -m loader stage hold" in result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_attaching_wants_a_device(socket_path: Path, model: Path) -> None:
    result = call(socket_path, "attach", model)
    assert (result.exit_code, "no CUDA driver" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["stage", "/tmp"], "Missing option '--budget'"),
        (["stage", "run", "--budget", "1"], "name checkpoints to stage"),
        (["stage", "/tmp", "--budget", "1", "--hold-budget", "1"], "--hold-budget wants --cuda"),
        (["stage", "hold", "/tmp"], "Missing option '--device'"),
    ],
)
def test_wrong_usage(words: list[str], what: str) -> None:
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, what in " ".join(result.stderr.replace("│", "").split())) == (2, True)

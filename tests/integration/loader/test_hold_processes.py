"""Copies that are held in device memory, with engine and daemon as processes: whoever of them is killed, the other is right and nothing is left.

The device is the stand-in; `tests/gpu/test_loader_holder.py` does the same on a real one.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
import safetensors.torch
import torch

import loader
from loader.stage.client import HeldCopy, StageClient
from tests.integration.loader import hold_daemon
from tests.integration.loader.hold_rig import Process, Weights, start_engine
from tests.unit.loader.stage_contract import wait_until
from tests.unit.loader.stage_device import MemoryFileDevice, used_bytes

NBYTES = 2**23


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    tensors = {f"w{n}": torch.arange(NBYTES // 32) + n for n in range(4)}
    safetensors.torch.save_file(tensors, tmp_path / "model" / "model.safetensors")
    return tmp_path / "model"


@pytest.fixture
def socket_path(model: Path, tmp_path: Path) -> Iterator[Path]:
    """A daemon in this process, so that only engines have to be started."""
    daemon, holder = hold_daemon.make(tmp_path / "s.sock", model)
    thread = Thread(target=daemon.serve)
    thread.start()
    holder.hold(str(model), "0")
    yield tmp_path / "s.sock"
    daemon.close()
    thread.join()
    assert used_bytes("self") == 0


BARE_ENGINE = """
import mmap, socket, sys
from loader.stage import wire
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
wire.send(connection, {"op": "attach", "path": sys.argv[2], "device": "0"})
answer, descriptor = wire.receive(connection)
memory = mmap.mmap(descriptor, answer["size"], prot=mmap.PROT_READ)
print(memory[8], flush=True)
sys.stdin.read()
"""
"""An engine that needs no torch, so that it starts quickly."""


def test_an_engine_that_is_killed_leaves_the_copy_to_the_next(socket_path: Path, model: Path) -> None:
    with StageClient(socket_path) as client:
        for _ in range(2):
            engine = subprocess.Popen(
                [sys.executable, "-c", BARE_ENGINE, str(socket_path), str(model)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert engine.stdout is not None
            assert engine.stdout.readline() == "1\n"
            peers = client.held()[0]["attached"]
            assert isinstance(peers, list)
            assert [(peer["process"], peer["user"]) for peer in peers] == [(engine.pid, os.geteuid())]
            engine.kill()
            engine.communicate()
            wait_until(lambda: client.held()[0]["attached"] == [])
        tensors = HeldCopy(
            loader.open_checkpoint(model), MemoryFileDevice(), StageClient(socket_path)
        ).tensors()
        assert torch.equal(tensors["w3"], torch.arange(NBYTES // 32) + 3)
        del tensors
        wait_until(lambda: client.held()[0]["attached"] == [])
        assert client.release(str(model), "0") == NBYTES
    assert used_bytes("self") == 0


@pytest.mark.long
def test_whoever_is_killed(model: Path, tmp_path: Path) -> None:
    path, weights = tmp_path / "s.sock", Weights(model)
    with Process(["-m", "tests.integration.loader.hold_daemon", str(path), str(model)]) as daemon:
        daemon.expect("ready")
        with StageClient(path) as client:
            client.hold(str(model), "0")
        with start_engine(path, model, "") as engine:
            assert weights.are(engine.ask("digest"))
            # Writing to what is attached ends whoever tries.
            with start_engine(path, model, "") as writing, pytest.raises(AssertionError, match="it ended"):
                writing.ask("write")
            with StageClient(path) as client:
                client.verify(str(model), "0")
            daemon.kill()
            # What an engine has attached outlives the daemon, and is the engine's alone.
            assert weights.are(engine.ask("digest"))
            assert used_bytes(engine.popen.pid) == NBYTES
            with Process(["-m", "tests.integration.loader.hold_daemon", str(path), str(model)]) as again:
                again.expect("ready")
                with StageClient(path) as client:
                    assert client.held() == []
                    client.hold(str(model), "0")
                with start_engine(path, model, "") as other:
                    assert weights.are(other.ask("digest"))
                    other.kill()
                with StageClient(path) as client:
                    wait_until(lambda: client.held()[0]["attached"] == [])
                    client.release(str(model), "0")
                    assert used_bytes(again.popen.pid) == 0

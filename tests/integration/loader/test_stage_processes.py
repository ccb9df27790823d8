"""The stage daemon as a process: attach in under a millisecond, and nothing left behind when either side is killed.

It takes seconds, most of them for importing torch in two daemons: who is killed must be a process.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch

import loader
from loader.errors import StageUnreachable
from loader.stage.client import StageClient, attach

WAIT_SECONDS = 60.0
NBYTES = 64 * 2**20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    tensors = {f"w{n}": torch.arange(NBYTES // 64) + n for n in range(8)}
    safetensors.torch.save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.fixture
def start(model: Path, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    started = []

    def start_daemon() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "loader", "stage", str(model), "--budget", "0.2"]
        process = subprocess.Popen(
            [*command, "--socket", str(tmp_path / "stage.sock")], stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stderr is not None
        assert process.stderr.readline() == "ready: 1 staged\n"
        return process

    yield start_daemon
    for process in started:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


CLIENT = """
import socket, sys
from loader.stage import wire
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
wire.send(connection, {"op": "take", "path": sys.argv[2]})
wire.receive(connection)
print(wire.receive(connection)[0]["file"], flush=True)
sys.stdin.read()
"""
"""A client that needs no torch, so that it starts quickly."""


@pytest.mark.wall_clock
@pytest.mark.long
def test_a_daemon_and_its_clients(
    start: Callable[[], subprocess.Popen[str]], model: Path, tmp_path: Path
) -> None:
    daemon = start()
    path = tmp_path / "stage.sock"
    checkpoint = loader.open_checkpoint(model)
    with StageClient(path) as client:
        seconds = []
        for _ in range(20):
            begun = time.perf_counter()
            tensors = attach(client, checkpoint)
            seconds.append(time.perf_counter() - begun)
        assert min(seconds) < 0.001, "64 MiB in under a millisecond"
        assert int(tensors["w7"][0]) == 7

    # A client that is killed gives up its lease.
    other = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(path), str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "model.safetensors\n"
    with StageClient(path) as client:
        assert client.statuses()[0]["leases"] == 1
        other.kill()
        other.communicate()
        wait_until(lambda: client.statuses()[0]["leases"] == 0)
        assert client.drop(str(model))

        # What a daemon that is killed has given out stays usable; a new one takes over its socket.
        tensors = attach(client, checkpoint)
        daemon.kill()
        daemon.wait()
        assert torch.equal(tensors["w5"], torch.arange(NBYTES // 64) + 5)
        with pytest.raises(StageUnreachable):
            client.statuses()
    again = start()
    with StageClient(path) as client:
        assert int(attach(client, checkpoint)["w1"][0]) == 1

    # One that is asked to end removes its socket.
    again.send_signal(signal.SIGTERM)
    assert again.wait(WAIT_SECONDS) == 0
    assert not path.exists()

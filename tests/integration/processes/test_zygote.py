"""The zygote of `emberpool local`, as it keeps it."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from scaler.cluster.local.zygote import zygote
from warmpool.reference.checkpoints import make_checkpoint

WAIT_SECONDS = 30.0


async def listening(socket: Path, besides: int = 0) -> psutil.Process:
    """Wait for a zygote other than one that is known; return its process."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not (found := started(socket, besides)):
            await asyncio.sleep(0.01)
    return found[0]


def started(socket: Path, besides: int) -> list[psutil.Process]:
    children = psutil.Process().children() if socket.exists() else []
    return [child for child in children if child.pid != besides and str(socket) in child.cmdline()]


@pytest.mark.long
async def test_a_zygote_that_is_killed_is_started_again_and_ends_with_the_machine(tmp_path: Path) -> None:
    socket, output = tmp_path / "socket", tmp_path / "log"
    async with zygote(socket, output):
        first = await listening(socket)
        socket.unlink()
        first.kill()
        second = await listening(socket, first.pid)
    assert not second.is_running()
    assert [json.loads(line)["zygote"] for line in output.read_text().splitlines()] in ([], ["ready"])


@pytest.mark.long
def test_engines_of_one_machine_are_forks_and_all_of_it_ends(tmp_path: Path) -> None:
    """It takes what a whole machine takes to start, imports included."""
    checkpoint = make_checkpoint(tmp_path / "tiny", "tiny", seed=1)
    state = tmp_path / "state"
    command = [sys.executable, "-m", "scaler", "local", "--checkpoint", f"chat={checkpoint}"]
    ports = ["--gateway-port", "0", "--controller-port", "0", "--device", "cpu", "--state-dir", str(state)]
    with subprocess.Popen([*command, *ports], stderr=subprocess.PIPE, text=True) as local:
        assert local.stderr is not None
        assert any("ready: " in line for line in local.stderr)
        family = psutil.Process(local.pid).children(recursive=True)
        local.terminate()
        local.stderr.read()
    assert local.returncode == 0
    assert not any(process.is_running() for process in family)
    (log,) = (state / "logs").glob("engine-*.log")
    phases = [json.loads(line)["phase"] for line in log.read_text().splitlines() if line.startswith("{")]
    assert phases[0] == "fork"

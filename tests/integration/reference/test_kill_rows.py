"""Kill -9 of a stage daemon, a holder or a zygote while something is asked of it: whoever asked goes on by the next way there is, and says so.

What was asked is known to be under way because the process is stopped before it can answer, and killed then. Each is a process that imports
torch, which is most of the time that this takes. What becomes of engines that were served before is told in `test_tiers` and `test_zygote`.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import loader
from loader.errors import StageUnreachable
from loader.stage.client import StageClient
from tests.integration.loader.hold_rig import Process
from tests.integration.reference.test_zygote import lines, start_zygote
from warmpool.agent.ahead import Place, Stager
from warmpool.reference.supply import Supply

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

WAIT_SECONDS = 60.0


@contextmanager
def stage_daemon(socket_path: Path, root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon that serves checkpoints below a directory, and has none yet."""
    command = [sys.executable, "-m", "loader", "stage", "--root", str(root), "--budget", "0.2"]
    process = subprocess.Popen(
        [*command, "--socket", str(socket_path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: answers(socket_path), "the stage daemon doesn't answer")
        yield process
    finally:
        process.kill()
        process.wait()


def answers(path: Path) -> bool:
    try:
        with StageClient(path, timeout_seconds=1.0) as client:
            client.statuses()
    except StageUnreachable:
        return False
    return True


def until(condition: Any, what: str) -> None:
    ends = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < ends, what
        time.sleep(0.02)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Have a process stand still inside, so that whatever it is asked stays unanswered."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it doesn't stop")
    yield


def sockets() -> int:
    """How many Unix sockets this process has."""
    return len(psutil.Process().net_connections("unix"))


def asks(asking: "Future[Any]", before: int) -> None:
    """Wait until somebody has connected to a process that stands still; the question follows, and is never answered."""

    def connected() -> bool:
        assert not asking.done(), asking.result()
        return sockets() > before

    until(connected, "nobody asks")


@pytest.mark.parametrize("staged", [False, True], ids=["to-be-read", "staged"])
def test_a_daemon_that_dies_of_a_load_is_passed_over_and_the_files_are_read(
    checkpoint: Path, tmp_path: Path, *, staged: bool
) -> None:
    path = tmp_path / "s.sock"
    opened = loader.open_checkpoint(checkpoint)
    expected = loader.load(opened).tensors
    parameters = {name: tensor.clone().zero_() for name, tensor in expected.items()}
    supply = Supply(opened, path)
    with stage_daemon(path, checkpoint.parent) as daemon, ThreadPoolExecutor(1) as thread:
        if staged:
            with StageClient(path) as client:
                for descriptor, _ in client.take(str(checkpoint)).values():
                    os.close(descriptor)
        with stopped(daemon.pid):
            before = sockets()
            loading = thread.submit(supply.load, parameters)
            asks(loading, before)
            daemon.kill()
        supplied = loading.result(WAIT_SECONDS)
    assert supplied.tier not in {"Staged", "Attached"}
    assert {each.code for each in supply.passed} == {"StageUnreachable"}
    assert "Staged" in {each.tier for each in supply.passed}
    assert all(bool((parameters[name] == tensor).all()) for name, tensor in expected.items())


async def test_a_daemon_that_dies_of_reading_ahead_is_told_and_the_next_one_reads_it(
    checkpoint: Path, tmp_path: Path
) -> None:
    path, stager = tmp_path / "s.sock", Stager(tmp_path / "s.sock")
    try:
        with stage_daemon(path, checkpoint.parent) as daemon:
            with stopped(daemon.pid):
                await stager.keep([str(checkpoint)])  # it gives up waiting after a second
                assert [each.place for each in stager.found] == [Place.LEFT_OUT]
                daemon.kill()
            daemon.wait()
            await stager.keep([str(checkpoint)])
            assert "no stage daemon answers" in stager.found[0].reason
        with stage_daemon(path, checkpoint.parent):
            async with asyncio.timeout(WAIT_SECONDS):
                while [each.place for each in stager.found] != [Place.STAGED]:
                    await stager.keep([str(checkpoint)])
    finally:
        stager.close()


def test_a_holder_that_dies_of_making_a_copy_leaves_nothing_and_the_next_one_makes_it(
    checkpoint: Path, tmp_path: Path
) -> None:
    path = tmp_path / "s.sock"
    command = ["-m", "tests.integration.loader.hold_daemon", str(path), str(checkpoint)]
    with Process(command) as daemon, ThreadPoolExecutor(1) as thread:
        daemon.expect("ready")
        with stopped(daemon.popen.pid):
            before = sockets()
            holding = thread.submit(hold, path, checkpoint)
            asks(holding, before)
            daemon.kill()
        with pytest.raises(StageUnreachable):
            holding.result(WAIT_SECONDS)
    with Process(command) as again:
        again.expect("ready")
        with StageClient(path) as client:
            assert client.held() == []
        assert hold(path, checkpoint)["state"] == "Held"


def hold(path: Path, checkpoint: Path) -> dict[str, object]:
    with StageClient(path) as client:
        return client.hold(str(checkpoint), "0")


def test_a_zygote_that_dies_of_forking_has_its_stand_in_go_on_by_itself(tools: Any, tmp_path: Path) -> None:
    path = tmp_path / "zygote.sock"
    zygote = start_zygote("-m", "warmpool.reference", "zygote", "--socket", str(path))
    with stopped(zygote.pid):
        process = subprocess.Popen(
            tools.command(Path("/nowhere"), "--zygote", str(path)), stderr=subprocess.PIPE, text=True
        )
        until(lambda: connects_to(process.pid), "the stand-in doesn't ask")
        zygote.kill()
    zygote.wait(WAIT_SECONDS)
    assert zygote.stderr is not None
    zygote.stderr.close()
    _, errors = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 2
    first = lines(errors)[0]
    assert (first["phase"], bool(first["withoutZygote"])) == ("process", True)
    assert not [each for each in psutil.Process().children(recursive=True) if each.pid == process.pid]


def connects_to(pid: int) -> bool:
    """Whether a process has a Unix socket that it has connected."""
    try:
        return any(each.type == socket.SOCK_STREAM for each in psutil.Process(pid).net_connections("unix"))
    except psutil.Error:
        return False

"""Forks of a real zygote: that each is as good as the process that was started, and what becomes of whom when one is killed."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from warmpool.agent.processes import EngineProcess, Ports
from warmpool.reference.zygote import ask_for_memory
from warmpool.standins import NAME, VARIABLE, stood_for

ZYGOTE = Path(__file__).parents[2] / "fakes" / "zygote_dump.py"
WAIT_SECONDS = 30.0
LINUX = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


@dataclass(frozen=True, slots=True)
class Running:
    """A stand-in with its fork, and what it said when it was ready."""

    process: subprocess.Popen[str]
    fork: psutil.Process
    public: str
    control: str

    def answer(self) -> str:
        fields = {"model": "tiny", "prompt": "hello", "temperature": 0, "max_tokens": 8, "ignore_eos": True}
        request = urllib.request.Request(self.public + "/v1/completions", data=json.dumps(fields).encode())
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
            return str(json.loads(answer.read())["choices"][0]["text"])

    def phases(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.control + "/emberpool/startup", timeout=WAIT_SECONDS) as answer:
            return dict(json.loads(answer.read())["phases"])


def start_zygote(*command: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert json.loads(process.stderr.readline())["zygote"] == "ready"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(WAIT_SECONDS)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a zygote, at a path that is longer than a socket's address may be."""
    path = tmp_path_factory.mktemp("zygote") / ("long" * 25) / "socket"
    path.parent.mkdir()
    process = start_zygote(str(ZYGOTE), str(path))
    yield path
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, path.exists()) == (0, False)
    assert "failed" not in {line["zygote"] for line in lines(said)}, said


@pytest.fixture
def run(tools: Any, checkpoint: Path, zygote: Path) -> Iterator[Callable[..., Running]]:
    """Start an engine with a zygote, and wait until it is ready."""
    started: list[subprocess.Popen[str]] = []

    def start(socket_path: Path = zygote) -> Running:
        served = tools.start(checkpoint, ["--zygote", str(socket_path)])
        started.append(served.process)
        (fork,) = stood_for(served.process.pid)
        return Running(served.process, psutil.Process(fork), served.public, served.control)

    yield start
    for process in started:
        end(process)


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def why_not(tools: Any, socket_path: Path, **environment: str) -> str:
    """Start an engine without a checkpoint; return why it isn't a fork, as its first phase says it; empty if it is one."""
    result = subprocess.run(
        tools.command(Path("/nowhere"), "--zygote", str(socket_path)),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
        env={**os.environ, **environment},
    )
    assert result.returncode == 2
    assert "/nowhere" in result.stderr
    first = lines(result.stderr)[0]
    return str(first.get("withoutZygote", "no reason") if first["phase"] == "process" else "")


@pytest.fixture
def alone(tools: Any, checkpoint: Path) -> Iterator[Any]:
    """An engine that has its own imports."""
    served = tools.start(checkpoint, ["--max-num-seqs", "2", "--max-model-len", "2048"], plain=True)
    yield served
    assert tools.stop(served) == 0


def test_a_fork_answers_as_a_process_of_its_own_does_and_tells_how_it_came_to_be(
    run: Callable[..., Running], alone: Any
) -> None:
    forked = run()
    plain = Running(alone.process, psutil.Process(alone.process.pid), alone.public, alone.control)
    assert forked.answer() == plain.answer()
    assert list(forked.phases()) == ["fork", "process", "context", "weights", "compile", "capture", "ready"]
    assert list(plain.phases()) == ["process", "import", "context", "weights", "compile", "capture", "ready"]
    assert forked.phases()["fork"]["standIn"] == forked.process.pid
    assert Path(f"/proc/{forked.process.pid}/comm").read_text().strip() == NAME


def dumped(command: list[str], directory: Path, **environment: str) -> dict[str, Any]:
    reading, writing = os.pipe()

    def lower() -> None:
        os.setsid()
        os.nice(3)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])

    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=True,
        cwd=directory,
        umask=0o027,
        pass_fds=[reading, writing],
        preexec_fn=lower,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment},
    )
    found: dict[str, Any] = json.loads(result.stdout)
    files = found["same"]["files"]
    assert files.pop(str(reading)) == files.pop(str(writing)) == f"pipe:[{os.fstat(reading).st_ino}]"
    found["same"]["files"] = {number: target.partition(":")[0] for number, target in files.items()}
    os.close(reading)
    os.close(writing)
    return found


def test_a_fork_lives_as_the_process_that_was_started_would(zygote: Path, tmp_path: Path) -> None:
    environment = {"MARK": "yes", VARIABLE: ""}
    # Whoever asks tells its ranks whom to ask.
    plain = dumped([sys.executable, str(ZYGOTE), "dump"], tmp_path, **{**environment, VARIABLE: str(zygote)})
    asking = [sys.executable, "-m", "warmpool.reference", "dump", "--zygote", str(zygote)]
    forked = dumped(asking, tmp_path, **environment)
    assert plain["same"]["variableInC"] == "yes"
    assert forked["same"] == plain["same"]


def test_forks_have_random_numbers_of_their_own(zygote: Path, tmp_path: Path) -> None:
    asking = [sys.executable, "-m", "warmpool.reference", "dump", "--zygote", str(zygote)]
    first, second = (dumped(asking, tmp_path)["chance"] for _ in range(2))
    assert not set(first) & set(second)


def test_a_zygote_whose_environment_was_read_otherwise_is_not_asked_to_fork(tools: Any, zygote: Path) -> None:
    assert why_not(tools, zygote, MARK="other") == ""
    assert "OMP_NUM_THREADS is '3', and None for the zygote" in why_not(tools, zygote, OMP_NUM_THREADS="3")


def test_signals_reach_the_fork_and_its_end_is_the_stand_ins(run: Callable[..., Running]) -> None:
    running = run()
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(WAIT_SECONDS) == 0
    assert not running.fork.is_running()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_fork_that_is_killed_is_seen_as_killed(run: Callable[..., Running], number: int) -> None:
    running = run()
    running.fork.send_signal(number)
    assert running.process.wait(WAIT_SECONDS) == -number


def test_a_stand_in_that_is_killed_takes_the_fork_along(run: Callable[..., Running]) -> None:
    running = run()
    running.process.kill()
    running.process.wait(WAIT_SECONDS)
    running.fork.wait(WAIT_SECONDS)
    assert not running.fork.is_running()


def test_who_reads_from_a_file_that_a_fork_has_closed_sees_its_end(
    tools: Any, checkpoint: Path, zygote: Path
) -> None:
    reading, writing = os.pipe()
    command = tools.command(checkpoint, "--ready-fd", str(writing), "--zygote", str(zygote))
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, text=True, pass_fds=[writing])
    os.close(writing)
    try:
        with os.fdopen(reading) as pipe:
            assert len(pipe.read().splitlines()) == 1  # to its end, while the engine runs
        assert process.poll() is None
    finally:
        end(process)


def test_what_forks_share_is_counted_once(run: Callable[..., Running], zygote: Path) -> None:
    running = run()
    told = ask_for_memory(zygote)
    fork = told["forks"][str(running.fork.pid)]
    assert fork["privateBytes"] <= fork["pssBytes"] < 0.7 * fork["rssBytes"]
    assert told["pssBytes"] < told["rssBytes"]


def test_a_second_zygote_leaves_the_first_ones_socket_alone(tools: Any, zygote: Path) -> None:
    command = [sys.executable, "-m", "warmpool.reference", "zygote", "--socket", str(zygote)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert result.returncode == 2
    assert "another process listens" in result.stderr
    assert why_not(tools, zygote) == ""


def test_a_zygote_that_is_killed_hurts_no_fork_and_the_next_start_does_without(
    tools: Any, run: Callable[..., Running], zygote: Path, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    another = ("-m", "warmpool.reference", "zygote", "--socket", str(path), "--zygote", str(zygote))
    forked = start_zygote(*another)  # from the first one: its imports are done
    first, second = run(path), run(path)
    end(forked)
    assert first.answer() == second.answer()
    assert "Connection refused" in why_not(tools, path)
    first.process.send_signal(signal.SIGTERM)
    second.fork.send_signal(signal.SIGSEGV)
    tells = LINUX >= (6, 15)
    assert first.process.wait(WAIT_SECONDS) == (0 if tells else -signal.SIGKILL)
    assert second.process.wait(WAIT_SECONDS) == (-signal.SIGSEGV if tells else -signal.SIGKILL)


def test_a_zygote_that_is_killed_while_it_imports_lets_those_who_wait_for_it_go_on(
    tools: Any, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as importing:
        importing.bind(str(path))
        importing.listen()
        process = subprocess.Popen(
            tools.command(Path("/nowhere"), "--zygote", str(path)), stderr=subprocess.PIPE, text=True
        )
        connection, _ = importing.accept()
        connection.recv(1)  # it has asked, and waits
        connection.close()
    _, errors = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 2
    assert str(path) in lines(errors)[0]["withoutZygote"]


async def test_the_agent_takes_a_fork_for_the_engine_and_leaves_nothing_of_it(
    tools: Any, checkpoint: Path, zygote: Path, tmp_path: Path
) -> None:
    command = [*tools.command(checkpoint), "--port", "{port}", "--control-port", "{controlPort}"]
    ports, log = Ports.free("127.0.0.1"), tmp_path / "engine.log"
    process = await EngineProcess.start(command, {VARIABLE: str(zygote)}, ports, log)
    async with asyncio.timeout(WAIT_SECONDS):
        while not (forks := stood_for(process.pid)):
            await asyncio.sleep(0.01)
    assert await process.owns(forks[0])
    assert not await process.owns(os.getpid())
    await process.stop(grace_seconds=0)
    assert not psutil.pid_exists(forks[0])

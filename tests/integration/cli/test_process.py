"""The command as a process: speed, colours, pipes, watching, completion."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes import forked
from tests.fakes.forked import Piped, piped
from tests.integration.cli.fake_controller import FakeController, serving

BARE = {
    name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR", "COLUMNS"}
}


def run(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return forked.run(*arguments, environment={**BARE, **(env or {})})


HELPS = [
    ["--help"],
    ["local", "--help"],
    ["drill", "run", "--help"],
    ["agent", "--help"],
    ["seat", "get", "--help"],
    ["decision", "list", "--help"],
    ["policy", "validate", "--help"],
]


def imported_by(*commands: list[str]) -> set[str]:
    """Run commands in a fresh interpreter; return the top-level modules that are imported afterwards."""
    script = (
        "import sys\n"
        "from scaler.cli.app import main\n"
        f"codes = [main(arguments) for arguments in {list(commands)!r}]\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)\n"
        "sys.exit(any(codes))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60, env=BARE
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: emberpool") == len(commands)
    return set(done.stderr.split())


def test_help_imports_nothing_that_is_slow() -> None:
    slow = {"aiohttp", "torch", "numpy", "asyncio", "prometheus_client", "structlog", "matplotlib"}
    assert imported_by(*HELPS) & slow == set()


def test_root_help_imports_no_command_at_all() -> None:
    assert imported_by(["--help"]) & {"rich", "pydantic", "ruamel", "warmpool"} == set()


def on_terminal(*arguments: str, env: Mapping[str, str]) -> str:
    """Run with stdout on a terminal; return what it got."""
    ours, theirs = pty.openpty()
    with Path(os.devnull).open("r+b") as nothing:
        process = forked.Emberpool.shared().start(
            arguments,
            {**BARE, "TERM": "xterm-256color", **env},
            streams=(nothing.fileno(), theirs, nothing.fileno()),
        )
    os.close(theirs)
    chunks = []
    try:
        while chunk := os.read(ours, 4096):
            chunks.append(chunk)
    except OSError:  # the other end is closed: Linux says EIO
        pass
    os.close(ours)
    assert process.wait(60) == 0
    return b"".join(chunks).decode()


def test_colours_on_a_terminal_unless_no_color_is_set(controller: FakeController) -> None:
    arguments = ["seat", "get", "--server", controller.url]
    coloured = on_terminal(*arguments, env={})
    plain = on_terminal(*arguments, env={"NO_COLOR": "1"})
    assert "\x1b[32mServing\x1b[0m" in coloured
    assert "\x1b" not in plain
    assert "Serving" in plain


def test_no_colours_in_a_pipe(controller: FakeController) -> None:
    done = run("seat", "get", "--server", controller.url, env={"TERM": "xterm-256color"})
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr


def test_errors_have_no_traceback_and_an_exit_code() -> None:
    done = run("policy", "validate", "/nowhere.yaml")
    assert done.returncode == 2
    assert (done.stdout, done.stderr) == ("", "error: /nowhere.yaml:1:1: no such file\n\n")


def test_a_long_table_is_not_cut_in_a_narrow_pipe(controller: FakeController) -> None:
    done = run("seat", "get", "-o", "wide", "--server", controller.url, env={"COLUMNS": "20"})
    assert len(done.stdout.splitlines()) == 3


# ------------------------------------------------------------------ watching


@contextmanager
def watching(*arguments: str) -> Iterator[Piped]:
    with piped(*arguments, "--watch", environment=BARE) as process:
        guard = threading.Timer(60, process.forked.send_signal, (signal.SIGKILL,))
        guard.start()
        try:
            yield process
        finally:
            guard.cancel()


def lines(process: Piped, count: int) -> list[list[str]]:
    return [process.stdout.readline().split() for _ in range(count)]


def test_watch_prints_again_when_something_changed_and_ends_with_ctrl_c() -> None:
    with serving(FakeController()) as fake:
        fake.say("/v1/fleets", {"items": [{"name": "f", "total": 1}]})
        with watching("fleet", "get", "-o", "json", "--server", fake.url) as process:
            first = json.loads("".join(process.stdout.readline() for _ in range(8)))
            fake.wait_until_asked(3)
            fake.say("/v1/fleets", {"items": [{"name": "f", "total": 2}]})
            second = json.loads("".join(process.stdout.readline() for _ in range(8)))
            process.forked.send_signal(signal.SIGINT)
            assert process.forked.wait(timeout=30) == 130
            assert (process.stdout.read(), process.stderr.read()) == ("", "")
    assert [first["items"][0]["total"], second["items"][0]["total"]] == [1, 2]


def test_watch_waits_for_a_controller_that_restarts() -> None:
    with serving(FakeController()) as fake:
        port = fake.server_address[1]
        fake.say("/v1/policies", {"items": [{"name": "chat", "mode": "Stable"}]})
        with watching("policy", "get", "-o", "name", "--server", fake.url) as process:
            assert lines(process, 1) == [["policy/chat"]]
            fake.shutdown()
            fake.server_close()
            assert lines(process, 1)[0][:4] == ["no", "controller", "answers", "at"]
            with serving(FakeController(port)) as again:
                again.say("/v1/policies", {"items": [{"name": "chat"}, {"name": "code"}]})
                assert lines(process, 2) == [["policy/chat"], ["policy/code"]]


# ------------------------------------------------------------------ completion


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        pytest.param("emberpool f", {"fleet"}, id="commands"),
        pytest.param("emberpool fleet ", {"get", "describe", "template", "freeze"}, id="sub-commands"),
        pytest.param("emberpool seat get -o w", {"wide"}, id="values"),
        pytest.param(
            "emberpool seat get --control", {"--controller", "--controller-namespace"}, id="options"
        ),
    ],
)
def test_completion_in_bash(typed: str, expected: set[str]) -> None:
    words = typed.split(" ")
    done = run(
        env={"_EMBERPOOL_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)},
    )
    assert set(done.stdout.split()) == expected


def test_a_completion_script_is_offered() -> None:
    done = run(env={"_EMBERPOOL_COMPLETE": "source_bash"})
    assert "_EMBERPOOL_COMPLETE=complete_bash" in done.stdout

"""One engine and no agent: what process 1 has to do, and nothing in the way."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import LAUNCHER, WAIT_SECONDS, await_death, until
from warmpool.launcher import SECRET_VARIABLE

OTHERS = ("python3.9", "python3.10", "python3.11", "python3.12", "python3.13", "python3.14")


def run(*command: str, python: str = sys.executable, **others: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [python, str(LAUNCHER), *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_SECONDS,
        **others,
    )


@contextmanager
def running(*command: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen([sys.executable, str(LAUNCHER), *command], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137), ("kill -TERM $$", 143)]
)
def test_its_status_is_the_engines(script: str, status: int) -> None:
    assert run("--", "sh", "-c", script).returncode == status


def test_input_and_output_are_the_engines_own() -> None:
    ended = run("--", "sh", "-c", "cat; echo out; printf err >&2", input="in\n")
    assert (ended.stdout, ended.stderr) == ("in\nout\n", "err")


def test_arguments_pass_unchanged() -> None:
    ended = run("--", "printf", "%s|", "--socket", "--", "a b", "")
    assert ended.stdout == "--socket|--|a b||"


def test_the_secret_is_kept_from_it() -> None:
    ended = run("--", "sh", "-c", f"echo [${SECRET_VARIABLE}]", env=os.environ | {SECRET_VARIABLE: "s3cret"})
    assert ended.stdout == "[]\n"


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT]
)
def test_signals_reach_it_as_they_are(number: signal.Signals) -> None:
    script = f"import signal, sys\nsignal.signal({int(number)}, lambda *_: sys.exit({100 + number}))\nprint('ready', flush=True)\nsignal.pause()"
    with running("--", sys.executable, "-c", script) as process:
        process.send_signal(number)
        assert process.wait(WAIT_SECONDS) == 100 + number


def test_what_refuses_to_end_is_killed_after_the_grace() -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 1; done"
    with running("--grace-seconds", "0.2", "--", "sh", "-c", script) as process:
        process.terminate()
        assert process.wait(WAIT_SECONDS) == 137


def test_a_second_sigterm_does_not_wait_for_the_grace() -> None:
    script = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done"
    with running("--grace-seconds", "1000", "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        process.terminate()
        assert process.stdout.readline() == "asked\n"
        process.terminate()
        assert process.wait(WAIT_SECONDS) == 137


def test_what_it_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    script = """
        setsid sh -c 'echo $$; touch "$0"; exec sleep 1000' "$0" &
        while [ ! -e "$0" ]; do sleep 0.01; done
        exit 3
    """
    ended = run("--", "sh", "-c", script, str(tmp_path / "told"))
    assert ended.returncode == 3
    await_death(int(ended.stdout))


def test_killed_it_takes_the_engine_along() -> None:
    with running("--", "sh", "-c", "echo ready; setsid sh -c 'echo $$; exec sleep 1000' & wait") as process:
        assert process.stdout is not None
        loner = int(process.stdout.readline())
        process.kill()
        await_death(loner)


def test_a_signal_that_is_ignored_by_the_supervisor_stays_ignored() -> None:
    script = 'trap "" HUP; exec "$0" "$1" -- sh -c "echo ready; read line; exit 5"'
    with subprocess.Popen(
        ["sh", "-c", script, sys.executable, str(LAUNCHER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        process.communicate("line\n", timeout=WAIT_SECONDS)
        assert process.returncode == 5


def test_it_works_without_any_open_file() -> None:
    ended = subprocess.run(
        ["sh", "-c", '"$0" "$1" -- sh -c "exit 6" <&- >&- 2>&-', sys.executable, str(LAUNCHER)],
        check=False,
        timeout=WAIT_SECONDS,
    )
    assert ended.returncode == 6


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        ((), 2, "error: give --socket PATH, or a command after --"),
        (("--",), 2, "error: give a command after --, or leave -- out"),
        (("--socket", "/tmp/x", "--"), 2, "error: give a command after --, or leave -- out"),
        (
            ("--", "no-such-engine"),
            127,
            "error: command: no-such-engine can't be started: No such file or directory",
        ),
        (("--grace-seconds", "-1", "--", "true"), 2, "--grace-seconds: invalid"),
        (("--grace-seconds", "nan", "--", "true"), 2, "--grace-seconds: invalid"),
        (
            ("--socket", "/no/such/directory/s"),
            2,
            "error: --socket: /no/such/directory/s can't be listened at",
        ),
        (("--socket", "/tmp/" + "x" * 200), 2, "error: --socket: /tmp/x"),
        (
            ("--socket", "/tmp/x", "--secret-file", "/no/such"),
            2,
            "error: --secret-file: /no/such can't be read",
        ),
        (("--socket", "/tmp/x", "--secret-file", "/dev/null"), 2, "error: --secret-file: /dev/null is empty"),
    ],
)
def test_wrong_use_is_named(arguments: tuple[str, ...], status: int, told: str) -> None:
    ended = run(*arguments)
    assert (ended.returncode, told in ended.stderr, "Traceback" in ended.stderr) == (status, True, False), (
        ended
    )


@pytest.mark.parametrize("name", OTHERS)
def test_it_runs_under_other_pythons(name: str) -> None:
    python = shutil.which(name)
    if python is None or subprocess.run([python, "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"there is no {name} here")
    ended = run("--", "sh", "-c", "echo fine; exit 9", python=python)
    assert (ended.stdout, ended.returncode, ended.stderr) == ("fine\n", 9, "")


def test_both_processes_are_gone_once_it_has_ended() -> None:
    with running("--", "sh", "-c", "echo ready; exec sleep 1000") as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert children
        process.terminate()
        assert process.wait(WAIT_SECONDS) == 143
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))

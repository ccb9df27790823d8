"""Engines on an agent's word: started as asked, told of when they end, and ended whole."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import (
    QUIET,
    STUBBORN,
    Agent,
    Launcher,
    Launchers,
    await_death,
    living,
    pid_of,
    start_family,
    there,
    until,
)
from warmpool.launcher import SECRET_VARIABLE, Spec, process_stat


def test_a_started_engine_is_identified(agent: Agent) -> None:
    engine = agent.shell("chat", QUIET, note={"ports": [1, 2]}, someFieldOfTomorrow=True)
    stat = process_stat(engine["pid"])
    assert stat is not None
    assert engine["startTime"] == stat.start_time
    assert engine["spec"] == Spec(command=("sh", "-c", QUIET)).digest()
    assert (engine["engine"], engine["token"], engine["state"]) == ("chat", "chat-1", "Running")
    assert engine["note"] == {"ports": [1, 2]}
    assert agent.list()["chat"]["pid"] == engine["pid"]


def test_an_engine_leads_a_session_and_group_of_its_own(agent: Agent) -> None:
    engine = agent.shell("chat", QUIET)
    stat = process_stat(engine["pid"])
    assert stat is not None
    assert (stat.group, stat.session) == (engine["pid"], engine["pid"])


@pytest.mark.parametrize(
    ("script", "status", "number", "cause"),
    [
        ("echo first; echo last; exit 0", 0, None, "Exited"),
        ("echo first; echo last; exit 7", 7, None, "Exited"),
        ("echo first; echo last; kill -USR1 $$", None, "SIGUSR1", "Signalled"),
        ("echo first; echo last; kill -KILL $$", None, "SIGKILL", "Signalled"),
    ],
)
def test_its_end_is_reported(
    agent: Agent, script: str, status: int | None, number: str | None, cause: str
) -> None:
    engine = agent.shell("chat", script)
    report = agent.event("exit", "chat")
    assert (report["status"], report["signal"], report["cause"]) == (status, number, cause)
    assert (report["pid"], report["startTime"], report["token"]) == (
        engine["pid"],
        engine["startTime"],
        "chat-1",
    )
    assert report["outTail"] == "first\nlast\n"
    assert report["at"] >= engine["startedAt"]
    assert agent.event("gone", "chat")["left"] == []
    assert agent.list() == {}


def test_it_gets_its_environment_directory_and_priority(launchers: Launchers, tmp_path: Path) -> None:
    launcher = launchers(environment={"KEPT": "kept", "TAKEN": "taken", SECRET_VARIABLE: "s3cret"})
    agent = launcher.heard(secret="s3cret")
    script = 'echo "$KEPT|$TAKEN|$ADDED|$' + SECRET_VARIABLE + '|$(pwd)|$(nice)"'
    environment = {"ADDED": "added", "TAKEN": None}
    agent.shell("chat", script, environment=environment, workingDirectory=str(tmp_path), niceness=7)
    assert agent.event("exit")["outTail"] == f"kept||added||{tmp_path}|7\n"


def test_it_has_no_files_but_null_and_its_pipes(agent: Agent) -> None:
    script = "import os; [print(n, os.readlink(f'/proc/self/fd/{n}')) for n in sorted(map(int, os.listdir('/proc/self/fd'))) if os.path.exists(f'/proc/self/fd/{n}') or n < 3]"
    agent.start("chat", sys.executable, "-c", script)
    lines = agent.event("exit")["outTail"].splitlines()
    assert [line.split(":")[0] for line in lines] == ["0 /dev/null", "1 pipe", "2 pipe"]


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        (
            {"command": ["no-such-engine"]},
            "StartFailed",
            "command: no-such-engine can't be started: No such file",
        ),
        ({"command": ["/etc"]}, "StartFailed", "command: /etc can't be started: Permission denied"),
        (
            {"workingDirectory": "/no-such"},
            "StartFailed",
            "workingDirectory: /no-such can't be entered: No such file",
        ),
        ({"command": ["x\ud800"]}, "StartFailed", "command: "),
        ({"command": ["x" * 200_000]}, "StartFailed", "command: "),
        ({"command": []}, "BadMessage", "command: "),
        ({"command": ["true", "a\0b"]}, "BadMessage", "command: "),
        ({"command": "true"}, "BadMessage", "command: "),
        ({"environment": {"A=B": "c"}}, "BadMessage", "environment: "),
        ({"environment": {"A": 1}}, "BadMessage", "environment: "),
        ({"niceness": 20}, "BadMessage", "niceness: "),
        ({"niceness": True}, "BadMessage", "niceness: "),
        ({"token": ""}, "BadMessage", "token: "),
        ({"token": "x" * 129}, "BadMessage", "token: "),
        ({"engine": "../x"}, "BadMessage", "engine: "),
        ({"engine": "launcher"}, "BadMessage", "engine: "),
        ({"note": {"a": "x" * 9000}}, "BadMessage", "note: "),
    ],
)
def test_what_cannot_be_started_is_named(
    agent: Agent, fields: dict[str, object], code: str, message: str
) -> None:
    sound = {"engine": "chat", "token": "t", "command": ["true"]}
    answer = agent.ask("start", **sound | fields)
    assert (answer["kind"], answer["code"]) == ("error", code)
    assert message in answer["message"]
    assert agent.list() == {}
    agent.shell("chat", QUIET)  # and the name is free


def test_starting_twice_is_starting_once(agent: Agent) -> None:
    engine = agent.shell("chat", QUIET)
    assert agent.shell("chat", QUIET)["pid"] == engine["pid"]
    other_spec = agent.ask("start", engine="chat", token="chat-1", command=["true"])
    other_start = agent.ask("start", engine="chat", token="chat-2", command=["sh", "-c", QUIET])
    assert (other_spec["code"], other_start["code"]) == ("Differs", "Occupied")
    agent.stop("chat")
    agent.event("gone", "chat")
    again = agent.ask("start", engine="chat", token="chat-1", command=["sh", "-c", QUIET])
    assert again["code"] == "Ended"


def test_a_note_is_kept(agent: Agent) -> None:
    agent.shell("chat", QUIET)
    assert agent.ask("note", engine="chat", token="chat-1", note={"state": "Paused"})["kind"] == "done"
    assert agent.list()["chat"]["note"] == {"state": "Paused"}


@pytest.mark.parametrize("kind", ["stop", "signal", "owns", "note"])
def test_an_order_means_one_start_alone(agent: Agent, kind: str) -> None:
    engine = agent.shell("chat", QUIET)
    fields = {"signal": "SIGKILL", "pid": engine["pid"]}
    assert agent.ask(kind, engine="chat", token="chat-2", **fields)["code"] == "Unknown"
    assert agent.ask(kind, engine="other", token="chat-1", **fields)["code"] == "Unknown"
    assert living(engine["pid"])
    agent.stop("chat")
    agent.event("gone", "chat")
    assert agent.ask(kind, engine="chat", token="chat-1", **fields)["code"] == "Ended"


def test_an_engine_that_heeds_sigterm_ends_by_itself(agent: Agent, launcher: Launcher) -> None:
    agent.shell("chat", "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
    launcher.printed("ready")
    agent.stop("chat", graceSeconds=20)
    report = agent.event("exit")
    assert (report["status"], report["cause"], report["outTail"]) == (3, "Asked", "ready\nbye\n")


def test_what_refuses_to_end_is_killed_with_its_whole_family(agent: Agent, launcher: Launcher) -> None:
    family = start_family(launcher, agent)
    agent.stop("family", graceSeconds=0.2)
    report = agent.event("exit")
    assert (report["signal"], report["cause"]) == ("SIGKILL", "Forced")
    assert agent.event("gone")["left"] == []
    assert not any(there(pid) for pid in family.members.values())


def test_a_stop_without_grace_kills_at_once_and_shortens_an_earlier_one(
    agent: Agent, launcher: Launcher
) -> None:
    agent.shell("chat", STUBBORN)
    launcher.printed("ready")
    agent.stop("chat", graceSeconds=1000)
    agent.stop("chat", graceSeconds=0)
    assert agent.event("exit")["signal"] == "SIGKILL"


def test_the_family_of_an_engine_that_crashed_goes_with_it_and_neighbours_stay(
    agent: Agent, launcher: Launcher
) -> None:
    neighbour = agent.shell("neighbour", QUIET)
    family = start_family(launcher, agent)
    os.kill(family.engine["pid"], signal.SIGSEGV)
    assert agent.event("exit")["signal"] == "SIGSEGV"
    assert agent.event("gone")["left"] == []
    assert not any(there(pid) for pid in family.members.values())
    assert living(neighbour["pid"])
    assert agent.list().keys() == {"neighbour"}


def test_a_shell_that_ends_first_leaves_its_engine_the_grace(agent: Agent, launcher: Launcher) -> None:
    engine = "import signal, time\ndef end(*_):\n  time.sleep(0.3); print('saved', flush=True); raise SystemExit\nsignal.signal(15, end)\nprint('ready', flush=True)\nwhile True: signal.pause()"
    agent.start("chat", "sh", "-c", '"$0" -c "$1" & wait', sys.executable, engine)
    launcher.printed("ready")
    agent.stop("chat", graceSeconds=20)
    assert agent.event("exit")["signal"] == "SIGTERM"
    agent.event("gone")
    assert "[chat] saved" in launcher.printed("saved")


def test_signals_are_passed_on(agent: Agent, launcher: Launcher) -> None:
    for name in ("one", "two"):
        agent.shell(
            name,
            f"trap 'echo {name}-usr1' USR1; trap 'echo {name}-hup' HUP; echo {name}; while :; do sleep 0.05; done",
        )
        launcher.printed(name)
    assert agent.ask("signal", engine="one", token="one-1", signal="SIGUSR1")["kind"] == "done"
    launcher.printed("one-usr1")
    launcher.signal(signal.SIGHUP)
    launcher.printed("one-hup")
    assert "two-usr1" not in launcher.printed("two-hup")
    answer = agent.ask("signal", engine="one", token="one-1", signal="SIGNONE")
    assert answer["code"] == "BadMessage"


def test_it_is_known_whose_a_process_is(agent: Agent, launcher: Launcher) -> None:
    family = start_family(launcher, agent)
    other = agent.shell("other", QUIET)

    def owns(pid: int) -> bool:
        return bool(agent.ask("owns", engine="family", token="family-1", pid=pid)["owns"])

    assert all(owns(pid) for pid in (family.engine["pid"], *family.members.values()))
    assert not any(owns(pid) for pid in (1, launcher.pid, os.getpid(), other["pid"], 2**22))


def test_orphans_are_reaped_while_the_engine_goes_on(agent: Agent, launcher: Launcher) -> None:
    agent.shell("chat", "(sh -c 'echo orphan $$; exec sleep 0.05' &); echo ready; exec sleep 1000")
    orphan = pid_of(launcher, "orphan")
    until(lambda: not there(orphan), "the orphan's zombie is reaped")
    assert agent.list()["chat"]["state"] == "Running"


def test_more_engines_than_fit_are_refused(agent: Agent) -> None:
    for number in range(64):
        agent.shell(f"e{number}", QUIET)
    answer = agent.ask("start", engine="one-more", token="t", command=["true"])
    assert answer["code"] == "TooMany"


def test_an_unknown_request_is_named_and_harms_nothing(agent: Agent) -> None:
    answer = agent.ask("promote")
    assert (answer["kind"], answer["code"]) == ("error", "Unknown")
    assert "start" in answer["message"]
    assert agent.list() == {}


def test_a_keeper_that_is_killed_takes_its_engine_along(agent: Agent, launcher: Launcher) -> None:
    engine = agent.shell("chat", "trap '' TERM; echo ready; (trap '' TERM; echo child $$; sleep 1000) & wait")
    neighbour = agent.shell("neighbour", QUIET)
    launcher.printed("ready")
    keeper = launcher.keeper(engine)
    children = [
        int(pid) for pid in Path(f"/proc/{engine['pid']}/task/{engine['pid']}/children").read_text().split()
    ]
    os.kill(keeper, signal.SIGKILL)
    report = agent.event("exit", "chat")
    assert (report["signal"], report["cause"]) == ("SIGKILL", "Signalled")
    assert agent.event("gone", "chat")["left"] == []
    for pid in (engine["pid"], *children):
        await_death(pid)
    assert living(neighbour["pid"])
    agent.shell("again", QUIET)

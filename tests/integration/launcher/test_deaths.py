"""Sudden deaths: of the launcher, of a keeper, of process 1, by lack of memory."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import (
    LAUNCHER,
    QUIET,
    Agent,
    Launcher,
    Launchers,
    await_death,
    living,
    start_family,
    until,
)
from warmpool.launcher import process_stat


def test_no_engine_outlives_a_launcher_that_is_killed(agent: Agent, launcher: Launcher) -> None:
    family = start_family(launcher, agent)
    quiet = agent.shell("quiet", QUIET)
    keepers = [launcher.keeper(each) for each in (family.engine, quiet)]
    os.kill(launcher.pid, signal.SIGKILL)
    family.all_dead()
    await_death(quiet["pid"])
    for keeper in keepers:
        await_death(keeper)


def test_no_engine_outlives_a_launcher_that_is_killed_with_its_process_group(launchers: Launchers) -> None:
    launcher = launchers(before=["setsid"])
    family = start_family(launcher, launcher.heard())
    os.killpg(launcher.pid, signal.SIGKILL)
    family.all_dead()


def test_an_engine_dies_even_if_launcher_and_keeper_are_killed_at_once(
    agent: Agent, launcher: Launcher
) -> None:
    engine = agent.shell("quiet", QUIET)
    keeper = launcher.keeper(engine)
    os.kill(keeper, signal.SIGSTOP)  # so that it can't see what happens to the launcher
    os.kill(launcher.pid, signal.SIGKILL)
    os.kill(keeper, signal.SIGKILL)
    await_death(engine["pid"])


def test_a_keeper_that_hangs_is_got_rid_of(agent: Agent, launcher: Launcher) -> None:
    engine = agent.shell("quiet", QUIET)
    os.kill(launcher.keeper(engine), signal.SIGSTOP)
    agent.stop("quiet", graceSeconds=0)
    assert agent.event("exit")["signal"] == "SIGKILL"
    assert agent.event("gone")["left"] == []
    await_death(engine["pid"])


def test_an_engine_whose_session_is_killed_with_its_keeper_is_gone_whole(
    agent: Agent, launcher: Launcher
) -> None:
    engine = agent.shell("chat", "sh -c 'trap \"\" TERM; while :; do sleep 1; done' & echo ready; wait")
    launcher.printed("ready")
    children = Path(f"/proc/{engine['pid']}/task/{engine['pid']}/children").read_text().split()
    os.kill(launcher.keeper(engine), signal.SIGKILL)
    agent.event("gone")
    for pid in (engine["pid"], *map(int, children)):
        await_death(pid)


# ---------------------------------------------------------------------- process 1


def test_as_process_1_it_reaps_everybody(pid_namespace: list[str]) -> None:
    script = """
        (sh -c 'exit 3' &)
        (setsid sh -c 'exec sleep 0.05' &)
        for turn in $(seq 100); do sleep 0.1; grep -l 'State:.Z' /proc/[0-9]*/status 2>/dev/null || break; done
        test $turn -lt 100 && echo none $$ $PPID
        exit 5
    """
    command = [*pid_namespace, sys.executable, str(LAUNCHER), "--", "sh", "-c", script]
    ended = subprocess.run(command, capture_output=True, check=False, text=True)
    assert ended.stdout.splitlines()[-1].startswith("none "), ended
    assert ended.returncode == 5


def test_as_process_1_it_serves_agents_and_ends_in_order(
    launchers: Launchers, pid_namespace: list[str]
) -> None:
    launcher = launchers(before=pid_namespace)
    agent = launcher.agent()
    welcome = agent.hello()
    assert welcome["launcher"]["pid"] == 1
    assert welcome["launcher"]["pidNamespace"] != str(Path("/proc/self/ns/pid").readlink())
    agent.shell("chat", "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    launcher.printed("ready")
    os.kill(_only_child(launcher.pid), signal.SIGTERM)
    assert agent.event("draining")["secondsLeft"] > 10
    assert agent.ask("drained")["kind"] == "done"
    assert agent.event("exit")["outTail"] == "ready\nbye\n"
    assert launcher.status() == 0


def test_killed_as_process_1_it_leaves_nobody(launchers: Launchers, pid_namespace: list[str]) -> None:
    launcher = launchers(before=pid_namespace)
    agent = launcher.heard()
    agent.start("chat", "sh", "-c", "setsid sleep 1000 & echo ready; sleep 1000")
    launcher.printed("ready")
    first = _only_child(launcher.pid)
    everybody = until(lambda: len(found := _below(first)) == 4 and found, "keeper, shell and two sleepers")
    os.kill(first, signal.SIGKILL)
    for pid in everybody:
        await_death(pid)


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _only_child(pid: int) -> int:
    (child,) = until(lambda: _children(pid))
    return int(child)


def _below(pid: int) -> list[int]:
    found = _children(pid)
    return found + [each for child in found for each in _below(child)]


# ---------------------------------------------------------------------- lack of memory

_GREEDY = "import time\nblock = b'x' * (300 << 20)\nprint('not killed', flush=True)\ntime.sleep(1000)"


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup with 64 MiB of memory, if one may be made here."""
    own = Path("/proc/self/cgroup").read_text().splitlines()
    paths = {names: path for _number, names, path in (line.split(":", 2) for line in own)}
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    if "memory" in paths and v1.is_dir():
        parent, limits = v1 / paths["memory"].lstrip("/"), {"memory.limit_in_bytes": 64 << 20}
    else:
        parent, limits = v2 / paths.get("", "/").lstrip("/"), {"memory.max": 64 << 20, "memory.swap.max": 0}
    cgroup = parent / f"emberpool-{os.getpid()}"
    try:
        cgroup.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup may be made here: {error}")
    try:
        for name, limit in limits.items():
            try:
                (cgroup / name).write_text(str(limit))
            except OSError as error:
                if name != "memory.swap.max":
                    pytest.skip(f"a cgroup's memory can't be limited here: {error}")
        yield cgroup
    finally:
        until(lambda: not (cgroup / "cgroup.procs").read_text().strip())
        cgroup.rmdir()


def test_a_kill_for_lack_of_memory_is_told_apart(launchers: Launchers, small_cgroup: Path) -> None:
    join = ["sh", "-c", f'echo $$ > {small_cgroup}/cgroup.procs && exec "$@"', "sh"]
    launcher = launchers(before=join)
    agent = launcher.heard()
    agent.start("neighbour", "sh", "-c", QUIET)
    agent.start("greedy", sys.executable, "-c", _GREEDY)
    report = agent.event("exit", "greedy")
    assert (report["signal"], report["cause"], report["oomKills"]) == ("SIGKILL", "OutOfMemory", 1)
    neighbour = agent.list()["neighbour"]
    assert living(neighbour["pid"])
    os.kill(neighbour["pid"], signal.SIGKILL)  # not every SIGKILL is the kernel's
    report = agent.event("exit", "neighbour")
    assert (report["signal"], report["cause"], report["oomKills"]) == ("SIGKILL", "Signalled", 0)
    launcher.signal(signal.SIGTERM)
    assert launcher.status() == 0


def test_a_worker_that_lacked_memory_is_told_of_with_its_engines_end(
    launchers: Launchers, small_cgroup: Path
) -> None:
    join = ["sh", "-c", f'echo $$ > {small_cgroup}/cgroup.procs && exec "$@"', "sh"]
    launcher = launchers(before=join)
    agent = launcher.heard()
    agent.start("chat", "sh", "-c", '"$0" -c "$1"; exit 4', sys.executable, _GREEDY)
    report = agent.event("exit")
    assert (report["status"], report["cause"], report["oomKills"]) == (4, "Exited", 1)
    launcher.signal(signal.SIGTERM)
    assert launcher.status() == 0


def test_the_launcher_is_nobodys_zombie_keeper(agent: Agent, launcher: Launcher) -> None:
    for number in range(5):
        agent.shell(f"e{number}", "exit 0")
        agent.event("gone", f"e{number}")
    until(lambda: not _children(launcher.pid))
    stat = process_stat(launcher.pid)
    assert stat is not None
    assert stat.state in "SR"

"""Engines that are forks of a zygote: no process under the keeper, but the launcher takes them for what they are."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import Agent, living, until
from warmpool.launcher import STAND_IN, process_stat
from warmpool.standins import NAME, stood_for

STANDING_IN = """
import os, pathlib, signal, sys
fork = os.pidfd_open(int(sys.argv[1]) or os.getpid())
pathlib.Path("/proc/self/comm").write_text(sys.argv[2])
signal.pause()
"""


@pytest.fixture
def outside() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that nobody under the launcher has started."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def stand_in(agent: Agent, fork: int, name: str = NAME) -> int:
    """Start a stand-in for a process; for itself, if that is 0."""
    pid: int = agent.start("forked", sys.executable, "-c", STANDING_IN, str(fork), name)["pid"]
    until(lambda: process_stat(pid) is not None and comm(pid) == name)
    return pid


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def test_all_who_look_for_forks_know_stand_ins_by_the_same_name() -> None:
    assert STAND_IN == NAME


def test_a_fork_is_its_engines(agent: Agent, outside: subprocess.Popen[bytes]) -> None:
    pid = stand_in(agent, outside.pid)
    assert list(stood_for(pid)) == [outside.pid]
    assert agent.ask("owns", engine="forked", token="forked-1", pid=outside.pid)["owns"]


def test_a_process_that_is_held_by_another_than_a_stand_in_is_nobodys(
    agent: Agent, outside: subprocess.Popen[bytes]
) -> None:
    pid = stand_in(agent, outside.pid, "python")
    assert not stood_for(pid)
    assert not agent.ask("owns", engine="forked", token="forked-1", pid=outside.pid)["owns"]
    agent.stop("forked", graceSeconds=0)
    agent.event("gone")
    assert living(outside.pid)


def test_an_engine_is_gone_when_its_fork_is(agent: Agent, outside: subprocess.Popen[bytes]) -> None:
    stand_in(agent, outside.pid)
    agent.stop("forked", graceSeconds=0)
    assert agent.event("gone")["left"] == []
    assert not living(outside.pid)


def test_a_stand_in_of_itself_ends_as_any_other_process(agent: Agent) -> None:
    pid = stand_in(agent, 0)
    assert list(stood_for(pid)) == [pid]
    assert agent.ask("owns", engine="forked", token="forked-1", pid=pid)["owns"]
    assert not agent.ask("owns", engine="forked", token="forked-1", pid=os.getpid())["owns"]
    agent.stop("forked", graceSeconds=0)
    assert agent.event("gone")["left"] == []

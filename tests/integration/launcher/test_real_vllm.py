"""The real vLLM that VLLM_BIN names under a launcher: however it ends, its engine core and its workers end with it."""

import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.fakes.engine_subjects import VLLM_ENVIRONMENT, VLLM_SECONDS, vllm_command
from tests.integration.launcher.conftest import Agent, Json, Launcher, living
from warmpool.agent.processes import Ports

pytestmark = pytest.mark.timeout(600)
GRACE_SECONDS = 30.0
"""Enough to end in its own order on a busy machine."""


@pytest.fixture
def engine(agent: Agent, tmp_path: Path) -> Json:
    """A vLLM that computes."""
    ports = Ports.free("127.0.0.1")
    command = ports.fill_in(vllm_command(tmp_path))
    engine = agent.start("chat", *command, environment=VLLM_ENVIRONMENT)
    await_health(ports.control_url, engine["pid"])
    return engine


def await_health(url: str, pid: int) -> None:
    ends = time.monotonic() + VLLM_SECONDS
    while time.monotonic() < ends:
        assert living(pid), "the engine has ended"
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.2)
    pytest.fail("the engine did not become ready")


def family(engine: Json) -> list[psutil.Process]:
    """What the engine has started."""
    others: list[psutil.Process] = psutil.Process(engine["pid"]).children(recursive=True)
    assert len(others) >= 2, "an engine core and a worker"
    return others


def test_what_an_api_server_leaves_behind_is_killed_with_it(agent: Agent, engine: Json) -> None:
    others = family(engine)
    psutil.Process(engine["pid"]).kill()
    assert agent.event("exit", "chat")["signal"] == "SIGKILL"
    assert agent.event("gone", "chat")["left"] == []
    assert not psutil.wait_procs(others, 10)[1]


def test_asked_to_end_it_ends_its_workers_in_its_own_order(agent: Agent, engine: Json) -> None:
    others = family(engine)
    agent.stop("chat", graceSeconds=GRACE_SECONDS)
    ended = agent.event("exit", "chat")
    assert (ended["status"], ended["signal"]) == (0, None)
    assert agent.event("gone", "chat")["left"] == []
    assert not psutil.wait_procs(others, 10)[1]


def test_no_vllm_outlives_a_launcher_that_is_killed(launcher: Launcher, engine: Json) -> None:
    others = family(engine)
    launcher.process.kill()
    assert not psutil.wait_procs(others, 10)[1]

"""One container without a node around it."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fakes.kubelet.containers import Pace, Runner
from tests.fakes.kubelet.probes import Asking
from tests.fakes.kubelet.processes import Start
from tests.fakes.kubelet.status import ContainerState


class Sleeper:
    """Makes a process that does nothing, and no network."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def start_of(self, _container: Mapping[str, Any]) -> Start:
        return Start(words=["sleep", "1000"], environment=dict(os.environ), directory=self._directory)

    def log_of(self, _container: Mapping[str, Any], _restarts: int) -> Path:
        return self._directory / "log"

    def asking_of(self, _container: Mapping[str, Any], _start: Start) -> Asking:
        return Asking(ip="127.0.0.1", ports={}, run=lambda _: None)


async def test_a_container_that_is_cancelled_has_ended_and_is_reaped(tmp_path: Path) -> None:
    """A loop that ends before its children leaves them behind: nobody has asked how they ended."""
    changed, others = asyncio.Event(), set(psutil.Process().children())
    state = ContainerState(name="main", image="host", sidecar=False)
    runner = Runner({"name": "main"}, state, "Always", Sleeper(tmp_path), Pace(), changed.set)
    running = asyncio.get_running_loop().create_task(runner.run())
    while not state.running:
        await changed.wait()
        changed.clear()
    (process,) = set(psutil.Process().children()) - others
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not psutil.pid_exists(process.pid)

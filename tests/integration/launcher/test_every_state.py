"""Agents and engines killed in each state, a launcher at last: real reference engines, real signals, one launcher for all.

Engines and agents are forked, each from a process that has their imports.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from tests.fakes import engine_zygote
from tests.fakes.engine_subjects import make_checkpoint
from tests.integration.agent.conftest import (
    ROOT,
    TOKEN,
    Api,
    Controller,
    Json,
    agent_config,
    controller,
    of,
    reference_command,
)
from tests.integration.launcher.conftest import Launcher, await_death

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the reference engine needs torch"),
    pytest.mark.timeout(240),
]

ZYGOTE = """
import os, signal, sys
from warmpool.agent.__main__ import main
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        sys.argv = ["agent", "--config", line.strip()]
        os._exit(main())
    print(pid, flush=True)
"""
_RESTING = {"Paused", "Parked", "Serving", "Draining"}
_TO_PAUSED = {"Serving": ("drain", "pause"), "Draining": ("drain", "pause"), "Parked": ("unpark",)}
TOKENS_PER_SECOND = 25
"""Slow enough for a warm-up and a proof to be seen, and for a stream to be in the middle of something."""


def resident(policy: str, checkpoint: Path) -> Json:
    options = ("--max-model-len", "2048", "--max-tokens-per-second", str(TOKENS_PER_SECOND))
    return {
        "policy": policy,
        "model": "chat",
        "command": reference_command(checkpoint, *options),
        "environment": engine_zygote.asked(),
        "proof": {"prompts": [{"prompt": "one fish two fish"}], "agree": True, "maxTokens": 8},
        "warmup": {"prompts": ["fish"], "maxTokens": 8},
    }


@dataclass
class Seat:
    """A launcher, a controller that hears, and agents one after the other."""

    directory: Path
    launcher: Launcher
    hears: Controller
    session: aiohttp.ClientSession
    zygote: asyncio.subprocess.Process
    checkpoint: Path
    pids: list[int] = field(default_factory=list)
    api: Api = field(init=False)
    epoch: int = 1

    async def start_agent(self) -> None:
        raw = agent_config(
            self.directory,
            [resident("a", self.checkpoint)],
            controllers=[self.hears.url],
            launcher=str(self.launcher.path),
            memory={"hostMiB": 4096},
            kvWhenPaused="Release",
        )
        path = self.directory / "agent.json"
        path.write_text(json.dumps(raw))
        assert self.zygote.stdin is not None
        assert self.zygote.stdout is not None
        self.zygote.stdin.write(f"{path}\n".encode())
        self.pids.append(int(await self.zygote.stdout.readline()))
        told = await self.hears.until(lambda told: told["pid"] == self.pids[-1])
        self.api = Api(told["agent"], self.session)

    async def kill_agent(self) -> None:
        os.kill(self.pids[-1], signal.SIGKILL)
        await asyncio.to_thread(await_death, self.pids[-1])

    async def now(self, *states: str) -> Json:
        """Wait until the present agent tells one of these states."""
        pid = self.pids[-1]
        return await self.hears.until(lambda told: told["pid"] == pid and of(told, "a")["state"] in states)

    async def calm(self) -> None:
        """Bring the resident to Paused, whatever the test before has left, under a new agent that has seen no failures yet."""
        if self.launcher.process.poll() is not None:
            self.launcher = Launcher(self.directory)
        if self.pids:
            await self.kill_agent()
        await self.start_agent()
        pid = self.pids[-1]
        told = await self.hears.until(
            lambda told: (
                told["pid"] == pid and (of(told, "a")["waiting"] or of(told, "a")["state"] in _RESTING)
            )
        )
        if "NeedsWitness" in of(told, "a")["waiting"]:
            await self.witness()
        for kind in _TO_PAUSED.get(of(told, "a")["state"], ()):
            assert (await self.api.order(kind, "a")).status == 200
        await self.now("Paused")

    async def witness(self) -> None:
        """Have somebody else agree with what the resident answers; it isn't proven without."""
        pid = self.pids[-1]
        await self.hears.until(lambda told: told["pid"] == pid and "NeedsWitness" in of(told, "a")["waiting"])
        statement = (await self.api.get("/v1/proof/a"))["statement"]
        body = {"epoch": 1, "ownership": statement["ownership"], "answers": statement["answers"]}
        for witnesses, status in ((["uid-1"], 409), (["uid-1", "uid-2"], 200)):
            answer = await self.api.put("/v1/proof/a", body | {"witnesses": witnesses})
            assert answer.status == status, answer.message

    def engine(self) -> int:
        pid: int = of(self.hears.told[-1], "a")["pid"]
        return pid

    @contextlib.asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        """An engine that answers nothing meanwhile, so that whatever it is asked goes on."""
        pid = self.engine()
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    async def begin(self, kind: str, tasks: asyncio.TaskGroup) -> None:
        """Give an order whose answer nobody will hear."""

        async def order() -> None:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                await self.api.order(kind, "a", seconds=60)

        tasks.create_task(order())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seat(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Seat]:
    directory = tmp_path_factory.mktemp("every-state")
    await asyncio.to_thread(make_checkpoint, directory / "model")
    environment = os.environ | {"EMBERPOOL_AGENT_TOKEN": TOKEN, "PYTHONPATH": str(ROOT)}
    with (directory / "agent.log").open("ab") as log:
        zygote = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", ZYGOTE),
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    launcher = Launcher(directory, ("--drain-seconds", "20"))
    try:
        async with controller() as hears, aiohttp.ClientSession() as session:
            each = Seat(directory, launcher, hears, session, zygote, directory / "model")
            yield each
            for pid in each.pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            each.launcher.close()
    finally:
        zygote.kill()
        await zygote.wait()
        launcher.close()


@pytest_asyncio.fixture(loop_scope="module")
async def calm(seat: Seat) -> Seat:
    await seat.calm()
    return seat


@pytest.mark.long
async def test_an_agent_that_is_killed_in_any_state_of_a_start_is_followed_by_one_that_goes_on(
    seat: Seat,
) -> None:
    """The first test of the module saves a start: its resident is new."""
    if seat.pids:
        await seat.calm()
        os.kill(seat.engine(), signal.SIGKILL)
    else:
        await seat.start_agent()
    engine = None
    for states in (("Starting",), ("Loading",), ("Warming",), ("Proving",)):
        await seat.now(*states)
        await seat.hears.until(lambda told: of(told, "a")["pid"] is not None)
        engine = engine or seat.engine()
        await seat.kill_agent()
        await seat.start_agent()
    await seat.calm()
    assert (seat.engine(), of(seat.hears.told[-1], "a")["restarts"]) == (engine, 0)


@pytest.mark.parametrize(
    ("state", "before", "begun", "afterwards"),
    [
        ("Paused", [], "", "Paused"),
        ("Promoting", [], "resume", "Paused"),
        ("Parking", [], "park", "Paused"),
        ("Parked", ["park"], "", "Parked"),
        ("Unparking", ["park"], "unpark", "Paused"),
        ("Serving", ["resume"], "", "Serving"),
        ("Draining", ["resume"], "drain", "Draining"),
    ],
)
@pytest.mark.long
async def test_an_agent_that_is_killed_in_any_other_state_breaks_nothing(
    calm: Seat, state: str, before: list[str], begun: str, afterwards: str
) -> None:
    seat = calm
    engine = seat.engine()
    for kind in before:
        answer = await seat.api.order(kind, "a")
        assert answer.status == 200, answer.body
    async with asyncio.TaskGroup() as tasks:
        streams = state in {"Serving", "Draining"}
        started = asyncio.Event()
        if streams:
            stream = tasks.create_task(seat.api.generate("a", tokens=40, started=started))
            await started.wait()
            if begun:
                await seat.begin(begun, tasks)
            await seat.now(state)
            await seat.kill_agent()
        else:
            async with seat.frozen() if begun else contextlib.nullcontext():
                if begun:
                    await seat.begin(begun, tasks)
                await seat.now(state)
                await seat.kill_agent()
        await seat.start_agent()
        told = await seat.now(afterwards)
        assert of(told, "a")["pid"] == engine
        assert of(told, "a")["restarts"] == 0
        if streams:
            status, text = await stream
            assert (status, text.rstrip().endswith("data: [DONE]")) == (200, True)
    if state == "Parked":
        phases = (await seat.api.order("resume", "a")).body["phases"]
        assert phases.keys() == {"unpark", "kv", "canary", "open"}


@pytest.mark.parametrize(
    ("state", "before", "begun"),
    [
        ("Serving", ["resume"], ""),
        ("Parking", [], "park"),
    ],
)
@pytest.mark.long
async def test_an_engine_that_is_killed_in_any_state_is_told_at_once_and_replaced(
    calm: Seat, state: str, before: list[str], begun: str
) -> None:
    seat = calm
    engine = seat.engine()
    for kind in before:
        assert (await seat.api.order(kind, "a")).status == 200
    async with asyncio.TaskGroup() as tasks:
        os.kill(engine, signal.SIGSTOP)
        if begun:
            await seat.begin(begun, tasks)
        await seat.now(state)
        os.kill(engine, signal.SIGKILL)
        failed = await seat.now("Failed")
    assert "was killed by SIGKILL" in of(failed, "a")["failure"]
    again = await seat.now("Paused")
    assert of(again, "a")["pid"] != engine
    assert (of(again, "a")["parkedBytes"], of(again, "a")["restarts"]) == (0, 1)


async def test_a_launcher_that_is_killed_takes_its_engines_along_and_the_agent_waits_for_the_next(
    calm: Seat,
) -> None:
    seat = calm
    engine = seat.engine()
    os.kill(seat.launcher.pid, signal.SIGKILL)
    await asyncio.to_thread(await_death, engine)
    failed = await seat.now("Failed")
    assert "the launcher has ended, and the engine with it" in of(failed, "a")["failure"]

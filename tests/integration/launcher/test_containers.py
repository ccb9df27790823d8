"""A launcher for each container, and one agent over all of them: what happens to one is nothing to the others' residents."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.integration.agent.conftest import (
    Api,
    Controller,
    Json,
    agent_config,
    controller,
    engine_command,
    of,
    resident,
)
from tests.integration.launcher.conftest import (
    QUIET,
    WAIT_SECONDS,
    Launcher,
    Launchers,
    await_death,
    living,
)
from tests.integration.launcher.test_agent_returns import SLOW, TOKENS, Seat, pids
from warmpool.agent.launchers import Hears
from warmpool.agent.launchers import Launchers as SeatLaunchers
from warmpool.agent.processes import Ports, Start


@dataclass
class Pod(Seat):
    """A seat whose residents have a container each: `a` and `b`, each with the launcher of its own."""

    others: tuple[Launcher, ...] = ()

    def config(self, residents: list[Json]) -> Json:
        sockets = str(self.directory / "{container}" / "s")
        each = [one | {"container": str(at)} for at, one in enumerate(residents)]
        return agent_config(self.directory, each, controllers=[self.hears.url], launcher=sockets)

    @property
    def launchers(self) -> tuple[Launcher, ...]:
        return (self.launcher, *self.others)

    @asynccontextmanager
    async def another(self) -> AsyncIterator[Launcher]:
        """The kubelet has started the first container again."""
        again = Launcher(self.launcher.directory, self.launcher.options)
        try:
            yield again
        finally:
            again.close()

    @asynccontextmanager
    async def streaming(self, api: Api, policy: str) -> AsyncIterator[asyncio.Task[tuple[int, str]]]:
        """Send a request that is answered slowly; it has begun inside."""
        async with asyncio.TaskGroup() as tasks:
            started = asyncio.Event()
            stream = tasks.create_task(api.generate(policy, tokens=TOKENS, started=started))
            await started.wait()
            yield stream


RESIDENTS = [resident("a", seed=1, script=SLOW), resident("b", seed=2, script=SLOW)]


@pytest.fixture
async def pod(tmp_path_factory: pytest.TempPathFactory, launchers: Launchers) -> AsyncIterator[Pod]:
    told = ("--drain-seconds", "20", "--grace-seconds", "5")
    own = ("--", *engine_command(seed=2, script=SLOW))
    first, second = launchers(*told), launchers(*told, *own)
    async with controller() as hears, aiohttp.ClientSession() as session:
        yield Pod(launchers.directory, first, hears, session, (second,))


async def whole(api: Api, stream: asyncio.Task[tuple[int, str]]) -> bool:
    status, text = await stream
    return (status, text.count("token_ids")) == (200, TOKENS)


async def change(api: Api, *orders: tuple[str, str]) -> None:
    for kind, policy in orders:
        answer = await api.order(kind, policy)
        assert answer.status == 200, answer.message


async def until(hears: Controller, policy: str, state: str, *, restarts: int = 0) -> Json:
    return await hears.until(
        lambda told: (of(told, policy)["state"], of(told, policy)["restarts"]) == (state, restarts)
    )


@pytest.mark.long
async def test_a_launcher_that_is_killed_takes_its_own_resident_and_leaves_the_neighbours_requests(
    pod: Pod,
) -> None:
    """As where the kernel kills a container for lack of memory. The second launcher knows by itself what it has to start."""
    by_its_launcher = {key: value for key, value in RESIDENTS[1].items() if key != "command"}
    async with pod.agent([RESIDENTS[0], by_its_launcher]) as (agent, api):
        before = pids(await pod.all_paused("a", "b"))
        for launcher, policy in zip(pod.launchers, "ab", strict=True):
            assert launcher.keeper({"pid": before[policy]}) in _children(launcher)
        await change(api, ("resume", "a"), ("drain", "a"), ("pause", "a"), ("resume", "b"))
        async with pod.streaming(api, "b") as stream:
            os.kill(pod.launcher.pid, signal.SIGKILL)
            failed = await pod.hears.until_states(a="Failed")
            assert "the launcher has ended, and the engine with it" in of(failed, "a")["failure"]
            async with pod.another():
                assert await whole(api, stream)
                assert of(await api.get("/v1/state"), "b")["state"] == "Serving"
                await change(api, ("drain", "b"), ("pause", "b"))
                told = pids(await until(pod.hears, "a", "Paused", restarts=1))
                assert (told["a"] != before["a"], told["b"]) == (True, before["b"])
                await change(api, ("resume", "a"))
                agent.terminate()
                assert await asyncio.wait_for(agent.wait(), 20) == 0
                assert not any(map(living, told.values()))


def _children(launcher: Launcher) -> list[int]:
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text("ascii")
    return [int(pid) for pid in children.split()]


@pytest.mark.long
async def test_an_agent_that_comes_back_takes_up_engines_of_all_launchers_and_all_end_in_order(
    pod: Pod,
) -> None:
    async with pod.agent(RESIDENTS) as (first, api):
        before = pids(await pod.all_paused("a", "b"))
        await change(api, ("resume", "b"))
        async with pod.streaming(api, "b") as stream:
            first.kill()
            await first.wait()
            async with pod.agent(RESIDENTS) as (second, _api):
                told = await pod.hears.until(
                    lambda told: (
                        told["pid"] == second.pid
                        and [each["state"] for each in told["residents"]] == ["Paused", "Serving"]
                    )
                )
                assert pids(told) == before
                for launcher in pod.launchers:  # as a kubelet does it: all containers at once
                    launcher.signal(signal.SIGTERM)
                assert await whole(api, stream)
                assert await asyncio.wait_for(second.wait(), 20) == 0
                ended = [await asyncio.to_thread(launcher.status) for launcher in pod.launchers]
                assert ended == [0, 0]
                assert not any(map(living, before.values()))
                assert {each["state"] for each in pod.hears.told[-1]["residents"]} == {"Terminating"}


@pytest.mark.long
async def test_a_launcher_that_alone_is_told_to_end_has_its_own_resident_drained_and_the_agent_goes_on(
    pod: Pod,
) -> None:
    async with pod.agent(RESIDENTS) as (agent, api):
        before = pids(await pod.all_paused("a", "b"))
        await change(api, ("resume", "a"))
        async with pod.streaming(api, "a") as stream:
            pod.launcher.signal(signal.SIGTERM)
            await pod.hears.until_states(a="Draining")
            assert (await api.order("resume", "a")).code == "WrongState"
            assert await whole(api, stream)
        assert await asyncio.to_thread(pod.launcher.status) == 0
        await until(pod.hears, "a", "Starting", restarts=1)
        await change(api, ("resume", "b"))
        async with pod.another(), pod.streaming(api, "b") as stream:
            assert await whole(api, stream)
            await change(api, ("drain", "b"), ("pause", "b"))
            told = pids(await until(pod.hears, "a", "Paused", restarts=1))
            assert (told["a"] != before["a"], told["b"]) == (True, before["b"])
            assert agent.returncode is None


@pytest.mark.long
async def test_each_launcher_is_asked_for_its_own_residents_and_may_come_and_go(
    launchers: Launchers,
) -> None:
    first, second = launchers(), launchers()
    misplaced = first.heard().shell("b", QUIET)["pid"]
    changed = asyncio.Event()
    hears = Hears(leaving=_unheard, ending=_unheard, superseded=_unheard, changed=changed.set)
    agent = SeatLaunchers({"a": first.path, "b": second.path}, secret="", hears=hears)
    start = Start(name="b", command=["sh", "-c", QUIET], environment={})

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():
                changed.clear()
                await changed.wait()

    async with asyncio.TaskGroup() as tasks:
        attending = tasks.create_task(agent.attend())
        await until(lambda: agent.ready("a") and agent.ready("b"))
        assert await agent.running(start) is None
        await agent.end_others(["a", "b"])  # `b` runs where `a` should
        await asyncio.to_thread(await_death, misplaced)
        process = await agent.start(start, Ports.free("127.0.0.1"))
        os.kill(second.pid, signal.SIGKILL)
        await until(lambda: not agent.ready("b"))
        assert "the launcher has ended" in await process.wait()
        assert agent.ready("a")
        again = Launcher(second.directory)
        try:
            await until(lambda: agent.ready("b"))
            assert living((await agent.start(start, Ports.free("127.0.0.1"))).pid)
        finally:
            await agent.close()
            attending.cancel()
            again.close()


def _unheard(*told: object) -> None:
    pytest.fail(f"nobody has told a launcher to end: {told}")

"""A whole agent under a launcher: it dies and comes back, and its engines and their streams don't notice."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import pytest

from tests.fakes import forked
from tests.fakes.forked import AwaitedFork
from tests.integration.agent.conftest import (
    TOKEN,
    Api,
    Controller,
    Json,
    agent_config,
    controller,
    of,
    resident,
)
from tests.integration.launcher.conftest import Launcher, Launchers, await_death, living, until
from warmpool.agent.app import serve_until
from warmpool.agent.config import AgentConfig

TOKENS = 100
SLOW = {"tokenSeconds": 0.01}


@dataclass
class Seat:
    """One seat: a launcher that stays, a controller that hears, and agents one after the other."""

    directory: Path
    launcher: Launcher
    hears: Controller
    session: aiohttp.ClientSession

    def config(self, residents: list[Json]) -> Json:
        return agent_config(
            self.directory, residents, controllers=[self.hears.url], launcher=str(self.launcher.path)
        )

    @asynccontextmanager
    async def agent(self, residents: list[Json]) -> AsyncIterator[tuple[AwaitedFork, Api]]:
        """Run an agent until it has ended; it is killed if it hasn't by then."""
        path = self.directory / "agent.json"
        path.write_text(json.dumps(self.config(residents)))
        environment = os.environ | {"EMBERPOOL_AGENT_TOKEN": TOKEN}
        with (self.directory / "agent.log").open("ab") as log:
            process = await forked.start(
                ["--config", str(path)], environment, log.fileno(), module="warmpool.agent.__main__"
            )
        try:
            told = await self.hears.until(lambda told: told["pid"] == process.pid)
            yield process, Api(told["agent"], self.session)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    @asynccontextmanager
    async def next_agent(self, residents: list[Json]) -> AsyncIterator[Api]:
        """Run an agent in the test's own process, which takes less time than one of its own; its engines are left as they are."""
        config = AgentConfig.model_validate(self.config(residents))
        async with asyncio.TaskGroup() as tasks:
            agent = tasks.create_task(serve_until(config, TOKEN, asyncio.Event()))
            told = await self.hears.until(lambda told: told["pid"] == os.getpid())
            yield Api(told["agent"], self.session)
            agent.cancel()

    async def told_by_next(self, **states: str) -> Json:
        """Wait until the agent in the test's own process says that residents are in these states."""
        return await self.hears.until(
            lambda told: (
                told["pid"] == os.getpid() and all(of(told, p)["state"] == s for p, s in states.items())
            )
        )

    async def all_paused(self, *policies: str) -> Json:
        return await self.hears.until_states(**dict.fromkeys(policies, "Paused"))


@pytest.fixture
async def seat(tmp_path: Path, launchers: Launchers) -> AsyncIterator[Seat]:
    async with controller() as hears, aiohttp.ClientSession() as session:
        yield Seat(tmp_path, launchers("--drain-seconds", "20"), hears, session)


def pids(told: Json) -> dict[str, int]:
    return {each["policy"]: each["pid"] for each in told["residents"]}


async def test_an_agent_that_is_killed_comes_back_to_engines_as_they_were(seat: Seat) -> None:
    residents = [resident("a", seed=1, script=SLOW), resident("b", seed=2)]
    async with asyncio.TaskGroup() as tasks:
        async with seat.agent(residents) as (first, api):
            before = await seat.all_paused("a", "b")
            await api.order("resume", "a")
            started = asyncio.Event()
            stream = tasks.create_task(api.generate("a", tokens=TOKENS, started=started))
            await started.wait()
            await api.script("a", forget=True)
            first.kill()
            await first.wait()
        async with seat.next_agent(residents) as api:
            told = await seat.told_by_next(a="Serving", b="Paused")
            assert pids(told) == pids(before)
            assert of(told, "b")["provenAt"] == of(before, "b")["provenAt"]
            assert of(told, "b")["kvReleased"]
            assert of(told, "a")["restarts"] == 0
            assert list(of(told, "a")["wakeSeconds"]) == ["KvReleased"]
            assert of(told, "a")["capabilities"] == of(before, "a")["capabilities"] is not None
            calls = (await api.engine_log("a"))["calls"]
            assert not [call for call in calls if call.startswith("POST") and "completions" not in call], (
                calls
            )
            status, text = await stream
            assert (status, text.count("token_ids")) == (200, TOKENS)
            for kind, policy in (("drain", "a"), ("pause", "a"), ("resume", "b")):
                assert (await api.order(kind, policy)).status == 200
            assert (await api.generate("b", tokens=3))[1].count("token_ids") == 3


class Breaking(asyncio.Event):
    """Ends with an error instead of a word, as a fault of the agent's own would."""

    async def wait(self) -> NoReturn:
        await super().wait()
        raise LookupError("a fault in the agent")


async def test_an_agent_that_breaks_leaves_its_engines_and_their_streams(seat: Seat) -> None:
    residents, breaking = [resident("a", script=SLOW)], Breaking()
    raw = seat.config(residents)
    del raw["logDirectory"]  # a launcher's engines need none
    async with asyncio.TaskGroup() as tasks:
        agent = tasks.create_task(_broken(serve_until(AgentConfig.model_validate(raw), TOKEN, breaking)))
        before = await seat.all_paused("a")
        api = Api(before["agent"], seat.session)
        await api.order("resume", "a")
        started = asyncio.Event()
        stream = tasks.create_task(api.generate("a", tokens=TOKENS, started=started))
        await started.wait()
        breaking.set()
        await agent
        async with seat.agent(residents) as (second, _api):
            told = await seat.hears.until(
                lambda told: told["pid"] == second.pid and of(told, "a")["state"] == "Serving"
            )
            assert pids(told) == pids(before)
            assert (await stream)[1].count("token_ids") == TOKENS


async def _broken(agent: Coroutine[Any, Any, None]) -> None:
    with pytest.raises(BaseExceptionGroup, match="unhandled errors"):
        await agent


@pytest.mark.long
async def test_a_resident_that_was_being_worked_on_is_proven_again_and_not_restarted(seat: Seat) -> None:
    async with seat.agent([resident("a")]) as (first, api):
        before = await seat.all_paused("a")
        await api.script("a", faults={"POST /v1/completions": {"do": "hang"}})  # its canary won't be answered
        async with asyncio.TaskGroup() as tasks:
            lost = tasks.create_task(_lost(api, "resume"))
            await seat.hears.until_states(a="Promoting")
            await api.script("a", faults={})
            first.kill()
            await first.wait()
            await lost
    async with seat.next_agent([resident("a")]) as api:
        told = await seat.told_by_next(a="Paused")
        assert pids(told) == pids(before)
        assert of(told, "a")["provenAt"] > of(before, "a")["provenAt"]
        assert of(told, "a")["restarts"] == 0
        assert (await api.order("resume", "a")).status == 200


async def test_a_resident_that_was_draining_still_is_and_its_requests_end_well(seat: Seat) -> None:
    async with asyncio.TaskGroup() as tasks:
        async with seat.agent([resident("a", script=SLOW)]) as (first, api):
            before = await seat.all_paused("a")
            await api.order("resume", "a")
            started = asyncio.Event()
            stream = tasks.create_task(api.generate("a", tokens=3000, started=started))
            await started.wait()
            lost = tasks.create_task(_lost(api, "drain"))
            await seat.hears.until(
                lambda told: of(told, "a")["inFlight"] == 1 and of(told, "a")["state"] == "Draining"
            )
            first.kill()
            await first.wait()
            await lost
        async with seat.next_agent([resident("a", script=SLOW)]) as api:
            told = await seat.told_by_next(a="Draining")
            assert (pids(told), of(told, "a")["inFlight"]) == (pids(before), 1)
            await api.script("a", tokenSeconds=0.0)  # and the rest comes at once
            assert (await api.order("drain", "a", seconds=30)).status == 200
            assert (await api.order("pause", "a")).status == 200
            assert (await stream)[1].count("token_ids") == 3000


@pytest.mark.long
async def test_an_engine_that_was_loading_goes_on_loading(seat: Seat) -> None:
    loading = [resident("a", script={"loadSeconds": 2.0})]
    async with seat.agent(loading) as (first, _api):
        before = await seat.hears.until_states(a="Loading")
        first.kill()
        await first.wait()
    async with seat.next_agent(loading):
        told = await seat.told_by_next(a="Paused")
        assert pids(told) == pids(before)


async def _lost(api: Api, kind: str) -> None:
    with pytest.raises((aiohttp.ClientError, TimeoutError)):
        await api.order(kind, "a", seconds=60)


async def test_an_engine_that_ended_meanwhile_is_started_again(seat: Seat) -> None:
    async with seat.agent([resident("a")]) as (first, _api):
        before = await seat.all_paused("a")
        first.kill()
        await first.wait()
    os.kill(pids(before)["a"], signal.SIGKILL)
    async with seat.next_agent([resident("a")]):
        told = await seat.told_by_next(a="Paused")
        assert pids(told) != pids(before)


@pytest.mark.long
async def test_an_engine_that_is_configured_otherwise_now_is_replaced_and_one_of_nobody_ended(
    seat: Seat,
) -> None:
    async with seat.agent([resident("a", seed=1), resident("b", seed=2)]) as (first, _api):
        before = pids(await seat.all_paused("a", "b"))
        first.kill()
        await first.wait()
    async with seat.next_agent([resident("a", seed=3)]):
        await seat.told_by_next(a="Paused")
        for pid in before.values():
            await asyncio.to_thread(await_death, pid)


async def test_a_second_agent_takes_over_and_the_first_ends_without_a_trace(seat: Seat) -> None:
    residents = [resident("a", script=SLOW)]
    async with seat.agent(residents) as (first, api):
        before = await seat.all_paused("a")
        await api.order("resume", "a")
        async with asyncio.TaskGroup() as tasks:
            started = asyncio.Event()
            stream = tasks.create_task(api.generate("a", tokens=TOKENS, started=started))
            await started.wait()
            async with seat.next_agent(residents):
                assert await asyncio.wait_for(first.wait(), 20) == 3
                told = await seat.told_by_next(a="Serving")
                assert pids(told) == pids(before)
                assert (await stream)[1].count("token_ids") == TOKENS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.long
async def test_a_launcher_that_is_told_to_end_has_the_seat_drained_first(
    seat: Seat, number: signal.Signals
) -> None:
    async with seat.agent([resident("a", script=SLOW), resident("b", seed=2)]) as (agent, api):
        engines = pids(await seat.all_paused("a", "b"))
        await api.order("resume", "a")
        async with asyncio.TaskGroup() as tasks:
            started = asyncio.Event()
            stream = tasks.create_task(api.generate("a", tokens=TOKENS, started=started))
            await started.wait()
            seat.launcher.signal(number)
            assert (await stream)[1].count("token_ids") == TOKENS
        assert await asyncio.wait_for(agent.wait(), 20) == 0
        assert await asyncio.to_thread(seat.launcher.status) == 0
        assert not any(living(pid) for pid in engines.values())
        assert {each["state"] for each in seat.hears.told[-1]["residents"]} == {"Terminating"}


async def test_residents_fail_with_their_launcher_and_start_again_under_the_next(seat: Seat) -> None:
    async with seat.agent([resident("a")]) as (agent, _api):
        before = await seat.all_paused("a")
        os.kill(seat.launcher.pid, signal.SIGKILL)
        failed = await seat.hears.until_states(a="Failed")
        assert "the launcher has ended, and the engine with it" in of(failed, "a")["failure"]
        again = Launcher(seat.launcher.directory)
        try:
            told = await seat.all_paused("a")
            assert pids(told) != pids(before)
            assert of(told, "a")["restarts"] == 1
            agent.terminate()
            assert await asyncio.wait_for(agent.wait(), 20) == 0
            until(lambda: not living(pids(told)["a"]))
        finally:
            again.close()

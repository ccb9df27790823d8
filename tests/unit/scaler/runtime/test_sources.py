"""Sources under supervision, in virtual time: one that crashes ends nothing else, and policies may change meanwhile."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from scaler.policy.signals import Pushed, RedisList
from scaler.runtime.sources import (
    FIRST_PAUSE_SECONDS,
    HEALTHY_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Sources,
    Wanted,
)
from scaler.signals.port import Part, SignalKey, Sink
from warmpool.seats import PolicyName

pytestmark = [pytest.mark.looptime, pytest.mark.usefixtures("logs")]
CHAT = PolicyName("chat")


def wanted(*names: str, key: str = "jobs") -> dict[SignalKey, Wanted]:
    return {
        each: Wanted(key=each, signal=RedisList(name=each.signal, type="RedisList", key=key))
        for each in (SignalKey(CHAT, name) for name in names)
    }


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    """What is logged, as data."""
    with capture_logs() as caught:
        yield caught


@dataclass
class Lives:
    """What became of the sources of a test: each start and each end, with its time."""

    began: list[tuple[str, float]] = field(default_factory=list)
    ended: list[tuple[str, float]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    observed: list[str] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)
    fate: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    """What a source of a signal does after a second."""

    def factory(self, of: Wanted) -> "Reader":
        return Reader(of, self)

    def times(self, name: str) -> list[float]:
        return [at for each, at in self.began if each == name]


@dataclass
class Reader:
    """Reads once a second."""

    of: Wanted
    lives: Lives

    async def run(self, sink: Sink) -> None:
        loop, name = asyncio.get_running_loop(), self.of.key.signal
        self.lives.began.append((name, loop.time()))
        try:
            while True:
                await asyncio.sleep(1.0)
                self.lives.fate.get(name, lambda: None)()
                sink.observed(self.of.key, {Part.BACKLOG: 1.0}, loop.time())
        except _End:
            return
        finally:
            self.lives.ended.append((name, loop.time()))


class _End(Exception):
    """A source returns."""


@dataclass
class Heard:
    """A sink."""

    lives: Lives

    def observed(self, key: SignalKey, parts: Mapping[Part, float], at: float, lacking: str = "") -> None:
        del parts, at, lacking
        self.lives.observed.append(key.signal)

    def failed(self, key: SignalKey, why: str) -> None:
        self.lives.failed.append(f"{key.signal}: {why}")


@asynccontextmanager
async def running(lives: Lives, *names: str) -> AsyncIterator[Sources]:
    sources = Sources({"RedisList": lives.factory}, Heard(lives), lives.crashed.append)
    sources.follow(wanted(*names))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(sources.run())
        try:
            yield sources
        finally:
            task.cancel()


def crash() -> None:
    raise RuntimeError("secret://user:password@host")


def end() -> None:
    raise _End


def cancel_itself() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("fate", "problem"),
    [
        pytest.param(crash, "RuntimeError", id="an error"),
        pytest.param(end, "it ended by itself", id="an end"),
        pytest.param(cancel_itself, "it cancelled itself", id="a cancellation of its own"),
    ],
)
async def test_a_source_that_crashes_begins_anew_and_no_other_notices(
    fate: Callable[[], None], problem: str, logs: list[Any]
) -> None:
    lives = Lives(fate={"bad": fate})
    async with running(lives, "good", "bad"):
        await asyncio.sleep(3.2)
        assert len(lives.times("bad")) >= 2
        assert lives.observed == ["good"] * 3
        assert lives.failed[0] == f"bad: its source crashed ({problem}) and begins anew; the log has more"
        assert lives.crashed[0] == "RedisList"
    assert {(line["log_level"], line["policy"], line["signal"]) for line in logs} == {
        ("error", "chat", "bad")
    }


async def test_pauses_between_crashes_grow_to_a_bound() -> None:
    lives = Lives(fate={"bad": crash})
    async with running(lives, "bad"):
        await asyncio.sleep(400)
    times = lives.times("bad")
    pauses = [later - at - 1.0 for at, later in itertools.pairwise(times)]
    assert FIRST_PAUSE_SECONDS / 2 <= pauses[0] <= FIRST_PAUSE_SECONDS
    assert all(LONGEST_PAUSE_SECONDS / 2 <= pause <= LONGEST_PAUSE_SECONDS for pause in pauses[7:])


async def test_a_source_that_was_well_for_a_while_begins_anew_soon() -> None:
    seconds = iter(range(10_000))

    def now_and_then() -> None:
        if next(seconds) % 100 == 99:
            crash()

    lives = Lives(fate={"bad": now_and_then})
    async with running(lives, "bad"):
        await asyncio.sleep(1000)
    times = lives.times("bad")
    assert HEALTHY_SECONDS < 100
    assert all(later - at <= 100 + FIRST_PAUSE_SECONDS for at, later in itertools.pairwise(times))


async def test_a_factory_that_fails_is_tried_again() -> None:
    def refuse(of: Wanted) -> Reader:
        del of
        raise ValueError("no")

    lives = Lives()
    sources = Sources({"RedisList": refuse}, Heard(lives), lives.crashed.append)
    sources.follow(wanted("jobs"))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(sources.run())
        await asyncio.sleep(2)
        task.cancel()
    assert len(lives.crashed) >= 2


async def test_signals_come_go_and_change_and_others_read_on() -> None:
    lives = Lives()
    async with running(lives, "stays", "goes", "changes") as sources:
        await asyncio.sleep(1.5)
        sources.follow({**wanted("stays", "comes"), **wanted("changes", key="others")})
        await asyncio.sleep(1.5)
        assert lives.times("stays") == [0.0]
        assert lives.times("comes") == [1.5]
        assert lives.times("changes") == [0.0, 1.5]
        assert lives.ended == [("goes", 1.5), ("changes", 1.5)]
        assert set(sources.present) == set(wanted("stays", "comes", "changes"))
    assert lives.failed == []
    assert len(lives.ended) == 5


async def test_what_nobody_reads_here_is_left_alone() -> None:
    lives, key = Lives(), SignalKey(CHAT, "gateway")
    async with running(lives) as sources:
        sources.follow({key: Wanted(key=key, signal=Pushed(name="gateway", type="Pushed"))})
        await asyncio.sleep(1)
        assert sources.present == {}

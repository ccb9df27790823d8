"""Who is asked for a state, how often, and how many at once; in virtual time."""

import asyncio
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import pytest

from scaler.cluster.kube.polling import ASK_SECONDS, AT_ONCE, EVERYBODY_SECONDS, SILENT_SECONDS, Polling
from scaler.cluster.kube.roster import Roster
from scaler.errors import Unreachable
from tests.unit.scaler.cluster.kube.pods import pod, report, seat
from warmpool.seats import SeatName

pytestmark = pytest.mark.looptime


def now() -> float:
    return asyncio.get_running_loop().time()


class Reader:
    """Answers after a while.

    Attributes:
        asked: when each agent was asked.
        most: how many were asked at the same time.
    """

    def __init__(self, answer: Callable[[str], Mapping[str, Any]], seconds: float = 0.1) -> None:
        self._answer = answer
        self._seconds = seconds
        self._asking = 0
        self.most = 0
        self.asked: list[tuple[float, str]] = []

    async def read(self, agent: str) -> Mapping[str, Any]:
        self.asked.append((now(), agent))
        self._asking += 1
        self.most = max(self.most, self._asking)
        try:
            await asyncio.sleep(self._seconds)
            return self._answer(agent)
        finally:
            self._asking -= 1


def refused(agent: str) -> Mapping[str, Any]:
    raise Unreachable(agent)


def roster_of(count: int) -> Roster:
    made = Roster(now, now)
    for number in range(count):
        name = f"seat-{number}"
        made.take_pod(SeatName(name), pod(seat(name), ip=f"10.0.{number // 250}.{number % 250}"))
    return made


async def polled(polling: Polling, seconds: float) -> None:
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(polling.run())
        await asyncio.sleep(seconds)
        running.cancel()


async def test_an_agent_that_tells_nothing_is_asked_and_asked_again() -> None:
    roster, reader = roster_of(1), Reader(refused)
    await polled(Polling(roster, reader, roster.report, now), 10.0)
    times = [at for at, _ in reader.asked]
    assert len(times) >= 4
    assert all(later - earlier >= ASK_SECONDS for earlier, later in pairwise(times))


async def test_an_agent_that_pushes_is_left_alone() -> None:
    roster, reader = roster_of(1), Reader(refused)
    roster.report(report(seat("seat-0")))

    async def push() -> None:
        for sequence in range(2, 8):
            await asyncio.sleep(2.0)
            roster.report(report(seat("seat-0"), seq=sequence))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(push())
        await polled(Polling(roster, reader, roster.report, now), 12.0)
    assert reader.asked == []


async def test_what_is_asked_for_is_joined_and_counts_as_heard() -> None:
    roster, reader = roster_of(1), Reader(lambda _: report(seat("seat-0")))
    await polled(Polling(roster, reader, roster.report, now), 1.0)
    (found,) = roster.shelf
    assert found.reachable
    assert [agent for _, agent in reader.asked] == ["http://10.0.0.0:9081"]


async def test_an_agent_is_asked_where_it_said_that_it_listens() -> None:
    roster, reader = roster_of(1), Reader(refused)
    roster.report(report(seat("seat-0"), agent="http://0.0.0.0:7777"))
    await polled(Polling(roster, reader, roster.report, now), SILENT_SECONDS + 1)
    assert {agent for _, agent in reader.asked} == {"http://10.0.0.0:7777"}


async def test_another_pods_agent_at_the_address_is_not_believed() -> None:
    roster, reader = roster_of(2), Reader(lambda _: report(seat("seat-1")))
    polling = Polling(roster, reader, roster.report, now)
    await polling.everybody()
    assert {each.name for each in roster.shelf if each.residents} == {"seat-1"}


async def test_no_more_are_asked_at_once_than_can_be_waited_for() -> None:
    roster, reader = roster_of(3 * AT_ONCE), Reader(refused, seconds=1.0)
    await Polling(roster, reader, roster.report, now).everybody()
    assert reader.most == AT_ONCE
    assert len(reader.asked) == 3 * AT_ONCE


async def test_a_controller_begins_in_time_though_no_agent_can_be_reached() -> None:
    roster, reader = roster_of(10 * AT_ONCE), Reader(refused, seconds=2.0)
    began = now()
    await Polling(roster, reader, roster.report, now).everybody()
    assert now() - began == EVERYBODY_SECONDS


async def test_pods_without_an_address_and_pods_that_have_ended_are_not_asked() -> None:
    roster, reader = Roster(now, now), Reader(refused)
    roster.take_pod(SeatName("a"), pod(seat("a"), ip=""))
    roster.take_pod(SeatName("b"), pod(seat("b"), phase="Failed"))
    await polled(Polling(roster, reader, roster.report, now), 5.0)
    assert reader.asked == []

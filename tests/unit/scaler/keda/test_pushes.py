"""What streams are told and when, in virtual time."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack

import pytest

from scaler.keda.answers import Refused
from scaler.keda.book import Asker
from scaler.keda.published import Board, FleetFigures
from scaler.keda.pushes import HEARTBEAT_SECONDS, MOST_OF_ONE, MOST_STREAMS, Pushes, TooManyStreams
from scaler.keda.trigger import read

pytestmark = pytest.mark.looptime
ASKER, TRIGGER = Asker("serving", "spares"), read({"fleet": "spares"})


class Told:
    """A stream that is read all the time, with what came when."""

    def __init__(self) -> None:
        self.states: list[tuple[float, bool]] = []
        self.refused: Refused | None = None
        self.ended = False

    async def read(self, pushes: Pushes) -> None:
        with pushes.opened(ASKER, TRIGGER) as push:
            try:
                async for state in push.states():
                    self.states.append((asyncio.get_running_loop().time(), state))
            except Refused as error:
                self.refused = error
        self.ended = True


class Desk:
    def __init__(self) -> None:
        self.board = Board()
        self.board.follow({"spares": "serving"}, {})
        self.pushes = Pushes(self.board, self.now)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def publish(self, total: int) -> None:
        figures = FleetFigures(at=self.now(), total=total, serving=total, spare=0)
        self.board.publish({"spares": figures}, {})

    async def keep(self, total: Callable[[], int], seconds: float) -> None:
        """Publish each second, as the loop does."""
        for _ in range(int(seconds)):
            self.publish(total())
            await asyncio.sleep(1.0)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    return Desk()


async def running(desk: Desk, told: Told, work: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(told.read(desk.pushes))
        await asyncio.sleep(0)
        await work()
        task.cancel()


async def test_the_present_state_comes_first_and_an_edge_at_once(desk: Desk) -> None:
    desk.publish(0)
    told = Told()

    async def work() -> None:
        await asyncio.sleep(5.5)
        desk.publish(3)
        await asyncio.sleep(0.1)

    await running(desk, told, work)
    assert told.states == [(0.0, False), (5.5, True)]


async def test_an_active_fleet_beats_each_10_to_15_seconds_and_an_idle_one_never(desk: Desk) -> None:
    total, told = 3, Told()

    async def work() -> None:
        nonlocal total
        await desk.keep(lambda: total, 600)
        total = 0
        await desk.keep(lambda: total, 600)

    await running(desk, told, work)
    times = [at for at, state in told.states if state]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    shortest, longest = HEARTBEAT_SECONDS
    assert all(shortest <= gap <= longest + 1e-6 for gap in gaps)
    assert 40 <= len(gaps) <= 60
    assert [at for at, state in told.states if not state] == [600.0]


async def test_a_flapping_fleet_is_told_its_last_state_only(desk: Desk) -> None:
    desk.publish(0)
    told = Told()

    async def work() -> None:
        await asyncio.sleep(1.0)
        for total in (3, 0, 3, 0, 3):
            desk.publish(total)
        await asyncio.sleep(0.1)

    await running(desk, told, work)
    assert told.states == [(0.0, False), (1.0, True)]


async def test_nothing_is_said_while_nothing_is_known(desk: Desk) -> None:
    told = Told()

    async def work() -> None:
        await asyncio.sleep(100.0)
        desk.publish(3)
        await asyncio.sleep(5.0)

    await running(desk, told, work)
    assert told.states == [(100.0, True)]


async def test_heartbeats_end_with_the_knowledge(desk: Desk) -> None:
    desk.publish(3)
    told = Told()

    async def work() -> None:
        await asyncio.sleep(3600.0)

    await running(desk, told, work)
    assert 585.0 <= told.states[-1][0] <= 600.0, "the answer is unknown after ten minutes"


async def test_a_fleet_that_goes_ends_its_streams_with_the_reason(desk: Desk) -> None:
    desk.publish(3)
    told = Told()

    async def work() -> None:
        await asyncio.sleep(1.0)
        desk.board.follow({}, {})
        await asyncio.sleep(0.1)

    await running(desk, told, work)
    assert told.refused is not None
    assert "no policy file has a fleet named 'spares'" in str(told.refused)


async def test_the_end_of_the_server_ends_all_streams_without_an_error(desk: Desk) -> None:
    desk.publish(3)
    tolds = [Told() for _ in range(MOST_OF_ONE)]
    async with asyncio.TaskGroup() as tasks:
        for told in tolds:
            tasks.create_task(told.read(desk.pushes))
        await asyncio.sleep(1.0)
        assert len(desk.pushes) == MOST_OF_ONE
        desk.pushes.end()
    assert all(told.ended and told.refused is None for told in tolds)
    assert len(desk.pushes) == 0


async def test_one_scaled_object_has_no_more_than_its_share_of_streams(desk: Desk) -> None:
    with ExitStack() as held:
        for _ in range(MOST_OF_ONE):
            held.enter_context(desk.pushes.counted(ASKER))
        with pytest.raises(TooManyStreams, match=r"serving/spares has 8 streams open already"):
            held.enter_context(desk.pushes.counted(ASKER))
        held.enter_context(desk.pushes.counted(Asker("serving", "another")))
        assert len(desk.pushes) == MOST_OF_ONE + 1
    assert len(desk.pushes) == 0


async def test_there_is_a_most_of_all_streams(desk: Desk) -> None:
    with ExitStack() as held:
        for number in range(MOST_STREAMS):
            held.enter_context(desk.pushes.counted(Asker("serving", str(number))))
        with pytest.raises(TooManyStreams, match=f"{MOST_STREAMS} streams"):
            held.enter_context(desk.pushes.counted(ASKER))

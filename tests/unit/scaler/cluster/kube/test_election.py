"""Two candidates and a lease, in virtual time: partitions, lost answers, slow servers, ends of every kind."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from scaler.cluster.kube import lease
from scaler.cluster.kube.election import Elector, Leadership
from scaler.cluster.kube.lease import Record, Timing
from scaler.errors import Conflict, NotFound, Unreachable

pytestmark = pytest.mark.looptime
TIMING = Timing()
HANDOVER = TIMING.lease + 2 * TIMING.retry
"""The longest from a leader's silence to the next term."""


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Server:
    """The lease."""

    record: Record | None = None
    version: int = 0

    def read(self) -> Record:
        if self.record is None:
            raise NotFound("no lease")
        return self.record

    def write(self, record: Record) -> Record:
        if record.version != ("" if self.record is None else self.record.version):
            raise Conflict("modified")
        self.version += 1
        self.record = replace(record, version=str(self.version))
        return self.record


@dataclass
class Line:
    """One candidate's way to the server.

    Attributes:
        cut: nothing gets through.
        lost: requests get through, and answers don't.
        lost_writes: the same of writes alone.
        seconds: how long each way takes.
    """

    server: Server
    cut: bool = False
    lost: bool = False
    lost_writes: bool = False
    seconds: float = 0.01

    async def read(self, seconds: float) -> Record:
        return await self._carried(self.server.read, seconds, lost=self.lost)

    async def write(self, record: Record, seconds: float) -> Record:
        lost = self.lost or self.lost_writes
        return await self._carried(lambda: self.server.write(record), seconds, lost=lost)

    async def _carried(self, act: Callable[[], Record], seconds: float, *, lost: bool) -> Record:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.sleep(self.seconds)
                if self.cut:
                    await asyncio.sleep(seconds)
                answer = act()
                await asyncio.sleep(self.seconds + (seconds if lost else 0))
                return answer
        except TimeoutError:
            raise Unreachable("no answer") from None


@dataclass
class Candidate:
    """Notes when it leads, and in which terms."""

    line: Line
    name: str
    offset: float = 0.0
    floor: int = 0
    terms: list[tuple[int, float, float]] = field(default_factory=list)
    leading: Leadership | None = None

    def elector(self) -> Elector:
        return Elector(
            self.line,
            lease.Candidate(identity=self.name),
            TIMING,
            lambda: now() + self.offset,
            lambda: self.floor,
        )

    async def lead(self, leadership: Leadership) -> None:
        began, self.leading = now(), leadership
        try:
            await asyncio.Event().wait()
        finally:
            self.leading = None
            self.terms.append((leadership.term.epoch, began, now()))

    async def run(self, lead: Callable[[Leadership], Awaitable[None]] | None = None) -> None:
        await self.elector().run(lead or self.lead)


def pair(server: Server) -> tuple[Candidate, Candidate]:
    return Candidate(Line(server), "a"), Candidate(Line(server), "b", offset=1e6)


@asynccontextmanager
async def standing(*candidates: Candidate) -> AsyncIterator[None]:
    """Have candidates stand for election until the block is left."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each.run()) for each in candidates]
        yield
        for each in running:
            each.cancel()


async def leads(candidate: Candidate, within: float) -> Leadership:
    async with asyncio.timeout(within):
        while candidate.leading is None:
            await asyncio.sleep(0.01)
    return candidate.leading


async def test_one_leads_and_the_other_waits() -> None:
    a, b = pair(Server())
    async with standing(a, b):
        await asyncio.sleep(100)
        assert sum(each.leading is not None for each in (a, b)) == 1
        assert not a.terms
        assert not b.terms


async def test_who_is_stopped_leaves_the_lease_to_the_other_at_once() -> None:
    a, b = pair(Server())
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(a.run())
        before = await leads(a, 1)
        second = tasks.create_task(b.run())
        await asyncio.sleep(10)
        first.cancel()
        after = await leads(b, 2 * TIMING.retry)
        assert after.term.epoch == before.term.epoch + 1
        second.cancel()


async def test_a_renewal_that_was_cut_off_keeps_nobody_from_leaving_the_lease() -> None:
    server = Server()
    a, b = pair(server)
    a.line.seconds = 0.4  # so that it is stopped while the answer to a renewal is on its way
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(a.run())
        await leads(a, 3)
        await asyncio.sleep(3)
        version = server.version
        while server.version == version:
            await asyncio.sleep(0.01)
        a.line.seconds = 0.01
        first.cancel()
        second = tasks.create_task(b.run())
        await leads(b, 2 * TIMING.retry)
        second.cancel()


async def test_a_leader_that_is_cut_off_stops_before_the_other_begins() -> None:
    a, b = pair(Server())
    async with standing(a):
        old = await leads(a, 1)
        async with standing(b):
            await asyncio.sleep(10)
            a.line.cut, cut_at = True, now()
            await leads(b, HANDOVER + TIMING.request)
            (_, _, ended) = a.terms[0]
            assert ended <= cut_at + TIMING.renew
            assert ended + TIMING.request < now()
            assert not old.covers(0)


async def test_a_leader_whose_answers_are_lost_stops_before_the_other_begins() -> None:
    a, b = pair(Server())
    async with standing(a, b):
        first, second = (a, b) if (await _either(a, b)) is a else (b, a)
        first.line.lost = True
        await leads(second, 2 * HANDOVER)
        assert first.terms[0][2] < now()


async def _either(a: Candidate, b: Candidate) -> Candidate:
    async with asyncio.timeout(10):
        while a.leading is None and b.leading is None:
            await asyncio.sleep(0.01)
    return a if a.leading is not None else b


async def test_a_short_interruption_ends_no_term() -> None:
    a, _ = pair(Server())
    async with standing(a):
        term = (await leads(a, 1)).term
        for _ in range(5):
            a.line.cut = True
            await asyncio.sleep(1)
            a.line.cut = False
            await asyncio.sleep(5)
        assert a.leading is not None
        assert a.leading.term == term


async def test_a_term_that_came_back_has_a_new_number_and_the_old_one_covers_nothing() -> None:
    a, _ = pair(Server())
    async with standing(a):
        old = await leads(a, 1)
        a.line.cut = True
        await asyncio.sleep(30)
        a.line.cut = False
        again = await leads(a, HANDOVER)
        assert again.term.epoch > old.term.epoch
        assert again.covers(TIMING.request)
        assert not old.covers(0)


async def test_somebody_elses_lease_ends_the_term() -> None:
    server = Server()
    a, _ = pair(server)
    async with standing(a):
        await leads(a, 1)
        server.write(Record(holder="thief", epoch=9, duration=6, version=server.read().version))
        await asyncio.sleep(2 * TIMING.retry)
        assert a.leading is None
        assert (await leads(a, HANDOVER)).term.epoch == 10


async def test_a_lease_that_was_only_annotated_ends_nothing() -> None:
    server = Server()
    a, _ = pair(server)
    async with standing(a):
        await leads(a, 1)
        for _ in range(5):
            server.write(server.read())
            await asyncio.sleep(TIMING.retry)
        assert not a.terms


async def test_a_lease_that_was_deleted_begins_above_the_terms_that_agents_know() -> None:
    server = Server()
    a, _ = pair(server)
    a.floor = 41
    async with standing(a):
        assert (await leads(a, 1)).term.epoch == 42
        server.record = None
        await asyncio.sleep(2 * TIMING.retry)
        assert a.terms
        assert (await leads(a, HANDOVER)).term.epoch == 42


async def test_who_has_looked_on_meanwhile_need_not_wait_for_a_whole_lease_to_end() -> None:
    """A replica that has yet to see its cluster, after a leader that was killed."""
    server = Server()
    dead = Line(server)
    await dead.write(Record(holder="dead", epoch=4, duration=TIMING.lease), 1.0)
    late = Candidate(Line(server, cut=True), "late")
    elector = late.elector()
    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(elector.look_on())
        await asyncio.sleep(3.0)
        assert elector.leader is None
        late.line.cut = False
        await asyncio.sleep(2.0)
        assert elector.leader is not None
        assert elector.leader.holder == "dead"
        await asyncio.sleep(TIMING.lease)
        assert server.record is not None
        assert server.record.holder == "dead"  # it has no wish to lead
        looking.cancel()
        running = tasks.create_task(elector.run(late.lead))
        await leads(late, within=0.5)
        running.cancel()


async def test_a_bid_whose_answer_was_lost_is_no_reason_to_wait_for_ones_own_lease() -> None:
    server = Server()
    a, _ = pair(server)
    server.write(Record(holder="", epoch=1, duration=1))
    a.line.lost_writes = True
    async with standing(a):
        async with asyncio.timeout(10):
            while server.read().holder != "a":
                await asyncio.sleep(0.01)
        a.line.lost_writes = False
        await leads(a, TIMING.attempt + 2 * TIMING.retry)


async def test_a_leader_that_crashes_is_no_leader_any_more() -> None:
    server = Server()
    a, b = pair(server)

    async def crash(_: Leadership) -> None:
        await asyncio.sleep(5)
        raise RuntimeError("crashed")

    with pytest.raises(ExceptionGroup):
        await a.run(crash)
    assert server.read().holder == ""
    async with standing(b):
        await leads(b, 1)


async def test_a_leader_that_is_done_ends_the_election() -> None:
    server = Server()
    a, _ = pair(server)

    async def done(_: Leadership) -> None:
        await asyncio.sleep(5)

    await a.run(done)
    assert server.read().holder == ""


@pytest.mark.parametrize("seed", range(10))
async def test_whatever_the_network_does_no_two_terms_overlap_and_one_comes_back(seed: int) -> None:
    chance, server = random.Random(seed), Server()
    a, b = pair(server)
    async with standing(a, b):
        for _ in range(40):
            line = chance.choice([a.line, b.line])
            line.cut, line.lost = chance.random() < 0.4, chance.random() < 0.3
            line.seconds = chance.choice([0.001, 0.05, 0.4, 1.5])
            await asyncio.sleep(chance.uniform(0.1, 8))
        for candidate in (a, b):
            candidate.line.cut = candidate.line.lost = False
            candidate.line.seconds = 0.01
        await asyncio.sleep(2 * HANDOVER)
        assert sum(each.leading is not None for each in (a, b)) == 1
    terms = sorted(a.terms + b.terms, key=lambda term: term[1])
    assert len(terms) > 1
    for (epoch, _, ended), (following, began, _) in pairwise(terms):
        assert ended <= began
        assert epoch < following

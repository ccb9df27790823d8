"""How many reads are kept in flight: found on stores of known bandwidth and latency, in simulated time, and obeyed by real threads."""

import heapq
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import Barrier, Lock

import pytest

from loader.control import Control
from loader.copiers import crew
from loader.copiers.crew import CopyChunk
from loader.depth import Depth
from loader.plan import Chunk

CHUNK = 16 * 2**20


def settled(depth: Depth, *, bandwidth: float, latency: float, reads: int = 3000) -> int:
    """The depth after so many reads of a store that answers each after its latency and no faster than its bandwidth."""
    ends: list[float] = []
    busy_until = now = 0.0
    for _ in range(reads):
        while len(ends) < depth.wanted:
            busy_until = max(busy_until, now) + CHUNK / bandwidth
            heapq.heappush(ends, max(now + latency, busy_until))
        now = heapq.heappop(ends)
        depth.done(CHUNK, now)
    return depth.wanted


@pytest.mark.parametrize(
    ("bandwidth", "latency", "found"),
    [
        (2e9, 0.001, 16),  # a local disk: sixteen reads hold more than it has under way
        (2e9, 0.13, 16),
        (10e9, 0.04, 32),  # 400 MB under way: 24 reads
        (10e9, 0.08, 64),  # 800 MB: 48 reads
        (50e9, 0.5, 64),  # more than the bound
        (0.1e9, 0.01, 16),
    ],
)
def test_reads_in_flight_are_bandwidth_times_latency(bandwidth: float, latency: float, found: int) -> None:
    assert settled(Depth(first=16, most=64), bandwidth=bandwidth, latency=latency) == found


def test_the_bound_may_be_no_multiple() -> None:
    assert settled(Depth(first=16, most=40), bandwidth=50e9, latency=0.5) == 40


def test_one_number_stays() -> None:
    depth = Depth(first=4, most=4)
    assert {depth.done(CHUNK, now) for now in range(100)} == {4}


@pytest.mark.parametrize(("first", "most"), [(0, 4), (5, 4)])
def test_bounds_are_checked(first: int, most: int) -> None:
    with pytest.raises(ValueError, match=f"first {first}, most {most}"):
        Depth(first=first, most=most)


def chunks(count: int) -> list[Chunk]:
    return [Chunk(file="f", begin=number, nbytes=1, pieces=()) for number in range(count)]


class Told(Depth):
    """Wants what it is told, read after read."""

    def __init__(self, *numbers: int) -> None:
        super().__init__(first=numbers[0], most=max(numbers))
        self._numbers = iter(numbers[1:])

    def done(self, nbytes: int, now: float) -> int:
        del nbytes, now
        self.wanted = next(self._numbers, self.wanted)
        return self.wanted


def test_threads_are_added_while_a_load_runs() -> None:
    together = Barrier(6, timeout=60)  # opens only if six threads read at once
    seen: list[Chunk] = []

    def copy(chunk: Chunk) -> None:
        if chunk.begin >= 2:
            together.wait()

    depth = Told(2, 6)
    crew.run(
        chunks(8),
        threads=2,
        open_worker=lambda: nullcontext(copy),
        report=seen.append,
        control=Control(),
        depth=depth,
    )
    assert sorted(chunk.begin for chunk in seen) == list(range(8))


@pytest.mark.parametrize("numbers", [(8, 1), (8, 2, 8, 1, 4), (1, 64), (4, 4, 2, 1, 2, 3, 1)])
def test_every_chunk_is_copied_whatever_the_number_does(numbers: tuple[int, ...]) -> None:
    seen: list[Chunk] = []
    crew.run(
        chunks(200),
        threads=numbers[0],
        open_worker=lambda: nullcontext(lambda _: None),
        report=seen.append,
        control=Control(),
        depth=Told(*numbers),
    )
    assert sorted(chunk.begin for chunk in seen) == list(range(200))


@pytest.mark.parametrize(("count", "depth", "bound"), [(500, (4, 1, 4, 1, 4, 2, 4, 1, 4), 4), (3, (2, 8), 3)])
def test_never_more_workers_are_open_than_the_bound(count: int, depth: tuple[int, ...], bound: int) -> None:
    lock = Lock()
    opened = most = 0

    @contextmanager
    def worker() -> Iterator[CopyChunk]:
        nonlocal opened, most
        with lock:
            opened += 1
            most = max(most, opened)
        yield lambda _: None
        with lock:
            opened -= 1

    crew.run(
        chunks(count),
        threads=depth[0],
        open_worker=worker,
        report=lambda _: None,
        control=Control(),
        depth=Told(*depth),
    )
    assert opened == 0
    assert most <= bound

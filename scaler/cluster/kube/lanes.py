"""How fast we write: lanes with a budget each, so that housekeeping never stands before a promotion.

API Priority and Fairness gives each flow its own queue in the server; a lane is our side of one. What the server says
with a 429 concerns the lane that it was said to.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass


def loop_time() -> float:
    """Return monotonic seconds on the clock by which everything here sleeps: the running event loop's."""
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a lane may do.

    Attributes:
        per_second: calls a second in the long run.
        burst: calls at once after a rest.
        at_once: calls under way at the same time.
    """

    per_second: float
    burst: int
    at_once: int


PROMOTIONS = Budget(per_second=200, burst=400, at_once=400)
"""100 spare seats promoted on one burst make 200 writes at once; twice that before anything waits."""
HOUSEKEEPING = Budget(per_second=20, burst=40, at_once=8)
"""Labels that mirror values, nodes, deletions: client-go's customary limit of 20 a second."""
ORDERS = Budget(per_second=10, burst=20, at_once=4)
"""What a person waits for who has given an order; few give any, and some write a hundred of them in a loop."""
EVENTS = Budget(per_second=5, burst=50, at_once=1)
"""What is told for people to read, and may come late."""


class TokenBucket:
    """A rate limit that is asked with the time and answers with how long to wait.

    Args:
        budget: how fast.
        now: monotonic seconds.
    """

    def __init__(self, budget: Budget, now: float) -> None:
        self._budget = budget
        self._tokens = float(budget.burst)
        self._at = now

    def take(self, now: float) -> float:
        """Take one call, and return after how many seconds it may be made; who asks first goes first."""
        self._tokens = min(self._budget.burst, self._tokens + (now - self._at) * self._budget.per_second)
        self._at = now
        self._tokens -= 1
        return max(0.0, -self._tokens / self._budget.per_second)


class Lane:
    """One lane.

    Args:
        budget: what it may do.
        clock: monotonic seconds.
    """

    def __init__(self, budget: Budget, clock: Callable[[], float] = loop_time) -> None:
        self._bucket = TokenBucket(budget, clock())
        self._slots = asyncio.Semaphore(budget.at_once)
        self._clock = clock
        self._closed_until = clock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until a call may be made; it is under way while the context is open."""
        if wait := self._bucket.take(self._clock()):
            await asyncio.sleep(wait)
        while (closed := self._closed_until - self._clock()) > 0:  # noqa: ASYNC110 - it may be put off meanwhile
            await asyncio.sleep(closed)
        async with self._slots:
            yield

    def pause(self, seconds: float) -> None:
        """Make no call for some seconds: the server has said so."""
        self._closed_until = max(self._closed_until, self._clock() + seconds)


@dataclass(frozen=True, slots=True)
class Lanes:
    """All lanes.

    Attributes:
        promotions: claims, settlements, sizes, the lease: what a burst or the term waits for.
        orders: what is kept of a person's order before it is answered.
        housekeeping: labels, nodes, deletions.
        events: what people read.
    """

    promotions: Lane
    orders: Lane
    housekeeping: Lane
    events: Lane


def lanes(clock: Callable[[], float] = loop_time) -> Lanes:
    """Make the lanes with their usual budgets."""
    return lanes_of(lambda budget: Lane(budget, clock))


def lanes_of(make: Callable[[Budget], Lane]) -> Lanes:
    """Make the lanes with their usual budgets, each as `make` makes it."""
    return Lanes(
        promotions=make(PROMOTIONS), orders=make(ORDERS), housekeeping=make(HOUSEKEEPING), events=make(EVENTS)
    )

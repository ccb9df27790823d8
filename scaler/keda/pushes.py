"""Open streams: what each of them is told, and when. Knows no gRPC.

A stream is told the present state when it opens, each change at once, and while it is active the same again every 10 to 15 s,
because an operator drops an activation that comes before it has filled its status. More often would be harm: each costs the
operator a read and often a write, by a client of 20 a second. Between two messages nothing is kept but the last one sent, so
a stream that nobody reads costs what every other costs.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from scaler.errors import ScalerError
from scaler.keda.answers import Code, Refused, answer
from scaler.keda.book import Asker
from scaler.keda.published import Board, Named
from scaler.keda.trigger import Trigger

MOST_STREAMS: Final = 4096
"""Streams that are open at once; an operator has one or two for each ScaledObject."""
MOST_OF_ONE: Final = 8
"""Streams of one ScaledObject: those of an operator that lost its connection are noticed a minute later."""
HEARTBEAT_SECONDS: Final = (10.0, 15.0)
"""Between two messages without a change; drawn anew each time, so that streams opened together don't speak together."""


class TooManyStreams(ScalerError):
    """There is no room for one more; the message says of whom."""


class Push:
    """One stream.

    Args:
        board: where figures come from.
        trigger: what it is about.
        now: monotonic seconds.
        ended: set once the server ends.
    """

    def __init__(
        self, board: Board, trigger: Trigger, now: Callable[[], float], ended: asyncio.Event
    ) -> None:
        self._board = board
        self._trigger = trigger
        self._now = now
        self._ended = ended
        self._news = asyncio.Event()
        self._said: bool | None = None

    async def states(self) -> AsyncIterator[bool]:
        """Yield what is to be sent; ends when the server does.

        Raises:
            Refused: there is no such fleet or policy, or no longer.
        """
        beat, beat_at = False, _next_beat()
        while not self._ended.is_set():
            self._news.clear()
            state = self._state()
            if state is not None and (state is not self._said or (beat and state)):
                self._said, beat, beat_at = state, False, _next_beat()
                yield state
                continue  # it may have changed while that was sent
            beat = not await self._news_before(beat_at)
            if beat:
                beat_at = _next_beat()

    async def _news_before(self, time: float) -> bool:
        """Wait for news; returns whether there were any before a time of the loop."""
        try:
            async with asyncio.timeout_at(time):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def look(self) -> None:
        """There may be something to say."""
        if self._ended.is_set() or self._changed():
            self._news.set()

    def _changed(self) -> bool:
        try:
            state = self._state()
        except Refused:
            return True
        return state is not None and state is not self._said

    def _state(self) -> bool | None:
        """Return whether it is active; None while that is unknown.

        Raises:
            Refused: there is no such fleet or policy.
        """
        try:
            return answer(self._trigger, self._board.current, self._now()).active
        except Refused as error:
            if error.code is Code.UNAVAILABLE:
                return None
            raise


def _next_beat() -> float:
    """Return when a stream that says the same again does so next, as the loop's time."""
    return asyncio.get_running_loop().time() + random.uniform(*HEARTBEAT_SECONDS)


class Pushes:
    """All streams.

    Args:
        board: where figures come from.
        now: monotonic seconds.
    """

    def __init__(self, board: Board, now: Callable[[], float]) -> None:
        self._board = board
        self._now = now
        self._ended = asyncio.Event()
        self._open: defaultdict[Named, set[Push]] = defaultdict(set)
        self._of: Counter[Asker] = Counter()
        self._unsubscribe = board.subscribe(self._told)

    def __len__(self) -> int:
        return self._of.total()

    @property
    def ended(self) -> asyncio.Event:
        """Set once the server ends."""
        return self._ended

    @contextmanager
    def opened(self, asker: Asker, trigger: Trigger) -> Iterator[Push]:
        """Open a stream for as long as the context lasts.

        Raises:
            TooManyStreams: this ScaledObject, or all of them, have too many.
        """
        with self.counted(asker):
            named = Named(trigger.subject, trigger.name)
            push = Push(self._board, trigger, self._now, self._ended)
            self._open[named].add(push)
            try:
                yield push
            finally:
                self._open[named].discard(push)
                if not self._open[named]:
                    del self._open[named]

    @contextmanager
    def counted(self, asker: Asker) -> Iterator[None]:
        """Count a stream of any kind for as long as the context lasts.

        Raises:
            TooManyStreams: this ScaledObject, or all of them, have too many.
        """
        if self._of[asker] >= MOST_OF_ONE:
            raise TooManyStreams(f"{asker.namespace}/{asker.name} has {MOST_OF_ONE} streams open already")
        if len(self) >= MOST_STREAMS:
            raise TooManyStreams(f"{MOST_STREAMS} streams are open already")
        self._of[asker] += 1
        try:
            yield
        finally:
            self._of[asker] -= 1
            if not self._of[asker]:
                del self._of[asker]

    def end(self) -> None:
        """End all streams in order, so that whoever reads them comes back soon."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._unsubscribe()
        for push in [push for pushes in self._open.values() for push in pushes]:
            push.look()

    def _told(self, changed: Collection[Named]) -> None:
        for named in changed:
            for push in tuple(self._open.get(named, ())):
                push.look()

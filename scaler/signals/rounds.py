"""Reading in rounds: a question at a signal's own pace until cancelled, whatever goes wrong."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from scaler.errors import SignalError
from scaler.signals.failures import one_line
from scaler.signals.port import Part, SignalKey, Sink

log = structlog.get_logger(__name__)

_JITTER: Final = 0.1
"""Share by which an interval varies, so that signals that began together don't go on asking together."""
_LONGEST_START_SECONDS: Final = 0.25
"""The first round comes at any moment within this (and within the interval), for the same reason."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What one round found.

    Attributes:
        parts: the numbers; a part that is missing was not there.
        at: monotonic seconds at which they were true.
    """

    parts: Mapping[Part, float]
    at: float


class Rounds:
    """The rounds of one signal. What changes (the first failure, and its end) is logged, and nothing else.

    Args:
        key: whose rounds they are.
        interval: seconds from the start of one round to the start of the next.
    """

    def __init__(self, key: SignalKey, interval: float) -> None:
        self._key = key
        self._interval = interval
        self._failing_since: float | None = None

    async def run(self, read: Callable[[], Awaitable[Observation]], sink: Sink) -> None:
        """Read until cancelled; a round that fails is told to the sink once and ends nothing.

        Args:
            read: makes one observation. It bounds itself in time, and raises a `SignalError` whose text is for people.
            sink: gets what was read, or why there is nothing.
        """
        loop = asyncio.get_running_loop()
        await asyncio.sleep(random.uniform(0.0, min(self._interval, _LONGEST_START_SECONDS)))
        while True:
            began = loop.time()
            await self._round(read, sink)
            next_one = began + self._interval * random.uniform(1 - _JITTER, 1 + _JITTER)
            await asyncio.sleep(max(0.0, next_one - loop.time()))

    async def _round(self, read: Callable[[], Awaitable[Observation]], sink: Sink) -> None:
        try:
            observation = await read()
        except SignalError as error:
            self._failed(str(error), sink, error=None)
        except Exception as error:  # noqa: BLE001 - a broken server makes libraries raise anything, and ends nothing
            self._failed(f"unexpected {type(error).__name__}: {one_line(str(error))}", sink, error=error)
        else:
            self._recovered()
            sink.observed(self._key, observation.parts, observation.at)

    def _failed(self, why: str, sink: Sink, *, error: Exception | None) -> None:
        if self._failing_since is None:
            self._failing_since = asyncio.get_running_loop().time()
            log.warning(
                "signal can't be read",
                policy=self._key.policy,
                signal=self._key.signal,
                problem=why,
                exc_info=error,
            )
        sink.failed(self._key, why)

    def _recovered(self) -> None:
        if self._failing_since is not None:
            seconds = asyncio.get_running_loop().time() - self._failing_since
            self._failing_since = None
            log.info(
                "signal is read again",
                policy=self._key.policy,
                signal=self._key.signal,
                after_seconds=round(seconds, 1),
            )


def failing(error: SignalError) -> Callable[[], Awaitable[Observation]]:
    """Return what reads nothing and says why in every round: settings that can't be asked with."""

    async def read() -> Observation:
        raise error

    return read

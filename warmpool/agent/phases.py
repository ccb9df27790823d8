"""How long the steps of an order or of a start-up took, and which one is under way."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType

from warmpool.timeline import Account, Phase, StartFacts


class Phases:
    """Seconds per step of an order, in the order in which they were taken.

    Attributes:
        seconds: what each step took; a step that is taken twice adds up.
        current: the step under way or the last one, for messages.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.current = ""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure what happens inside as step `name`, however it ends."""
        self.current = name
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began


class StartPhases:
    """The phases of one start. What lies between two steps is waiting, so that all of them add up to the whole start.

    Attributes:
        facts: what else is known of it.
    """

    def __init__(self) -> None:
        self.facts = StartFacts(at=time.time())
        self._account = Account(_now())

    @contextmanager
    def step(self, phase: Phase) -> Iterator[None]:
        """Count what happens inside as a phase, however it ends."""
        self._account.enter(phase, _now())
        try:
            yield
        finally:
            self._account.enter(Phase.WAITING, _now())

    def explain(self, told: Mapping[Phase, float], rest: Phase) -> None:
        """See `Account.explain`."""
        self._account.explain(told, rest)

    def note_request(self, seconds: float) -> None:
        """Note how long a request took; the first one counts."""
        if self.facts.first_request_seconds is None:
            self.facts = replace(self.facts, first_request_seconds=seconds)

    def seconds(self) -> Mapping[str, float]:
        """Return what each phase took until now."""
        return MappingProxyType({str(phase): each for phase, each in self._account.seconds(_now()).items()})


def _now() -> float:
    return asyncio.get_running_loop().time()

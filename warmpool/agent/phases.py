"""How long the steps of an order or of a start-up took, and which one is under way."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """Seconds per step, in the order in which they were taken.

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

"""Between the servers and the compute thread: hands requests over, brings every output to the one who waits for it, and counts."""

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from warmpool.reference.engine import Engine
from warmpool.reference.metrics import Ended, Metrics
from warmpool.reference.openai import Generation
from warmpool.reference.sequence import FinishReason, Load, Output, Sequence
from warmpool.reference.tokenizer import TextStream

SUBMIT_SECONDS = 60.0
"""An engine that doesn't take a request in for so long is stuck: a step is never that long."""


@dataclass(slots=True, kw_only=True)
class _Flight:
    """A request that hasn't ended.

    `outputs` needs no bound of its own: it gets at most `max_tokens` + 1 entries.
    """

    generation: Generation
    arrived: float
    outputs: asyncio.Queue[Output] = field(default_factory=asyncio.Queue)
    first: float | None = None
    last: float = 0.0
    tokens: int = 0


class Outputs:
    """One request's outputs, in order, up to the one that ends it."""

    def __init__(self, queue: asyncio.Queue[Output]) -> None:
        self._queue = queue
        self.ended = False

    async def __aiter__(self) -> AsyncGenerator[Output, None]:
        """Yield outputs as they come. There is no deadline here: a paused engine holds requests for as long as it is paused."""
        while not self.ended:
            output = await self._queue.get()
            self.ended = output.finish is not None
            yield output


class Frontend:
    """Requests in flight, by key. It belongs to one event loop; only `report` is called from the compute thread."""

    def __init__(self, metrics: Metrics, loop: asyncio.AbstractEventLoop) -> None:
        self._metrics = metrics
        self._loop = loop
        self._flights: dict[int, _Flight] = {}
        self._keys = itertools.count(1)

    def report(self, outputs: list[Output], load: Load) -> None:
        """Take outputs from the compute thread."""
        try:
            self._loop.call_soon_threadsafe(self._deliver, outputs, load, time.monotonic())
        except RuntimeError:
            # The loop is closed: the process is ending and nobody waits any more.
            return

    @asynccontextmanager
    async def generate(self, engine: Engine, generation: Generation) -> AsyncIterator["tuple[int, Outputs]"]:
        """Run one request; leaving the context early cancels it.

        Yields:
            Its key for `Engine.cancel`, and its outputs.

        Raises:
            RequestRejected: the queue is full.
            EngineStopped: the engine takes nothing in any more.
        """
        key, now = next(self._keys), time.monotonic()
        flight = _Flight(generation=generation, arrived=now)
        outputs = Outputs(flight.outputs)
        sampling = generation.sampling
        sequence = Sequence(
            key=key,
            prompt=generation.prompt,
            sampling=sampling,
            text=TextStream(engine.runner.tokenizer.decoder(), sampling.stop),
            arrived=now,
        )
        self._flights[key] = flight
        try:
            async with asyncio.timeout(SUBMIT_SECONDS):
                await asyncio.wrap_future(engine.submit(sequence))
            yield key, outputs
        finally:
            if not outputs.ended:
                engine.cancel(key)
            self._flights.pop(key, None)

    @staticmethod
    def new_seed() -> int:
        """A seed for a request that has none."""
        return secrets.randbits(63)

    def _deliver(self, outputs: list[Output], load: Load, now: float) -> None:
        self._metrics.load(load)
        for output in outputs:
            flight = self._flights.get(output.key)
            if flight is None:
                # Its client has gone; the cancellation's own report comes here too.
                if output.finish is not None:
                    self._metrics.lost(output.finish)
                continue
            flight.outputs.put_nowait(output)
            self._measure(flight, output, now)

    def _measure(self, flight: _Flight, output: Output, now: float) -> None:
        if output.token is not None:
            if flight.first is None:
                flight.first = now
                self._metrics.first_token(now - flight.arrived, len(flight.generation.prompt))
            else:
                self._metrics.next_token(now - flight.last)
            flight.tokens += 1
            flight.last = now
        if output.finish is not None:
            self._metrics.ended(_ended(flight, output.finish, now))


def _ended(flight: _Flight, reason: FinishReason, now: float) -> Ended:
    return Ended(
        reason=reason,
        prompt_tokens=len(flight.generation.prompt),
        generation_tokens=flight.tokens,
        max_tokens=flight.generation.sampling.max_tokens,
        arrived=flight.arrived,
        first=flight.first,
        last=now,
    )

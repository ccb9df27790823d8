"""The sources of all signals in force: each in a task of its own, begun anew when it crashes, and following the policies.

A source is trusted to outlive whatever it reads. One that doesn't has a fault of its own, which must end neither the
controller nor any other source.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import structlog

from scaler.policy.signals import Signal
from scaler.signals.port import SignalKey, Sink, Source

log = structlog.get_logger(__name__)

FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0
HEALTHY_SECONDS: Final = 60.0
"""A source that ran for this long before it crashed begins anew without delay; its pauses grow from the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One signal that is to be read; another value is another source.

    Attributes:
        key: whose readings they are.
        signal: what to read.
        objective: seconds within which the policy's first tokens should be there; None where its source needn't know.
    """

    key: SignalKey
    signal: Signal
    objective: float | None = None


Factory: TypeAlias = Callable[[Wanted], Source]
"""Makes the source of one signal."""


class Sources:
    """Runs them; `run` it inside a TaskGroup.

    Args:
        factories: by type of signal. Signals of other types are nobody's to read: they are pushed.
        sink: where readings go.
        crashed: told the type of a source that crashed.
    """

    def __init__(
        self,
        factories: Mapping[str, Factory],
        sink: Sink,
        crashed: Callable[[str], None] = lambda _type: None,
    ) -> None:
        self._factories = factories
        self._sink = sink
        self._crashed = crashed
        self._wanted: dict[SignalKey, Wanted] = {}
        self._changed = asyncio.Event()
        self._running: dict[SignalKey, tuple[Wanted, asyncio.Task[None]]] = {}
        self.present: dict[SignalKey, Source] = {}
        """The sources that run at present."""

    def follow(self, wanted: Mapping[SignalKey, Wanted]) -> None:
        """Read these signals and no others; sources of signals that have not changed go on."""
        self._wanted = {key: each for key, each in wanted.items() if each.signal.type in self._factories}
        self._changed.set()

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._changed.clear()
                    self._reconcile(tasks)
                    await self._changed.wait()
        finally:
            self._running.clear()

    def _reconcile(self, tasks: asyncio.TaskGroup) -> None:
        for key, (wanted, task) in list(self._running.items()):
            if self._wanted.get(key) != wanted:
                del self._running[key]
                task.cancel()
        for key, wanted in self._wanted.items():
            if key not in self._running:
                task = tasks.create_task(self._keep(wanted), name=f"signal {key.policy}/{key.signal}")
                self._running[key] = wanted, task

    async def _keep(self, wanted: Wanted) -> None:
        """Run one source for ever, whatever becomes of it."""
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            began = loop.time()
            problem = await self._once(wanted)
            failures = failures + 1 if loop.time() - began < HEALTHY_SECONDS else 1
            self._crashed(wanted.signal.type)
            self._sink.failed(wanted.key, f"its source crashed ({problem}) and begins anew; the log has more")
            longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 10))
            await asyncio.sleep(longest * random.uniform(0.5, 1.0))

    async def _once(self, wanted: Wanted) -> str:
        """Run a source until it ends, which it shouldn't; return how it did."""
        key, source = wanted.key, None
        try:
            source = self._factories[wanted.signal.type](wanted)
            self.present[key] = source
            await source.run(self._sink)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            log.exception("source cancelled itself", policy=key.policy, signal=key.signal)
            return "it cancelled itself"
        except Exception as error:
            log.exception("source crashed", policy=key.policy, signal=key.signal)
            return type(error).__name__
        finally:
            if source is not None and self.present.get(key) is source:
                del self.present[key]
        log.error("source ended by itself", policy=key.policy, signal=key.signal)
        return "it ended by itself"

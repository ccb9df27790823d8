"""Virtual time, and processes in it that can be stopped, continued and killed between any two of their steps.

One event loop runs everything. When nothing is left to do now, time jumps to the next timer. A task belongs to the process within which
it was made, and so does every callback that comes of it. What a stopped process would do is kept for when it is continued, in its
order; what a killed one would do never happens: no `finally` runs, no lease is released, no last word is written.
"""

import asyncio
import contextlib
import random
import selectors
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context, ContextVar, copy_context
from enum import Enum, auto
from typing import Any, TypeVar, TypeVarTuple, Unpack

import pytest

from tests.fakes.loop_clock import EPOCH

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_BURIAL_SECONDS = 60.0
_TURN_SECONDS = 1e-6
"""What a turn of the loop takes, so that whoever waits for a moment that is almost there gets there."""
_OWNER: ContextVar["Process | None"] = ContextVar("owner", default=None)


class State(Enum):
    """Whether a process goes on."""

    RUNNING = auto()
    STOPPED = auto()
    KILLED = auto()


class _Step:
    """One callback of a process."""

    __slots__ = ("_args", "_callback", "_owner", "context", "handle")

    def __init__(
        self, owner: "Process", callback: Callable[..., object], args: tuple[Any, ...], context: Context
    ) -> None:
        self._owner, self._callback, self._args, self.context = owner, callback, args, context
        self.handle: asyncio.Handle | None = None

    def __call__(self) -> None:
        if self.cancelled:
            return
        if self._owner.goes_on():
            self._callback(*self._args)
        else:
            self._owner.held.append(self)

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants it any more: a timer that was taken back after it had come due."""
        return self.handle is not None and self.handle.cancelled()


class _Selector(selectors.DefaultSelector):
    """Waits for nothing: time goes on instead."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen any more")
        self.loop.pass_time(max(timeout, _TURN_SECONDS))
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """The event loop; its time begins at 0."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self._virtual = 0.0
        super().__init__(selector)

    def time(self) -> float:
        return self._virtual

    def pass_time(self, seconds: float) -> None:
        self._virtual += seconds

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        owner = _OWNER.get() if context is None else context.get(_OWNER)
        if owner is None:
            return super().call_soon(callback, *args, context=context)
        step = _Step(owner, callback, args, copy_context() if context is None else context)
        step.handle = super().call_soon(step, context=step.context)
        return step.handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        owner = _OWNER.get() if context is None else context.get(_OWNER)
        if owner is None:
            return super().call_at(when, callback, *args, context=context)
        step = _Step(owner, callback, args, copy_context() if context is None else context)
        step.handle = timer = super().call_at(when, step, context=step.context)
        return timer

    def again(self, step: _Step) -> None:
        """Do what was kept."""
        if not step.cancelled:
            super().call_soon(step, context=step.context)


def run(main: Callable[[], Coroutine[Any, Any, T]], seed: int) -> T:
    """Run a coroutine in virtual time, from 0; whatever Python draws by chance follows from the seed."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    with _standing_in(loop, seed):
        try:
            return loop.run_until_complete(main())
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            asyncio.set_event_loop(None)
            loop.close()


class _Chance(random.Random):
    """Random numbers that follow from the seed of a run, also where nobody gives one."""

    source = random.Random(0)

    def __init__(self, seed: object = None) -> None:
        super().__init__(_Chance.source.getrandbits(64) if seed is None else seed)  # type: ignore[arg-type]


@contextlib.contextmanager
def _standing_in(loop: VirtualLoop, seed: int) -> Iterator[None]:
    """Put the loop's time and the seed's chance in the place of the machine's."""
    _Chance.source = random.Random(seed)
    random.seed(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random, "Random", _Chance)
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=_Chance.source.getrandbits(128)))
        patch.setattr(time, "time", lambda: EPOCH + loop.time())
        patch.setattr(time, "monotonic", loop.time)
        yield


class Process:
    """One process.

    Args:
        name: whose it is.

    Attributes:
        state: whether it goes on.
        skew: by how much its wall clock is ahead of everybody else's, in seconds.
        steps: how many it has taken.
        held: what it would have done since it was stopped or killed.
        die_before: the step before which it is killed; None for none.
        died: is called when that happens.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.RUNNING
        self.skew = 0.0
        self.steps = 0
        self.held: deque[_Step] = deque()
        self.die_before: int | None = None
        self.died: Callable[[Process], None] = lambda _: None
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return self.name

    def context(self) -> Context:
        """Return a context whose callbacks are this process'."""
        made = copy_context()
        made.run(_OWNER.set, self)
        return made

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin to run something."""
        task = asyncio.get_running_loop().create_task(work, context=self.context())
        self._tasks.append(task)
        return task

    def goes_on(self) -> bool:
        """Whether the next step may be taken; it counts as taken then."""
        if self.state is State.RUNNING:
            self.steps += 1
            if self.die_before is not None and self.steps >= self.die_before:
                self.die_before = None
                self.died(self)
        return self.state is State.RUNNING

    def stop(self) -> None:
        """SIGSTOP."""
        if self.state is State.RUNNING:
            self.state = State.STOPPED

    def go_on(self) -> None:
        """SIGCONT."""
        if self.state is State.STOPPED:
            self._resume()

    def kill(self) -> None:
        """SIGKILL."""
        self.state = State.KILLED

    async def bury(self) -> None:
        """Let the tasks of one that was killed end, once nobody can be reached by them: Python would end them at odd moments."""
        self._resume()
        await self.end(_BURIAL_SECONDS)

    async def end(self, seconds: float) -> None:
        """Cancel its tasks, and wait until they have ended, which takes no longer than some seconds."""
        for task in self._tasks:
            task.cancel()
        _, left = await asyncio.wait(self._tasks, timeout=seconds)
        assert not left, f"{self.name} won't end: {left}"
        for task in self._tasks:
            if not task.cancelled():
                task.exception()

    def _resume(self) -> None:
        self.state = State.RUNNING
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        held, self.held = self.held, deque()
        for step in held:
            loop.again(step)


def owner() -> Process | None:
    """Return whose step this is; None for what belongs to no process."""
    return _OWNER.get()

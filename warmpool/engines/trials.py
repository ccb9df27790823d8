"""Trials that are the same for every engine which can be paused: watch a running request through a pause, and a request through a hold."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from warmpool.engines.capabilities import Finding, Ground
from warmpool.engines.completions import Heard
from warmpool.engines.deadline import Deadline
from warmpool.errors import (
    EngineError,
    EngineLacksRoute,
    EngineLost,
    EngineRejected,
    EngineTimeout,
    EngineUnfit,
)

PROMPT: Final = "One, two, three, four, five, six, seven"
"""What engines are asked in trials. They are compared with themselves only."""
TOKEN_COUNTS: Final = (16, 64, 192)
"""Lengths of the request that is watched: the shortest that still runs once the pause has taken hold."""
OVERLAP_SECONDS: Final = 0.1
"""So long a request must go on after the pause was sent for its end to say anything: a real vLLM 0.32 acted within 40 ms."""

_HOLD_AT_LEAST_SECONDS: Final = 0.1
_HOLD_AT_MOST_SECONDS: Final = 2.0
_HOLD_TIMES: Final = 4
"""A paused engine is given so many times as long as it took to answer while it computed."""
_END_SECONDS: Final = 2.0
"""How long a watched request may go on after the pause was answered, before it counts as held."""


def tried(reason: str) -> Finding:
    """Return that it was done and worked."""
    return Finding(ground=Ground.TRIED, reason=reason)


def refused(ground: Ground, reason: str) -> Finding:
    """Return that it is refused."""
    return Finding(ground=ground, reason=reason)


def ignored(reason: str) -> Finding:
    """Return that it is refused because a parameter has no effect."""
    return Finding(ground=Ground.PARAMETER_IGNORED, reason=reason)


def refused_by(error: EngineError) -> Finding:
    """Return what an error in a trial says about the capability."""
    match error:
        case EngineTimeout() | EngineRejected():
            ground = Ground.ROUTE_FAILS
        case EngineLacksRoute():
            ground = Ground.ROUTE_MISSING
        case EngineUnfit():
            ground = Ground.CONTRADICTED
        case _:
            ground = Ground.NOT_TRIED
    return Finding(ground=ground, reason=str(error))


def token_ids_refused_by(error: EngineError) -> Finding:
    """Return what an error says of a completion that should have told its tokens' ids."""
    if isinstance(error, EngineUnfit) and not isinstance(error, EngineLacksRoute):
        return ignored(f"return_token_ids has no effect: {error}")
    return refused_by(error)


class Fate(Enum):
    """What became of a request that ran when the engine was told to pause."""

    FINISHED = auto()
    """It came to its own end."""
    CUT = auto()
    """It was ended before that."""
    LEFT = auto()
    """It is neither: it stays inside, half done."""
    UNSEEN = auto()
    """It had ended before the engine can be sure to have acted on the pause."""


@dataclass(slots=True, kw_only=True)
class Watched:
    """A request that was watched through a pause.

    Attributes:
        wanted: tokens that it asked for.
        heard: what came of them.
        ended: it had ended soon after the pause was answered.
        lasted_seconds: how long it went on after the pause was sent; 0 if it had ended before.
    """

    wanted: int
    heard: Heard = field(default_factory=Heard)
    ended: bool = False
    lasted_seconds: float = 0.0

    @property
    def fate(self) -> Fate:
        """What became of it."""
        if not self.ended:
            return Fate.LEFT
        if self.heard.tokens < self.wanted or self.heard.finish not in {"length", "stop", ""}:
            return Fate.CUT if self.heard.tokens else Fate.UNSEEN
        return Fate.FINISHED if self.lasted_seconds >= OVERLAP_SECONDS else Fate.UNSEEN

    def describe(self, mode: str) -> str:
        """Say it in words."""
        got = f"{self.heard.tokens} of {self.wanted} tokens"
        how = f" ({self.heard.finish})" if self.heard.finish else ""
        if self.fate is Fate.UNSEEN:
            return f"no request could be kept running until a pause with mode={mode} took hold ({got}{how})"
        return f"paused with mode={mode}, a running request {'ended with' if self.ended else 'was left at'} {got}{how}"


async def watch_a_pause(
    stream: Callable[[int, Heard], AsyncIterator[None]],
    pause: Callable[[], Awaitable[None]],
    resume: Callable[[Deadline], Awaitable[None]],
    conclusive: Callable[[Fate], bool],
    deadline: Deadline,
) -> Watched:
    """Pause the engine while a request runs, and watch the request; with longer ones until it can be told. It is left paused.

    Args:
        stream: asks for so many tokens as a stream, noting what comes.
        pause: tells the engine to pause.
        resume: tells it to go on, where the request was too short and another is tried.
        conclusive: which fates tell enough, so that no longer request is needed.
        deadline: by when it has to be seen.

    Raises:
        EngineError: the engine failed.
    """
    watched = Watched(wanted=0)
    for count in TOKEN_COUNTS:
        if watched.wanted:
            await resume(deadline)
        longer = Watched(wanted=count)
        await _watch_once(stream, pause, longer, deadline)
        if watched.wanted and not longer.heard.tokens:  # longer than the engine takes
            return watched
        watched = longer
        if conclusive(watched.fate):
            break
    return watched


async def _watch_once(
    stream: Callable[[int, Heard], AsyncIterator[None]],
    pause: Callable[[], Awaitable[None]],
    watched: Watched,
    deadline: Deadline,
) -> None:
    begun, now = asyncio.Event(), asyncio.get_running_loop().time
    ended_at = math.inf

    async def listen() -> None:
        nonlocal ended_at
        try:
            async for _ in stream(watched.wanted, watched.heard):
                begun.set()
        except (EngineRejected, EngineLost) as error:  # engines end a request with an error, or cut it
            watched.heard.finish = type(error).__name__
        finally:
            ended_at = now()
            begun.set()

    try:
        async with asyncio.TaskGroup() as tasks:
            request = tasks.create_task(listen())
            async with asyncio.timeout(max(0.0, deadline.left_seconds)):
                await begun.wait()
            sent_at = now()
            await pause()
            await asyncio.wait({request}, timeout=max(0.0, deadline.at_most(_END_SECONDS).left_seconds))
            watched.ended = request.done()
            watched.lasted_seconds = max(0.0, min(ended_at, now()) - sent_at)
            request.cancel()
    except TimeoutError:
        raise EngineTimeout("no request could be watched through a pause in time") from None
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures


@dataclass(slots=True, kw_only=True)
class Held:
    """What became of a request that was sent to a paused engine.

    Attributes:
        seconds: how long it was waited for.
        was_held: it was not answered with tokens meanwhile.
        refusal: how it was refused meanwhile; empty if it wasn't. An engine that refuses doesn't compute either.
        tokens: what it was answered in the end.
    """

    seconds: float
    was_held: bool = True
    refusal: str = ""
    tokens: tuple[int, ...] = ()

    def describe(self) -> str:
        """Say it in words."""
        return f"{len(self.tokens)} tokens within {self.seconds:.2f} s"


async def hold(
    ask: Callable[[], Awaitable[tuple[int, ...]]],
    resume: Callable[[Deadline], Awaitable[None]],
    *,
    first_seconds: float,
    deadline: Deadline,
) -> Held:
    """Send a request to a paused engine, see that it isn't answered, resume the engine, and see that it is.

    Args:
        ask: asks for one token.
        resume: tells the engine to go on.
        first_seconds: how long the same request took while the engine computed.
        deadline: by when it has to be seen.

    Raises:
        EngineError: the engine failed, or didn't answer the request once it was resumed.
    """
    seconds = min(_HOLD_AT_MOST_SECONDS, max(_HOLD_AT_LEAST_SECONDS, _HOLD_TIMES * first_seconds))
    held = Held(seconds=seconds)

    async def listen() -> None:
        try:
            held.tokens = await ask()
        except EngineRejected as error:
            held.refusal = str(error)

    try:
        async with asyncio.TaskGroup() as tasks:
            request = tasks.create_task(listen())
            await asyncio.wait({request}, timeout=min(seconds, max(0.0, deadline.left_seconds)))
            held.was_held = not held.tokens
            await resume(deadline)
        if held.refusal:
            held.tokens = await ask()
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return held


def paused_finding(held: Held, first: tuple[int, ...]) -> Finding:
    """Say what a hold shows of the pause.

    Args:
        held: what became of the request.
        first: what it was answered before the engine was paused; empty if that isn't known.
    """
    if not held.was_held:
        return refused(
            Ground.CONTRADICTED, f"paused, as it says itself, it answered a request: {held.describe()}"
        )
    if first and held.tokens != first:
        return refused(
            Ground.CONTRADICTED,
            f"resumed, it answers {held.tokens[0]} where it answered {first[0]} before it was paused",
        )
    how = (
        f"refused a request ({held.refusal})" if held.refusal else f"held a request for {held.seconds:.2f} s"
    )
    return tried(f"paused, it {how}, and answered it once resumed")

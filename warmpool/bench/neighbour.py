"""A client of a serving neighbour, in a process of its own: requests at random intervals, and when each one's first token came.

It is started by `warmpool.bench.cold_starts`, whose own process starts engines and so can't keep time. It asks until its input is
closed, waits for what is under way, and prints a line of JSON for each request: `at`, when it was sent, on the clock that all
processes of a machine share (CLOCK_MONOTONIC, in seconds), and `seconds` until its first token; null if none came.
"""

import argparse
import asyncio
import json
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import aiohttp

_ANSWER_SECONDS = 30.0
_MOST_AT_ONCE = 256
"""Requests under way; one that comes while there are so many is told as one without an answer."""
_BYTE_TOKENS = range(32, 127)
"""Ids of tokens that every shape of the reference engine knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What is asked.

    Attributes:
        url: the engine's public listener.
        model: its model's name.
        per_second: requests per second, on average; their intervals are exponentially distributed.
        prompt_tokens: length of each prompt.
        answer_tokens: length of each answer.
    """

    url: str
    model: str
    per_second: float
    prompt_tokens: int
    answer_tokens: int

    def bodies(self) -> Iterator[tuple[float, dict[str, object]]]:
        """Yield how long to wait before each request, and its body, always the same ones."""
        choose = random.Random(1)
        while True:
            prompt = [choose.choice(_BYTE_TOKENS) for _ in range(self.prompt_tokens)]
            yield (
                choose.expovariate(self.per_second),
                {
                    "model": self.model,
                    "prompt": prompt,
                    "max_tokens": self.answer_tokens,
                    "temperature": 0,
                    "ignore_eos": True,
                    "stream": True,
                },
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One request.

    Attributes:
        at: when it was sent, in seconds of the machine's monotonic clock.
        seconds: until its first token came; None if none did.
    """

    at: float
    seconds: float | None

    def overlaps(self, begin: float, end: float) -> bool:
        """Whether it waited for its first token within these moments."""
        return self.at < end and self.at + (self.seconds or 0.0) > begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """How long first tokens took, in seconds.

    Attributes:
        requests: how many were answered.
        failed: how many weren't.
        p50: half of them took no longer.
        p90: nine in ten.
        p99: 99 in 100.
        worst: the longest.
    """

    requests: int
    failed: int
    p50: float
    p90: float
    p99: float
    worst: float


def tail(asked: Sequence[Answered]) -> Tail:
    """Sum up requests. Without any that was answered all times are NaN."""
    seconds = sorted(each.seconds for each in asked if each.seconds is not None)
    p50, p90, p99 = (_rank(seconds, percent) for percent in (50, 90, 99))
    return Tail(
        requests=len(seconds),
        failed=len(asked) - len(seconds),
        p50=p50,
        p90=p90,
        p99=p99,
        worst=seconds[-1] if seconds else math.nan,
    )


def _rank(ordered: Sequence[float], percent: int) -> float:
    """The least value that no less than `percent` in 100 don't exceed."""
    return ordered[math.ceil(len(ordered) * percent / 100) - 1] if ordered else math.nan


async def ask(asking: Asking) -> None:
    """Ask until standard input is closed, and print each answer."""
    closed = asyncio.Event()
    asyncio.get_running_loop().add_reader(
        sys.stdin, closed.set
    )  # nobody writes to it, so it can be read at its end alone
    timeout = aiohttp.ClientTimeout(_ANSWER_SECONDS)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        asyncio.TaskGroup() as tasks,
    ):
        under_way: set[asyncio.Task[None]] = set()
        for wait, body in asking.bodies():
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await closed.wait()
                    break
            if len(under_way) >= _MOST_AT_ONCE:
                _say(Answered(at=time.monotonic(), seconds=None))
                continue
            task = tasks.create_task(_ask(session, asking.url, body))
            under_way.add(task)
            task.add_done_callback(under_way.discard)


async def _ask(session: aiohttp.ClientSession, url: str, body: dict[str, object]) -> None:
    at = time.monotonic()
    first: float | None = None
    try:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if first is None and line.startswith(b"data:"):
                    first = time.monotonic() - at
    except (aiohttp.ClientError, TimeoutError):
        first = None  # what ends in the middle is no answer
    _say(Answered(at=at, seconds=first))


def _say(answered: Answered) -> None:
    print(json.dumps({"at": answered.at, "seconds": answered.seconds}), flush=True)  # noqa: T201 (the interface)


def main() -> None:
    """Ask one engine."""
    parser = argparse.ArgumentParser(description="Ask an engine until the input is closed.")
    parser.add_argument("url", help="its public listener")
    parser.add_argument("--model", required=True)
    parser.add_argument("--per-second", type=float, required=True)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--answer-tokens", type=int, default=8)
    told = parser.parse_args()
    asking = Asking(
        url=told.url,
        model=told.model,
        per_second=told.per_second,
        prompt_tokens=told.prompt_tokens,
        answer_tokens=told.answer_tokens,
    )
    asyncio.run(ask(asking))


if __name__ == "__main__":
    main()

"""Draining under load: whatever clients, engine and agent do at the same time, the count is exact and every admitted request ends."""

import asyncio
import random
from collections import Counter
from contextlib import suppress

import aiohttp
import pytest

from tests.fakes.asgi_engine import DONE, EVENT
from tests.integration.guard.conftest import COMPLETIONS, Guarded, error_of

CLIENTS = 24
SECONDS = 0.75


async def test_every_admitted_request_ends_and_none_is_admitted_after_closing(guarded: Guarded) -> None:
    answers: Counter[str] = Counter()
    stopped = asyncio.Event()

    async def client(number: int) -> None:
        while not stopped.is_set():
            if number % 2:
                answers[await answer(guarded, "do=stream&events=5", 5 * EVENT + DONE)] += 1
            else:
                answers[await answer(guarded, "do=whole", b'{"got": 0}')] += 1

    async with asyncio.TaskGroup() as tasks:
        for number in range(CLIENTS):
            tasks.create_task(client(number))
        while answers["whole"] < 20 * CLIENTS:
            await asyncio.sleep(0.001)
        left = await guarded.close()
        while left:
            now = await guarded.in_flight()
            assert now <= left, "somebody was admitted after the guard had closed"
            left = now
            await asyncio.sleep(
                0
            )  # a guard in this process tells without waiting, and requests want their turn
        served = len(guarded.engine.calls)
        assert guarded.engine.running == 0 or guarded.form == "port"
        refused = answers["refused"]
        while answers["refused"] < refused + CLIENTS:
            await asyncio.sleep(0.001)
        stopped.set()
    assert set(answers) == {"whole", "refused"}
    assert answers["whole"] == served == len(guarded.engine.calls)
    await guarded.idle()


async def test_recalling_in_the_middle_of_a_drain_loses_nobody(guarded: Guarded) -> None:
    async with asyncio.TaskGroup() as tasks:
        inside = [
            tasks.create_task(answer(guarded, "do=stream&wait=1&events=1", EVENT + DONE)) for _ in range(8)
        ]
        await guarded.holds(8)
        await guarded.close()
        await guarded.open()
        assert await answer(guarded, "do=whole", b'{"got": 0}') == "whole"
        for _ in inside:
            guarded.engine.go.release()
    assert [each.result() for each in inside] == ["whole"] * 8
    await guarded.idle()


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_whatever_happens_the_count_returns_to_nothing(guarded: Guarded, seed: int) -> None:
    chance = random.Random(seed)
    ending = asyncio.get_running_loop().time() + SECONDS
    outcomes: Counter[str] = Counter()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for _ in range(CLIENTS):
            tasks.create_task(wild_client(guarded, chance, ending, outcomes))
        tasks.create_task(wild_agent(guarded, chance, ending))
        while asyncio.get_running_loop().time() < ending:
            assert 0 <= await guarded.in_flight() <= 2 * CLIENTS
            await asyncio.sleep(0.02)
        for _ in range(1000):
            guarded.engine.go.release()
    await guarded.close()
    await guarded.idle()
    assert len(outcomes) == 4
    await guarded.open()
    assert await answer(guarded, "do=whole", b'{"got": 0}') == "whole"


async def wild_client(
    guarded: Guarded, chance: random.Random, ending: float, outcomes: "Counter[str]"
) -> None:
    while asyncio.get_running_loop().time() < ending:
        does = chance.choice((polite, polite, impatient, half_a_body, resetting))
        outcomes[does.__name__] += 1
        with suppress(aiohttp.ClientError, OSError, EOFError, TimeoutError):
            await does(guarded, chance)


async def wild_agent(guarded: Guarded, chance: random.Random, ending: float) -> None:
    while asyncio.get_running_loop().time() < ending:
        await asyncio.sleep(chance.uniform(0, 0.05))
        turn = chance.choice((guarded.close, guarded.abort, *[guarded.open] * 6))
        await turn()
        for _ in range(chance.randrange(20)):
            guarded.engine.go.release()


async def polite(guarded: Guarded, chance: random.Random) -> None:
    query = chance.choice(
        ("do=whole", "do=stream&events=3", "do=stream&wait=1&events=2", "do=die", "do=die-early")
    )
    async with guarded.post(query, data=b"x" * chance.choice((0, 10, 200_000))) as response:
        await response.read()


async def impatient(guarded: Guarded, chance: random.Random) -> None:
    async with asyncio.timeout(chance.uniform(0, 0.02)):
        async with guarded.post(chance.choice(("do=hold", "do=stream&wait=1", "do=half"))) as response:
            await response.read()


async def half_a_body(guarded: Guarded, chance: random.Random) -> None:
    async with guarded.raw() as raw:
        await raw.send(
            f"POST {COMPLETIONS} HTTP/1.1\r\nHost: guard\r\nContent-Length: 100000\r\n\r\n".encode()
        )
        await raw.send(b"x" * chance.randrange(100_000))
        await asyncio.sleep(chance.uniform(0, 0.02))


async def resetting(guarded: Guarded, chance: random.Random) -> None:
    async with guarded.raw() as raw:
        await raw.ask(f"{COMPLETIONS}?{chance.choice(('do=flood&bytes=10000000', 'do=stream', 'do=hold'))}")
        await asyncio.sleep(chance.uniform(0, 0.01))
        raw.reset()


async def answer(guarded: Guarded, query: str, expected: bytes) -> str:
    """Ask, and say whether the answer was whole or a refusal; anything else is what it was."""
    async with guarded.post(query) as response:
        body = await response.read()
    if response.status == 503:
        return "refused" if error_of(body)["code"] == "ResidentNotServing" else body.decode()
    return "whole" if (response.status, body) == (200, expected) else f"{response.status} {body!r}"

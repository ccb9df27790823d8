"""Looking again and again until something has come about, or it is too late."""

import asyncio
from collections.abc import Awaitable, Callable

_POLL_SECONDS = 0.05


class NotSo(Exception):
    """Something didn't come about in time; the message says what."""


async def until(
    condition: Callable[[], Awaitable[bool]], what: str, seconds: float, poll_seconds: float = _POLL_SECONDS
) -> None:
    """Look again and again until a condition holds.

    Args:
        condition: a coroutine function that tells whether it does.
        what: what is waited for, in words.
        seconds: for how long.
        poll_seconds: how long nobody looks in between.

    Raises:
        NotSo: it doesn't come about.
    """
    try:
        async with asyncio.timeout(seconds):
            while True:
                if await condition():
                    return
                await asyncio.sleep(poll_seconds)
    except TimeoutError as error:
        raise NotSo(f"{what}: not within {seconds:.0f} s") from error

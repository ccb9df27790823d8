"""Things that several users share."""

import asyncio
from dataclasses import dataclass, field

import pytest

from scaler.signals.sharing import Shared


@dataclass
class Thing:
    name: str
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False

    async def close(self) -> None:
        self.closing.set()
        await asyncio.sleep(0)
        self.closed = True


async def test_equal_keys_share_and_the_last_user_closes() -> None:
    shared: Shared[str, Thing] = Shared(Thing)
    async with shared.lease("a") as one:
        async with shared.lease("a") as two, shared.lease("b") as other:
            assert one is two
            assert other is not one
        assert other.closed
        assert not one.closed
    assert one.closed
    assert len(shared) == 0


async def test_who_comes_while_it_closes_gets_a_new_one() -> None:
    shared: Shared[str, Thing] = Shared(Thing)

    async def use_and_leave() -> Thing:
        async with shared.lease("a") as thing:
            return thing

    async with asyncio.TaskGroup() as group:
        first = group.create_task(use_and_leave())
        await asyncio.sleep(0)
        async with shared.lease("a") as second:
            pass
    assert first.result() is not second
    assert second.closed


async def test_a_user_that_fails_or_is_cancelled_leaves_like_any_other() -> None:
    shared: Shared[str, Thing] = Shared(Thing)
    with pytest.raises(ZeroDivisionError):
        async with shared.lease("a"):
            raise ZeroDivisionError
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), shared.lease("b") as thing:
            await asyncio.Event().wait()
    assert thing.closed
    assert len(shared) == 0

"""What several users share: made for the first, closed after the last."""

from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """What can be closed."""

    async def close(self) -> None:
        """Let go of everything; bounded in time, and never raises."""


K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Closable)


@dataclass(slots=True)
class _Lent(Generic[T]):
    """One thing and how many use it."""

    thing: T
    users: int = 0


class Shared(Generic[K, T]):
    """Things by what they were made from.

    Args:
        make: makes the thing for a key.
    """

    def __init__(self, make: Callable[[K], T]) -> None:
        self._make = make
        self._lent: dict[K, _Lent[T]] = {}

    def __len__(self) -> int:
        """Return how many things are in use."""
        return len(self._lent)

    @asynccontextmanager
    async def lease(self, key: K) -> AsyncIterator[T]:
        """Have the thing for `key` for as long as the block runs."""
        lent = self._lent.get(key)
        if lent is None:
            lent = self._lent[key] = _Lent(self._make(key))
        lent.users += 1
        try:
            yield lent.thing
        finally:
            lent.users -= 1
            if not lent.users:
                del self._lent[key]  # before the wait: who comes meanwhile gets a new one
                await lent.thing.close()

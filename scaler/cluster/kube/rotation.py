"""Before anybody who answers is taken out of rotation: whether somebody stays who does so too, as the server has it now.

A cache may be minutes behind without anybody's fault: a watch that says nothing looks like a cluster in which nothing happens. What is
decided on it is right for most things, since each write carries the version that it was made for. But a seat that leaves rotation counts
on others, whom its own version says nothing of. So one of those is looked at first.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

from scaler.cluster.kube.errors import Withheld
from scaler.cluster.kube.seats import SeatWriter
from scaler.cluster.shelf import Shelf
from scaler.errors import NotFound
from warmpool.seats import PolicyName, Seat, SeatName
from warmpool.states import ResidentState

_MOST_READ: Final = 3
"""Seats that are looked at; if none of so many is as it was thought to be, nobody leaves before the cache knows better."""


class Rotation:
    """Lets residents leave.

    Args:
        shelf: the seats as they are known.
        writer: reads them.
    """

    def __init__(self, shelf: Shelf, writer: SeatWriter) -> None:
        self._shelf = shelf
        self._writer = writer
        self._leaving: set[SeatName] = set()

    @asynccontextmanager
    async def left(self, seat: Seat, policy: PolicyName) -> AsyncIterator[None]:
        """Let a resident be taken out of rotation while the context is open.

        Where it is known that nobody else serves, that was decided so; and who doesn't answer any more needs no other.

        Raises:
            Withheld: nobody who was thought to serve beside it does.
            Unreachable: the server doesn't say in time.
        """
        self._leaving.add(seat.name)
        try:
            resident = seat.resident(policy)
            if resident is not None and resident.state is ResidentState.SERVING:
                await self._check(seat, policy)
            yield
        finally:
            self._leaving.discard(seat.name)

    async def _check(self, seat: Seat, policy: PolicyName) -> None:
        """Find somebody who stays.

        Of several that leave at the same moment those that began earlier are counted on by nobody, so that one of them always may.

        Raises:
            Withheld: nobody does.
        """
        thought = read = 0
        for other in self._others(seat, policy):
            thought += 1
            if other.name in self._leaving:
                continue
            if await self._stays(other, policy):
                return
            read += 1
            if read == _MOST_READ:
                break
        if thought:
            raise Withheld(
                f"{policy} stays in rotation on seat {seat.name} for now: of {thought} others that were thought to serve it none "
                "will go on"
            )

    def _others(self, seat: Seat, policy: PolicyName) -> Iterator[Seat]:
        """Yield who is thought to serve a policy beside a seat, those of its own fleet first."""
        stock = dict(self._shelf.stock())
        for fleet in (stock.pop(seat.fleet, ()), *stock.values()):
            for other in fleet:
                if other.name != seat.name and other.reachable and _serves(other, policy):
                    yield other

    async def _stays(self, other: Seat, policy: PolicyName) -> bool:
        """Whether a seat serves a policy as the server has it, and nobody has begun meanwhile to take it out of rotation."""
        try:
            found = await self._writer.read(other)
        except NotFound:
            return False
        known = self._shelf.get(other.name)
        if other.name in self._leaving or known is None:
            return False
        return _serves(found, policy) and _serves(known, policy)


def _serves(seat: Seat, policy: PolicyName) -> bool:
    """Whether a seat has a policy in rotation and is reached at its Service."""
    return policy in seat.serving and seat.ready and not seat.terminating

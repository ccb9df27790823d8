"""The seat's one slot for orders, and who has to give way to whom.

One order at a time; another gets `AgentBusy`. The exceptions are orders to the very resident that is being worked on. A resume cuts
a drain short (recall), takes over the engine that a proof has resumed, and follows a move of its weights without waiting for another
order; a drain goes on with one for which there was more time, and where the resident is being paused already it waits for that, as
another pause does. The slot is then handed over directly, so that nobody can step in between. A start-up doesn't hold the slot: orders
come first, and it gives way to a promotion.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from warmpool.agent.board import Record
from warmpool.agent.interruption import Interruption
from warmpool.agent.orders import Order, OrderKind
from warmpool.engines.deadline import Deadline
from warmpool.errors import AgentBusy

_CUT_BY: Mapping[OrderKind, frozenset[OrderKind]] = MappingProxyType(
    {
        OrderKind.RESUME: frozenset({OrderKind.DRAIN, OrderKind.PROVE, OrderKind.PARK, OrderKind.UNPARK}),
        OrderKind.DRAIN: frozenset({OrderKind.DRAIN, OrderKind.PAUSE}),
        OrderKind.PAUSE: frozenset({OrderKind.PAUSE}),
    }
)
"""Per kind of order, which others on the same resident end for it: those that can be cut short are, the others end by themselves.
A drain for which there is less time goes on with one that is under way."""


@dataclass(slots=True, eq=False)
class Running:
    """An order that has the slot, or is next by right.

    Attributes:
        order: the order.
        since: Unix time at which it began.
        interruption: how it is told to give way.
        successor: the order that cuts it short and gets the slot from it.
        granted: set once it has the slot.
    """

    order: Order
    since: float = field(default_factory=time.time)
    interruption: Interruption = field(default_factory=Interruption)
    successor: "Running | None" = None
    granted: asyncio.Event = field(default_factory=asyncio.Event)

    def to_json(self) -> dict[str, Any]:
        """Render it for the wire."""
        order = self.order
        return {"kind": str(order.kind), "policy": order.policy, "claim": order.claim, "since": self.since}


@dataclass(slots=True, eq=False)
class Warming:
    """A start-up that computes (it warms up or proves), and so has to give way to a promotion.

    Attributes:
        record: whose.
        interruption: how it is told to give way.
        keep_awake: whoever interrupts it takes over its engine as it is, resumed.
    """

    record: Record
    interruption: Interruption = field(default_factory=Interruption)
    keep_awake: bool = False


class Slot:
    """Who may work on the seat's residents at present.

    Attributes:
        warming: the start-up that computes, if one does.
        closed: why no order is taken any more; empty while they are.
    """

    def __init__(self) -> None:
        self._running: Running | None = None
        self.warming: Warming | None = None
        self.closed = ""

    @property
    def running(self) -> Running | None:
        """The order that has the slot."""
        return self._running

    async def acquire(self, order: Order, deadline: Deadline) -> Running:
        """Give the slot to an order: at once, or after cutting short what it has the right to cut short.

        Weights that are on their way are let arrive first, and a pause is let end.

        Raises:
            AgentBusy: another order has it, or has not ended by the deadline.
        """
        if self.closed:
            raise AgentBusy(self.closed)
        mine, current = Running(order), self._running
        if current is None:
            self._running = mine
            return mine
        if not _may_cut(order, current):
            other = current.order
            raise AgentBusy(
                f"{other.kind} of {other.policy} is under way (claim {other.claim}); one operation at a time"
            )
        current.successor = mine
        current.interruption.request()
        try:
            async with asyncio.timeout(max(0.0, deadline.left_seconds)):
                await mine.granted.wait()
        except TimeoutError:
            if not mine.granted.is_set():
                current.successor = None
                raise AgentBusy(
                    f"{current.order.kind} of {current.order.policy} has not ended in time; nothing was begun"
                ) from None
        return mine

    def release(self, mine: Running) -> None:
        """Give the slot back, or on to the order that cut this one short."""
        assert self._running is mine
        self._running = mine.successor
        if self._running is not None:
            self._running.granted.set()


def _may_cut(order: Order, current: Running) -> bool:
    return (
        current.order.kind in _CUT_BY.get(order.kind, ())
        and current.order.policy == order.policy
        and current.successor is None
    )

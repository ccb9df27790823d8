"""Tells agents in which order their residents are needed, so that a seat that is born starts first what is wanted most.

Residents of a seat start one after the other, and each of them may take minutes. Who comes first is a matter of need: those of which
more should serve than seats can give now, by priority, and then the others. An agent that nobody tells anything starts them in the
order of its configuration, which is nobody's fault and seldom right in a burst.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from scaler.cluster.agents import Starters
from scaler.core.model import PolicyDecision, PolicySpec
from scaler.runtime.controller import Tick
from scaler.runtime.side_by_side import side_by_side
from warmpool.claim import Term
from warmpool.errors import WarmpoolError
from warmpool.seats import TO_COME_UP, FleetName, PolicyName, Seat

log = structlog.get_logger(__name__)

_PAUSE_SECONDS: Final = 0.5
"""Between two rounds: a start takes many times as long."""
RETRY_SECONDS: Final = 2.0
"""After so long one that didn't take it is told again."""
AGAIN_SECONDS: Final = 30.0
"""After so long an agent is told the same once more: one that has come back since has forgotten it."""
_DEADLINE_SECONDS: Final = 2.0
_AT_ONCE: Final = 16
"""Agents that are told at the same time."""


class StartOrder(NamedTuple):
    """In which order residents of a fleet's seats are needed.

    Attributes:
        policies: the most needed first.
        wanted: those of which more should serve than seats can give now.
    """

    policies: tuple[PolicyName, ...]
    wanted: tuple[PolicyName, ...]


class _Told(NamedTuple):
    """What an agent was told, and until when that is left at that."""

    order: StartOrder
    until: float


def start_order(
    fleet: FleetName, policies: Sequence[PolicySpec], decided: Mapping[PolicyName, PolicyDecision]
) -> StartOrder:
    """Return the order in which a fleet's residents are needed. PURE.

    Work that can wait for spare seats is never wanted: it comes by priority, after what is.

    Args:
        fleet: the fleet.
        policies: those that are on it, in the order in which they come where nothing else decides.
        decided: what was decided for each.
    """
    missing = {
        each.name: 0 if each.preemptible else _missing(fleet, decided.get(each.name)) for each in policies
    }
    ranked = sorted(
        policies,
        key=lambda each: (
            not missing[each.name],
            each.preemptible,
            -each.priority,
            -missing[each.name],
        ),
    )
    names = tuple(each.name for each in ranked)
    return StartOrder(policies=names, wanted=tuple(name for name in names if missing[name]))


def _missing(fleet: FleetName, decided: PolicyDecision | None) -> int:
    """Return how many residents of a policy should serve on a fleet beyond what its seats can give, or start for it to be up at all."""
    if decided is None:
        return 0
    short = decided.wanted.get(fleet, 0) - decided.serving.get(fleet, 0)
    return max(0, short, decided.starting.get(fleet, 0))


class StartOrders:
    """Tells agents, until cancelled.

    Args:
        agents: who is told.
    """

    def __init__(self, agents: Starters) -> None:
        self._agents = agents
        self._tick: Tick | None = None
        self._looked: dict[FleetName, Sequence[PolicySpec]] = {}
        self._changed = asyncio.Event()
        self._told: dict[str, _Told] = {}

    def published(self, tick: Tick) -> None:
        """Take a tick of the leader; what it means for seats that start is told a little later."""
        self._tick = tick
        policies = tick.looked.policies
        self._looked |= {fleet.name: policies for fleet in tick.looked.fleets if not fleet.observe}
        self._changed.set()

    async def run(self, term: Term) -> None:
        """Tell agents whose residents are still to start, whenever something else is needed of them.

        It begins with nothing: what was needed in an earlier term may not be any more, and another has told agents something else since.

        Args:
            term: in whose name.
        """
        self._tick, self._looked, self._told = None, {}, {}
        self._changed.clear()
        while True:
            await self._changed.wait()
            self._changed.clear()
            await side_by_side((self._tell(seat, order, term) for seat, order in self._due()), _AT_ONCE)
            await asyncio.sleep(_PAUSE_SECONDS)

    def _due(self) -> Iterator[tuple[Seat, StartOrder]]:
        """Yield the seats whose agents are to be told, with the order."""
        tick, looked, now = self._tick, self._looked, asyncio.get_running_loop().time()
        self._looked = {}
        self._told = {uid: told for uid, told in self._told.items() if now < told.until}
        if tick is None:
            return
        for fleet, policies in looked.items():
            starting = [seat for seat in tick.stock.get(fleet, ()) if _is_to_be_told(seat)]
            if not starting:
                continue
            specs = {each.name: each for each in policies}
            orders: dict[tuple[PolicyName, ...], StartOrder] = {}  # seats of one template have one
            for seat in starting:
                there = tuple(each.policy for each in seat.residents if each.policy in specs)
                if there not in orders:
                    on = [specs[policy] for policy in there]
                    orders[there] = start_order(fleet, on, tick.decision.policies)
                told = self._told.get(seat.uid)
                if told is None or told.order != orders[there]:
                    yield seat, orders[there]

    async def _tell(self, seat: Seat, order: StartOrder, term: Term) -> None:
        seconds = AGAIN_SECONDS
        try:
            await self._agents.order_starts(
                seat, order.policies, order.wanted, epoch=term.epoch, deadline=_DEADLINE_SECONDS
            )
        except WarmpoolError as error:
            log.info("an agent can't be told what to start first", seat=seat.name, error=str(error))
            seconds = RETRY_SECONDS
        self._told[seat.uid] = _Told(order, asyncio.get_running_loop().time() + seconds)


def _is_to_be_told(seat: Seat) -> bool:
    """Whether two of its residents or more are still to come up, one of which could start now."""
    if len(seat.residents) < 2 or not seat.lives.starts or not seat.agent:  # noqa: PLR2004 - two make an order
        return False
    return sum(resident.state in TO_COME_UP for resident in seat.residents) > 1

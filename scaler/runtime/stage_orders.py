"""Tells nodes ahead which models they will need, so that their weights are in host memory before the seat that needs them has an agent.

A seat that a node has been given takes minutes until its images are there and its agent runs; one that is being replaced leaves a GPU on
which its successor is likely to start. Meanwhile the agent of another seat on that node can have the stage daemon read the weights. What
residents of a seat need whose agent is heard, that agent knows by itself. Where no seat of a node has an agent that asks a stage daemon, nobody is told.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from scaler.cluster.agents import Stagers
from scaler.core.model import PolicyDecision, PolicySpec
from scaler.runtime.controller import Tick
from scaler.runtime.side_by_side import side_by_side
from scaler.runtime.start_orders import start_order
from warmpool.claim import Term
from warmpool.errors import WarmpoolError
from warmpool.seats import FleetName, PolicyName, Seat

log = structlog.get_logger(__name__)

_PAUSE_SECONDS: Final = 2.0
"""Between two rounds: a pod takes many times as long, and a round looks at every seat."""
_RETRY_SECONDS: Final = 10.0
"""After so long one that didn't take it is told again."""
AGAIN_SECONDS: Final = 60.0
"""After so long an agent is told the same once more: one that has come back since has forgotten it."""
_DEADLINE_SECONDS: Final = 2.0
_AT_ONCE: Final = 16
_MOST_NAMED: Final = 100
"""Checkpoints that an order names at most, as agents take them."""

Stock = Mapping[FleetName, Sequence[Seat]]


class _Told(NamedTuple):
    """What a node was told, by whose agent, and until when that is left at that."""

    teller: Seat
    checkpoints: tuple[str, ...]
    until: float


def coming(stock: Stock) -> dict[str, list[FleetName]]:
    """Return the fleets of which a seat is expected on each node: those first whose pod is there already. PURE."""
    found: dict[str, dict[FleetName, None]] = defaultdict(dict)
    for expected in (_is_on_its_way, _is_being_replaced):
        for fleet, seats in stock.items():
            for seat in seats:
                if seat.node and expected(seat):
                    found[seat.node].setdefault(fleet)
    return {node: list(fleets) for node, fleets in found.items()}


def _is_on_its_way(seat: Seat) -> bool:
    return not seat.residents and not seat.terminating


def _is_being_replaced(seat: Seat) -> bool:
    """Whether its successor may come to the same node."""
    return (seat.terminating or bool(seat.ailing)) and not seat.fenced and not seat.node_leaving


def checkpoints(stock: Stock) -> dict[PolicyName, str]:
    """Return where each policy's weights lie, as agents tell it that ask a stage daemon. PURE."""
    return {
        resident.policy: resident.checkpoint
        for seats in stock.values()
        for seat in seats
        for resident in seat.residents
        if resident.checkpoint
    }


def tellers(stock: Stock) -> dict[str, Seat]:
    """Return for each node the seat whose agent is told: the first by name that asks a stage daemon. PURE."""
    found: dict[str, Seat] = {}
    for seats in stock.values():
        for seat in seats:
            if seat.node and seat.agent and seat.reachable and not seat.terminating and _stages(seat):
                before = found.get(seat.node)
                if before is None or seat.name < before.name:
                    found[seat.node] = seat
    return found


def _stages(seat: Seat) -> bool:
    return any(resident.checkpoint for resident in seat.residents)


class StageOrders:
    """Tells agents, until cancelled.

    Args:
        agents: who is told.
    """

    def __init__(self, agents: Stagers) -> None:
        self._agents = agents
        self._tick: Tick | None = None
        self._policies: dict[FleetName, Sequence[PolicySpec]] = {}
        self._changed = asyncio.Event()
        self._told: dict[str, _Told] = {}

    def published(self, tick: Tick) -> None:
        """Take a tick of the leader; what it means for nodes is told a little later."""
        self._tick = tick
        policies = tick.looked.policies
        self._policies |= {fleet.name: policies for fleet in tick.looked.fleets if not fleet.observe}
        self._changed.set()

    async def run(self, term: Term) -> None:
        """Tell agents what their nodes will need, whenever that is something else.

        Args:
            term: in whose name.
        """
        self._tick, self._policies, self._told = None, {}, {}
        self._changed.clear()
        while True:
            await self._changed.wait()
            self._changed.clear()
            now = asyncio.get_running_loop().time()
            await side_by_side((self._tell(*due, term) for due in self._due(now)), _AT_ONCE)
            await asyncio.sleep(_PAUSE_SECONDS)

    def _due(self, now: float) -> Iterator[tuple[str, Seat, tuple[str, ...]]]:
        """Yield the nodes that are to be told something, by whose agent, with what."""
        tick = self._tick
        if tick is None:
            return
        known = checkpoints(tick.stock)
        if not known and not self._told:  # no node has a stage daemon
            return
        needs, by_node = coming(tick.stock), tellers(tick.stock)
        self._told = {node: told for node, told in self._told.items() if node in by_node}
        for node, teller in by_node.items():
            wanted = tuple(self._needed(needs.get(node, ()), known, tick.decision.policies))
            told = self._told.get(node)
            if told is None:
                stands = not wanted
            else:
                same = told.teller.uid == teller.uid and told.checkpoints == wanted
                stands = same and now < told.until
            if not stands:
                yield node, teller, wanted

    def _needed(
        self,
        fleets: Sequence[FleetName],
        known: Mapping[PolicyName, str],
        decided: Mapping[PolicyName, PolicyDecision],
    ) -> list[str]:
        """Return the checkpoints that these fleets' seats begin with, in the order in which they start their residents."""
        found: dict[str, None] = {}
        for fleet in fleets:
            on = [
                policy
                for policy in self._policies.get(fleet, ())
                if any(share.fleet == fleet for share in policy.fleets)
            ]
            for name in start_order(fleet, on, decided).policies:
                if name in known:
                    found.setdefault(known[name])
        return list(found)[:_MOST_NAMED]

    async def _tell(self, node: str, seat: Seat, paths: tuple[str, ...], term: Term) -> None:
        seconds = AGAIN_SECONDS
        try:
            await self._agents.order_staging(seat, paths, epoch=term.epoch, deadline=_DEADLINE_SECONDS)
        except WarmpoolError as error:
            log.info("a node can't be told what it will need", node=node, seat=seat.name, error=str(error))
            seconds = _RETRY_SECONDS
        else:
            if not paths:  # nothing that it could forget
                self._told.pop(node, None)
                return
        self._told[node] = _Told(seat, paths, asyncio.get_running_loop().time() + seconds)

"""The runtime's edge to KEDA: what a tick decided, put up for whoever asks; and the server, for as long as the process runs.

A tick puts up the islands that it looked at, after its actions have begun. That is a few numbers a fleet and policy, copied, so
an answer never waits for a tick and never shows half of one.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog
from aiohttp import web

from scaler.core.model import FallbackBehavior, FleetSpec, PolicySpec, Quality, Reading
from scaler.errors import PolicyFault
from scaler.keda.published import Board, FleetFigures, PolicyFigures
from scaler.keda.settings import KedaSettings
from scaler.policy.compile import PolicySet
from scaler.policy.reading import Reading as PolicyReading
from scaler.runtime.clock import Clock
from scaler.runtime.controller import Tick
from scaler.runtime.reload import Force

log = structlog.get_logger(__name__)

_RAISING = frozenset({FallbackBehavior.STATIC, FallbackBehavior.CURRENT_REPLICAS_IF_HIGHER})
"""Fallbacks that ask for residents, whatever served before."""


class KedaAnswers:
    """Puts decisions up, and has them served.

    Args:
        policies: the policies in force at first.
        clock: time.
        settings: how the server listens; None: there is none.

    Attributes:
        board: what is put up.
    """

    def __init__(self, policies: PolicySet, clock: Clock, settings: KedaSettings | None) -> None:
        self.board = Board()
        self._clock = clock
        self._settings = settings
        self._server: Any = None
        self.follow(policies)

    def follow(self, policies: PolicySet) -> None:
        """Answer for another set of policies."""
        self.board.follow(
            {str(name): fleet.metadata.namespace for name, fleet in policies.fleets.items()},
            {str(name): policy.metadata.namespace for name, policy in policies.policies.items()},
        )

    def following(self, force: Force) -> Force:
        """Return what puts sets in force as `force` does, and for the answers too."""
        return _Following(force, self)

    def published(self, tick: Tick) -> None:
        """Put up what a tick decided."""
        if self._settings is None:
            return
        now, before = self._clock.monotonic(), self.board.current.fleets
        self.board.publish(
            {
                str(fleet.name): _fleet(tick, fleet, now, before.get(fleet.name))
                for fleet in tick.looked.fleets
            },
            {str(policy.name): _policy(tick, policy, now) for policy in tick.looked.policies},
        )

    def routes(self) -> list[web.RouteDef]:
        """Return the route that shows who asked for what, and was answered what."""
        return [web.get("/v1/keda", self._asked)]

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[int | None]:
        """Serve for as long as the context lasts; yields the port, or None where nothing is served.

        Raises:
            UserError: the address is taken, or the certificates can't be used.
        """
        if self._settings is None:
            yield None
            return
        from scaler.keda.server import KedaServer  # noqa: PLC0415 - grpc, for those who have a KEDA

        self._server = KedaServer(self.board, self._clock.monotonic, self._clock.wall, self._settings)
        async with self._server.serve() as port:
            log.info("KEDA is answered", host=self._settings.host, port=port)
            yield port

    async def _asked(self, _: web.Request) -> web.Response:
        items = [] if self._server is None else self._server.book.as_json()
        streams = 0 if self._server is None else self._server.open_streams
        served = self._server is not None
        return web.json_response({"served": served, "openStreams": streams, "items": items})


class _Following:
    """See `KedaAnswers.following`."""

    def __init__(self, force: Force, answers: KedaAnswers) -> None:
        self._force = force
        self._answers = answers

    def refuse(self, reading: PolicyReading) -> Sequence[PolicyFault]:
        """See `Force.refuse`."""
        return self._force.refuse(reading)

    def adopt(self, policies: PolicySet) -> Sequence[str]:
        """See `Force.adopt`."""
        notes = self._force.adopt(policies)
        self._answers.follow(policies)
        return notes


def _fleet(tick: Tick, fleet: FleetSpec, now: float, before: FleetFigures | None) -> FleetFigures:
    decided = tick.decision.fleets[fleet.name]
    own = [policy for policy in tick.looked.policies if policy.fleets[0].fleet == fleet.name]
    fallbacks = sum(
        max(policy.serving_min, policy.fallback_serving) for policy in own if policy.fallback in _RAISING
    )
    return FleetFigures(
        at=now,
        total=_total(tick, fleet, before),
        serving=decided.serving,
        spare=decided.spare,
        fallback=min(fleet.max_seats, fallbacks + decided.spare + decided.held),
    )


def _total(tick: Tick, fleet: FleetSpec, before: FleetFigures | None) -> int:
    """Return the total that is told: as decided, and lower than before only when the planner would lower it, too.

    That is while nothing is being promoted and every serving pod is Ready: whoever scales down then removes seats that serve,
    for a ReplicaSet takes pods that aren't Ready first, and knows of deletion costs a moment late.
    """
    total = tick.decision.fleets[fleet.name].total
    if before is None or total >= before.total:
        return total
    supplies = tick.snapshot.fleets[fleet.name].supply.values()
    seats = tick.stock.get(fleet.name, ())
    if any(supply.promoting for supply in supplies) or any(seat.serving and not seat.ready for seat in seats):
        return min(before.total, fleet.max_seats)
    return total


def _policy(tick: Tick, policy: PolicySpec, now: float) -> PolicyFigures:
    load = tick.snapshot.loads[policy.name]
    supplies = [tick.snapshot.fleets[share.fleet].supply.get(policy.name) for share in policy.fleets]
    return PolicyFigures(
        at=now,
        serving=sum(tick.decision.policies[policy.name].serving.values()),
        promoting=sum(supply.promoting for supply in supplies if supply is not None),
        queued=_fresh(load.queued),
        oldest_wait=_fresh(load.oldest_wait),
        fallback=policy.fallback,
        fallback_serving=policy.fallback_serving,
    )


def _fresh(reading: Reading) -> float | None:
    """Return what can be told on: an old number would be taken for a new one by whoever reads it."""
    return reading.value if reading.quality is Quality.FRESH else None

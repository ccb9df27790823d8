"""The runtime's edge to KEDA: what a tick decided, put up for whoever asks; and the server, for as long as the process runs.

A tick puts up the islands that it looked at, after its actions have begun. That is a few numbers a fleet and policy, copied, so
an answer never waits for a tick and never shows half of one.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from scaler.core.model import FallbackBehavior, FleetSpec, PolicySpec, Quality, Reading
from scaler.keda.published import Board, FleetFigures, PolicyFigures
from scaler.keda.settings import KedaSettings
from scaler.policy.compile import PolicySet
from scaler.runtime.clock import Clock
from scaler.runtime.controller import Tick
from scaler.runtime.metrics.keda import KedaMetrics
from scaler.runtime.reload import Followed, Force
from scaler.runtime.told_decisions import Told
from warmpool.seats import FleetName

log = structlog.get_logger(__name__)

_RAISING = frozenset({FallbackBehavior.STATIC, FallbackBehavior.CURRENT_REPLICAS_IF_HIGHER})
"""Fallbacks that ask for residents, whatever served before."""


LoweringRefused = Callable[[FleetName, int], str]
"""Says why a fleet had better not be asked for so few seats now, whoever asks; empty if it may."""


def never(_fleet: FleetName, _total: int) -> str:
    """Refuse nothing: for clusters whose seats are chosen by name."""
    return ""


class KedaAnswers:
    """Puts decisions up, and has them served.

    Args:
        policies: the policies in force at first.
        clock: time.
        settings: how the server listens; None: there is none.
        registry: where its calls are counted.
        refused: knows of seats that a lower total could cost.

    Attributes:
        board: what is put up.
    """

    def __init__(
        self,
        policies: PolicySet,
        clock: Clock,
        settings: KedaSettings | None,
        registry: CollectorRegistry | None = None,
        refused: LoweringRefused = never,
    ) -> None:
        self.board = Board()
        self._clock = clock
        self._settings = settings
        self._refused = refused
        self._server: Any = None
        self._metrics: KedaMetrics | None = None
        if settings is not None and registry is not None:
            self._metrics = KedaMetrics(registry, self._open_streams, self._last_calls)
        self.follow(policies)

    def follow(self, policies: PolicySet) -> None:
        """Answer for another set of policies."""
        self.board.follow(
            {str(name): fleet.metadata.namespace for name, fleet in policies.fleets.items()},
            {str(name): policy.metadata.namespace for name, policy in policies.policies.items()},
        )

    def following(self, force: Force) -> Force:
        """Return what puts sets in force as `force` does, and for the answers too."""
        return Followed(force, self.follow)

    def followed(self, told: Told) -> None:
        """Put up what the leader has decided, while another leads."""
        self.board.publish(told.fleets, told.policies)

    def published(self, tick: Tick) -> None:
        """Put up what a tick decided, if it is told to anybody: to KEDA, or to other replicas."""
        if self._settings is None and not self.board.watched:
            return
        now, before = self._clock.monotonic(), self.board.current.fleets
        self.board.publish(
            {
                str(fleet.name): self._fleet(tick, fleet, now, before.get(fleet.name))
                for fleet in tick.looked.fleets
            },
            {str(policy.name): _policy(tick, policy, now) for policy in tick.looked.policies},
        )

    def _fleet(self, tick: Tick, fleet: FleetSpec, now: float, before: FleetFigures | None) -> FleetFigures:
        decided = tick.decision.fleets[fleet.name]
        last = tick.snapshot.fleets[fleet.name].replicas if before is None else before.total
        held = decided.total < last and (_may_cost(tick, fleet) or self._refused(fleet.name, decided.total))
        return FleetFigures(
            at=now,
            total=min(last, fleet.max_seats) if held else decided.total,
            serving=decided.serving,
            spare=decided.spare,
            fallback=min(fleet.max_seats, _fallbacks(tick, fleet) + decided.spare + decided.held),
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

        clock = self._clock
        self._server = KedaServer(self.board, clock.monotonic, clock.wall, self._settings, self._metrics)
        async with self._server.serve() as port:
            log.info(
                "KEDA is answered", host=self._settings.host, port=port, security=self._settings.security
            )
            yield port

    def _open_streams(self) -> int:
        return 0 if self._server is None else int(self._server.open_streams)

    def _last_calls(self) -> Iterable[tuple[str, float]]:
        return () if self._server is None else self._server.book.last_calls()

    async def _asked(self, request: web.Request) -> web.Response:
        of = request.query.get("scaledObject", "")
        served = self._server is not None
        page = self._server.book.as_json(of) if served else {"items": [], "leftOut": 0}
        return web.json_response({"served": served, "openStreams": self._open_streams(), **page})


def _fallbacks(tick: Tick, fleet: FleetSpec) -> int:
    """Return the residents that fallbacks ask for on the fleet that their policies name first."""
    return sum(
        max(policy.serving_min, policy.fallback_serving)
        for policy in tick.looked.policies
        if policy.fleets[0].fleet == fleet.name and policy.fallback in _RAISING
    )


def _may_cost(tick: Tick, fleet: FleetSpec) -> bool:
    """Whether a lower total could cost seats that serve, so that the last one goes on being told.

    That is while something is being promoted or a serving pod isn't Ready: a ReplicaSet takes pods that aren't Ready first, and
    knows of deletion costs a moment late.
    """
    supplies = tick.snapshot.fleets[fleet.name].supply.values()
    seats = tick.stock.get(fleet.name, ())
    return any(supply.promoting for supply in supplies) or any(
        seat.serving and not seat.ready for seat in seats
    )


def _policy(tick: Tick, policy: PolicySpec, now: float) -> PolicyFigures:
    load = tick.snapshot.loads[policy.name]
    decided = tick.decision.policies[policy.name]
    supplies = [tick.snapshot.fleets[share.fleet].supply.get(policy.name) for share in policy.fleets]
    return PolicyFigures(
        at=now,
        serving=_served(decided.serving, decided.wanted),
        promoting=sum(supply.promoting for supply in supplies if supply is not None),
        queued=_fresh(load.queued),
        oldest_wait=_fresh(load.oldest_wait),
        fallback=policy.fallback,
        fallback_serving=policy.fallback_serving,
    )


def _served(given: Mapping[FleetName, int], wanted: Mapping[FleetName, int]) -> int:
    """Return the residents that serve or shall, whether or not seats exist for them, as a fleet's own `serving` counts them.

    Before the first seat comes that is what is wanted, the floor at least: 0 would have a companion deleted at each cold start.
    """
    return sum(max(given.get(fleet, 0), wanted.get(fleet, 0)) for fleet in given.keys() | wanted.keys())


def _fresh(reading: Reading) -> float | None:
    """Return what can be told on: an old number would be taken for a new one by whoever reads it."""
    return reading.value if reading.quality is Quality.FRESH else None

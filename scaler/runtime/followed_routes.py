"""What a gateway makes of the routes that it follows: its own share of them."""

import time
from collections.abc import Callable, Collection
from typing import Any

from scaler.gateway.proxy import Gateway
from scaler.gateway.routes import EndpointKey
from scaler.runtime.published_routes import PublishedTable, Shares
from scaler.runtime.route_sources import Routes, RouteSources
from warmpool.seats import PolicyName

Listed = Callable[[PolicyName, Collection[EndpointKey]], None]


class FollowedRoutes:
    """Puts what controllers and pods say into the gateway, as this gateway's share of it.

    Args:
        gateway: whose routes they become.
        instance: its id.
        listed: told of each policy's endpoints before the first request goes to them.

    Attributes:
        sources: all that was told.
    """

    def __init__(self, gateway: Gateway, instance: str, listed: Listed) -> None:
        self.sources = RouteSources()
        self._gateway = gateway
        self._shares = Shares(instance)
        self._listed = listed

    @property
    def gateways(self) -> tuple[str, ...]:
        """The live gateways, as far as anybody knows."""
        return self.sources.crowd

    def take(self, table: PublishedTable, changed: Collection[PolicyName] | None) -> None:
        """Take a controller's table over.

        Raises:
            ValueError: the gateway can't use it; its last routes stay.
        """
        now = time.monotonic()
        self._put(*self.sources.with_table(table, changed, now), now)

    def take_pods(self, pods: Routes, changed: Collection[PolicyName], watched_at: float) -> None:
        """Take what pods' labels say over; see `RouteSources.with_pods`.

        Raises:
            ValueError: the gateway can't use it; its last routes stay.
        """
        now = time.monotonic()
        self._put(*self.sources.with_pods(pods, changed, watched_at, now), now)

    def look(self, watched_at: float, *, heard: bool, peers: tuple[str, ...] = ()) -> None:
        """Let the time do what it does; see `RouteSources.with_time`."""
        now = time.monotonic()
        after, names = self.sources.with_time(heard=heard, peers=peers, watched_at=watched_at, now=now)
        if names:
            self._put(after, names, now)
        self.sources = after

    def _put(self, after: RouteSources, names: Collection[PolicyName], now: float) -> None:
        shares = {name: self._shares.of(name, after.routes(name, now), after.crowd) for name in names}
        for name, routes in shares.items():
            self._listed(name, () if routes is None else [each.key for each in routes.endpoints])
        self._gateway.routes.update(shares)
        self.sources = after

    def state(self) -> dict[str, Any]:
        """Return what people want to see, as JSON has it."""
        table = self.sources.table
        return {
            "term": table.term if table is not None else None,
            "version": table.version if table is not None else None,
            "gateways": list(self.gateways),
        }

"""What a gateway makes of the routes that it follows: its own share of them."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from scaler.gateway.proxy import Gateway
from scaler.gateway.routes import EndpointKey
from scaler.runtime.published_routes import PublishedTable, divided
from warmpool.seats import PolicyName

Listed = Callable[[PolicyName, Collection[EndpointKey]], None]


class FollowedRoutes:
    """Puts each published table into the gateway, as this gateway's share of it.

    Args:
        gateway: whose routes they become.
        instance: its id.
        listed: told of each policy's endpoints before the first request goes to them.

    Attributes:
        table: the last one; None before the first.
        gateways: the live gateways, as far as anybody knows.
    """

    def __init__(self, gateway: Gateway, instance: str, listed: Listed) -> None:
        self.table: PublishedTable | None = None
        self.gateways: tuple[str, ...] = ()
        self._gateway = gateway
        self._instance = instance
        self._listed = listed

    def take(self, table: PublishedTable, changed: Collection[PolicyName] | None) -> None:
        """Take a table over.

        Raises:
            ValueError: the gateway can't use it; its last one stays.
        """
        gateways = self.gateways if table.gateways is None else table.gateways  # the last known number holds
        was_blind, table = self.table is not None and self.table.blind, self._seen(table)
        if changed is None or gateways != self.gateways or was_blind:
            changed = table.policies.keys() | self._gateway.routes.policies.keys()
        there = {name: table.policies[name] for name in changed if name in table.policies}
        shares = divided(there, gateways, self._instance)
        for name in changed:
            self._listed(name, [each.key for each in shares[name].endpoints] if name in shares else ())
        self._gateway.routes.update({name: shares.get(name) for name in changed})
        self.table, self.gateways = table, gateways

    def _seen(self, table: PublishedTable) -> PublishedTable:
        """Return a table with the endpoints that are known, where it says nothing of any."""
        if not table.blind or self.table is None:
            return table
        known = self.table.policies
        policies = {
            name: replace(routes, endpoints=known[name].endpoints) if name in known else routes
            for name, routes in table.policies.items()
        }
        return replace(table, policies=policies)

    def state(self) -> dict[str, Any]:
        """Return what people want to see, as JSON has it."""
        table = self.table
        return {
            "term": table.term if table is not None else None,
            "version": table.version if table is not None else None,
            "gateways": list(self.gateways),
        }

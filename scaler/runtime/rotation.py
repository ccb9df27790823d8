"""Routes that are worked out from what changed, and not anew from all seats at each change. PURE: time is an argument.

A seat whose agent falls silent isn't taken for one whose engine has died: its routes are held for a while, for gateways find out
themselves who answers them (`scaler.gateway.routes`). And while no agent is heard at all it is we who have lost them, and
everything is held.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from scaler.cluster.port import Stock
from scaler.gateway.routes import Endpoint, PolicyRoutes
from warmpool.seats import FleetName, PolicyName, Seat, SeatName

HOLD_SECONDS: Final = 10.0
"""How long a silent seat's routes are held while others are heard: longer than it takes, when all are lost, until the last
one counts as silent."""

_NOTHING: Final[Mapping[PolicyName, float]] = MappingProxyType({})

Routes = Callable[[Sequence[Seat]], Mapping[PolicyName, PolicyRoutes]]
"""Works out every policy's routes to some seats."""


class Rotation:
    """The routes to a cluster's seats.

    Args:
        routes: works them out.
    """

    def __init__(self, routes: Routes) -> None:
        self._work_out = routes
        self._fleets: dict[FleetName, Sequence[Seat]] = {}
        self._seats: dict[FleetName, dict[SeatName, Seat]] = {}
        self._endpoints: dict[PolicyName, dict[SeatName, Endpoint]] = {}
        self._routed: dict[SeatName, set[PolicyName]] = {}
        self._silent: dict[SeatName, float] = {}
        self._policies: dict[PolicyName, PolicyRoutes] = {}
        self._coming: Mapping[PolicyName, float] = {}
        self._anew = True

    @property
    def policies(self) -> Mapping[PolicyName, PolicyRoutes]:
        """Every policy's routes, as of the last look."""
        return self._policies

    def refresh(self) -> None:
        """Something else than seats has changed: look at all of them again."""
        self._anew = True

    def look(
        self, stock: Stock, now: float, coming: Mapping[PolicyName, float] = _NOTHING
    ) -> Mapping[PolicyName, PolicyRoutes | None]:
        """Look at the cluster, and return the routes that are others now; None for a policy that is gone.

        Args:
            stock: its seats; a fleet whose sequence is the same object as at the last look isn't looked at.
            now: monotonic seconds.
            coming: in how many seconds one more resident is expected, of the policies of which that is known.
        """
        changed, gone = self._news(stock)
        lost = self._given_up(stock, now)
        if not (self._anew or changed or gone or lost or coming != self._coming):
            return {}
        self._anew, self._coming = False, coming
        touched: set[PolicyName] = set()
        for name in (*gone, *lost):
            touched |= self._take_out(name)
            self._silent.pop(name, None)
        found = self._work_out([self._as_held(seat, now) for seat in changed])
        return self._changes(found, touched | self._put(changed, found))

    # -------------------------------------------------------------- what has changed

    def _news(self, stock: Stock) -> tuple[list[Seat], list[SeatName]]:
        """Return the seats that are others than they were, and the names of those that are gone."""
        changed: list[Seat] = []
        gone: list[SeatName] = []
        for fleet in self._fleets.keys() - stock.keys():
            gone.extend(self._seats.pop(fleet))
            del self._fleets[fleet]
        for fleet, seats in stock.items():
            if self._fleets.get(fleet) is seats and not self._anew:
                continue
            known = self._seats.get(fleet, {})
            named = {seat.name: seat for seat in seats}
            changed.extend(seat for seat in seats if self._anew or known.get(seat.name) is not seat)
            gone.extend(known.keys() - named.keys())
            self._fleets[fleet], self._seats[fleet] = seats, named
        return changed, gone

    def _as_held(self, seat: Seat, now: float) -> Seat:
        """Return a seat as routes are made for it: one that fell silent as it was before."""
        if seat.reachable:
            self._silent.pop(seat.name, None)
            return seat
        if seat.name not in self._routed:
            return seat
        self._silent.setdefault(seat.name, now)
        return replace(seat, reachable=True)

    def _given_up(self, stock: Stock, now: float) -> list[SeatName]:
        """Return the seats that have been silent for too long, if anyone is heard at all."""
        late = [name for name, since in self._silent.items() if now - since >= HOLD_SECONDS]
        return late if late and any(seat.reachable for seats in stock.values() for seat in seats) else []

    # -------------------------------------------------------------- what that makes

    def _put(self, seats: Iterable[Seat], found: Mapping[PolicyName, PolicyRoutes]) -> set[PolicyName]:
        """Put these seats' endpoints in place of what they had; return the policies whose endpoints are others now."""
        fresh: dict[SeatName, dict[PolicyName, Endpoint]] = {seat.name: {} for seat in seats}
        for policy, routes in found.items():
            for endpoint in routes.endpoints:
                fresh[endpoint.seat][policy] = endpoint
        touched: set[PolicyName] = set()
        for name, endpoints in fresh.items():
            for policy in self._routed.get(name, set()) - endpoints.keys():
                del self._endpoints[policy][name]
                touched.add(policy)
            for policy, endpoint in endpoints.items():
                known = self._endpoints.setdefault(policy, {})
                if known.get(name) != endpoint:
                    known[name] = endpoint
                    touched.add(policy)
            if endpoints:
                self._routed[name] = set(endpoints)
            else:
                self._routed.pop(name, None)
        return touched

    def _take_out(self, name: SeatName) -> set[PolicyName]:
        policies = self._routed.pop(name, set())
        for policy in policies:
            del self._endpoints[policy][name]
        return policies

    def _changes(
        self, found: Mapping[PolicyName, PolicyRoutes], touched: set[PolicyName]
    ) -> Mapping[PolicyName, PolicyRoutes | None]:
        changes: dict[PolicyName, PolicyRoutes | None] = {}
        for policy, routes in found.items():
            before = self._policies.get(policy)
            endpoints = (
                tuple(self._endpoints.get(policy, {}).values())
                if before is None or policy in touched
                else before.endpoints
            )
            after = replace(routes, endpoints=endpoints, coming_seconds=self._coming.get(policy))
            if after != before:
                changes[policy] = self._policies[policy] = after
        for policy in self._policies.keys() - found.keys():
            changes[policy] = None
            del self._policies[policy]
        return changes

"""Routes for a gateway in the controller's own process: each change at once, without a stream in between."""

from collections.abc import Mapping, Sequence

from scaler.cluster.port import Cluster
from scaler.gateway.proxy import Gateway
from scaler.gateway.routes import PolicyRoutes
from scaler.runtime.clock import Clock
from scaler.runtime.coming import Coming
from scaler.runtime.controller import Controller, PolicyTable, Tick
from scaler.runtime.rotation import Rotation
from scaler.runtime.routing import routes
from warmpool.seats import PolicyName, Seat


class DirectRoutes:
    """Puts what changes of the routes into a gateway.

    Args:
        gateway: gets all slots, for there is no other.
        cluster: whose seats they lead to.
        controller: whose policies they are for.
        clock: what is on its way is told by it.
    """

    def __init__(self, gateway: Gateway, cluster: Cluster, controller: Controller, clock: Clock) -> None:
        self._gateway = gateway
        self._cluster = cluster
        self._controller = controller
        self._clock = clock
        self._coming = Coming()
        self._rotation = Rotation(self._routes)

    def look(self) -> None:
        """Look at what has changed."""
        clock = self._clock
        coming = self._coming.steps(clock.wall())
        changes = self._rotation.look(self._cluster.stock(), clock.monotonic(), coming)
        if changes:
            self._gateway.routes.update(changes)

    def ticked(self, tick: Tick) -> None:
        """Take what a tick has decided, and look: time alone may have changed something."""
        self._coming.take(tick)
        self.look()

    def adopt(self, table: PolicyTable) -> None:
        """Put other policies in force, here and at the controller."""
        self._controller.adopt(table)
        self._rotation.refresh()
        self.look()

    def _routes(self, seats: Sequence[Seat]) -> Mapping[PolicyName, PolicyRoutes]:
        table = self._controller.coming
        return routes(table.policies, table.models, seats, table.queues)

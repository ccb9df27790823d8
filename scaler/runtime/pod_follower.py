"""Following the pods of a cluster: who is in rotation by their labels, whether a controller is there or not.

What was learned last holds while the API server doesn't answer, so that routing outlives it, too.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog

from scaler.cluster.kube.client import KubeClient
from scaler.cluster.kube.reflector import Reflector, Timing
from scaler.cluster.kube.resources import POD, Collection
from scaler.cluster.kube.views import Json, Pod, pod_from_json
from scaler.gateway.routes import PolicyRoutes
from scaler.policy.compile import PolicySet
from scaler.runtime.followed_routes import FollowedRoutes
from scaler.runtime.labelled_seats import SteadySeats, without_port
from scaler.runtime.rotation import Rotation
from scaler.runtime.route_follower import RouteFollower
from scaler.runtime.routing import limits, routes
from warmpool.seats import FLEET_LABEL, FleetName, PolicyName, Seat

log = structlog.get_logger(__name__)

_REST = 3.0
"""How long what else the gateway does goes before another look, in looks: one over ten thousand pods takes some milliseconds."""
_LONGEST_REST_SECONDS = 0.05
_SHOWN = 20
"""Seats that can't be reached which are named at most."""


PodSource = Callable[[Callable[[Json], Seat]], Reflector[Seat]]
"""Makes the copy of the pods, each read by what it is given."""


def pods_in(client: KubeClient, namespace: str, timing: Timing | None = None) -> PodSource:
    """Return where the pods of all fleets of a namespace are."""
    source = Collection(kind=POD, namespace=namespace, selectors={"labelSelector": FLEET_LABEL})
    return lambda read: Reflector(client, source, read, timing)


class Peers:
    """The gateways' own pods, by whose number gateways divide what residents hold.

    Args:
        client: reaches the server.
        namespace: where they are.
        labels: select them.
        timing: how long things may take.

    Attributes:
        pods: their copy.
    """

    def __init__(self, client: KubeClient, namespace: str, labels: str, timing: Timing | None = None) -> None:
        source = Collection(kind=POD, namespace=namespace, selectors={"labelSelector": labels})
        self.pods = Reflector(client, source, pod_from_json, timing)

    def names(self) -> tuple[str, ...]:
        """Return the names of those that run, in order; none while nobody has seen any."""
        running = (each.seat for each in self.pods.values() if each.phase == "Running")
        return tuple(sorted(seat.name for seat in running if not seat.terminating))


class PodFollower:
    """Follows the pods of all fleets while `run` runs.

    Args:
        source: where they are; see `pods_in`.
        policies: the policies in force.
        followed: gets their routes.
        controllers: those whose routes are followed as well.
        peers: the gateways' own pods; None: they aren't watched.
    """

    def __init__(
        self,
        source: PodSource,
        policies: PolicySet,
        followed: FollowedRoutes,
        controllers: RouteFollower,
        peers: Peers | None = None,
    ) -> None:
        self._seats = SteadySeats()
        self._pods = source(self._seats.read)
        self._present: Sequence[Seat] | None = None
        self._policies = policies
        self._followed = followed
        self._controllers = controllers
        self._peers = peers
        self._rotation = Rotation(self._routes)
        self._stock: dict[FleetName, Sequence[Seat]] = {}
        self._unreached: frozenset[tuple[str, PolicyName]] = frozenset()
        self._dirty = asyncio.Event()

    def adopt(self, policies: PolicySet) -> None:
        """Put other policies in force."""
        self._policies = policies
        self._begin_anew()
        self._dirty.set()

    def _begin_anew(self) -> None:
        """Look at everything next time, and not at what has changed alone."""
        self._rotation.refresh()
        self._present = None

    async def run(self) -> None:
        """Follow until cancelled."""
        watched: list[Reflector[Seat] | Reflector[Pod]] = [self._pods]
        watched += [] if self._peers is None else [self._peers.pods]
        unsubscribe = [each.subscribe(self._dirty.set) for each in watched]
        try:
            async with asyncio.TaskGroup() as tasks:
                for each in watched:
                    tasks.create_task(each.run(), name="pods")
                tasks.create_task(self._follow(), name="routes from pods")
        finally:
            for end in unsubscribe:
                end()

    async def _follow(self) -> None:
        await self._pods.wait_synced()
        while True:
            began = time.monotonic()
            try:
                self._look()
            except ValueError as error:
                log.warning("routes can't be used; the last ones hold", error=str(error))
                self._begin_anew()
            await asyncio.sleep(min(_LONGEST_REST_SECONDS, _REST * (time.monotonic() - began)))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._followed.sources.look_again()):
                    await self._dirty.wait()
            self._dirty.clear()

    def _look(self) -> None:
        """Look at what has changed, and at the time.

        Raises:
            ValueError: the gateway can't use it.
        """
        now, present = time.monotonic(), self._pods.values()
        watched_at = now - self._pods.age
        if present != self._present:
            self._take_stock(present)
            changes = self._rotation.look(self._stock, now)
            if changes or self._followed.sources.pods is None:
                self._followed.take_pods(dict(self._rotation.policies), changes.keys(), watched_at)
            self._present = present
        peers = self._peers.names() if self._peers is not None else ()
        self._followed.look(watched_at, heard=self._controllers.heard, peers=peers)

    def _take_stock(self, present: Sequence[Seat]) -> None:
        """Sort the seats by fleet; a fleet none of whose seats has changed stays the same object."""
        fleets: dict[FleetName, list[Seat]] = {}
        unreached: set[tuple[str, PolicyName]] = set()
        self._seats.keep(present)
        for seat in present:
            fleets.setdefault(seat.fleet, []).append(seat)
            if seat.serving and len(seat.residents) < len(seat.serving):
                unreached |= {(seat.name, policy) for policy in without_port(seat)}
        before, self._stock = self._stock, {}
        for fleet, seats in fleets.items():
            known, fresh = before.get(fleet, ()), tuple(seats)
            self._stock[fleet] = known if _same(known, fresh) else fresh
        self._complain(frozenset(unreached))

    def _complain(self, unreached: frozenset[tuple[str, PolicyName]]) -> None:
        for seat, policy in sorted(unreached - self._unreached)[:_SHOWN]:
            log.warning(
                "in rotation by its label, and its pod names no port for it", seat=seat, policy=policy
            )
        self._unreached = unreached

    def _routes(self, seats: Sequence[Seat]) -> Mapping[PolicyName, PolicyRoutes]:
        policies = self._policies
        models = {name: policy.models for name, policy in policies.policies.items()}
        queues = {name: limits(policy.spec.queue) for name, policy in policies.policies.items()}
        return routes(tuple(policies.policy_specs.values()), models, seats, queues)

    def state(self) -> dict[str, Any]:
        """Return what people want to see, as JSON has it."""
        return {
            "synced": self._pods.synced,
            "ageSeconds": round(self._pods.age, 1) if self._pods.synced else None,
            "seats": len(self._pods),
            "withoutPort": [f"{seat}/{policy}" for seat, policy in sorted(self._unreached)[:_SHOWN]],
            "policies": self._policies.short_hash,
        }


def _same(known: Sequence[Seat], fresh: Sequence[Seat]) -> bool:
    return len(known) == len(fresh) and all(a is b for a, b in zip(known, fresh, strict=True))

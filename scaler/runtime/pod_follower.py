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
from scaler.core.model import PolicySpec
from scaler.gateway.routes import PolicyLimits, PolicyRoutes
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
_STRETCH = 300
"""Pods that are new or others than before of which one look takes notice; the rest has its turn in the next ones."""
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


_Told = tuple[Sequence[PolicySpec], Mapping[PolicyName, tuple[str, ...]], Mapping[PolicyName, PolicyLimits]]


def _told_by(policies: PolicySet) -> _Told:
    """Return what routes want to know of policies: what they need, the models' names, and how much may wait."""
    models = {name: policy.models for name, policy in policies.policies.items()}
    queues = {name: limits(policy.spec.queue) for name, policy in policies.policies.items()}
    return tuple(policies.policy_specs.values()), models, queues


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
        self._stock = _Stock()
        self._anew = False
        self._watched_at = 0.0
        self._policies, self._told = policies, _told_by(policies)
        self._followed = followed
        self._controllers = controllers
        self._peers = peers
        self._rotation = Rotation(self._routes)
        self._touched: set[PolicyName] = set()
        self._unreached: Sequence[tuple[str, PolicyName]] = ()
        self._complained: frozenset[tuple[str, PolicyName]] = frozenset()
        self._dirty = asyncio.Event()

    def adopt(self, policies: PolicySet) -> None:
        """Put other policies in force."""
        self._policies, self._told = policies, _told_by(policies)
        self._begin_anew()
        self._dirty.set()

    def _begin_anew(self) -> None:
        """Work everything out anew; what there is holds until that is done."""
        self._touched |= self._rotation.policies.keys()
        self._rotation, self._stock = Rotation(self._routes), _Stock()
        self._present, self._anew = None, True

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
            began, more = time.monotonic(), False
            try:
                more = self._look()
            except ValueError as error:
                log.warning("routes can't be used; the last ones hold", error=str(error))
                self._begin_anew()
            took = time.monotonic() - began
            await asyncio.sleep(took if more else min(_LONGEST_REST_SECONDS, _REST * took))
            if more:
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._followed.sources.look_again()):
                    await self._dirty.wait()
            self._dirty.clear()

    def _look(self) -> bool:
        """Look at what has changed, and at the time; return whether there is more to look at.

        Raises:
            ValueError: the gateway can't use it.
        """
        now, present, more = time.monotonic(), self._pods.values(), False
        said_at = now - self._pods.age
        if present != self._present:
            more = self._stock.take(present)
            if not more:
                self._seats.keep(present)
                self._complain()
            self._touched |= self._rotation.look(self._stock.fleets, now).keys()
            # what wasn't looked at yet isn't known: the watch counts as no further than the last whole look
            self._watched_at = self._watched_at or said_at if more else said_at
            if not (more and self._anew):
                self._show()
            self._present = None if more else present
        else:
            self._watched_at = said_at
        peers = self._peers.names() if self._peers is not None else ()
        self._followed.look(self._watched_at, heard=self._controllers.heard, peers=peers)
        return more

    def _show(self) -> None:
        """Have the gateway take over what is known of the pods by now."""
        if self._touched or self._followed.sources.pods is None:
            self._followed.take_pods(dict(self._rotation.policies), self._touched, self._watched_at)
        self._touched, self._anew = set(), False

    def _complain(self) -> None:
        self._unreached = self._stock.unreached
        unreached = frozenset(self._unreached)
        for seat, policy in sorted(unreached - self._complained)[:_SHOWN]:
            log.warning(
                "in rotation by its label, and its pod names no port for it", seat=seat, policy=policy
            )
        self._complained = unreached

    def _routes(self, seats: Sequence[Seat]) -> Mapping[PolicyName, PolicyRoutes]:
        specs, models, queues = self._told
        return routes(specs, models, seats, queues)

    # -------------------------------------------------------------- what is said of it

    @property
    def age(self) -> float | None:
        """Seconds since the API server last said something; None while not all pods have been seen."""
        return self._pods.age if self._pods.synced else None

    @property
    def seats(self) -> int:
        """How many pods are seats."""
        return len(self._pods)

    @property
    def unreached(self) -> Sequence[tuple[str, PolicyName]]:
        """Seats and policies that labels put in rotation and that can't be reached: no port is named for them.

        They are those of the last whole look, so that their number doesn't fall while all is worked out anew.
        """
        return self._unreached

    @property
    def restarts(self) -> int:
        """How often lists and watches began anew."""
        return self._pods.restarts.total()

    def state(self) -> dict[str, Any]:
        """Return what people want to see, as JSON has it."""
        age = self.age
        return {
            "synced": age is not None,
            "ageSeconds": None if age is None else round(age, 1),
            "seats": self.seats,
            "withoutPort": [f"{seat}/{policy}" for seat, policy in self.unreached[:_SHOWN]],
            "policies": self._policies.short_hash,
        }


class _Stock:
    """The pods of which notice was taken, by fleet.

    Attributes:
        fleets: a fleet none of whose seats has changed stays the same object.
    """

    def __init__(self) -> None:
        self.fleets: dict[FleetName, Sequence[Seat]] = {}
        self._taken: dict[str, Seat] = {}
        self._sorted: dict[FleetName, dict[str, Seat]] = {}
        self._unreached: dict[str, frozenset[PolicyName]] = {}

    def take(self, present: Sequence[Seat]) -> bool:
        """Take notice of a stretch of what has changed; return whether there is more."""
        fresh = [seat for seat in present if self._taken.get(seat.uid) is not seat]
        gone = self._taken.keys() - {seat.uid for seat in present}
        changed = {self._drop(uid) for uid in gone}
        for seat in fresh[:_STRETCH]:
            if seat.uid in self._taken:
                changed.add(self._drop(seat.uid))
            changed.add(seat.fleet)
            self._put(seat)
        for fleet in changed:
            if seats := self._sorted.get(fleet):
                self.fleets[fleet] = tuple(seats.values())
            else:
                self.fleets.pop(fleet, None)
        return len(fresh) > _STRETCH

    def _put(self, seat: Seat) -> None:
        self._taken[seat.uid] = seat
        self._sorted.setdefault(seat.fleet, {})[seat.uid] = seat
        if policies := without_port(seat):
            self._unreached[seat.uid] = policies

    def _drop(self, uid: str) -> FleetName:
        """Forget a seat, and return its fleet."""
        fleet = self._taken.pop(uid).fleet
        del self._sorted[fleet][uid]
        self._unreached.pop(uid, None)
        return fleet

    @property
    def unreached(self) -> Sequence[tuple[str, PolicyName]]:
        """Seats and policies that are in rotation and name no port, in order."""
        found = (
            (self._taken[uid].name, each) for uid, policies in self._unreached.items() for each in policies
        )
        return sorted(found)

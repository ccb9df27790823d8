"""What a gateway goes by when pods and controllers tell it different things. PURE: time is an argument (monotonic seconds).

1. Rotation is what the pods' labels say; which policies there are, and what they promise, is what the gateway's own files say.
2. A controller knows of a label before the watch does, for it wrote it. So what it lists beyond the labels counts as well, until
   the watch has seen the label, or has been heard for `HEAD_START_SECONDS` without one. A controller takes nobody out: the label's
   end does, and a resident that doesn't answer is left alone anyway.
3. A watch that has been silent for `SILENT_SECONDS` may be wrong about everything. Then a controller that is heard and hears its
   agents counts alone; without one the last labels hold.
4. Which gateways are alive is what controllers say, and what the gateways' own pods say while no controller is heard. When the next
   resident serves only controllers know.

Who watches no pods, or has never seen them, goes by what controllers say.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from scaler.gateway.routes import Endpoint, PolicyRoutes
from scaler.runtime.published_routes import PublishedTable
from warmpool.seats import PolicyName

HEAD_START_SECONDS: Final = 2.0
"""By how much a watch may lag behind the controller's own word."""
SILENT_SECONDS: Final = 100.0
"""API servers say something each minute, and a watch that says nothing for 90 s is begun anew."""
_LOOK_SECONDS: Final = 5.0
_EARLY_LOOK_SECONDS: Final = 0.5

Routes = Mapping[PolicyName, PolicyRoutes]
_NO_ROUTES: Final[Routes] = MappingProxyType({})
_NOBODY: Final[Mapping[str, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming:
    """In how many seconds one more resident serves, as it was said at a time."""

    seconds: float
    at: float

    def left(self, now: float) -> float:
        """Return in how many seconds that is now."""
        return max(0.0, self.seconds - (now - self.at))


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSources:
    """All that was told, and what follows from it. Each `with_…` returns what there is then and whose routes may be others.

    Attributes:
        table: what controllers said last; None before the first word.
        gateways: ids of the live gateways, as controllers know them; the last known ones hold.
        peers: ids of the live gateways, as their pods tell; empty where these aren't watched.
        heard: whether a controller is heard.
        pods: the routes of the labels, for the policies of the gateway's own files; None while nobody has seen any pod.
        watched_at: when the API server last said something.
        early: per policy the pods that controllers list and no label was seen of, by uid, and since when.
        coming: per policy what is on its way.
        alone: controllers count alone.
    """

    table: PublishedTable | None = None
    gateways: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    heard: bool = False
    pods: Routes | None = None
    watched_at: float = 0.0
    early: Mapping[PolicyName, Mapping[str, float]] = field(default_factory=lambda: MappingProxyType({}))
    coming: Mapping[PolicyName, Coming | None] = field(default_factory=lambda: MappingProxyType({}))
    alone: bool = False

    # -------------------------------------------------------------- what is told

    def with_table(
        self, table: PublishedTable, changed: Collection[PolicyName] | None, now: float
    ) -> "tuple[RouteSources, set[PolicyName]]":
        """Take a controller's table.

        Args:
            table: the whole table.
            changed: policies whose routes are others than in the one before; None: all may be.
            now: the time.
        """
        gateways = self.gateways if table.gateways is None else table.gateways
        was_blind, seen = self.table is not None and self.table.blind, self._seen(table)
        names = self.named() | seen.policies.keys() if changed is None or was_blind else set(changed)
        early, coming = dict(self.early), dict(self.coming)
        for name in names:
            early[name] = self._newly_listed(name, seen, now)
            coming[name] = _said(seen, name, now)
        after = replace(self, table=seen, gateways=gateways, early=early, coming=coming)
        return after.aged(after.named() | names if after.crowd != self.crowd else names, now)

    def with_pods(
        self, pods: Routes, changed: Collection[PolicyName], watched_at: float, now: float
    ) -> "tuple[RouteSources, set[PolicyName]]":
        """Take what the labels say.

        Args:
            pods: all policies' routes.
            changed: policies whose routes are others than before, those that are gone included.
            watched_at: when the API server last said something.
            now: the time.
        """
        first = self.pods is None
        names = self.named() | pods.keys() if first else set(changed)
        after = replace(self, pods=pods, watched_at=watched_at)
        early = dict(self.early)
        for name in names:
            labelled = {each.uid for each in _endpoints(pods, name)}
            listed = (
                {each.uid: now for each in self._listed(name)} if first else self.early.get(name, _NOBODY)
            )
            early[name] = {uid: at for uid, at in listed.items() if uid not in labelled}
        return replace(after, early=early).aged(names, now)

    def with_time(
        self, *, heard: bool, peers: tuple[str, ...] = (), watched_at: float, now: float
    ) -> "tuple[RouteSources, set[PolicyName]]":
        """Take note of who is there, and of the time.

        Args:
            heard: whether a controller is heard.
            peers: ids of the live gateways, as their pods tell.
            watched_at: when the API server last said something.
            now: the time.
        """
        after = replace(self, heard=heard, peers=peers, watched_at=watched_at)
        return after.aged(after.named() if after.crowd != self.crowd else set(), now)

    def aged(self, names: set[PolicyName], now: float) -> "tuple[RouteSources, set[PolicyName]]":
        """Let time do what it does: words without a label grow old, and a watch falls silent or is heard again."""
        early = {name: self._in_time(since) for name, since in self.early.items()}
        old = {name for name, since in early.items() if len(since) < len(self.early[name])}
        silent = self.pods is not None and now - self.watched_at > SILENT_SECONDS
        alone = silent and self.heard and self.table is not None and not self.table.blind
        after = replace(self, early={name: since for name, since in early.items() if since}, alone=alone)
        return after, names | old | (self.named() if alone != self.alone else set())

    def _in_time(self, since: Mapping[str, float]) -> Mapping[str, float]:
        """Leave out of what was listed when the watch would have told of a label by now."""
        return {uid: at for uid, at in since.items() if self.watched_at < at + HEAD_START_SECONDS}

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

    def _newly_listed(self, name: PolicyName, table: PublishedTable, now: float) -> Mapping[str, float]:
        """Return since when pods of a policy have been listed whose label nobody has seen."""
        if self.pods is None:
            return _NOBODY
        early = self.early.get(name, _NOBODY)
        known = {each.uid for each in (*self._listed(name), *_endpoints(self.pods, name))}
        listed = [each.uid for each in _endpoints(table.policies, name)]
        return {uid: early.get(uid, now) for uid in listed if uid in early or uid not in known}

    # -------------------------------------------------------------- what follows

    @property
    def crowd(self) -> tuple[str, ...]:
        """The gateways that share out what residents hold."""
        return self.gateways if self.heard or not self.peers else self.peers

    def routes(self, name: PolicyName, now: float) -> PolicyRoutes | None:
        """Return a policy's routes, with the slots of all gateways together; None: there is no such policy."""
        told = self.table.policies.get(name) if self.table is not None else None
        own = told if self.pods is None else self.pods.get(name)
        if own is None:
            return None
        coming = self.coming.get(name)
        return replace(
            own,
            endpoints=own.endpoints if self.pods is None else self._rotation(name, own),
            coming_seconds=None if coming is None else coming.left(now),
        )

    def _rotation(self, name: PolicyName, own: PolicyRoutes) -> tuple[Endpoint, ...]:
        if self.alone:
            return self._listed(name)
        early = self.early.get(name, _NOBODY)
        return own.endpoints + tuple(each for each in self._listed(name) if each.uid in early)

    def look_again(self) -> float:
        """Return after how many seconds time alone may have changed something."""
        return _EARLY_LOOK_SECONDS if self.early else _LOOK_SECONDS

    def _listed(self, name: PolicyName) -> tuple[Endpoint, ...]:
        """Return the endpoints that controllers list."""
        return _endpoints(self.table.policies if self.table is not None else _NO_ROUTES, name)

    def named(self) -> set[PolicyName]:
        """Return all policies that anybody has named."""
        told = self.table.policies if self.table is not None else _NO_ROUTES
        return {*told, *(self.pods or _NO_ROUTES)}


def _endpoints(routes: Routes, name: PolicyName) -> tuple[Endpoint, ...]:
    return routes[name].endpoints if name in routes else ()


def _said(table: PublishedTable, name: PolicyName, now: float) -> Coming | None:
    """Return what a table says is coming."""
    seconds = table.policies[name].coming_seconds if name in table.policies else None
    return None if seconds is None else Coming(seconds=seconds, at=now)

"""Where requests may go: models, endpoints in rotation, and what each of them holds at present.

The runtime puts in what changed at each change of rotation. What an endpoint holds is counted across changes, so an
endpoint that leaves takes no new request while its running ones finish. PURE: no I/O, time is an argument (seconds of a
monotonic clock).
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from warmpool.seats import PolicyName, SeatName

FIRST_PENALTY_SECONDS = 0.1
"""How long an endpoint is left alone after its first failure; doubles with each further one."""
LONGEST_PENALTY_SECONDS = 5.0
"""How long an endpoint is left alone at most."""
ERRORS_BEFORE_PENALTY = 3
"""5xx answers in a row before an endpoint is left alone: one bad request must not close it to all others."""


class EndpointKey(NamedTuple):
    """What makes an endpoint the same across replacements of the table: seat, policy and address."""

    uid: str
    policy: PolicyName
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One resident in rotation, as the gateway reaches it.

    Attributes:
        seat: the seat's name.
        uid: the seat's identity; a new seat of the same name is another endpoint.
        policy: the policy whose resident it is.
        url: base URL of the resident's guard, without a path.
        slots: requests that this gateway lets it hold at once; > 0.
    """

    seat: SeatName
    uid: str
    policy: PolicyName
    url: str
    slots: int
    _key: EndpointKey | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse an endpoint that could never get a request.

        Raises:
            ValueError: `slots` is not positive.
        """
        if self.slots < 1:
            msg = f"endpoint {self.url} of seat {self.seat}: slots is {self.slots}, and must be at least 1"
            raise ValueError(msg)

    @property
    def key(self) -> EndpointKey:
        """Its identity across replacements, worked out once, since an endpoint never changes."""
        key = self._key
        if key is None:
            key = EndpointKey(uid=self.uid, policy=self.policy, url=self.url)
            object.__setattr__(self, "_key", key)
        return key


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLimits:
    """What a policy says of how much of it may wait; None where it says nothing, and the gateway's own settings hold.

    Attributes:
        max_requests, max_bytes, max_age_seconds, max_cold_seconds: see `QueueLimits`.
    """

    max_requests: int | None = None
    max_bytes: int | None = None
    max_age_seconds: float | None = None
    max_cold_seconds: float | None = None

    def over(self, own: "QueueLimits") -> "QueueLimits":
        """Return limits with what the policy says in place of the gateway's own."""
        said = {name: value for name, value in asdict(self).items() if value is not None}
        return replace(own, **said)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """How much of one policy may wait. What exceeds it is answered 503 with Retry-After.

    Attributes:
        max_requests: requests that may wait at once.
        max_bytes: bytes of their bodies together.
        max_age_seconds: how long one may wait.
        max_cold_seconds: how long one may wait while no resident of the policy is in rotation, where that is longer. The
            deadline of a request that finds none is later by as much.
    """

    max_requests: int = 1024
    max_bytes: int = 256 * 1024 * 1024
    max_age_seconds: float = 60.0
    max_cold_seconds: float = 0.0

    def age_seconds(self, *, cold: bool) -> float:
        """Return how long a request may wait."""
        return max(self.max_age_seconds, self.max_cold_seconds) if cold else self.max_age_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRoutes:
    """What the gateway knows of one policy.

    Attributes:
        models: names in a request's `model` that mean this policy.
        endpoints: its residents in rotation.
        limits: what the policy says of how much may wait.
        ttft_seconds: time to first token that the policy promises; 0 where nobody said.
        coming_seconds: in how many seconds the controller expects one more resident in rotation; None where it expects none
            or doesn't say.
    """

    models: tuple[str, ...]
    endpoints: tuple[Endpoint, ...] = ()
    limits: PolicyLimits = PolicyLimits()
    ttft_seconds: float = 0.0
    coming_seconds: float | None = None


class Failure(StrEnum):
    """How an attempt at an endpoint ended before it had brought any content."""

    NOT_CONNECTED = "NotConnected"
    """No connection: the engine never saw the request."""
    NOT_SERVING = "NotServing"
    """The guard is closed: the engine never saw the request."""
    CUT = "Cut"
    """The connection broke after the request had been sent."""
    ENGINE_ERROR = "EngineError"
    """The engine answered 5xx."""
    SILENT = "Silent"
    """Not one byte came for too long, and none for anybody else meanwhile."""

    @property
    def reached_engine(self) -> bool:
        """Whether the engine may have worked on the request."""
        return self in {Failure.CUT, Failure.ENGINE_ERROR, Failure.SILENT}


@dataclass(slots=True, eq=False)
class Pulse:
    """A sign of an endpoint's life, whoever gets it.

    Attributes:
        at: monotonic seconds at which the last byte of an answer came; minus infinity before the first.
    """

    at: float = -math.inf


@dataclass(slots=True)
class _Load:
    """What one endpoint holds, and whether it may get more."""

    endpoint: Endpoint
    pulse: Pulse = field(default_factory=Pulse)
    listed: bool = True
    in_flight: int = 0
    last_taken: int = 0
    closed_until: float = 0.0
    struck_at: float = 0.0
    strikes: int = 0
    errors: int = 0
    silent: bool = False

    def open_to(self, now: float) -> bool:
        return self.closed_until <= now and self.in_flight < self.endpoint.slots


class RouteTable:
    """Models, endpoints in rotation and their requests in flight.

    Not thread-safe: the event loop's thread alone uses it.

    Args:
        limits: how much of a policy may wait, as far as it doesn't say so itself.
    """

    def __init__(self, limits: QueueLimits | None = None) -> None:
        self._own_limits = limits if limits is not None else QueueLimits()
        self._policies: Mapping[PolicyName, PolicyRoutes] = MappingProxyType({})
        self._models: dict[str, PolicyName] = {}
        self._loads: dict[PolicyName, dict[EndpointKey, _Load]] = {}
        self._taken = 0
        self._watchers: list[Callable[[Collection[PolicyName]], None]] = []

    # -------------------------------------------------------------- what there is

    @property
    def policies(self) -> Mapping[PolicyName, PolicyRoutes]:
        """The table as it was last changed."""
        return self._policies

    @property
    def models(self) -> Iterable[str]:
        """All names that are routed, in the policies' order."""
        return self._models.keys()

    def policy_of(self, model: str) -> PolicyName | None:
        """Return the policy that serves `model`, or None."""
        return self._models.get(model)

    def limits(self, policy: PolicyName) -> QueueLimits | None:
        """Return the policy's queue limits, or None when the table has no such policy."""
        routes = self._policies.get(policy)
        return None if routes is None else routes.limits.over(self._own_limits)

    def ttft_seconds(self, policy: PolicyName) -> float:
        """Return the time to first token that the policy promises; 0 where nobody said."""
        routes = self._policies.get(policy)
        return routes.ttft_seconds if routes is not None else 0.0

    def slots(self, policy: PolicyName, now: float) -> int:
        """Return the slots of the policy's residents in rotation that get requests, or of all where each is left alone just now."""
        listed = self._listed(policy)
        open_now = [load for load in listed if load.closed_until <= now]
        return sum(load.endpoint.slots for load in open_now or listed)

    def _listed(self, policy: PolicyName) -> list[_Load]:
        """Return the policy's residents in rotation."""
        return [load for load in self._loads.get(policy, {}).values() if load.listed]

    def cold(self, policy: PolicyName) -> bool:
        """Whether the policy has no resident in rotation."""
        routes = self._policies.get(policy)
        return routes is None or not routes.endpoints

    def state(self, policy: PolicyName, now: float) -> list[dict[str, object]]:
        """Return what people want to see of a policy's endpoints, those that have left and still hold something included."""
        return [
            {
                "seat": load.endpoint.seat,
                "url": load.endpoint.url,
                "slots": load.endpoint.slots,
                "inFlight": load.in_flight,
                "inRotation": load.listed,
                "leftAloneSeconds": round(max(0.0, load.closed_until - now), 3),
            }
            for load in self._loads.get(policy, {}).values()
        ]

    def standing(self, now: float) -> Mapping[PolicyName, tuple[int, int]]:
        """Return for each policy how many endpoints in rotation may get requests, and how many are left alone."""
        found = {}
        for policy in self._policies:
            listed = self._listed(policy)
            alone = sum(load.closed_until > now for load in listed)
            found[policy] = (len(listed) - alone, alone)
        return found

    # -------------------------------------------------------------- changes of rotation

    def watch(self, changed: Callable[[Collection[PolicyName]], None]) -> None:
        """Call `changed` after each change with the policies that it concerns, before `replace` or `update` returns."""
        self._watchers.append(changed)

    def replace(self, policies: Mapping[PolicyName, PolicyRoutes]) -> None:
        """Put another table in place of this one, and let what waits go to endpoints that are new.

        Raises:
            ValueError: as `update`.
        """
        gone = dict.fromkeys(self._policies.keys() - policies.keys())
        self.update({**policies, **gone})

    def update(self, changes: Mapping[PolicyName, PolicyRoutes | None]) -> None:
        """Put other routes of some policies in place of theirs (None: the policy is gone), as `replace` does for all.

        Raises:
            ValueError: two policies claim one model, or an endpoint stands under another policy than its own;
                the old table stays.
        """
        policies = {**self._policies, **changes}
        kept = {name: routes for name, routes in policies.items() if routes is not None}
        models = _models(kept)
        wanted = {
            name: dict(_keyed(name, routes)) if routes is not None else {} for name, routes in changes.items()
        }
        for name, endpoints in wanted.items():
            self._replace_policy(name, endpoints)
        self._policies = MappingProxyType(kept)
        self._models = models
        for changed in self._watchers:
            changed(changes.keys())

    def _replace_policy(self, policy: PolicyName, endpoints: Mapping[EndpointKey, Endpoint]) -> None:
        loads = self._loads.setdefault(policy, {})
        for key, load in list(loads.items()):
            load.listed = load.listed and key in endpoints
            if not load.listed and not load.in_flight:
                del loads[key]
        for key, endpoint in endpoints.items():
            known = loads.get(key)
            load = loads[key] = known if known is not None else _Load(endpoint=endpoint)
            if not load.listed:  # it had left and comes back: what failed before its rest says nothing now
                loads[key] = load = _Load(endpoint=endpoint, pulse=load.pulse, in_flight=load.in_flight)
            load.endpoint = endpoint
        if not loads:
            del self._loads[policy]

    # -------------------------------------------------------------- one request's way

    def pick(self, policy: PolicyName, now: float, *, avoid: Collection[EndpointKey] = ()) -> Endpoint | None:
        """Return the endpoint with room that holds least (the one used longest ago among equals), or None.

        Args:
            policy: whose endpoints.
            now: monotonic seconds.
            avoid: endpoints that failed this request; taken only when there is no other in the table.
        """
        listed = self._listed(policy)
        if avoid:
            others = [load for load in listed if load.endpoint.key not in avoid]
            listed = others or listed
        best: _Load | None = None
        for load in listed:
            if load.open_to(now) and (
                best is None or (load.in_flight, load.last_taken) < (best.in_flight, best.last_taken)
            ):
                best = load
        return best.endpoint if best is not None else None

    def take(self, endpoint: Endpoint, now: float) -> Pulse:
        """Count one more request on `endpoint`; where it was silent, the request is a trial, and the next one comes later.

        Returns:
            Where the endpoint's signs of life are noted.
        """
        load = self._loads[endpoint.policy][endpoint.key]
        if load.silent:
            load.closed_until = now + LONGEST_PENALTY_SECONDS
        self._taken += 1
        load.last_taken = self._taken
        load.in_flight += 1
        return load.pulse

    def give_back(self, endpoint: Endpoint) -> None:
        """Count one request less on `endpoint`; forget it when it has left and holds nothing."""
        loads = self._loads[endpoint.policy]
        load = loads[endpoint.key]
        load.in_flight -= 1
        if not load.listed and not load.in_flight:
            del loads[endpoint.key]
            if not loads:
                del self._loads[endpoint.policy]

    # -------------------------------------------------------------- trust

    def succeeded(self, endpoint: Endpoint, *, dispatched_at: float, now: float) -> bool:
        """Note that the endpoint brought content: failures before the request was sent are forgiven, and silence in any case.

        Returns:
            Whether it was left alone as silent, and takes requests again.
        """
        load = self._loads.get(endpoint.policy, {}).get(endpoint.key)
        if load is None:
            return False
        load.pulse.at = now
        if not load.silent and dispatched_at < load.struck_at:
            return False
        heard_again, load.silent = load.silent, False
        load.strikes = load.errors = 0
        load.closed_until = 0.0
        return heard_again

    def failed(self, endpoint: Endpoint, failure: Failure, *, dispatched_at: float, now: float) -> float:
        """Note a failed attempt, and leave the endpoint alone for a while.

        Without that, an endpoint that fails at once holds least and would draw every request to it. Attempts that
        began before the last strike count as the same failure.

        A silent one costs each request its whole deadline. So while another endpoint is open it gets single trials, each the
        longest penalty after the one before, until it brings content; the last one that is open is treated as after any
        other failure. Who sent anybody a byte since the request was sent isn't silent: that answer only takes long.

        Returns:
            For how many seconds it is left alone; 0 when the failure changes nothing.
        """
        loads = self._loads.get(endpoint.policy, {})
        load = loads.get(endpoint.key)
        if load is None or dispatched_at < load.struck_at:
            return 0.0
        if failure is Failure.ENGINE_ERROR:
            load.errors += 1
            if load.errors < ERRORS_BEFORE_PENALTY:
                return 0.0
        penalty: float = min(LONGEST_PENALTY_SECONDS, FIRST_PENALTY_SECONDS * 2 ** min(load.strikes, 16))
        if failure is Failure.SILENT:
            if load.pulse.at > dispatched_at:
                return 0.0
            load.silent = self.others_serve(endpoint, now)
            penalty = LONGEST_PENALTY_SECONDS if load.silent else penalty
        load.strikes += 1
        load.struck_at = now
        load.closed_until = now + penalty
        return penalty

    def others_serve(self, endpoint: Endpoint, now: float) -> bool:
        """Whether another endpoint of the same policy gets requests."""
        return any(
            other.listed and not other.silent and other.closed_until <= now
            for key, other in self._loads.get(endpoint.policy, {}).items()
            if key != endpoint.key
        )

    def silent(self, endpoint: Endpoint) -> bool:
        """Whether the endpoint is left alone as silent, but for trials."""
        load = self._loads.get(endpoint.policy, {}).get(endpoint.key)
        return load is not None and load.silent

    def next_opening(self, policy: PolicyName, now: float) -> float | None:
        """Return when the next endpoint that is left alone may be tried again, or None."""
        times = [
            load.closed_until
            for load in self._loads.get(policy, {}).values()
            if load.listed and load.closed_until > now
        ]
        return min(times, default=None)


def _keyed(policy: PolicyName, routes: PolicyRoutes) -> Iterator[tuple[EndpointKey, Endpoint]]:
    for endpoint in routes.endpoints:
        if endpoint.policy != policy:
            msg = f"endpoint {endpoint.url} of policy {endpoint.policy} is listed under policy {policy}"
            raise ValueError(msg)
        yield endpoint.key, endpoint


def _models(policies: Mapping[PolicyName, PolicyRoutes]) -> dict[str, PolicyName]:
    models: dict[str, PolicyName] = {}
    for name, routes in policies.items():
        for model in routes.models:
            owner = models.setdefault(model, name)
            if owner != name:
                msg = (
                    f"model {model} is claimed by policies {owner} and {name}; a model belongs to one policy"
                )
                raise ValueError(msg)
    return models

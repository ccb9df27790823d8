"""The routes as controllers publish them and gateways read them, one line each time. PURE.

A line holds either the whole table, or what has changed since the one before it for a reader that asks for changes. Slots are
totals per endpoint; each gateway works out its own share from the list of live gateways, which is in every line.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Final, NamedTuple

from scaler.errors import SignalError
from scaler.gateway.routes import Endpoint, EndpointKey, PolicyLimits, PolicyRoutes
from warmpool.seats import PolicyName, SeatName

HEARTBEAT_SECONDS: Final = 2.0
"""A line comes at least this often."""
LONGEST_LINE_BYTES: Final = 32 * 1024 * 1024
"""A table of 100,000 endpoints has some 20 MB."""
HEARTBEAT: Final = b"{}\n"
"""The line that says nothing but that the stream lives."""

_LIMITS: Final = ("maxRequests", "maxBytes", "maxAgeSeconds", "maxColdSeconds")
"""The keys of `PolicyLimits`' fields, in their order."""


class TableRejected(SignalError):
    """A line of the stream is no table; the last good one stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """What gateways have to know.

    Attributes:
        term: the publishing controller's term; of two tables the one of the later term counts.
        version: grows with each table within a term.
        gateways: instance ids of the live gateways; None while the controller can't know yet: what was known holds.
        policies: per policy, models, promise and endpoints with the slots of all gateways together.
        blind: the controller has heard no agent yet since it began, so that it says nothing of endpoints: those that a gateway
            knows hold.
    """

    term: int
    version: int
    gateways: tuple[str, ...] | None
    policies: Mapping[PolicyName, PolicyRoutes]
    blind: bool = False

    def to_line(self) -> bytes:
        """Render it as one line of JSON."""
        said = {name: say(routes) for name, routes in self.policies.items()}
        return line(self, "policies", said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What has changed between two versions.

    Attributes:
        term, version, gateways, blind: of the table that it leads to.
        since: the version that it leads from, or a later one.
        policies: routes of the policies that changed; None for those that are gone.
    """

    term: int
    version: int
    gateways: tuple[str, ...] | None
    since: int
    policies: Mapping[PolicyName, PolicyRoutes | None]
    blind: bool = False

    def on(self, table: PublishedTable | None) -> PublishedTable:
        """Return the table that it makes of an earlier one.

        Raises:
            TableRejected: it doesn't follow on that one.
        """
        if table is None or table.term != self.term or table.version < self.since:
            raise TableRejected("a change that follows on no table")
        policies = {**table.policies, **self.policies}
        return PublishedTable(
            term=self.term,
            version=self.version,
            gateways=self.gateways,
            policies={name: routes for name, routes in policies.items() if routes is not None},
            blind=self.blind,
        )


def say(routes: PolicyRoutes) -> str:
    """Render one policy's routes, as a part of a line."""
    said: dict[str, Any] = {
        "models": list(routes.models),
        "ttftSeconds": routes.ttft_seconds,
        "endpoints": [
            {"seat": each.seat, "uid": each.uid, "url": each.url, "slots": each.slots}
            for each in routes.endpoints
        ],
    }
    queue = {
        key: value for key, value in zip(_LIMITS, astuple(routes.limits), strict=True) if value is not None
    }
    if queue:
        said["queue"] = queue
    if routes.coming_seconds is not None:
        said["comingSeconds"] = routes.coming_seconds
    return json.dumps(said, separators=(",", ":"))


def line(table: PublishedTable, key: str, said: Mapping[PolicyName, str], since: int | None = None) -> bytes:
    """Put a line together from parts that are rendered already.

    Args:
        table: whose head it names.
        key: what the parts are: `policies` of a whole table, or `changes`.
        said: per policy its part; `null` for one that is gone.
        since: the version that changes lead from.
    """
    head: dict[str, Any] = {
        "term": table.term,
        "version": table.version,
        "gateways": None if table.gateways is None else list(table.gateways),
    }
    if table.blind:
        head["blind"] = True
    if since is not None:
        head["since"] = since
    parts = ",".join(f"{json.dumps(name)}:{part}" for name, part in said.items())
    return f'{json.dumps(head, separators=(",", ":"))[:-1]},"{key}":{{{parts}}}}}\n'.encode()


def from_line(text: bytes) -> PublishedTable | Change | None:
    """Read one line; None for a heartbeat.

    Raises:
        TableRejected: it is neither.
    """
    try:
        data = json.loads(text)
        if data == {}:
            return None
        gateways = data["gateways"]
        term, version = int(data["term"]), int(data["version"])
        blind = bool(data.get("blind"))
        live = None if gateways is None else tuple(sorted(str(name) for name in gateways))
        if "changes" in data:
            changes = {
                PolicyName(name): None if routes is None else _routes(name, routes)
                for name, routes in data["changes"].items()
            }
            since = int(data["since"])
            return Change(
                term=term, version=version, gateways=live, since=since, policies=changes, blind=blind
            )
        policies = {PolicyName(name): _routes(name, routes) for name, routes in data["policies"].items()}
        return PublishedTable(term=term, version=version, gateways=live, policies=policies, blind=blind)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise TableRejected(f"not a table of routes: {error!r}") from error


def _routes(name: str, data: Mapping[str, Any]) -> PolicyRoutes:
    endpoints = tuple(
        Endpoint(
            seat=SeatName(str(each["seat"])),
            uid=str(each["uid"]),
            policy=PolicyName(name),
            url=str(each["url"]),
            slots=int(each["slots"]),
        )
        for each in data["endpoints"]
    )
    coming = data.get("comingSeconds")
    return PolicyRoutes(
        models=tuple(str(model) for model in data["models"]),
        endpoints=endpoints,
        limits=_limits(data.get("queue", {})),
        ttft_seconds=float(data.get("ttftSeconds", 0.0)),  # a controller of an older version doesn't say
        coming_seconds=None if coming is None else float(coming),
    )


def _limits(data: Mapping[str, Any]) -> PolicyLimits:
    said = [data.get(key) for key in _LIMITS]
    return PolicyLimits(
        max_requests=None if said[0] is None else int(said[0]),
        max_bytes=None if said[1] is None else int(said[1]),
        max_age_seconds=None if said[2] is None else float(said[2]),
        max_cold_seconds=None if said[3] is None else float(said[3]),
    )


class Shares:
    """A gateway's share of each endpoint's slots, worked out once for as long as the endpoint and the live gateways stay the same.

    Args:
        me: the gateway; it counts among the live ones even if it isn't named.
    """

    def __init__(self, me: str) -> None:
        self._me = me
        self._names: tuple[str, ...] = (me,)
        self._known: dict[PolicyName, dict[EndpointKey, _Share]] = {}

    def of(
        self, name: PolicyName, routes: PolicyRoutes | None, gateways: Sequence[str]
    ) -> PolicyRoutes | None:
        """Return a policy's routes with this gateway's share of each endpoint's slots; None: the policy is gone.

        Args:
            name: the policy.
            routes: with the slots of all gateways together.
            gateways: the live gateways.
        """
        names = tuple(sorted({*gateways, self._me}))
        if names != self._names:
            self._names, self._known = names, {}
        known = self._known.pop(name, {})
        if routes is None or len(names) == 1:
            return routes
        shares = self._known[name] = {
            each.key: found
            if (found := known.get(each.key)) is not None and (found.whole is each or found.whole == each)
            else _Share(each, self._part(each))
            for each in routes.endpoints
        }
        return replace(routes, endpoints=tuple(each.part for each in shares.values()))

    def _part(self, endpoint: Endpoint) -> Endpoint:
        place = self._names.index(self._me)
        return replace(endpoint, slots=share(endpoint.slots, place, len(self._names), _turn(endpoint)))


class _Share(NamedTuple):
    """An endpoint, and a gateway's part of it."""

    whole: Endpoint
    part: Endpoint


def share(total: int, place: int, count: int, turn: int) -> int:
    """Return how many of `total` slots the gateway at `place` of `count` takes.

    The remainder goes to gateways in the order of their ids, beginning at another one for each endpoint. The least is
    one: a gateway without any slot could serve nobody, and an engine queues the few requests that exceed its own.
    """
    part, rest = divmod(total, count)
    return max(1, part + ((place + turn) % count < rest))


def _turn(endpoint: Endpoint) -> int:
    return zlib.crc32(f"{endpoint.uid}/{endpoint.policy}/{endpoint.seat}".encode())

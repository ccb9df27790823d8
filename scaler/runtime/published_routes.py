"""The routes as controllers publish them and gateways read them, one table a line. PURE.

A line holds the whole table, so that any line will do and none is missed. Slots are totals per endpoint; each gateway
works out its own share from the list of live gateways, which is in the same table.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scaler.errors import SignalError
from scaler.gateway.routes import Endpoint, PolicyRoutes
from warmpool.seats import PolicyName, SeatName

HEARTBEAT_SECONDS = 2.0
"""A line comes at least this often."""
LONGEST_LINE_BYTES = 32 * 1024 * 1024
"""A table of 100,000 endpoints has some 20 MB."""
HEARTBEAT = b"{}\n"
"""The line that says nothing but that the stream lives."""


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
    """

    term: int
    version: int
    gateways: tuple[str, ...] | None
    policies: Mapping[PolicyName, PolicyRoutes]

    def to_line(self) -> bytes:
        """Render it as one line of JSON."""
        policies = {
            name: {
                "models": list(routes.models),
                "ttftSeconds": routes.ttft_seconds,
                "endpoints": [
                    {"seat": each.seat, "uid": each.uid, "url": each.url, "slots": each.slots}
                    for each in routes.endpoints
                ],
            }
            for name, routes in self.policies.items()
        }
        table = {
            "term": self.term,
            "version": self.version,
            "gateways": None if self.gateways is None else list(self.gateways),
            "policies": policies,
        }
        return json.dumps(table, separators=(",", ":")).encode() + b"\n"


def from_line(line: bytes) -> PublishedTable | None:
    """Read one line; None for a heartbeat.

    Raises:
        TableRejected: it is neither.
    """
    try:
        data = json.loads(line)
        if data == {}:
            return None
        gateways = data["gateways"]
        return PublishedTable(
            term=int(data["term"]),
            version=int(data["version"]),
            gateways=None if gateways is None else tuple(sorted(str(name) for name in gateways)),
            policies={PolicyName(name): _routes(name, routes) for name, routes in data["policies"].items()},
        )
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
    return PolicyRoutes(
        models=tuple(str(model) for model in data["models"]),
        endpoints=endpoints,
        ttft_seconds=float(data.get("ttftSeconds", 0.0)),  # a controller of an older version doesn't say
    )


def divided(
    policies: Mapping[PolicyName, PolicyRoutes], gateways: Sequence[str], me: str
) -> dict[PolicyName, PolicyRoutes]:
    """Return the table with this gateway's share of each endpoint's slots.

    Args:
        policies: with the slots of all gateways together.
        gateways: the live gateways; this one counts among them even if it isn't named.
        me: this gateway.
    """
    names = sorted({*gateways, me})
    place, count = names.index(me), len(names)
    return {
        name: replace(
            routes,
            endpoints=tuple(
                replace(each, slots=share(each.slots, place, count, _turn(each))) for each in routes.endpoints
            ),
        )
        for name, routes in policies.items()
    }


def share(total: int, place: int, count: int, turn: int) -> int:
    """Return how many of `total` slots the gateway at `place` of `count` takes.

    The remainder goes to gateways in the order of their ids, beginning at another one for each endpoint. The least is
    one: a gateway without any slot could serve nobody, and an engine queues the few requests that exceed its own.
    """
    part, rest = divmod(total, count)
    return max(1, part + ((place + turn) % count < rest))


def _turn(endpoint: Endpoint) -> int:
    return zlib.crc32(f"{endpoint.uid}/{endpoint.policy}/{endpoint.seat}".encode())

"""What the log says of requests and endpoints that fail: seldom enough to be read in a storm, and nothing of what goes well."""

import time
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

import structlog

from scaler.gateway.observe import Outcome
from scaler.gateway.queue import Lease, Ticket
from scaler.gateway.routes import Endpoint, Failure

log = structlog.get_logger(__name__)

LOGGED: Final = frozenset({Outcome.CUT, Outcome.ENGINE_ERROR, Outcome.DEADLINE_EXCEEDED})
"""How requests end of which the log says something: engines failed them."""
REQUESTS_SECONDS: Final = 1.0
"""Time between lines of requests that ended in one way."""
ENDPOINTS_SECONDS: Final = 10.0
"""Time between lines of one endpoint, whose rests are shorter than that."""


class Seldom:
    """Lets one event of a kind pass in a while, and counts what it keeps back. PURE.

    Args:
        seconds: how long a while is.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._passed: OrderedDict[Hashable, float] = OrderedDict()  # the oldest first
        self._kept_back: dict[Hashable, int] = {}

    def passes(self, kind: Hashable, now: float) -> bool:
        """Whether an event of this kind passes now; kinds that rest are forgotten."""
        if now - self._passed.get(kind, -self._seconds) < self._seconds:
            self._kept_back[kind] = self._kept_back.get(kind, 0) + 1
            return False
        self._passed[kind] = now
        self._passed.move_to_end(kind)
        while now - self._passed[oldest := next(iter(self._passed))] >= 2 * self._seconds:
            del self._passed[oldest]
            self._kept_back.pop(oldest, None)
        return True

    def kept_back(self, kind: Hashable) -> int:
        """Return how many were kept back since one last passed, and begin anew."""
        return self._kept_back.pop(kind, 0)


class FailureLog:
    """Writes the log's lines of failures, each as a warning."""

    def __init__(self) -> None:
        self._requests = Seldom(REQUESTS_SECONDS)
        self._endpoints = Seldom(ENDPOINTS_SECONDS)

    def left_alone(self, endpoint: Endpoint, failure: Failure, seconds: float) -> None:
        """Say that an endpoint is left alone for so many seconds, and why."""
        if not self._endpoints.passes(endpoint.key, time.monotonic()):
            return
        log.warning(
            "a resident is left alone",
            policy=endpoint.policy,
            seat=endpoint.seat,
            url=endpoint.url,
            failure=failure.value,
            seconds=seconds,
            not_logged=self._endpoints.kept_back(endpoint.key),
        )

    def request(
        self, identity: str, ticket: Ticket, lease: Lease | None, outcome: Outcome, *, problem: str
    ) -> None:
        """Say how a request ended that engines failed, which endpoint had it last, and what the problem was if anybody knows."""
        if outcome not in LOGGED or not self._requests.passes(outcome, time.monotonic()):
            return
        last = lease.endpoint if lease is not None else None
        log.warning(
            "a request failed",
            outcome=outcome.value,
            request=identity,
            policy=ticket.policy,
            attempts=ticket.attempts,
            seat=last.seat if last is not None else None,
            url=last.url if last is not None else None,
            problem=problem or None,
            not_logged=self._requests.kept_back(outcome),
        )

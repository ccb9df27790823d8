"""One policy's queue: what waits, in the order of arrival, within bounds; and who goes next.

A request that arrives while something waits never overtakes it. A request whose attempt failed goes back to the
head: it has been accepted, so bounds no longer concern it, and its own deadline ends it. PURE: no I/O, time is an
argument (seconds of a monotonic clock).
"""

import bisect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from scaler.gateway.routes import Endpoint, EndpointKey, QueueLimits, RouteTable
from warmpool.seats import PolicyName


class Refusal(StrEnum):
    """Why a request was not let in, or no longer waits."""

    TOO_MANY = "TooMany"
    """As many wait as may."""
    TOO_LARGE = "TooLarge"
    """The bodies of what waits are as large as they may be."""
    TOO_OLD = "TooOld"
    """It has waited as long as it may."""
    GONE = "Gone"
    """Its policy is no longer in the table, so nobody will ever answer it."""
    CLOSING = "Closing"
    """The gateway ends, and the time to finish is over."""


@dataclass(slots=True, eq=False, kw_only=True)
class Lease:
    """The right of one request to one slot of an endpoint, until it is released.

    Attributes:
        endpoint: where the request goes.
        granted_at: monotonic seconds at which it was given.
        waited_seconds: how long the request had waited for it.
        released: it has been given back.
    """

    endpoint: Endpoint
    granted_at: float
    waited_seconds: float
    released: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Ticket:
    """One request's place.

    Attributes:
        policy: whose endpoints it wants.
        size_bytes: size of its body.
        arrived_at: monotonic seconds at which it had been received whole.
        granted: called when it gets a slot; False means that nobody is there any more to use it.
        refused: called when it no longer waits and got nothing.
        avoid: endpoints that failed it.
        order: rank of arrival, given by the dispatcher.
        attempts: slots that it has had; after the first, bounds and age no longer concern it.
        waiting_since: monotonic seconds at which it last began to wait.
    """

    policy: PolicyName
    size_bytes: int
    arrived_at: float
    granted: Callable[[Lease], bool]
    refused: Callable[[Refusal], None]
    avoid: set[EndpointKey] = field(default_factory=set)
    order: int = -1
    attempts: int = 0
    waiting_since: float = 0.0


class PolicyQueue:
    """A bounded queue in order of arrival, with those that go once more in front."""

    def __init__(self) -> None:
        self._again: list[Ticket] = []
        self._first: dict[int, Ticket] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._again) + len(self._first)

    def __iter__(self) -> Iterator[Ticket]:
        """Go through what waits, next first."""
        return itertools.chain(self._again, self._first.values())

    def peek(self, skip: int = 0) -> Ticket | None:
        """Return the ticket behind the first `skip` ones, or None."""
        return next(itertools.islice(self, skip, None), None)

    @property
    def size_bytes(self) -> int:
        """Bytes of the bodies that wait."""
        return self._bytes

    def oldest_arrival(self) -> float | None:
        """Return when the request that has been here longest arrived, or None when nothing waits."""
        return next((ticket.arrived_at for ticket in self), None)

    def next_expiry(self, limits: QueueLimits) -> float | None:
        """Return when the next request will have waited too long, or None."""
        first = next(iter(self._first.values()), None)
        return first.arrived_at + limits.max_age_seconds if first is not None else None

    def offer(self, ticket: Ticket, limits: QueueLimits) -> Refusal | None:
        """Let `ticket` wait, or say why not."""
        if ticket.attempts:
            bisect.insort(self._again, ticket, key=lambda waiting: waiting.order)
        elif len(self) >= limits.max_requests:
            return Refusal.TOO_MANY
        elif self._bytes + ticket.size_bytes > limits.max_bytes:
            return Refusal.TOO_LARGE
        else:
            self._first[ticket.order] = ticket
        self._bytes += ticket.size_bytes
        return None

    def remove(self, ticket: Ticket) -> bool:
        """Take `ticket` out, wherever it stands; False when it doesn't wait."""
        if self._first.pop(ticket.order, None) is None:
            if ticket not in self._again:
                return False
            self._again.remove(ticket)
        self._bytes -= ticket.size_bytes
        return True

    def expire(self, limits: QueueLimits, now: float) -> list[Ticket]:
        """Take out what has waited too long."""
        expired = []
        for ticket in self._first.values():
            if ticket.arrived_at + limits.max_age_seconds > now:
                break
            expired.append(ticket)
        for ticket in expired:
            self.remove(ticket)
        return expired


@dataclass(slots=True, kw_only=True)
class Counts:
    """Totals since the gateway began, per policy.

    Attributes:
        arrived: requests for the policy, refused ones included.
        completed: answered in full, whatever the status below 500.
        refused: turned away for lack of room: answered 503 because the queue was full or they had waited too long.
        failed: got no whole answer though they should have.
        abandoned: the client went away first.
    """

    arrived: int = 0
    completed: int = 0
    refused: int = 0
    failed: int = 0
    abandoned: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStats:
    """One policy at one moment.

    Attributes:
        queued: requests that wait.
        queued_bytes: bytes of their bodies.
        in_flight: requests that were sent and are not finished.
        oldest_wait_seconds: how long ago the one that has been here longest arrived; 0 when nothing waits.
        arrived, completed, refused, failed, abandoned: totals; see `Counts`.
    """

    queued: int = 0
    queued_bytes: int = 0
    in_flight: int = 0
    oldest_wait_seconds: float = 0.0
    arrived: int = 0
    completed: int = 0
    refused: int = 0
    failed: int = 0
    abandoned: int = 0

    @property
    def demand(self) -> int:
        """Requests that are here, each counted once."""
        return self.queued + self.in_flight


@dataclass(slots=True)
class _Lane:
    """One policy's queue and what belongs to it."""

    queue: PolicyQueue = field(default_factory=PolicyQueue)
    counts: Counts = field(default_factory=Counts)
    limits: QueueLimits = field(default_factory=QueueLimits)
    in_flight: int = 0


class Dispatcher:
    """Gives slots of endpoints to requests, in order of arrival, at the moment in which there is room.

    Every change (a request, a completion, another table) is followed by handing out what can be handed out, within
    the same call. Tickets learn of it through their callbacks, which must not call the dispatcher.
    """

    def __init__(self, routes: RouteTable, *, changed: Callable[[PolicyName], None]) -> None:
        """Make a dispatcher over `routes`; `changed` is told of each change of a policy's numbers."""
        self._routes = routes
        self._changed = changed
        self._lanes: dict[PolicyName, _Lane] = {}
        self._order = 0

    # -------------------------------------------------------------- what is

    def policies(self) -> tuple[PolicyName, ...]:
        """Return the policies of the table, and those that have left it and still hold requests."""
        return tuple(self._lanes)

    def counts(self, policy: PolicyName) -> Counts:
        """Return the policy's totals, to count on."""
        return self._lane(policy).counts

    def stats(self, policy: PolicyName, now: float) -> PolicyStats:
        """Return the policy's numbers; all zero for one that is unknown."""
        lane = self._lanes.get(policy)
        if lane is None:
            return PolicyStats()
        oldest = lane.queue.oldest_arrival()
        counts = lane.counts
        return PolicyStats(
            queued=len(lane.queue),
            queued_bytes=lane.queue.size_bytes,
            in_flight=lane.in_flight,
            oldest_wait_seconds=max(0.0, now - oldest) if oldest is not None else 0.0,
            arrived=counts.arrived,
            completed=counts.completed,
            refused=counts.refused,
            failed=counts.failed,
            abandoned=counts.abandoned,
        )

    def demand(self, policy: PolicyName) -> tuple[int, int]:
        """Return (queued, in flight): the cheap part of `stats`."""
        lane = self._lanes.get(policy)
        return (len(lane.queue), lane.in_flight) if lane is not None else (0, 0)

    def next_event(self, now: float) -> float | None:
        """Return when time alone may change something: a wait that ends or an endpoint to be tried again."""
        times: list[float] = []
        for policy, lane in self._lanes.items():
            if not lane.queue:
                continue
            ends = (lane.queue.next_expiry(lane.limits), self._routes.next_opening(policy, now))
            times.extend(at for at in ends if at is not None)
        return min(times, default=None)

    # -------------------------------------------------------------- what happens

    def submit(self, ticket: Ticket, now: float) -> Lease | Refusal | None:
        """Take a request, or take it once more after a failed attempt.

        Returns:
            Its slot, when there is room and nothing waits before it; why it is refused; or None when it waits, and
            one of its callbacks will tell.
        """
        lane = self._lane(ticket.policy)
        if ticket.order < 0:
            ticket.order = self._order
            self._order += 1
            lane.counts.arrived += 1
        ticket.waiting_since = now
        refusal = None
        lease = None if self._blocked(lane, ticket) else self._grant(lane, ticket, now)
        if lease is None:
            known = ticket.policy in self._routes.policies
            refusal = lane.queue.offer(ticket, lane.limits) if known else Refusal.GONE
        self._changed(ticket.policy)
        return lease if lease is not None else refusal

    def release(self, lease: Lease, now: float) -> None:
        """Give a slot back, once however often it is called, and hand it to what waits."""
        if lease.released:
            return
        policy = lease.endpoint.policy
        self._return(lease)
        self._dispatch(policy, now)
        self._changed(policy)
        self._forget(policy)

    def withdraw(self, ticket: Ticket, now: float) -> None:
        """Take a request out of the queue because nobody waits for its answer any more."""
        lane = self._lanes.get(ticket.policy)
        if lane is not None and lane.queue.remove(ticket):
            self._dispatch(ticket.policy, now)  # what stood behind may go where this one would not
            self._changed(ticket.policy)
            self._forget(ticket.policy)

    def advance(self, now: float) -> None:
        """Do what time or another table made due: end waits that are too long, hand out what there is."""
        for policy, routes in self._routes.policies.items():
            self._lane(policy).limits = routes.limits
        for policy in tuple(self._lanes):
            lane = self._lanes[policy]
            before = len(lane.queue)
            expired = lane.queue.expire(lane.limits, now)
            for ticket in expired:
                ticket.refused(Refusal.TOO_OLD)
            if policy not in self._routes.policies:
                self._refuse_all(lane, Refusal.GONE)
            self._dispatch(policy, now)
            if before != len(lane.queue):
                self._changed(policy)
            self._forget(policy)

    def close(self) -> None:
        """Refuse everything that waits."""
        for policy, lane in tuple(self._lanes.items()):
            if self._refuse_all(lane, Refusal.CLOSING):
                self._changed(policy)
            self._forget(policy)

    # -------------------------------------------------------------- how

    def _lane(self, policy: PolicyName) -> _Lane:
        lane = self._lanes.get(policy)
        if lane is None:
            lane = self._lanes[policy] = _Lane()
            lane.limits = self._routes.limits(policy) or lane.limits
        return lane

    @staticmethod
    def _refuse_all(lane: _Lane, why: Refusal) -> bool:
        """Refuse everything that waits; return whether anything did."""
        waiting = tuple(lane.queue)
        for ticket in waiting:
            lane.queue.remove(ticket)
            ticket.refused(why)
        return bool(waiting)

    def _forget(self, policy: PolicyName) -> None:
        lane = self._lanes[policy]
        if not lane.queue and not lane.in_flight and policy not in self._routes.policies:
            del self._lanes[policy]

    @staticmethod
    def _blocked(lane: _Lane, ticket: Ticket) -> bool:
        """Whether something that waits must go before `ticket`; what avoids the free endpoints lets it pass."""
        ahead = next((waiting for waiting in lane.queue if not waiting.avoid), None)
        return ahead is not None and ahead.order < ticket.order

    def _grant(self, lane: _Lane, ticket: Ticket, now: float) -> Lease | None:
        endpoint = self._routes.pick(ticket.policy, now, avoid=ticket.avoid)
        if endpoint is None:
            return None
        self._routes.take(endpoint)
        lane.in_flight += 1
        ticket.attempts += 1
        return Lease(endpoint=endpoint, granted_at=now, waited_seconds=max(0.0, now - ticket.waiting_since))

    def _return(self, lease: Lease) -> None:
        lease.released = True
        self._routes.give_back(lease.endpoint)
        self._lanes[lease.endpoint.policy].in_flight -= 1

    def _dispatch(self, policy: PolicyName, now: float) -> None:
        """Hand out slots, the head first; only one that avoids what is free lets others pass."""
        lane = self._lanes[policy]
        passed = 0
        while (ticket := lane.queue.peek(passed)) is not None:
            lease = self._grant(lane, ticket, now)
            if lease is None:
                if not ticket.avoid:
                    return
                passed += 1
                continue
            lane.queue.remove(ticket)
            if not ticket.granted(lease):
                self._return(lease)

"""One policy's queue: what waits, within bounds, and who goes next.

Higher priority goes first; within one priority tenants take turns, and each tenant's requests go in the order of arrival. Where
nobody says either, that is the order of arrival, and no request that arrives while something waits overtakes it. A request
whose attempt failed goes back to the head: it has been accepted, so bounds no longer concern it, and its own deadline ends it.
PURE: no I/O, time is an argument (seconds of a monotonic clock).
"""

import bisect
import itertools
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from scaler.gateway.forecast import Forecast
from scaler.gateway.routes import Endpoint, EndpointKey, PolicyRoutes, Pulse, QueueLimits, RouteTable
from warmpool.seats import PolicyName


class Refusal(StrEnum):
    """Why a request was not let in, or no longer waits."""

    TOO_MANY = "TooMany"
    """As many wait as may."""
    TOO_LARGE = "TooLarge"
    """The bodies of what waits are as large as they may be."""
    TENANT_TOO_MANY = "TenantTooMany"
    """As many of its tenant wait as may: what is left is for others."""
    TOO_OLD = "TooOld"
    """It has waited as long as it may."""
    GONE = "Gone"
    """Its policy is no longer in the table, so nobody will ever answer it."""
    CLOSING = "Closing"
    """The gateway ends, and the time to finish is over."""


_NO_ROOM = frozenset({Refusal.TOO_MANY, Refusal.TOO_LARGE, Refusal.TENANT_TOO_MANY})


@dataclass(slots=True, eq=False, kw_only=True)
class Lease:
    """The right of one request to one slot of an endpoint, until it is released.

    Attributes:
        endpoint: where the request goes.
        granted_at: monotonic seconds at which it was given.
        waited_seconds: how long the request had waited for it.
        pulse: where the endpoint's signs of life are noted.
        released: it has been given back.
    """

    endpoint: Endpoint
    granted_at: float
    waited_seconds: float
    pulse: Pulse
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
        priority: higher goes first.
        tenant: whose it is; tenants of one priority take turns. Empty: nobody says.
        cold: no resident of its policy was in rotation when it began to wait, so it may wait longer.
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
    priority: int = 0
    tenant: str = ""
    cold: bool = False
    avoid: set[EndpointKey] = field(default_factory=set)
    order: int = -1
    attempts: int = 0
    waiting_since: float = 0.0


class PolicyQueue:
    """A bounded queue, with those that go once more in front."""

    def __init__(self) -> None:
        self._again: list[Ticket] = []
        # all others twice: in the order of arrival, by how long they may wait, and by priority and tenant
        self._first: Mapping[bool, dict[int, Ticket]] = {False: {}, True: {}}
        self._lines: dict[int, OrderedDict[str, dict[int, Ticket]]] = {}
        self._tenants: Counter[str] = Counter()
        self._priorities: Counter[int] = Counter()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._again) + self._waiting

    @property
    def _waiting(self) -> int:
        return len(self._first[False]) + len(self._first[True])

    def __iter__(self) -> Iterator[Ticket]:
        """Go through what waits, next first."""
        return itertools.chain(self._again, self._in_turn())

    def _in_turn(self) -> Iterator[Ticket]:
        for priority in sorted(self._lines, reverse=True):
            later: deque[Iterator[Ticket]] = deque()
            for line in self._lines[priority].values():
                tickets = iter(line.values())
                yield next(tickets)
                later.append(tickets)
            while later:
                tickets = later.popleft()
                for ticket in tickets:
                    yield ticket
                    later.append(tickets)
                    break

    def peek(self, skip: int = 0) -> Ticket | None:
        """Return the ticket behind the first `skip` ones, or None."""
        return next(itertools.islice(self, skip, None), None)

    @property
    def size_bytes(self) -> int:
        """Bytes of the bodies that wait."""
        return self._bytes

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket.order in self._first[ticket.cold] or ticket in self._again

    def ahead_of(self, ticket: Ticket) -> int:
        """Return how many that wait go before `ticket`, at most: who left in between isn't told from who waits."""
        first = min(
            (order for line in self._first.values() for order in itertools.islice(line, 1)), default=0
        )
        higher = sum(count for each, count in self._priorities.items() if each > ticket.priority)
        equal = max(0, min(self._priorities[ticket.priority] - 1, ticket.order - first))
        return len(self._again) + higher + equal

    def oldest_arrival(self) -> float | None:
        """Return when the request that has been here longest arrived, or None when nothing waits."""
        heads = (*self._again[:1], *(each for each in map(_head, self._first.values()) if each is not None))
        return min((ticket.arrived_at for ticket in heads), default=None)

    def next_expiry(self, limits: QueueLimits) -> float | None:
        """Return when the next request will have waited too long, or None."""
        ends = [
            ticket.arrived_at + limits.age_seconds(cold=cold)
            for cold, line in self._first.items()
            if (ticket := _head(line)) is not None
        ]
        return min(ends, default=None)

    def offer(self, ticket: Ticket, limits: QueueLimits) -> Refusal | None:
        """Let `ticket` wait, or say why not."""
        if ticket.attempts:
            bisect.insort(self._again, ticket, key=lambda waiting: waiting.order)
            self._bytes += ticket.size_bytes
            return None
        refusal = self._refusal(ticket, limits)
        if refusal is None:
            self._first[ticket.cold][ticket.order] = ticket
            line = self._lines.setdefault(ticket.priority, OrderedDict()).setdefault(ticket.tenant, {})
            line[ticket.order] = ticket
            self._tenants[ticket.tenant] += 1
            self._priorities[ticket.priority] += 1
            self._bytes += ticket.size_bytes
        return refusal

    def _refusal(self, ticket: Ticket, limits: QueueLimits) -> Refusal | None:
        """Say why `ticket` may not wait.

        A tenant may have as many as there is room for more, and one in any case, so that one alone leaves room for others
        (dynamic thresholds: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998).
        """
        room = limits.max_requests - len(self)
        if room <= 0:
            return Refusal.TOO_MANY
        if self._bytes + ticket.size_bytes > limits.max_bytes:
            return Refusal.TOO_LARGE
        if ticket.tenant and self._tenants[ticket.tenant] >= room:
            return Refusal.TENANT_TOO_MANY
        return None

    def serve(self, ticket: Ticket) -> None:
        """Take out `ticket`, which got a slot: it is its tenant's last turn until all others have had theirs."""
        self.remove(ticket)
        tenants = self._lines.get(ticket.priority)
        if tenants is not None and ticket.tenant in tenants:
            tenants.move_to_end(ticket.tenant)

    def remove(self, ticket: Ticket) -> bool:
        """Take `ticket` out, wherever it stands; False when it doesn't wait."""
        if self._first[ticket.cold].pop(ticket.order, None) is not None:
            self._leave_line(ticket)
        elif ticket in self._again:
            self._again.remove(ticket)
        else:
            return False
        self._bytes -= ticket.size_bytes
        return True

    def _leave_line(self, ticket: Ticket) -> None:
        self._tenants[ticket.tenant] -= 1
        if not self._tenants[ticket.tenant]:
            del self._tenants[ticket.tenant]
        tenants = self._lines[ticket.priority]
        line = tenants[ticket.tenant]
        del line[ticket.order]
        if not line:
            del tenants[ticket.tenant]
            if not tenants:
                del self._lines[ticket.priority]
        self._priorities[ticket.priority] -= 1
        if not self._priorities[ticket.priority]:
            del self._priorities[ticket.priority]

    def expire(self, limits: QueueLimits, now: float) -> list[Ticket]:
        """Take out what has waited too long."""
        expired: list[Ticket] = []
        for cold, line in self._first.items():
            age = limits.age_seconds(cold=cold)
            expired += itertools.takewhile(lambda each: each.arrived_at + age <= now, line.values())  # noqa: B023 - used up here
        for ticket in expired:
            self.remove(ticket)
        return expired


def _head(line: Mapping[int, Ticket]) -> Ticket | None:
    return next(iter(line.values()), None)


@dataclass(slots=True, kw_only=True)
class Counts:
    """Totals since the gateway began, per policy.

    Attributes:
        arrived: requests for the policy, refused ones included.
        completed: answered in full, whatever the status below 500.
        refused: turned away for lack of room: answered 503 because the queue was full or they had waited too long.
        refused_seconds: seconds after which those were told to come again, added up.
        failed: got no whole answer though they should have.
        abandoned: the client went away first.
        answered: had their first content.
        late: had it later than their policy promises.
        first_seconds: seconds to it, added up.
        gaps: gaps between pieces of content.
        gap_seconds: seconds of them, added up.
    """

    arrived: int = 0
    completed: int = 0
    refused: int = 0
    refused_seconds: int = 0
    failed: int = 0
    abandoned: int = 0
    answered: int = 0
    late: int = 0
    first_seconds: float = 0.0
    gaps: int = 0
    gap_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStats:
    """One policy at one moment.

    Attributes:
        queued: requests that wait.
        queued_bytes: bytes of their bodies.
        in_flight: requests that were sent and are not finished.
        oldest_wait_seconds: how long ago the one that has been here longest arrived; 0 when nothing waits.
        totals: as they were at that moment.
    """

    queued: int = 0
    queued_bytes: int = 0
    in_flight: int = 0
    oldest_wait_seconds: float = 0.0
    totals: Counts = field(default_factory=Counts)

    @property
    def demand(self) -> int:
        """Requests that are here, each counted once."""
        return self.queued + self.in_flight


@dataclass(slots=True)
class _Lane:
    """One policy's queue and what belongs to it.

    Attributes:
        routes: those whose limits and forecast it has.
        more: slots that the next resident is taken to have: as many as the last ones had in the mean; 0: there was none.
    """

    routes: PolicyRoutes | None = None
    queue: PolicyQueue = field(default_factory=PolicyQueue)
    counts: Counts = field(default_factory=Counts)
    forecast: Forecast = field(default_factory=Forecast)
    limits: QueueLimits = field(default_factory=QueueLimits)
    more: int = 0
    in_flight: int = 0


class Dispatcher:
    """Gives slots of endpoints to requests, in order of arrival, at the moment in which there is room.

    Every change (a request, a completion, another table) is followed by handing out what can be handed out, within
    the same call. Tickets learn of it through their callbacks, which must not call the dispatcher.
    """

    def __init__(self, routes: RouteTable, *, changed: Callable[[PolicyName, int], None]) -> None:
        """Make a dispatcher over `routes`; `changed` is told of each change of a policy's numbers.

        It is also told how many are here beyond those: 1 for one that is being refused for lack of room. Where nothing may wait
        that is all that anybody learns of a request which finds nobody serving.
        """
        self._routes = routes
        self._changed = changed
        self._lanes: dict[PolicyName, _Lane] = {}
        self._order = 0

    # -------------------------------------------------------------- what is

    def policies(self) -> tuple[PolicyName, ...]:
        """Return the policies of the table, and those that have left it and still hold requests."""
        return tuple(self._lanes)

    def counts(self, policy: PolicyName) -> Counts:
        """Return the policy's totals, to count on; those of a policy that has gone are nobody's."""
        lane = self._lanes.get(policy)
        return lane.counts if lane is not None else Counts()

    def stats(self, policy: PolicyName, now: float) -> PolicyStats:
        """Return the policy's numbers; all zero for one that is unknown."""
        lane = self._lanes.get(policy)
        if lane is None:
            return PolicyStats()
        oldest = lane.queue.oldest_arrival()
        return PolicyStats(
            queued=len(lane.queue),
            queued_bytes=lane.queue.size_bytes,
            in_flight=lane.in_flight,
            oldest_wait_seconds=max(0.0, now - oldest) if oldest is not None else 0.0,
            totals=replace(lane.counts),
        )

    def demand(self, policy: PolicyName) -> tuple[int, int]:
        """Return (queued, in flight): the cheap part of `stats`."""
        lane = self._lanes.get(policy)
        return (len(lane.queue), lane.in_flight) if lane is not None else (0, 0)

    def expected_wait(self, policy: PolicyName, now: float, *, ahead: int | None = None) -> float | None:
        """Return how many seconds a request will wait; None when nothing tells.

        Args:
            policy: whose slots it wants.
            now: monotonic seconds.
            ahead: how many go before it; by default all that wait.
        """
        lane = self._lanes.get(policy)
        if lane is None:
            return None
        ahead = len(lane.queue) if ahead is None else ahead
        return lane.forecast.wait(ahead, now, slots=self._routes.slots(policy, now), more=lane.more)

    def worth_while(self, policy: PolicyName, now: float) -> float | None:
        """Return in how many seconds it is worth while to come again: where no wait can be told, when one more resident comes."""
        lane = self._lanes.get(policy)
        wait = self.expected_wait(policy, now)
        return lane.forecast.soonest(now) if wait is None and lane is not None else wait

    def wait_of(self, ticket: Ticket, now: float) -> float | None:
        """Return how many seconds more a request will wait; None when nothing tells, or it doesn't wait."""
        lane = self._lanes.get(ticket.policy)
        if lane is None or ticket not in lane.queue:
            return None
        return self.expected_wait(ticket.policy, now, ahead=lane.queue.ahead_of(ticket))

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
            ticket.cold = self._routes.cold(ticket.policy)
        ticket.waiting_since = now
        refusal = None
        lease = None if self._blocked(lane, ticket) else self._grant(lane, ticket, now)
        if lease is None:
            known = ticket.policy in self._routes.policies
            refusal = lane.queue.offer(ticket, lane.limits) if known else Refusal.GONE
            if self._routes.cold(ticket.policy):
                lane.forecast.waits_cold(now)
        self._changed(ticket.policy, int(refusal in _NO_ROOM))
        self._forget(ticket.policy)
        return lease if lease is not None else refusal

    def release(self, lease: Lease, now: float, *, ended: bool = True) -> None:
        """Give a slot back, once however often it is called, and hand it to what waits.

        Args:
            lease: whose.
            now: monotonic seconds.
            ended: the request is over; else it only failed there.
        """
        if lease.released:
            return
        policy = lease.endpoint.policy
        self._return(lease, now, ended=ended)
        self._dispatch(policy, now)
        self._changed(policy, 0)
        self._forget(policy)

    def withdraw(self, ticket: Ticket, now: float) -> None:
        """Take a request out of the queue because nobody waits for its answer any more."""
        lane = self._lanes.get(ticket.policy)
        if lane is not None and lane.queue.remove(ticket):
            self._dispatch(ticket.policy, now)  # what stood behind may go where this one would not
            self._changed(ticket.policy, 0)
            self._forget(ticket.policy)

    def advance(self, now: float, changed: Collection[PolicyName] | None = None) -> None:
        """Do what time or other routes made due: end waits that are too long, hand out what there is.

        Args:
            now: monotonic seconds.
            changed: policies whose routes are others now; by default all may be.
        """
        names = self._routes.policies.keys() | self._lanes.keys() if changed is None else tuple(changed)
        for policy in names:
            routes = self._routes.policies.get(policy)
            lane = self._lanes.get(policy) if routes is None else self._lane(policy)
            if lane is None:
                continue
            if routes is not lane.routes:
                self._take_routes(lane, routes, policy, now)
            before = len(lane.queue)
            for ticket in lane.queue.expire(lane.limits, now):
                ticket.refused(Refusal.TOO_OLD)
            if routes is None:
                self._refuse_all(lane, Refusal.GONE)
            self._dispatch(policy, now)
            if before != len(lane.queue):
                self._changed(policy, 0)
            self._forget(policy)

    def _take_routes(self, lane: _Lane, routes: PolicyRoutes | None, policy: PolicyName, now: float) -> None:
        """Take what routes say once: what they foretell counts from the moment at which they came."""
        lane.routes = routes
        if routes is None:
            return
        lane.limits = self._routes.limits(policy) or lane.limits
        lane.forecast.coming(routes.coming_seconds, now)
        if routes.endpoints:
            lane.more = round(sum(each.slots for each in routes.endpoints) / len(routes.endpoints))
            lane.forecast.warm(now)

    def close(self) -> None:
        """Refuse everything that waits."""
        for policy, lane in tuple(self._lanes.items()):
            if self._refuse_all(lane, Refusal.CLOSING):
                self._changed(policy, 0)
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
        if ahead is None or not ticket.attempts:
            return ahead is not None
        return bool(ahead.attempts) and ahead.order < ticket.order

    def _grant(self, lane: _Lane, ticket: Ticket, now: float) -> Lease | None:
        endpoint = self._routes.pick(ticket.policy, now, avoid=ticket.avoid)
        if endpoint is None:
            return None
        pulse = self._routes.take(endpoint, now)
        lane.in_flight += 1
        lane.forecast.taken(now)
        ticket.attempts += 1
        waited = max(0.0, now - ticket.waiting_since)
        return Lease(endpoint=endpoint, granted_at=now, waited_seconds=waited, pulse=pulse)

    def _return(self, lease: Lease, now: float, *, ended: bool) -> None:
        lease.released = True
        self._routes.give_back(lease.endpoint)
        lane = self._lanes[lease.endpoint.policy]
        lane.in_flight -= 1
        lane.forecast.freed(now, since=lease.granted_at, ended=ended)

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
            lane.queue.serve(ticket)
            if not ticket.granted(lease):
                self._return(lease, now, ended=False)

"""Waiting for a slot: what the pure dispatcher decides, awaited, with the one timer that time alone needs."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping

from scaler.gateway.failure_log import FailureLog
from scaler.gateway.queue import Dispatcher, Lease, PolicyStats, Refusal, Ticket
from scaler.gateway.routes import Failure, RouteTable
from warmpool.seats import PolicyName


class _Waiter:
    """Hears of a slot, and tells whoever waits. It knows nothing of its ticket: circles are left to the garbage collector.

    Attributes:
        future: what is waited for; None while nobody waits.
    """

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[Lease | Refusal] | None = None

    def granted(self, lease: Lease) -> bool:
        """Take a slot, if somebody still wants it."""
        if self.future is None or self.future.done():
            return False
        self.future.set_result(lease)
        return True

    def refused(self, refusal: Refusal) -> None:
        """Take a refusal."""
        if self.future is not None and not self.future.done():
            self.future.set_result(refusal)


class Place:
    """One request's place in the queue, as often as it needs one.

    Args:
        policy: whose slots it wants.
        size_bytes: size of its body.
        priority: higher goes first.
        tenant: whose it is; empty: nobody says.
        arrived_at: monotonic seconds at which it had been received whole.

    Attributes:
        ticket: what the dispatcher knows of it.
    """

    def __init__(
        self, policy: PolicyName, size_bytes: int, *, priority: int, tenant: str, arrived_at: float
    ) -> None:
        self._waiter = _Waiter()
        self.ticket = Ticket(
            policy=policy,
            size_bytes=size_bytes,
            arrived_at=arrived_at,
            granted=self._waiter.granted,
            refused=self._waiter.refused,
            priority=priority,
            tenant=tenant,
        )

    def wait(self) -> "asyncio.Future[Lease | Refusal]":
        """Return what the ticket's callbacks will fill."""
        self._waiter.future = asyncio.get_running_loop().create_future()
        return self._waiter.future


class Slots:
    """Hands out the slots of a route table's endpoints.

    Args:
        routes: the table, which learns which endpoints fail; what waits goes to endpoints that are new at once.
        changed: told of each change of a policy's numbers, as `Dispatcher` says.
        failures: says which endpoints are left alone.
    """

    def __init__(
        self, routes: RouteTable, changed: Callable[[PolicyName, int], None], failures: FailureLog
    ) -> None:
        self._log = failures
        self.dispatcher = Dispatcher(routes, changed=changed)
        self._routes = routes
        self._timer: asyncio.TimerHandle | None = None
        self._open = False
        routes.watch(self._advance)

    def open(self) -> None:
        """Begin; an event loop runs."""
        self._open = True
        self._arm()

    def close(self) -> None:
        """Refuse what waits, and set no timer any more."""
        self._open = False
        self.dispatcher.close()
        self._disarm()

    async def lease(self, place: Place) -> Lease | Refusal:
        """Wait for a slot; whoever is cancelled meanwhile leaves the queue."""
        given = self.dispatcher.submit(place.ticket, time.monotonic())
        if given is None:
            waiter = place.wait()
            self._arm()
            try:
                given = await waiter
            except asyncio.CancelledError:
                self._leave(place, waiter)
                raise
        return given

    def release(self, lease: Lease) -> None:
        """Give a slot back, once however often it is called."""
        self.dispatcher.release(lease, time.monotonic())

    def succeed(self, lease: Lease) -> None:
        """Have the table learn that an attempt brought content; what waits may go to an endpoint that is heard again."""
        now, endpoint = time.monotonic(), lease.endpoint
        if self._routes.succeeded(endpoint, dispatched_at=lease.granted_at, now=now):
            self._advance((endpoint.policy,))

    def fail(self, lease: Lease, failure: Failure, *, since: float | None = None) -> None:
        """Give back the slot of an attempt that failed, and have the table learn of it first.

        Args:
            lease: whose.
            failure: in what way.
            since: monotonic seconds from which on what failed tells of the endpoint; by default all of the attempt does.
        """
        now, endpoint = time.monotonic(), lease.endpoint
        began = lease.granted_at if since is None else since
        seconds = self._routes.failed(endpoint, failure, dispatched_at=began, now=now)
        if seconds:
            self._log.left_alone(endpoint, failure, seconds)
        self.dispatcher.release(lease, now, ended=False)
        self._arm()

    def stats(self, policy: PolicyName) -> PolicyStats:
        """Return a policy's numbers at this moment; all zero for one that is unknown."""
        return self.dispatcher.stats(policy, time.monotonic())

    def all_stats(self) -> Mapping[PolicyName, PolicyStats]:
        """Return every policy's numbers."""
        now = time.monotonic()
        return {policy: self.dispatcher.stats(policy, now) for policy in self.dispatcher.policies()}

    def expected_wait(self, policy: PolicyName) -> float | None:
        """Return how many seconds a request that comes now will wait; None when nothing tells."""
        return self.dispatcher.expected_wait(policy, time.monotonic())

    def worth_while(self, policy: PolicyName) -> float | None:
        """Return in how many seconds it is worth while for a refused request to come again; None when nothing tells."""
        return self.dispatcher.worth_while(policy, time.monotonic())

    def wait_of(self, place: Place) -> float | None:
        """Return how many seconds more a request will wait; None when nothing tells, or it doesn't wait."""
        return self.dispatcher.wait_of(place.ticket, time.monotonic())

    def _leave(self, place: Place, waiter: "asyncio.Future[Lease | Refusal]") -> None:
        """Leave the queue; a slot that came at the same moment goes to the next."""
        now = time.monotonic()
        if waiter.done() and not waiter.cancelled():
            given = waiter.result()
            if isinstance(given, Lease):
                self.dispatcher.release(given, now, ended=False)
        self.dispatcher.withdraw(place.ticket, now)

    def _advance(self, changed: Collection[PolicyName] | None = None) -> None:
        self.dispatcher.advance(time.monotonic(), changed)
        self._arm()

    def _arm(self) -> None:
        """Set the one timer to the next moment at which time alone changes something."""
        self._disarm()
        if not self._open:
            return
        now = time.monotonic()
        at = self.dispatcher.next_event(now)
        if at is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self._advance)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

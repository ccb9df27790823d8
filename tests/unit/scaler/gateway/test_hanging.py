"""Engines that hang: whose attempts are given up, and what of that is taken back."""

import asyncio
import time
from collections.abc import Callable

from multidict import CIMultiDict

from scaler.gateway.attempts import Call, HangWatch
from scaler.gateway.failure_log import FailureLog
from scaler.gateway.queue import Lease
from scaler.gateway.routes import Endpoint, PolicyRoutes, RouteTable
from scaler.gateway.slots import Place, Slots
from scaler.gateway.upstream import Outgoing
from warmpool.seats import PolicyName, SeatName

CHAT = PolicyName("chat")
SECONDS = 0.05


class Table(RouteTable):
    """Two endpoints; something happens in the turn in which one is looked at because it hangs."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__()
        self._happens = happens
        self.replace({CHAT: PolicyRoutes(models=("m",), endpoints=tuple(map(_endpoint, "ab")))})

    def others_serve(self, endpoint: Endpoint, now: float) -> bool:
        self._happens()
        return super().others_serve(endpoint, now)


def _endpoint(name: str) -> Endpoint:
    return Endpoint(seat=SeatName(name), uid=name, policy=CHAT, url=f"http://{name}", slots=1)


async def asking(table: RouteTable) -> Call:
    """Return a call that has its slot."""
    slots = Slots(table, lambda _policy, _beyond: None, FailureLog())
    place = Place(CHAT, 1, priority=0, tenant="", arrived_at=time.monotonic())
    outgoing = Outgoing(method="POST", path="/v1/completions", headers=CIMultiDict(), body=())
    call = Call(CHAT, outgoing, place, identity="x", stream=True, once=False)
    given = await slots.lease(place)
    assert isinstance(given, Lease)
    call.lease = given
    return call


async def test_an_attempt_at_an_engine_that_hangs_is_given_up_long_before_its_deadline() -> None:
    table = Table(lambda: None)
    call, passed = await asking(table), False
    try:
        async with asyncio.timeout(30.0) as deadline:
            HangWatch(table, SECONDS).begin(call, deadline)
            await asyncio.Event().wait()
    except TimeoutError:
        passed = True
    assert (call.hung, passed) == (True, True)
    assert time.monotonic() - call.received_at < 10.0


async def test_one_that_ends_by_itself_in_the_turn_in_which_it_is_given_up_has_its_deadline_back() -> None:
    """Else the next attempt would be cancelled for it, and its engine be taken for the one that hangs."""
    ended = asyncio.Event()
    table = Table(ended.set)
    call = await asking(table)
    async with asyncio.timeout(30.0) as deadline:
        watch, due = HangWatch(table, SECONDS), deadline.when()
        watch.begin(call, deadline)
        await ended.wait()
        assert (call.hung, deadline.when() == due) == (True, False)
        watch.end(call)
        assert (call.hung, deadline.when()) == (False, due)
        await asyncio.sleep(0)  # the turn in which it would have been cancelled
    assert not deadline.expired()


async def test_one_that_the_gateways_end_gives_up_in_that_turn_too_stays_given_up() -> None:
    """Else its next attempt would go on beyond the end."""
    looked, passed = asyncio.Event(), False
    table = Table(looked.set)
    call = await asking(table)
    try:
        async with asyncio.timeout(30.0) as call.deadline:
            watch = HangWatch(table, SECONDS)
            watch.begin(call, call.deadline)
            await looked.wait()
            call.end()
            watch.end(call)
            await asyncio.Event().wait()
    except TimeoutError:
        passed = True
    assert passed
    assert time.monotonic() - call.received_at < 10.0

import heapq
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scaler.gateway.queue import Dispatcher, Lease, Refusal, Ticket
from scaler.gateway.routes import Endpoint, Failure, PolicyLimits, PolicyRoutes, QueueLimits, RouteTable
from warmpool.seats import PolicyName, SeatName

CHAT = PolicyName("chat")


class Standing(TypedDict, total=False):
    """What a request says of itself."""

    priority: int
    tenant: str


def endpoint(name: str, slots: int = 1, policy: PolicyName = CHAT) -> Endpoint:
    return Endpoint(seat=SeatName(name), uid=name, policy=policy, url=f"http://{name}", slots=slots)


def routes(*endpoints: Endpoint, limits: PolicyLimits | None = None) -> Mapping[PolicyName, PolicyRoutes]:
    return {CHAT: PolicyRoutes(models=("m",), endpoints=endpoints, limits=limits or PolicyLimits())}


@dataclass
class Client:
    """One request's side of the queue."""

    size: int = 1
    arrived: float = 0.0
    priority: int = 0
    tenant: str = ""
    gone: bool = False
    leases: list[Lease] = field(default_factory=list)
    refusal: Refusal | None = None
    table: RouteTable | None = None

    def __post_init__(self) -> None:
        self.ticket = Ticket(
            policy=CHAT,
            size_bytes=self.size,
            arrived_at=self.arrived,
            granted=self._granted,
            refused=self._refused,
            priority=self.priority,
            tenant=self.tenant,
        )

    def _granted(self, lease: Lease) -> bool:
        if not self.gone:
            self.take(lease)
        return not self.gone

    def take(self, lease: Lease) -> None:
        self.leases.append(lease)
        if self.table is not None:
            assert held(self.table, lease.endpoint.url) <= lease.endpoint.slots

    def _refused(self, refusal: Refusal) -> None:
        self.refusal = refusal

    @property
    def at(self) -> str | None:
        return self.leases[-1].endpoint.uid if self.leases else None


def held(table: RouteTable, url: str | None = None) -> int:
    """Return what the policy's endpoints hold as the table shows it, or one of them."""
    shown = [each for each in table.state(CHAT, 0.0) if url in {None, each["url"]}]
    return sum(each["inFlight"] for each in shown)  # type: ignore[misc]


class Hall:
    """A dispatcher with what a gateway does around it."""

    def __init__(self, *endpoints: Endpoint, limits: PolicyLimits | None = None) -> None:
        self.table = RouteTable()
        self.changes = 0
        self.dispatcher = Dispatcher(self.table, changed=self._changed)
        self.now = 0.0
        self.table.watch(lambda changed: self.dispatcher.advance(self.now, changed))
        self.table.replace(routes(*endpoints, limits=limits))

    def _changed(self, _policy: PolicyName, _beyond: int) -> None:
        self.changes += 1

    def enter(self, size: int = 1, *, priority: int = 0, tenant: str = "") -> Client:
        client = Client(size=size, arrived=self.now, table=self.table, priority=priority, tenant=tenant)
        self.submit(client)
        return client

    def submit(self, client: Client) -> None:
        given = self.dispatcher.submit(client.ticket, self.now)
        if isinstance(given, Lease):
            client.take(given)
        elif given is not None:
            client.refusal = given

    def leave(self, client: Client) -> None:
        self.dispatcher.release(client.leases[-1], self.now)

    def fail(self, client: Client, failure: Failure) -> None:
        lease = client.leases[-1]
        self.table.failed(lease.endpoint, failure, dispatched_at=lease.granted_at, now=self.now)
        if failure.reached_engine:
            client.ticket.avoid.add(lease.endpoint.key)
        self.dispatcher.release(lease, self.now, ended=False)
        self.submit(client)

    def queued(self) -> int:
        return self.dispatcher.stats(CHAT, self.now).queued


def test_a_request_goes_to_the_endpoint_that_holds_least() -> None:
    hall = Hall(endpoint("a", 3), endpoint("b", 3))
    clients = [hall.enter() for _ in range(4)]
    hall.leave(clients[1])
    assert [client.at for client in clients] == ["a", "b", "a", "b"]
    assert hall.enter().at == "b"


def test_slots_of_an_endpoint_that_is_left_alone_speed_nobody_up() -> None:
    hall = Hall(endpoint("a", 3), endpoint("b", 5))
    assert hall.table.slots(CHAT, hall.now) == 8
    client = hall.enter()
    hall.table.failed(client.leases[-1].endpoint, Failure.CUT, dispatched_at=hall.now, now=hall.now)
    assert hall.table.slots(CHAT, hall.now) == 5
    assert hall.table.slots(CHAT, hall.now + 1.0) == 8
    other = hall.enter()
    hall.table.failed(other.leases[-1].endpoint, Failure.CUT, dispatched_at=hall.now, now=hall.now)
    assert hall.table.slots(CHAT, hall.now) == 8, "one of them is tried again soon"


@pytest.mark.parametrize("coming", [None, 3.0, 12.0])
def test_what_was_foretold_is_what_happens(coming: float | None) -> None:
    """Forty wait, four go at a time, each takes two seconds or so, and one more endpoint may come."""
    hall, chance = Hall(endpoint("a", 4)), random.Random(1)
    ends: list[tuple[float, int, Client]] = []
    clients: list[Client] = []

    def step(until: float) -> None:
        """Let time pass; whoever has a slot ends when it is time."""
        while True:
            for number, client in enumerate(clients):
                if client.leases and not any(each is client for _, _, each in ends) and not client.gone:
                    heapq.heappush(ends, (hall.now + chance.uniform(1.5, 2.5), number, client))
            if not ends or ends[0][0] > until:
                hall.now = until
                return
            hall.now, _, ended = heapq.heappop(ends)
            ended.gone = True
            hall.leave(ended)

    clients += [hall.enter() for _ in range(20)]
    step(20.0)
    begun, waiting = hall.now, [hall.enter() for _ in range(40)]
    clients += waiting
    if coming is not None:
        told = PolicyRoutes(models=("m",), endpoints=(endpoint("a", 4),), coming_seconds=coming)
        hall.table.replace({CHAT: told})
    foretold = [hall.dispatcher.wait_of(each.ticket, hall.now) for each in waiting]
    if coming is not None:
        step(begun + coming)
        hall.table.replace(routes(endpoint("a", 4), endpoint("b", 4)))
    step(begun + 100.0)
    happened = [each.leases[0].granted_at - begun for each in waiting]
    for expected, actual in zip(foretold[4:], happened[4:], strict=True):
        assert expected == pytest.approx(actual, abs=1.5 + 0.15 * actual)


def test_who_has_the_higher_priority_is_in_front_whenever_it_came() -> None:
    hall = Hall(endpoint("a"))
    hall.now = 0.0
    first = hall.enter()
    hall.now = 2.0
    hall.leave(first)  # it held its slot for two seconds
    hall.enter()
    waits = [hall.enter(priority=priority) for priority in (0, 5, 0, 9, -1)]
    told = [hall.dispatcher.wait_of(each.ticket, hall.now) for each in waits]
    assert told == pytest.approx([6.0, 4.0, 8.0, 2.0, 10.0])


def test_equals_are_used_in_turn() -> None:
    hall = Hall(endpoint("a"), endpoint("b"), endpoint("c"))
    used = []
    for _ in range(6):
        client = hall.enter()
        used.append(client.at)
        hall.leave(client)
    assert used == ["a", "b", "c", "a", "b", "c"]


def test_what_exceeds_the_slots_waits_and_goes_in_order_of_arrival() -> None:
    hall = Hall(endpoint("a", 2))
    clients = [hall.enter() for _ in range(5)]
    assert [client.at for client in clients] == ["a", "a", None, None, None]
    hall.leave(clients[0])
    assert clients[2].at == "a"
    assert clients[3].at is None
    hall.leave(clients[1])
    assert clients[3].at == "a"


def test_a_new_endpoint_takes_what_waits_at_once() -> None:
    hall = Hall(endpoint("a"))
    clients = [hall.enter() for _ in range(4)]
    hall.now = 0.5
    hall.table.replace(routes(endpoint("a"), endpoint("b", 2)))
    assert [client.at for client in clients] == ["a", "b", "b", None]
    assert clients[1].leases[0].waited_seconds == 0.5


def test_more_slots_take_what_waits_at_once() -> None:
    hall = Hall(endpoint("a"))
    clients = [hall.enter() for _ in range(2)]
    hall.table.replace(routes(endpoint("a", 2)))
    assert clients[1].at == "a"


def test_an_endpoint_that_left_gets_nothing_new_and_its_requests_still_count() -> None:
    hall = Hall(endpoint("a", 2))
    running = hall.enter()
    hall.table.replace(routes())
    waiting = hall.enter()
    assert waiting.at is None
    assert held(hall.table) == 1
    assert hall.dispatcher.stats(CHAT, hall.now).in_flight == 1
    hall.leave(running)
    assert waiting.at is None
    assert held(hall.table) == 0


def test_an_endpoint_that_comes_back_still_holds_what_it_held() -> None:
    hall = Hall(endpoint("a", 2))
    hall.enter()
    hall.table.replace(routes())
    hall.table.replace(routes(endpoint("a", 2)))
    assert [hall.enter().at, hall.enter().at] == ["a", None]


def test_fewer_slots_than_are_in_use_let_nothing_in_until_there_is_room() -> None:
    hall = Hall(endpoint("a", 3))
    clients = [hall.enter() for _ in range(3)]
    waiting = hall.enter()
    hall.table.replace(routes(endpoint("a", 1)))
    hall.leave(clients[0])
    hall.leave(clients[1])
    assert waiting.at is None
    hall.leave(clients[2])
    assert waiting.at == "a"


@pytest.mark.parametrize(
    ("limits", "sizes", "refusals"),
    [
        pytest.param(PolicyLimits(max_requests=2), [1, 1, 1], [None, None, Refusal.TOO_MANY], id="count"),
        pytest.param(PolicyLimits(max_bytes=10), [6, 5, 4], [None, Refusal.TOO_LARGE, None], id="bytes"),
        pytest.param(PolicyLimits(max_requests=0), [1], [Refusal.TOO_MANY], id="no queue at all"),
    ],
)
def test_the_queue_is_bounded(limits: PolicyLimits, sizes: list[int], refusals: list[Refusal | None]) -> None:
    hall = Hall(endpoint("a"), limits=limits)
    assert hall.enter().at == "a"
    assert [hall.enter(size).refusal for size in sizes] == refusals


def test_what_has_waited_too_long_is_refused_and_the_next_moment_is_known() -> None:
    hall = Hall(endpoint("a"), limits=PolicyLimits(max_age_seconds=10))
    hall.enter()
    old = hall.enter()
    hall.now = 4.0
    young = hall.enter()
    assert hall.dispatcher.next_event(hall.now) == 10.0
    hall.now = 10.0
    hall.dispatcher.advance(hall.now)
    assert (old.refusal, young.refusal) == (Refusal.TOO_OLD, None)
    assert hall.dispatcher.next_event(hall.now) == 14.0
    assert hall.dispatcher.stats(CHAT, 12.0).oldest_wait_seconds == 8.0


def test_a_failed_request_goes_before_all_that_wait_and_past_the_bounds() -> None:
    hall = Hall(endpoint("a"), endpoint("b"), limits=PolicyLimits(max_requests=1))
    first, second = hall.enter(), hall.enter()
    waiting = hall.enter()
    hall.fail(first, Failure.NOT_CONNECTED)
    assert first.refusal is None
    assert hall.queued() == 2
    hall.leave(second)
    assert (first.at, waiting.at) == ("b", None)


def test_failed_requests_go_again_in_their_order_of_arrival() -> None:
    hall = Hall(endpoint("a"), endpoint("b"))
    first, second = hall.enter(), hall.enter()
    hall.fail(second, Failure.NOT_CONNECTED)
    hall.fail(first, Failure.NOT_CONNECTED)
    hall.table.replace(routes(endpoint("a"), endpoint("b"), endpoint("c")))
    assert (first.at, second.leases[-1].released) == ("c", True)


def test_a_request_does_not_overtake_one_that_waits_for_an_endpoint_to_be_tried_again() -> None:
    hall = Hall(endpoint("a"))
    first = hall.enter()
    hall.fail(first, Failure.NOT_CONNECTED)
    hall.now = 0.2  # the endpoint may be tried again, and the timer has not run yet
    second = hall.enter()
    assert second.at is None
    hall.dispatcher.advance(hall.now)
    assert (len(first.leases), second.at) == (2, None)


def test_a_failed_request_avoids_the_endpoint_that_failed_it() -> None:
    hall = Hall(endpoint("a", 2), endpoint("b", 2))
    client = hall.enter()
    hall.fail(client, Failure.ENGINE_ERROR)
    assert [lease.endpoint.uid for lease in client.leases] == ["a", "b"]


def test_a_request_that_avoids_what_is_free_lets_others_pass() -> None:
    hall = Hall(endpoint("a"), endpoint("b"))
    first = hall.enter()
    hall.enter()
    hall.fail(first, Failure.ENGINE_ERROR)
    assert hall.queued() == 1
    assert hall.enter().at == "a"


def test_the_only_endpoint_is_tried_again_though_it_failed() -> None:
    hall = Hall(endpoint("a"))
    client = hall.enter()
    hall.fail(client, Failure.ENGINE_ERROR)
    assert [lease.endpoint.uid for lease in client.leases] == ["a", "a"]


@pytest.mark.parametrize("failure", [Failure.NOT_CONNECTED, Failure.NOT_SERVING, Failure.CUT])
def test_an_endpoint_that_fails_is_left_alone_for_a_while(failure: Failure) -> None:
    hall = Hall(endpoint("a", 4))
    client = hall.enter()
    hall.fail(client, failure)
    assert hall.queued() == 1
    assert hall.dispatcher.next_event(hall.now) == pytest.approx(0.1)
    hall.now = 0.1
    hall.dispatcher.advance(hall.now)
    assert len(client.leases) == 2


def test_penalties_double_and_end_with_a_success() -> None:
    hall = Hall(endpoint("a", 4))
    client = hall.enter()
    pauses = []
    for _ in range(8):
        hall.fail(client, Failure.NOT_CONNECTED)
        at = hall.dispatcher.next_event(hall.now)
        assert at is not None
        pauses.append(at - hall.now)
        hall.now = at
        hall.dispatcher.advance(hall.now)
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
    lease = client.leases[-1]
    hall.table.succeeded(lease.endpoint, dispatched_at=lease.granted_at, now=hall.now)
    hall.fail(client, Failure.NOT_CONNECTED)
    assert hall.dispatcher.next_event(hall.now) == pytest.approx(hall.now + 0.1)


def test_many_requests_that_fail_together_are_one_failure() -> None:
    hall = Hall(endpoint("a", 8))
    clients = [hall.enter() for _ in range(8)]
    hall.now = 1.0
    for client in clients:
        hall.fail(client, Failure.CUT)
    assert hall.dispatcher.next_event(hall.now) == pytest.approx(1.1)


def test_errors_leave_an_endpoint_alone_only_when_they_come_in_a_row() -> None:
    hall = Hall(endpoint("a", 8))
    failing = endpoint("a", 8)
    for _ in range(2):
        hall.table.failed(failing, Failure.ENGINE_ERROR, dispatched_at=0.0, now=0.0)
    assert hall.enter().at == "a"
    hall.table.failed(failing, Failure.ENGINE_ERROR, dispatched_at=0.0, now=0.0)
    assert hall.enter().at is None


def test_a_slot_that_nobody_takes_goes_to_the_next() -> None:
    hall = Hall(endpoint("a"))
    running, gone, waiting = hall.enter(), hall.enter(), hall.enter()
    gone.gone = True
    hall.leave(running)
    assert waiting.at == "a"
    assert hall.queued() == 0


def test_a_slot_is_given_back_once() -> None:
    hall = Hall(endpoint("a"))
    client = hall.enter()
    hall.leave(client)
    hall.leave(client)
    assert held(hall.table) == 0


def test_a_request_may_leave_the_queue() -> None:
    hall = Hall(endpoint("a"))
    running, first, second = hall.enter(), hall.enter(7), hall.enter()
    hall.dispatcher.withdraw(first.ticket, hall.now)
    assert hall.dispatcher.stats(CHAT, hall.now).queued_bytes == 1
    hall.leave(running)
    assert (first.at, second.at) == (None, "a")


def served(hall: Hall, running: Client, waiting: list[Client]) -> list[int]:
    """Let one slot go round, and return the places of those that wait in the order in which they got it."""
    order = []
    while True:
        hall.leave(running)
        got = [place for place, client in enumerate(waiting) if client.leases and place not in order]
        if not got:
            return order
        assert len(got) == 1
        order += got
        running = waiting[got[0]]


@pytest.mark.parametrize(
    ("priorities", "order"),
    [
        pytest.param([0, 0, 0], [0, 1, 2], id="equals in order of arrival"),
        pytest.param([0, 5, -1, 5, 0], [1, 3, 0, 4, 2], id="higher first"),
    ],
)
def test_priority_goes_before_arrival(priorities: list[int], order: list[int]) -> None:
    hall = Hall(endpoint("a"))
    running = hall.enter()
    assert served(hall, running, [hall.enter(priority=priority) for priority in priorities]) == order


@pytest.mark.parametrize(
    ("tenants", "order"),
    [
        pytest.param("aaaabc", [0, 4, 5, 1, 2, 3], id="in turn"),
        pytest.param("abab", [0, 1, 2, 3], id="each in order of arrival"),
        pytest.param(["", "", "b", ""], [0, 2, 1, 3], id="those who say nothing are one"),
    ],
)
def test_tenants_take_turns(tenants: list[str], order: list[int]) -> None:
    hall = Hall(endpoint("a"))
    running = hall.enter()
    assert served(hall, running, [hall.enter(tenant=tenant) for tenant in tenants]) == order


def test_who_had_a_turn_goes_behind_whoever_comes_next() -> None:
    hall = Hall(endpoint("a"))
    running = hall.enter()
    a = [hall.enter(tenant="a") for _ in range(3)]
    hall.leave(running)
    assert a[0].at == "a"
    b = hall.enter(tenant="b")
    hall.leave(a[0])
    assert (a[1].at, b.at) == ("a", None), "its line had the turn before anyone else came"
    hall.leave(a[1])
    assert (a[2].at, b.at) == (None, "a")


def test_priority_goes_before_turns() -> None:
    hall = Hall(endpoint("a"))
    running = hall.enter()
    clients = [hall.enter(tenant="a", priority=1), hall.enter(tenant="a", priority=1), hall.enter(tenant="b")]
    assert served(hall, running, clients) == [0, 1, 2]


def test_one_tenant_leaves_room_for_others() -> None:
    hall = Hall(endpoint("a"), limits=PolicyLimits(max_requests=8))
    hall.enter()
    mine = [hall.enter(tenant="a") for _ in range(8)]
    assert sum(client.refusal is None for client in mine) == 4
    assert {client.refusal for client in mine[4:]} == {Refusal.TENANT_TOO_MANY}
    assert hall.enter(tenant="b").refusal is None


def test_who_says_no_tenant_may_fill_the_queue() -> None:
    hall = Hall(endpoint("a"), limits=PolicyLimits(max_requests=8))
    hall.enter()
    assert [hall.enter().refusal for _ in range(9)] == [None] * 8 + [Refusal.TOO_MANY]


def test_an_old_request_of_low_priority_is_the_oldest_and_ends_first() -> None:
    hall = Hall(endpoint("a"), limits=PolicyLimits(max_age_seconds=10))
    hall.enter()
    low = hall.enter(priority=-1)
    hall.now = 4.0
    high = hall.enter(priority=1)
    assert hall.dispatcher.stats(CHAT, hall.now).oldest_wait_seconds == 4.0
    hall.now = 10.0
    hall.dispatcher.advance(hall.now)
    assert (low.refusal, high.refusal) == (Refusal.TOO_OLD, None)


def test_a_failed_request_goes_before_a_higher_priority() -> None:
    hall = Hall(endpoint("a"), endpoint("b"))
    failed, other = hall.enter(), hall.enter()
    high = hall.enter(priority=9)
    hall.fail(failed, Failure.CUT)
    hall.leave(other)
    assert (failed.at, high.at) == ("b", None)


def test_while_nobody_serves_requests_may_wait_longer() -> None:
    limits = PolicyLimits(max_age_seconds=10, max_cold_seconds=100)
    hall = Hall(limits=limits)
    waiting = hall.enter()
    assert hall.dispatcher.next_event(hall.now) == 100.0
    hall.now = 50.0
    hall.dispatcher.advance(hall.now)
    assert waiting.refusal is None
    hall.now = 100.0
    hall.dispatcher.advance(hall.now)
    assert waiting.refusal is Refusal.TOO_OLD


def test_what_came_while_nobody_served_keeps_its_time_once_somebody_does() -> None:
    limits = PolicyLimits(max_age_seconds=10, max_cold_seconds=100)
    hall = Hall(limits=limits)
    first, second = hall.enter(), hall.enter()
    hall.now = 50.0
    hall.table.replace(routes(endpoint("a"), limits=limits))
    later = hall.enter()
    assert (first.at, second.refusal) == ("a", None)
    assert hall.dispatcher.next_event(hall.now) == 60.0
    hall.now = 60.0
    hall.dispatcher.advance(hall.now)
    assert (second.refusal, later.refusal) == (None, Refusal.TOO_OLD)
    assert hall.dispatcher.next_event(hall.now) == 100.0


def test_a_policy_that_says_nothing_of_its_queue_gets_the_gateway_s() -> None:
    table = RouteTable(QueueLimits(max_requests=3))
    table.replace({CHAT: PolicyRoutes(models=("m",))})
    limits = table.limits(CHAT)
    assert limits is not None
    assert limits.max_requests == 3
    assert table.limits(PolicyName("other")) is None


def test_what_a_policy_says_of_its_queue_goes_before_the_gateway_s_and_the_rest_holds() -> None:
    table = RouteTable(QueueLimits(max_requests=3, max_age_seconds=7.0))
    table.replace(
        {CHAT: PolicyRoutes(models=("m",), limits=PolicyLimits(max_requests=0, max_cold_seconds=9.0))}
    )
    assert table.limits(CHAT) == QueueLimits(max_requests=0, max_age_seconds=7.0, max_cold_seconds=9.0)


def test_a_change_of_one_policy_leaves_the_others() -> None:
    hall = Hall(endpoint("a"))
    running, waiting = hall.enter(), hall.enter()
    code = PolicyName("code")
    hall.table.update({code: PolicyRoutes(models=("c",), endpoints=(endpoint("z", policy=code),))})
    assert (running.at, waiting.at) == ("a", None)
    assert (hall.table.policy_of("m"), hall.table.policy_of("c")) == (CHAT, code)
    hall.table.update({CHAT: None})
    assert waiting.refusal is Refusal.GONE
    assert (hall.table.policy_of("m"), hall.table.policy_of("c")) == (None, code)


def test_a_change_that_claims_another_policy_s_model_is_refused_and_nothing_changes() -> None:
    hall = Hall(endpoint("a"))
    with pytest.raises(ValueError, match="claimed by policies"):
        hall.table.update({PolicyName("x"): PolicyRoutes(models=("m",))})
    assert hall.table.policies.keys() == {CHAT}


def test_a_wait_is_foretold_from_the_pace_and_the_place() -> None:
    hall = Hall(endpoint("a"))
    client = hall.enter()
    for second in range(1, 11):
        hall.now = float(second)
        hall.leave(client)
        client = hall.enter()
    waiting = [hall.enter() for _ in range(3)]
    hall.now = 10.5
    waits = [hall.dispatcher.wait_of(each.ticket, hall.now) for each in waiting]
    assert waits == pytest.approx([1.05, 2.1, 3.15])
    assert hall.dispatcher.expected_wait(CHAT, hall.now) == pytest.approx(4.2)
    assert hall.dispatcher.wait_of(client.ticket, hall.now) is None, "it doesn't wait"


def test_a_promotion_halves_what_the_next_one_is_told() -> None:
    hall = Hall(endpoint("a"))
    client = hall.enter()
    for second in range(1, 11):
        hall.now = float(second)
        hall.leave(client)
        client = hall.enter()
    for _ in range(8):
        hall.enter()
    before = hall.dispatcher.expected_wait(CHAT, hall.now)
    hall.table.replace(routes(endpoint("a"), endpoint("b")))
    assert before == pytest.approx(9.0)
    assert hall.dispatcher.expected_wait(CHAT, hall.now) == pytest.approx(8 / 2), "one of them has gone to it"


def test_what_a_controller_foretold_comes_nearer_whatever_else_time_brings() -> None:
    hall = Hall()
    hall.table.update({CHAT: PolicyRoutes(models=("m",), coming_seconds=20.0)})
    hall.enter()
    hall.now = 15.0
    hall.dispatcher.advance(hall.now)
    assert hall.dispatcher.expected_wait(CHAT, hall.now) == pytest.approx(5.0)
    hall.table.update({CHAT: PolicyRoutes(models=("m",), coming_seconds=10.0)})
    assert hall.dispatcher.expected_wait(CHAT, hall.now) == pytest.approx(10.0)


def test_closing_refuses_what_waits() -> None:
    hall = Hall(endpoint("a"))
    hall.enter()
    waiting = hall.enter()
    hall.dispatcher.close()
    assert waiting.refusal is Refusal.CLOSING
    assert hall.queued() == 0


def test_a_policy_that_left_the_table_is_forgotten_once_it_holds_nothing() -> None:
    hall = Hall(endpoint("a"))
    client = hall.enter()
    hall.table.replace({})
    assert hall.dispatcher.policies() == (CHAT,)
    hall.leave(client)
    assert hall.dispatcher.policies() == ()


def test_what_waits_for_a_policy_that_left_the_table_is_refused_at_once() -> None:
    hall = Hall(endpoint("a"))
    running, waiting = hall.enter(), hall.enter()
    hall.table.replace({})
    assert (running.refusal, waiting.refusal) == (None, Refusal.GONE)
    hall.leave(running)
    assert hall.dispatcher.policies() == ()


def test_an_attempt_that_failed_is_not_repeated_for_a_policy_that_left_the_table() -> None:
    hall = Hall(endpoint("a"))
    running = hall.enter()
    hall.table.replace({})
    hall.fail(running, Failure.CUT)
    assert running.refusal is Refusal.GONE


def test_a_policy_that_left_the_table_stays_forgotten_whoever_still_asks_for_it() -> None:
    hall = Hall(endpoint("a"))
    running = hall.enter()
    hall.table.replace({})
    hall.fail(running, Failure.CUT)
    assert hall.enter().refusal is Refusal.GONE
    assert hall.dispatcher.policies() == ()


def test_a_table_with_a_model_of_two_policies_is_refused_and_the_old_one_stays() -> None:
    table = RouteTable()
    table.replace(routes(endpoint("a")))
    twice = {PolicyName("x"): PolicyRoutes(models=("m",)), PolicyName("y"): PolicyRoutes(models=("m",))}
    with pytest.raises(ValueError, match="claimed by policies x and y"):
        table.replace(twice)
    assert table.policy_of("m") == CHAT


def test_a_table_with_an_endpoint_of_another_policy_is_refused() -> None:
    other = endpoint("a", policy=PolicyName("other"))
    with pytest.raises(ValueError, match="listed under policy chat"):
        RouteTable().replace(routes(other))


def test_an_endpoint_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        endpoint("a", 0)


LIMITS = PolicyLimits(max_requests=4, max_bytes=12, max_age_seconds=6.0)


class Law(RuleBasedStateMachine):
    """Whatever happens in whatever order, nobody is lost, served twice, overtaken or let in beyond the slots."""

    def __init__(self) -> None:
        super().__init__()
        self.hall = Hall(endpoint("a", 2), limits=LIMITS)
        self.clients: list[Client] = []
        self.done: set[int] = set()

    def serving(self) -> list[Client]:
        return [client for client in self.clients if client.leases and not client.leases[-1].released]

    def waiting(self) -> list[Client]:
        return [
            client
            for client in self.clients
            if client.refusal is None
            and not client.gone
            and id(client) not in self.done
            and not (client.leases and not client.leases[-1].released)
        ]

    @rule(size=st.integers(1, 6))
    def enter(self, size: int) -> None:
        self.clients.append(self.hall.enter(size, **self.standing(size)))

    def standing(self, size: int) -> Standing:
        """What a request says of itself, made of its size: here nothing."""
        assert size
        return {}

    @precondition(lambda self: self.serving())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.serving()))
        self.done.add(id(client))
        self.hall.leave(client)

    @precondition(lambda self: self.serving())
    @rule(data=st.data(), failure=st.sampled_from(list(Failure)))
    def fail(self, data: st.DataObject, failure: Failure) -> None:
        self.hall.fail(data.draw(st.sampled_from(self.serving())), failure)

    @precondition(lambda self: self.waiting())
    @rule(data=st.data(), told=st.booleans())
    def go_away(self, data: st.DataObject, told: bool) -> None:  # noqa: FBT001 - Hypothesis draws it
        client = data.draw(st.sampled_from(self.waiting()))
        client.gone = True
        if told:
            self.hall.dispatcher.withdraw(client.ticket, self.hall.now)

    @rule(seconds=st.floats(0.01, 4.0))
    def pass_time(self, seconds: float) -> None:
        self.hall.now += seconds
        self.hall.dispatcher.advance(self.hall.now)

    @rule(slots=st.dictionaries(st.sampled_from("abc"), st.integers(1, 3)))
    def rotate(self, slots: dict[str, int]) -> None:
        self.hall.table.replace(
            routes(*(endpoint(name, count) for name, count in slots.items()), limits=LIMITS)
        )

    @invariant()
    def nobody_is_lost(self) -> None:
        stats = self.hall.dispatcher.stats(CHAT, self.hall.now)
        ghosts = stats.queued - len(self.waiting())
        assert 0 <= ghosts <= sum(client.gone for client in self.clients)
        assert stats.in_flight == len(self.serving()) == held(self.hall.table)

    @invariant()
    def nobody_is_served_twice(self) -> None:
        for client in self.clients:
            assert sum(not lease.released for lease in client.leases) <= 1

    @invariant()
    def what_was_never_tried_is_bounded(self) -> None:
        fresh = [client for client in self.waiting() if not client.leases]
        assert len(fresh) <= LIMITS.max_requests
        assert sum(client.size for client in fresh) <= LIMITS.max_bytes
        assert all(client.arrived + LIMITS.max_age_seconds > self.hall.now for client in fresh)

    @invariant()
    def nobody_is_overtaken(self) -> None:
        """Who never failed is served in the order of arrival."""
        plain = [client for client in self.clients if not client.ticket.avoid and not client.gone]
        tried = [bool(client.leases) for client in plain if client.refusal is None]
        assert tried == sorted(tried, reverse=True)

    @invariant()
    def nothing_waits_beside_a_free_slot(self) -> None:
        plain = [client for client in self.waiting() if not client.ticket.avoid]
        if plain:
            assert self.hall.table.pick(CHAT, self.hall.now) is None

    def teardown(self) -> None:
        self.hall.now += 100.0
        self.hall.table.replace(routes(endpoint("z", 1000), limits=LIMITS))
        for client in self.serving():
            self.hall.leave(client)
        assert self.hall.queued() == 0
        assert held(self.hall.table) == 0


class LawOfTenants(Law):
    """The same with priorities and tenants; only the order within one tenant's priority is that of arrival."""

    def standing(self, size: int) -> Standing:
        return {"priority": size % 2, "tenant": "ab"[size // 2 % 2]}

    @invariant()
    def nobody_is_overtaken(self) -> None:
        for priority in (0, 1):
            for tenant in "ab":
                plain = [
                    client
                    for client in self.clients
                    if (client.priority, client.tenant) == (priority, tenant)
                    and not client.ticket.avoid
                    and not client.gone
                ]
                tried = [bool(client.leases) for client in plain if client.refusal is None]
                assert tried == sorted(tried, reverse=True)

    @invariant()
    def no_lower_priority_waits_less(self) -> None:
        """While somebody waits nobody of a lower priority that arrived later has got a first slot since."""
        for waiting in self.waiting():
            if waiting.leases or waiting.ticket.avoid:
                continue
            later = [c for c in self.clients if c.ticket.order > waiting.ticket.order and c.leases]
            assert all(c.priority >= waiting.priority for c in later)


TestLaw = Law.TestCase
TestLawOfTenants = LawOfTenants.TestCase
TestLawOfTenants.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLaw.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


class Silence:
    """Two endpoints, of which "a" took a request and says nothing until its deadline."""

    def __init__(self, *endpoints: Endpoint) -> None:
        self.hall = Hall(*endpoints)
        self.client = self.hall.enter()
        assert self.client.at == "a"

    def ends(self, at: float) -> None:
        """Reach the deadline of the request that waits on "a"."""
        self.hall.now = at
        lease = self.client.leases[-1]
        self.hall.table.failed(lease.endpoint, Failure.SILENT, dispatched_at=lease.granted_at, now=at)
        self.hall.leave(self.client)

    def sent(self, at: float, count: int = 1) -> list[str | None]:
        """Return where requests go that come and end one after another."""
        self.hall.now = at
        places = []
        for _ in range(count):
            client = self.hall.enter()
            places.append(client.at)
            if client.at == "a":
                self.client = client
            else:
                self.hall.leave(client)
        return places


def test_a_silent_endpoint_gets_one_trial_in_a_while_until_it_brings_content() -> None:
    silence = Silence(endpoint("a", 4), endpoint("b", 4))
    silence.ends(12.0)
    assert silence.hall.table.standing(12.1) == {CHAT: (1, 1)}
    assert silence.sent(16.9, 3) == ["b"] * 3
    assert silence.sent(17.1) == ["a"]
    assert [silence.hall.enter().at for _ in range(3)] == ["b"] * 3
    trial = silence.client.leases[-1]
    assert silence.hall.table.succeeded(trial.endpoint, dispatched_at=trial.granted_at, now=17.2)
    assert [silence.hall.enter().at for _ in range(2)] == ["a"] * 2


def test_the_last_endpoint_is_not_left_alone_for_long_though_it_is_silent() -> None:
    silence = Silence(endpoint("a", 4))
    silence.ends(12.0)
    assert silence.sent(12.2, 2) == ["a", "a"]


def test_who_answers_others_meanwhile_is_not_silent() -> None:
    silence = Silence(endpoint("a", 4), endpoint("b", 4))
    lease = silence.client.leases[-1]
    silence.hall.table.succeeded(lease.endpoint, dispatched_at=5.0, now=11.0)
    silence.ends(12.0)
    assert "a" in silence.sent(12.0, 2)

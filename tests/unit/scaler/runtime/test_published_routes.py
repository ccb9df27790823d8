"""The table on the wire, and each gateway's share of the slots."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.gateway.routes import Endpoint, PolicyLimits, PolicyRoutes
from scaler.runtime.published_routes import (
    HEARTBEAT,
    Change,
    PublishedTable,
    Shares,
    TableRejected,
    from_line,
    line,
    say,
    share,
)
from warmpool.seats import PolicyName, SeatName

CHAT = PolicyName("chat")


def endpoint(number: int, slots: int = 8) -> Endpoint:
    return Endpoint(
        seat=SeatName(f"seat-{number}"), uid=f"u{number}", policy=CHAT, url=f"http://h:{number}", slots=slots
    )


TABLE = PublishedTable(
    term=3,
    version=2,
    gateways=("gw-1", "gw-2"),
    policies={
        CHAT: PolicyRoutes(
            models=("chat", "chat-large"), endpoints=(endpoint(1), endpoint(2)), ttft_seconds=0.5
        ),
        PolicyName("code"): PolicyRoutes(models=("code",)),
    },
)


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("gateways", [TABLE.gateways, (), None])
def test_a_table_survives_the_wire(gateways: tuple[str, ...] | None, blind: bool) -> None:  # noqa: FBT001
    table = replace(TABLE, gateways=gateways, blind=blind)
    assert from_line(table.to_line()) == table
    assert table.to_line().count(b"\n") == 1


def test_a_table_of_a_controller_that_says_nothing_of_promises_is_read() -> None:
    table = from_line(TABLE.to_line().replace(b'"ttftSeconds":0.5,', b""))
    assert isinstance(table, PublishedTable)
    assert table.policies[CHAT] == replace(TABLE.policies[CHAT], ttft_seconds=0.0)


@pytest.mark.parametrize(
    "limits",
    [
        PolicyLimits(),
        PolicyLimits(max_requests=0, max_cold_seconds=10.0),
        PolicyLimits(max_requests=7, max_bytes=8, max_age_seconds=9.5, max_cold_seconds=10.0),
    ],
)
def test_what_a_policy_says_of_its_queue_and_what_is_coming_survive_the_wire(limits: PolicyLimits) -> None:
    policies = {CHAT: PolicyRoutes(models=("chat",), limits=limits, coming_seconds=12.5)}
    table = replace(TABLE, policies=policies)
    assert from_line(table.to_line()) == table


CODE = PolicyName("code")
CHANGED = PolicyRoutes(models=("chat",), endpoints=(endpoint(3),))


def change(since: int) -> bytes:
    return line(replace(TABLE, version=9), "changes", {CHAT: say(CHANGED), CODE: "null"}, since)


def test_a_change_leads_to_the_next_table() -> None:
    read = from_line(change(2))
    assert isinstance(read, Change)
    assert read.policies == {CHAT: CHANGED, CODE: None}
    assert read.on(TABLE) == replace(TABLE, version=9, policies={CHAT: CHANGED})


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(None, id="none"),
        pytest.param(replace(TABLE, version=1), id="one too early"),
        pytest.param(replace(TABLE, term=4), id="one of another term"),
    ],
)
def test_a_change_that_follows_on_no_table_is_refused(table: PublishedTable | None) -> None:
    read = from_line(change(2))
    assert isinstance(read, Change)
    with pytest.raises(TableRejected):
        read.on(table)


def test_a_heartbeat_is_no_table() -> None:
    assert from_line(HEARTBEAT) is None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"{", id="half a line"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'{"term": 1}', id="half a table"),
        pytest.param(TABLE.to_line().replace(b'"slots":8', b'"slots":0'), id="an endpoint without a slot"),
        pytest.param(b"[" * 100_000, id="a bomb"),
        pytest.param(change(2).replace(b'"since":2', b'"since":null'), id="a change since nothing"),
        pytest.param(
            TABLE.to_line().replace(b'"models"', b'"queue":{"maxBytes":"many"},"models"'), id="no queue"
        ),
        pytest.param(TABLE.to_line().replace(b'"models"', b'"queue":7,"models"'), id="a number for a queue"),
    ],
)
def test_what_is_no_table_is_refused(text: bytes) -> None:
    with pytest.raises(TableRejected):
        from_line(text)


@given(total=st.integers(1, 500), count=st.integers(1, 50), turn=st.integers(0, 2**32))
def test_shares_add_up_to_the_total_and_nobody_is_left_without(total: int, count: int, turn: int) -> None:
    shares = [share(total, place, count, turn) for place in range(count)]
    assert sum(shares) == max(total, count)
    assert max(shares) - min(shares) <= 1
    assert min(shares) >= 1


def mine(
    shares: Shares, routes: PolicyRoutes, gateways: tuple[str, ...] = ("gw-1", "gw-2")
) -> list[Endpoint]:
    shared = shares.of(CHAT, routes, gateways)
    assert shared is not None
    return list(shared.endpoints)


def test_the_remainder_goes_round_the_gateways_from_endpoint_to_endpoint() -> None:
    routes = PolicyRoutes(models=("chat",), endpoints=tuple(endpoint(n, 5) for n in range(40)))
    slots = {me: sum(each.slots for each in mine(Shares(me), routes)) for me in ("gw-1", "gw-2")}
    assert sum(slots.values()) == 200
    assert abs(slots["gw-1"] - slots["gw-2"]) < 20


def test_a_gateway_that_nobody_has_heard_yet_counts_itself() -> None:
    first, _ = mine(Shares("gw-2"), TABLE.policies[CHAT], ("gw-1",))
    assert first.slots == 4


def test_a_share_is_worked_out_once_and_anew_when_anything_of_it_changes() -> None:
    shares, routes = Shares("gw-1"), TABLE.policies[CHAT]
    before = mine(shares, routes)
    again = mine(shares, replace(routes, endpoints=(endpoint(1), endpoint(2, 6), endpoint(3))))
    assert again[0] is before[0]
    assert [each.slots for each in again] == [4, 3, 4]
    assert [each.slots for each in mine(shares, routes, ("gw-1",))] == [8, 8]
    assert [each.slots for each in mine(shares, routes, ("gw-1", "gw-2", "gw-3", "gw-4"))] == [2, 2]
    assert shares.of(CHAT, None, ("gw-1", "gw-2")) is None

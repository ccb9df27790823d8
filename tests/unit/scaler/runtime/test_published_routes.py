"""The table on the wire, and each gateway's share of the slots."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.gateway.routes import Endpoint, PolicyRoutes
from scaler.runtime.published_routes import (
    HEARTBEAT,
    PublishedTable,
    TableRejected,
    divided,
    from_line,
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


@pytest.mark.parametrize("gateways", [TABLE.gateways, (), None])
def test_a_table_survives_the_wire(gateways: tuple[str, ...] | None) -> None:
    table = replace(TABLE, gateways=gateways)
    assert from_line(table.to_line()) == table
    assert table.to_line().count(b"\n") == 1


def test_a_table_of_a_controller_that_says_nothing_of_promises_is_read() -> None:
    line = TABLE.to_line().replace(b'"ttftSeconds":0.5,', b"")
    table = from_line(line)
    assert table is not None
    assert table.policies[CHAT] == replace(TABLE.policies[CHAT], ttft_seconds=0.0)


def test_a_heartbeat_is_no_table() -> None:
    assert from_line(HEARTBEAT) is None


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"{", id="half a line"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'{"term": 1}', id="half a table"),
        pytest.param(TABLE.to_line().replace(b'"slots":8', b'"slots":0'), id="an endpoint without a slot"),
        pytest.param(b"[" * 100_000, id="a bomb"),
    ],
)
def test_what_is_no_table_is_refused(line: bytes) -> None:
    with pytest.raises(TableRejected):
        from_line(line)


@given(total=st.integers(1, 500), count=st.integers(1, 50), turn=st.integers(0, 2**32))
def test_shares_add_up_to_the_total_and_nobody_is_left_without(total: int, count: int, turn: int) -> None:
    shares = [share(total, place, count, turn) for place in range(count)]
    assert sum(shares) == max(total, count)
    assert max(shares) - min(shares) <= 1
    assert min(shares) >= 1


def test_the_remainder_goes_round_the_gateways_from_endpoint_to_endpoint() -> None:
    routes = {CHAT: PolicyRoutes(models=("chat",), endpoints=tuple(endpoint(n, 5) for n in range(40)))}
    mine = {
        me: sum(each.slots for each in divided(routes, ("gw-1", "gw-2"), me)[CHAT].endpoints)
        for me in ("gw-1", "gw-2")
    }
    assert sum(mine.values()) == 200
    assert abs(mine["gw-1"] - mine["gw-2"]) < 20


def test_a_gateway_that_nobody_has_heard_yet_counts_itself() -> None:
    (first, _) = divided(TABLE.policies, ("gw-1",), "gw-2")[CHAT].endpoints
    assert first.slots == 4

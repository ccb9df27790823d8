"""Which Redis is meant, and who may look whether it is back."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.errors import SignalError, UserError
from scaler.policy.signals import RedisMode, RedisServer, Tls
from scaler.signals.redis_client import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Gate,
    merged,
    server_of_url,
)

# ------------------------------------------------------------------ addresses


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("redis.serving:6380", RedisServer(addresses=("redis.serving:6380",))),
        ("redis.serving", RedisServer(addresses=("redis.serving:6379",))),
        ("redis://[::1]:1", RedisServer(addresses=("[::1]:1",))),
        ("redis://r:1/3", RedisServer(addresses=("r:1",), database=3)),
        ("redis://r:1/", RedisServer(addresses=("r:1",))),
        ("rediss://us%40er@r:1", RedisServer(addresses=("r:1",), username="us@er", tls=Tls())),
    ],
)
def test_addresses_as_command_lines_have_them(url: str, server: RedisServer) -> None:
    assert server_of_url(url) == server


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://r:1",
        "redis://",
        "redis://r:70000",
        "redis://r:x",
        "redis://r:0",
        "redis://r/x",
        "r:1/²",
        "redis://::1:1",
        "r:1/5000",
        "a b:1",
    ],
)
def test_what_is_no_address_says_how_one_looks(url: str) -> None:
    with pytest.raises(UserError, match="is no address of Redis") as caught:
        server_of_url(url)
    assert "redis://HOST:PORT/DATABASE" in caught.value.hint


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(UserError, match="holds a password") as caught:
        server_of_url("redis://u:s3cr3t@r:1")
    assert "s3cr3t" not in f"{caught.value} {caught.value.hint}"


OURS = RedisServer(addresses=("ours:1",), username="us", password_file="/secret", tls=Tls())


@pytest.mark.parametrize(
    ("server", "comes_to"),
    [
        pytest.param(RedisServer(), OURS, id="the controller's"),
        pytest.param(RedisServer(database=2), OURS.model_copy(update={"database": 2}), id="another database"),
        pytest.param(
            RedisServer(username="me", password_file="/mine"),
            OURS.model_copy(update={"username": "me", "password_file": "/mine"}),
            id="another user",
        ),
        pytest.param(
            RedisServer(addresses=("theirs:1",)),
            RedisServer(addresses=("theirs:1",)),
            id="another address gets none of our credentials",
        ),
    ],
)
def test_a_signals_server_over_the_controllers(server: RedisServer, comes_to: RedisServer) -> None:
    assert merged(server, OURS) == comes_to


def test_without_any_address_there_is_no_server() -> None:
    with pytest.raises(SignalError, match="nobody says which Redis"):
        merged(RedisServer(), None)


def test_two_that_do_not_fit_together_say_so() -> None:
    cluster = RedisServer(mode=RedisMode.CLUSTER, addresses=("a:1",))
    with pytest.raises(SignalError, match=r"server\.database a cluster has database 0 only"):
        merged(RedisServer(database=3), cluster)


# ------------------------------------------------------------------ the gate


def test_a_server_that_is_there_admits_everybody() -> None:
    gate = Gate()
    assert [gate.admit(0.0) for _ in range(3)] == [0, 0, 0]


def test_after_a_loss_nobody_passes_until_the_pause_is_over_and_then_one() -> None:
    gate = Gate()
    gate.lost(gate.admit(10.0), "refused", now=10.0, luck=1.0)
    with pytest.raises(SignalError, match="refused"):
        gate.admit(10.0 + FIRST_PAUSE_SECONDS - 0.001)
    gate.admit(10.0 + FIRST_PAUSE_SECONDS)
    with pytest.raises(SignalError, match="refused"):
        gate.admit(10.0 + FIRST_PAUSE_SECONDS)


def test_one_that_never_ends_is_followed_after_a_pause() -> None:
    gate = Gate()
    gate.lost(gate.admit(0.0), "refused", now=0.0, luck=1.0)
    gate.admit(FIRST_PAUSE_SECONDS)
    gate.admit(2 * FIRST_PAUSE_SECONDS)


def test_of_several_that_fail_together_one_counts() -> None:
    gate = Gate()
    attempts = [gate.admit(0.0) for _ in range(8)]
    for attempt in attempts:
        gate.lost(attempt, "refused", now=0.0, luck=1.0)
    gate.admit(FIRST_PAUSE_SECONDS)  # and not 2⁷ times as late


def test_pauses_grow_to_the_longest_and_begin_anew_once_the_server_was_reached() -> None:
    gate, now, pauses = Gate(), 0.0, []
    for _ in range(8):
        gate.lost(gate.admit(now), "refused", now=now, luck=1.0)
        pauses.append(gate._opens_at - now)
        now = gate._opens_at
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0])
    gate.admit(now)
    gate.reached()
    gate.lost(gate.admit(now), "refused", now=now, luck=1.0)
    gate.admit(now + FIRST_PAUSE_SECONDS)


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 3.0)), min_size=1, max_size=40))
def test_a_server_that_is_back_is_tried_within_the_longest_pause(failures: list[tuple[float, float]]) -> None:
    gate, now = Gate(), 0.0
    for luck, wait in failures:
        with contextlib.suppress(SignalError):
            gate.lost(gate.admit(now), "refused", now=now, luck=luck)
        now += wait
    gate.admit(now + LONGEST_PAUSE_SECONDS)

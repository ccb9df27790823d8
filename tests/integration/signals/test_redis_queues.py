"""What queues in a real Redis read as."""

import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog

from scaler.policy.signals import RedisList, RedisServer, RedisSortedSet, RedisStream
from scaler.signals.port import Part
from scaler.signals.redis_client import RedisServers
from scaler.signals.redis_queue import RedisQueueSource
from tests.integration.signals.rig import Heard, RedisProcess, Word, key, redis, running

KINDS = {"list": RedisList, "stream": RedisStream, "set": RedisSortedSet}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with redis(tmp_path_factory.mktemp("redis")) as process:
        yield process


@pytest.fixture
def server(process: RedisProcess) -> RedisProcess:
    process.call("FLUSHALL")
    return process


def signal(server: RedisProcess, kind: str, **fields: Any) -> Any:
    cls = KINDS[kind]
    if cls is RedisStream:
        fields.setdefault("group", "workers")
    return cls(
        type=cls.__name__,
        name="queue",
        key="jobs",
        server=RedisServer(addresses=(server.address,)),
        **{
            "interval_milliseconds": 1000,
            "timeout_milliseconds": 1000,
            **fields,
        },  # a busy machine fails nothing
    )


@asynccontextmanager
async def reading(server: RedisProcess, kind: str, **fields: Any) -> AsyncIterator[Heard]:
    async with running(RedisQueueSource(key(), signal(server, kind, **fields), RedisServers())) as heard:
        yield heard


async def word(server: RedisProcess, kind: str, **fields: Any) -> Word:
    """Return the first thing that a source says, however long the server takes."""
    async with reading(
        server, kind, interval_milliseconds=20_000, timeout_milliseconds=20_000, **fields
    ) as heard:
        return await heard.until(lambda _: True, "a word")


def age(found: Word) -> float:
    assert found.parts is not None, found.why
    return found.parts[Part.BACKLOG_AGE_SECONDS]


def backlog(found: Word) -> float:
    assert found.parts is not None, found.why
    return found.parts[Part.BACKLOG]


def milliseconds(ago: float) -> int:
    return int((time.time() - ago) * 1000)


# ------------------------------------------------------------------ lists


async def test_a_list_is_its_length_and_tells_no_age(server: RedisProcess) -> None:
    server.call("RPUSH", "jobs", "a", "b", "c")
    assert (await word(server, "list")).parts == {Part.BACKLOG: 3.0}


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("list", {Part.BACKLOG: 0.0}),
        ("stream", {Part.BACKLOG: 0.0, Part.BACKLOG_AGE_SECONDS: 0.0}),
        ("set", {Part.BACKLOG: 0.0, Part.BACKLOG_AGE_SECONDS: 0.0}),
    ],
)
async def test_a_key_that_is_not_there_is_an_empty_queue_and_is_said_once(
    server: RedisProcess, kind: str, parts: dict[Part, float]
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with reading(server, kind) as heard:
            await heard.parts(parts)
            await heard.parts(parts)
    assert [entry["event"] for entry in logs] == ["no such key in Redis: an empty queue"]
    assert not heard.failures


async def test_a_queue_that_runs_empty_is_said_to_nobody(server: RedisProcess) -> None:
    server.call("RPUSH", "jobs", "a")
    with structlog.testing.capture_logs() as logs:
        async with reading(server, "list") as heard:
            await heard.parts({Part.BACKLOG: 1.0})
            server.call("LPOP", "jobs")
            await heard.parts({Part.BACKLOG: 0.0})
    assert not logs


async def test_a_reading_was_true_when_it_was_asked_for(server: RedisProcess) -> None:
    begun = time.monotonic()
    found = await word(server, "list")
    assert begun <= found.at <= found.heard


# ------------------------------------------------------------------ streams


def stream(server: RedisProcess, *identifiers: str, group_at: str = "0") -> None:
    for identifier in identifiers:
        server.call("XADD", "jobs", identifier, "payload", "x")
    server.call("XGROUP", "CREATE", "jobs", "workers", group_at, "MKSTREAM")


def take(server: RedisProcess, count: int) -> None:
    server.call("XREADGROUP", "GROUP", "workers", "me", "COUNT", count, "STREAMS", "jobs", ">")


async def test_a_stream_is_what_its_group_has_not_been_given_and_not_acknowledged(
    server: RedisProcess,
) -> None:
    stream(server, *(f"{milliseconds(30)}-{i}" for i in range(5)))
    take(server, 2)  # three undelivered, two pending
    server.call("XGROUP", "CREATE", "jobs", "others", "$")
    assert backlog(await word(server, "stream")) == 5
    assert backlog(await word(server, "stream", group="others")) == 0


async def test_a_streams_age_is_that_of_the_oldest_pending_entry(server: RedisProcess) -> None:
    stream(server, f"{milliseconds(90)}-0", f"{milliseconds(60)}-0", f"{milliseconds(30)}-0")
    take(server, 2)
    assert age(await word(server, "stream")) == pytest.approx(90, abs=3)
    server.call("XACK", "jobs", "workers", server.call("XRANGE", "jobs", "-", "+", "COUNT", 1).split("\n")[0])
    assert age(await word(server, "stream")) == pytest.approx(60, abs=3)


async def test_a_streams_age_is_that_of_the_first_undelivered_entry_where_none_is_pending(
    server: RedisProcess,
) -> None:
    stream(server, f"{milliseconds(90)}-0", f"{milliseconds(30)}-0")
    server.call("XREADGROUP", "GROUP", "workers", "me", "NOACK", "COUNT", 1, "STREAMS", "jobs", ">")
    found = await word(server, "stream")
    assert backlog(found) == 1
    assert age(found) == pytest.approx(30, abs=3)


async def test_a_stream_that_is_done_has_no_backlog_and_no_age(server: RedisProcess) -> None:
    stream(server, f"{milliseconds(90)}-0")
    server.call("XREADGROUP", "GROUP", "workers", "me", "NOACK", "STREAMS", "jobs", ">")
    assert (await word(server, "stream")).parts == {Part.BACKLOG: 0.0, Part.BACKLOG_AGE_SECONDS: 0.0}


async def test_a_stream_that_was_there_and_is_gone_is_unknown_until_it_is_there_again(
    server: RedisProcess,
) -> None:
    stream(server, f"{milliseconds(5)}-0")
    with structlog.testing.capture_logs() as logs:
        async with reading(server, "stream") as heard:
            await heard.until(lambda found: found.parts is not None, "its backlog")
            server.call("FLUSHALL")
            gone = await heard.until(lambda found: found.parts is None, "that it is gone")
            begun = len(heard.words)
            await heard.until(lambda found: found.parts is None, "that it still is", after=begun)
            stream(server, f"{milliseconds(5)}-1")
            again = await heard.until(lambda found: found.parts is not None, "it again", after=begun)
    assert "stream 'jobs' was there and is gone" in gone.why
    assert (backlog(again), len({word.why for word in heard.words if not word.parts})) == (1, 1)
    assert [entry["event"] for entry in logs] == ["signal can't be read", "signal is read again"]


async def test_a_stream_without_its_group_was_there_all_the_same(server: RedisProcess) -> None:
    server.call("XADD", "jobs", "*", "payload", "x")
    async with reading(server, "stream") as heard:
        await heard.until(lambda found: "has no consumer group" in found.why, "what it lacks")
        server.call("DEL", "jobs")
        await heard.until(lambda found: "was there and is gone" in found.why, "that it is gone")
    assert all(word.parts is None for word in heard.words)


async def test_identifiers_that_are_no_times_give_no_age(server: RedisProcess) -> None:
    stream(server, "1-1", "2-1")
    assert (await word(server, "stream")).parts == {Part.BACKLOG: 2.0}


async def test_a_pending_entry_that_was_deleted_still_counts_and_ages(server: RedisProcess) -> None:
    first = f"{milliseconds(90)}-0"
    stream(server, first)
    take(server, 1)
    server.call("XDEL", "jobs", first)
    found = await word(server, "stream")
    assert backlog(found) == 1
    assert age(found) == pytest.approx(90, abs=3)


class TestALagThatRedisDoesNotKnow:
    """`lag` is null after deletions behind the group's position, and for groups that were created in the middle."""

    @staticmethod
    def unknown(server: RedisProcess) -> bool:
        return server.call("XINFO", "GROUPS", "jobs").endswith("lag")  # and nothing after it

    async def test_deleted_entries_are_counted_at_most_once_too_often(self, server: RedisProcess) -> None:
        stream(server, *(f"{milliseconds(30)}-{i}" for i in range(6)))
        server.call("XREADGROUP", "GROUP", "workers", "me", "NOACK", "COUNT", 2, "STREAMS", "jobs", ">")
        inner = server.call("XRANGE", "jobs", "-", "+").split("\n")[3 * 4]
        server.call("XDEL", "jobs", inner)
        assert self.unknown(server)
        assert backlog(await word(server, "stream")) == 4  # three are there, one was deleted

    async def test_a_group_from_the_middle_counts_no_more_than_there_is(self, server: RedisProcess) -> None:
        stream(server, "1-1", "1-2", "1-3", "1-4", group_at="1-2")
        assert self.unknown(server)
        assert backlog(await word(server, "stream")) == 4  # two would be right, and never fewer

    async def test_a_group_that_is_ahead_of_its_stream_has_none(self, server: RedisProcess) -> None:
        stream(server, "1-1", "1-2", "1-3", group_at="5-5")
        assert self.unknown(server)
        assert backlog(await word(server, "stream")) == 0

    async def test_what_was_trimmed_away_is_not_counted(self, server: RedisProcess) -> None:
        stream(server, *(f"1-{i}" for i in range(1, 7)))
        server.call("XREADGROUP", "GROUP", "workers", "me", "NOACK", "COUNT", 1, "STREAMS", "jobs", ">")
        server.call("XTRIM", "jobs", "MINID", "1-4")
        server.call("XDEL", "jobs", "1-5")
        assert self.unknown(server)
        assert backlog(await word(server, "stream")) == 2

    async def test_a_stream_that_was_emptied_has_none(self, server: RedisProcess) -> None:
        stream(server, *(f"1-{i}" for i in range(1, 5)), group_at="1-2")
        server.call("XTRIM", "jobs", "MAXLEN", "0")
        assert backlog(await word(server, "stream")) == 0


# ------------------------------------------------------------------ sorted sets


async def test_a_sorted_set_is_its_members_that_are_due(server: RedisProcess) -> None:
    now = time.time()
    server.call("ZADD", "jobs", now - 40, "a", now - 20, "b", now + 600, "later")
    found = await word(server, "set")
    assert backlog(found) == 2
    assert age(found) == pytest.approx(40, abs=3)


async def test_a_sorted_set_with_nothing_due_has_no_backlog(server: RedisProcess) -> None:
    server.call("ZADD", "jobs", time.time() + 600, "later")
    with structlog.testing.capture_logs() as logs:
        assert (await word(server, "set")).parts == {Part.BACKLOG: 0.0, Part.BACKLOG_AGE_SECONDS: 0.0}
    assert not logs  # the key is there


@pytest.mark.parametrize("score", ["0", "-inf", "-5"])
async def test_scores_that_are_no_times_are_due_and_give_no_age(server: RedisProcess, score: str) -> None:
    server.call("ZADD", "jobs", score, "at-once")
    assert (await word(server, "set")).parts == {Part.BACKLOG: 1.0}


async def test_scores_in_milliseconds_are_refused_rather_than_never_due(server: RedisProcess) -> None:
    server.call("ZADD", "jobs", milliseconds(10), "a")
    assert re.fullmatch(
        r"the scores of 'jobs' look like milliseconds \(\d+\), and Unix seconds are wanted",
        (await word(server, "set")).why,
    )


# ------------------------------------------------------------------ wrong keys and groups


@pytest.mark.parametrize(
    ("kind", "filling", "why"),
    [
        (
            "list",
            ("ZADD", "jobs", "1", "a"),
            "is a zset, and the signal's type is RedisList: set type: RedisSortedSet",
        ),
        (
            "list",
            ("XADD", "jobs", "*", "a", "1"),
            "is a stream, and the signal's type is RedisList: set type: RedisStream",
        ),
        (
            "set",
            ("RPUSH", "jobs", "a"),
            "is a list, and the signal's type is RedisSortedSet: set type: RedisList",
        ),
        (
            "stream",
            ("RPUSH", "jobs", "a"),
            "is a list, and the signal's type is RedisStream: set type: RedisList",
        ),
        (
            "list",
            ("SET", "jobs", "a"),
            "is a string, and the signal's type is RedisList; is it the right key?",
        ),
    ],
)
async def test_another_type_of_key_is_named_with_the_mend(
    server: RedisProcess, kind: str, filling: tuple[str, ...], why: str
) -> None:
    server.call(*filling)
    assert (await word(server, kind)).why == f"key 'jobs' {why}"


async def test_a_group_that_is_not_there_is_no_empty_one(server: RedisProcess) -> None:
    server.call("XADD", "jobs", "*", "a", "1")
    assert (await word(server, "stream")).why == (
        "stream 'jobs' has no consumer group 'workers', it has none; XGROUP CREATE makes one"
    )
    server.call("XGROUP", "CREATE", "jobs", "others", "0")
    assert "'workers', it has others;" in (await word(server, "stream")).why


async def test_a_failure_of_one_signal_stops_no_other_of_the_same_server(server: RedisProcess) -> None:
    server.call("SET", "jobs", "a")
    server.call("RPUSH", "good", "a", "b")
    servers = RedisServers()
    bad = RedisQueueSource(key("bad"), signal(server, "list"), servers)
    good = signal(server, "list").model_copy(update={"key": "good"})
    async with running(bad, RedisQueueSource(key("good"), good, servers)) as heard:
        for _ in range(2):
            await heard.failure("is a string", signal="bad")
            await heard.parts({Part.BACKLOG: 2.0}, signal="good")
    assert all(word.key.signal == "bad" for word in heard.words if word.why)

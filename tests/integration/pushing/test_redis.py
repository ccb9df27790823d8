"""Samples over Redis, with a real server that dies, hangs and comes back."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from scaler.core.model import Load, Quality
from scaler.errors import UserError
from scaler.runtime.signal_factories import listeners, redis_of
from scaler.runtime.signal_options import SignalOptions
from scaler.signals.pushed_redis import QUIET_SECONDS
from tests.integration.pushing.rig import CODE, Server, sample, served
from tests.integration.signals.rig import RedisProcess, redis

CHANNEL = SignalOptions().channel


@asynccontextmanager
async def listening(server: RedisProcess, **options: Any) -> AsyncIterator[Server]:
    """A controller's signals that hear one Redis; wait until they do."""
    async with hearing(server, **options) as on:
        await on.until(lambda: connected(on) == 1.0, "the channel")
        yield on


@asynccontextmanager
async def hearing(server: RedisProcess, **options: Any) -> AsyncIterator[Server]:
    told = SignalOptions(redis=server.address, **options)
    async with served() as on, asyncio.TaskGroup() as tasks:
        (listener,) = listeners(on.signals, told)
        task = tasks.create_task(listener.run())
        try:
            yield on
        finally:
            task.cancel()


def connected(on: Server) -> float | None:
    return on.registry.get_sample_value("emberpool_signal_channel_connected")


def publish(server: RedisProcess, on: Server, backlog: object, channel: str = CHANNEL, **how: Any) -> str:
    """Publish a sample; return how many heard it."""
    body = sample("worker-7", next(on.sequence), {"backlog": backlog})
    return server.call("PUBLISH", channel, json.dumps(body), **how)


async def backlog(on: Server, value: float) -> None:
    await on.until(lambda: on.load().backlog.value == value, f"a backlog of {value}")


async def test_a_published_sample_is_load_for_every_controller_that_listens(tmp_path: Path) -> None:
    with redis(tmp_path) as server:
        async with listening(server) as one, listening(server) as other:
            assert publish(server, one, 40) == "2"
            await backlog(one, 40)
            await backlog(other, 40)
            assert one.load().backlog.quality is Quality.FRESH
            assert one.load(CODE) == Load()
            assert one.counted("Accepted", "Redis") == 1
            assert one.counted("Accepted", "Http") == 0


async def test_an_instance_belongs_to_the_way_on_which_it_came_first(tmp_path: Path) -> None:
    with redis(tmp_path) as server:
        async with listening(server) as on:
            assert await on.push({"backlog": 5}, instance="worker-7") == 204
            publish(server, on, 0)
            await on.until(lambda: on.counted("NameTaken", "Redis") == 1, "the refusal")
            assert on.load().backlog.value == 5


async def test_nobody_is_a_gateway_over_redis(tmp_path: Path) -> None:
    with redis(tmp_path) as server:
        async with listening(server) as on:
            body = sample("gw-1", 1, {"queued": 5}, kind="Gateway")
            server.call("PUBLISH", CHANNEL, json.dumps(body))
            await on.until(lambda: on.counted("NotAllowed", "Redis") == 1, "the refusal")
            assert on.signals.gateways() == []


async def test_what_is_broken_is_counted_and_what_follows_is_heard(tmp_path: Path) -> None:
    with redis(tmp_path) as server:
        async with listening(server) as on:
            server.call("PUBLISH", CHANNEL, "{")
            server.call("PUBLISH", CHANNEL, "x" * 100_000)
            publish(server, on, -1)
            publish(server, on, 1, channel="another")
            publish(server, on, 40)
            await backlog(on, 40)
            assert on.counted("Rejected", "Redis") == 2
            assert on.counted("TooLarge", "Redis") == 1


async def test_what_is_too_large_is_counted_so_and_logged_whatever_http_has_logged(tmp_path: Path) -> None:
    with redis(tmp_path) as server, capture_logs() as logs:
        async with listening(server) as on:
            assert (await on.post(b"{"))[0] == 400
            for size in (1_000_000, 20_000):
                script = "return redis.call('PUBLISH', ARGV[1], string.rep('x', ARGV[2]))"
                assert server.call("EVAL", script, 0, CHANNEL, size) == "1"
            await on.until(lambda: on.counted("TooLarge", "Redis") == 2, "both refusals")
    refused = [(line["way"], line["problem"]) for line in logs if line["event"] == "pushed sample refused"]
    assert [way for way, _ in refused] == ["Http", "Redis"]
    assert "at most 16 KiB of a Queue are taken" in refused[1][1]


async def test_a_server_that_is_killed_and_comes_back_is_heard_again(tmp_path: Path) -> None:
    with redis(tmp_path) as server:
        async with listening(server) as on:
            publish(server, on, 40)
            await backlog(on, 40)
            with capture_logs() as logs:
                server.kill()
                await on.until(lambda: connected(on) == 0.0, "the end of the channel")
                await on.until(lambda: not on.load().backlog.known, "the end of what was said")
                server.start()
                await on.until(lambda: connected(on) == 1.0, "the channel again")
                publish(server, on, 7)
                await backlog(on, 7)
    assert [line["event"] for line in logs] == ["no samples over Redis", "samples over Redis again"]


async def test_a_server_that_is_not_there_at_first_is_looked_for(tmp_path: Path) -> None:
    server = RedisProcess(tmp_path)
    try:
        async with hearing(server) as on:
            await asyncio.sleep(0.3)  # some attempts
            assert connected(on) == 0.0
            server.start()
            await on.until(lambda: connected(on) == 1.0, "the channel")
    finally:
        server.kill()


@pytest.mark.wall_clock
async def test_a_server_that_hangs_is_given_up_and_heard_again(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    with redis(tmp_path) as server:
        async with listening(server) as on:
            began = loop.time()
            server.freeze()
            try:
                await on.until(lambda: connected(on) == 0.0, "the end of the channel")
                assert loop.time() - began < 3 * QUIET_SECONDS
            finally:
                server.thaw()
            await on.until(lambda: connected(on) == 1.0, "the channel again")
            publish(server, on, 7)
            await backlog(on, 7)


async def test_a_quiet_channel_stays_open(tmp_path: Path) -> None:
    with redis(tmp_path) as server:
        async with listening(server) as on:
            with capture_logs() as logs:
                await asyncio.sleep(2.5 * QUIET_SECONDS)  # of silence
            assert logs == []
            assert publish(server, on, 40) == "1"
            await backlog(on, 40)


async def test_a_password_comes_from_its_file_and_a_refusal_is_told(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("right\n")
    with redis(tmp_path, "--requirepass", "right", password="right") as server:
        async with listening(server, redis_password_file=secret) as on:
            publish(server, on, 40, password="right")
            await backlog(on, 40)
        secret.write_text("wrong\n")
        with capture_logs() as logs:
            async with hearing(server, redis_password_file=secret):
                async with asyncio.timeout(30):
                    while not logs:
                        await asyncio.sleep(0.01)  # between two looks
    assert logs[0]["problem"].endswith("; do the user in --redis and --redis-password-file fit?")
    assert "wrong" not in str(logs)


async def test_a_user_who_may_not_listen_is_told(tmp_path: Path) -> None:
    with redis(tmp_path) as server:
        server.call("ACL", "SETUSER", "default", "resetchannels")
        with capture_logs() as logs:
            async with hearing(server) as on:
                async with asyncio.timeout(30):
                    while not logs:
                        await asyncio.sleep(0.01)  # between two looks
                assert connected(on) == 0.0
    assert logs[0]["problem"].endswith("; its ACL has to allow &emberpool:signals")


async def test_a_flood_leaves_room_for_others(tmp_path: Path) -> None:
    with redis(tmp_path) as server:
        async with listening(server) as on:
            bodies = [json.dumps(sample("bad", number, {"backlog": 1})) for number in range(3000)]
            script = tmp_path / "flood"
            script.write_text("".join(f"PUBLISH {CHANNEL} '{body}'\n" for body in bodies))
            flood = await asyncio.create_subprocess_shell(
                f"redis-cli -p {server.port} < {script} > /dev/null"
            )
            answers = 0
            while flood.returncode is None:
                assert await on.push({"backlog": answers}, "code", "good-code") == 204
                assert on.load(CODE).backlog.value == answers
                answers += 1
                await asyncio.sleep(0)
            await flood.wait()
            outcomes = ("Accepted", "TooOften", "TooMuchOfPusher")
            await on.until(
                lambda: sum(on.counted(outcome, "Redis") for outcome in outcomes) == 3000,
                "all samples of the flood",
            )
            assert on.counted("TooMuchOfPusher", "Redis") > 0


@pytest.mark.parametrize("address", ["redis://", "http://127.0.0.1:6379", "redis://:secret@127.0.0.1:6379"])
def test_an_address_that_is_none_is_refused_at_the_start(address: str) -> None:
    with pytest.raises(UserError) as error:
        redis_of(SignalOptions(redis=address))
    assert "secret" not in str(error.value)

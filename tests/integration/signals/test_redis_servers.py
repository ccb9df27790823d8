"""How a Redis is reached, lost and found again: standalone, TLS, users, sentinels, clusters; killed and frozen."""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog

from scaler.policy.signals import RedisList, RedisMode, RedisServer, Tls
from scaler.signals.port import Part
from scaler.signals.redis_client import LARGEST_IN_FLIGHT, LONGEST_PAUSE_SECONDS, RedisServers
from scaler.signals.redis_queue import RedisQueueSource
from tests.fakes.ports import free_ports
from tests.integration.signals.rig import RedisProcess, certificate, key, redis, running

TIMEOUT_SECONDS = 0.1
SLACK_SECONDS = 0.5
"""What a busy machine may take beside it."""


def queue(server: RedisServer, name: str = "jobs", **fields: Any) -> RedisList:
    fields = {"interval_milliseconds": 100, "timeout_milliseconds": int(TIMEOUT_SECONDS * 1000), **fields}
    return RedisList(type="RedisList", name="queue", key=name, server=server, **fields)


def source(server: RedisServer, *, servers: RedisServers | None = None, **fields: Any) -> RedisQueueSource:
    return RedisQueueSource(key(), queue(server, **fields), servers or RedisServers())


def at(process: RedisProcess, **fields: Any) -> RedisServer:
    return RedisServer(addresses=(process.address,), **fields)


def length(entries: float) -> dict[Part, float]:
    return {Part.BACKLOG: entries}


def clients(process: RedisProcess) -> int:
    """Connections to it from this process."""
    connections = psutil.Process().net_connections(kind="tcp")
    return sum(each.raddr != () and each.raddr.port == process.port for each in connections)


# ------------------------------------------------------------------ away and back


@pytest.mark.wall_clock
async def test_a_server_that_was_killed_is_read_again_after_its_restart(tmp_path: Path) -> None:
    with redis(tmp_path) as process:
        process.call("RPUSH", "jobs", "a", "b")
        with structlog.testing.capture_logs() as logs:
            async with running(source(at(process))) as heard:
                await heard.parts(length(2))
                process.kill()
                await heard.failure("connection refused")
                await heard.failure("connection refused")
                process.start()
                process.wait()
                process.call("RPUSH", "jobs", "c")
                back = time.monotonic()
                found = await heard.parts(length(1))
        assert found.heard - back <= LONGEST_PAUSE_SECONDS + SLACK_SECONDS
        assert heard.failures[-1] == f"{process.address}: no connection: connection refused"
    # what changes is logged, and no more than that
    assert [entry["event"] for entry in logs] == ["signal can't be read", "signal is read again"]


@pytest.mark.wall_clock
async def test_a_server_that_hangs_fails_within_the_timeout_and_answers_no_old_question(
    tmp_path: Path,
) -> None:
    with redis(tmp_path) as process:
        process.call("RPUSH", "one", "a")
        process.call("RPUSH", "two", "a", "b")
        servers = RedisServers()
        sources = [RedisQueueSource(key(name), queue(at(process), name), servers) for name in ("one", "two")]
        async with running(*sources) as heard:
            await heard.parts(length(1), signal="one")
            await heard.parts(length(2), signal="two")
            process.freeze()
            frozen = time.monotonic()
            failed = await heard.failure("no answer within 100 ms")
            assert failed.heard - frozen <= 2 * TIMEOUT_SECONDS + SLACK_SECONDS
            await heard.failure("no answer", signal="one")
            await heard.failure("no answer", signal="two")
            process.thaw()
            for _ in range(5):
                await heard.reading()
        assert {(word.key.signal, *word.parts.values()) for word in heard.words if word.parts} == {
            ("one", 1.0),
            ("two", 2.0),
        }


@pytest.mark.wall_clock
async def test_a_server_that_is_away_is_looked_for_by_one_signal_at_a_time() -> None:
    attempts = 0

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.close()

    servers = RedisServers()
    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as listener:
        server = RedisServer(addresses=(f"127.0.0.1:{listener.sockets[0].getsockname()[1]}",))
        slow = {"interval_milliseconds": 500, "timeout_milliseconds": 500}
        sources = [RedisQueueSource(key(f"s{i}"), queue(server, **slow), servers) for i in range(20)]
        async with running(*sources) as heard:
            await heard.until(lambda _: len(heard.failures) >= 200, "200 rounds that failed")
    # The pauses are 0.1, 0.2, 0.4, 0.8, 1.6 and 2 s at most, and rounds begin each 25 ms.
    assert 3 <= attempts <= 20


# ------------------------------------------------------------------ sharing


async def test_signals_with_equal_settings_share_connections_and_the_last_closes_them(tmp_path: Path) -> None:
    with redis(tmp_path) as process:
        servers = RedisServers()
        sources = [RedisQueueSource(key(f"s{i}"), queue(at(process)), servers) for i in range(30)]
        async with running(*sources) as heard:
            for i in range(30):
                await heard.reading(signal=f"s{i}")
            process.freeze()  # everybody waits
            seen = []
            for i in range(30):
                await heard.failure(signal=f"s{i}")
                seen.append(clients(process))
            assert 1 <= max(seen) <= LARGEST_IN_FLIGHT
            process.thaw()
            async with running(source(at(process, database=3), servers=servers)) as other:
                await other.reading()
            await heard.reading()
        assert clients(process) == 0


async def test_a_servers_database_is_its_own(tmp_path: Path) -> None:
    with redis(tmp_path) as process:
        process.call("RPUSH", "jobs", "a", options=["-n", "3"])
        async with running(source(at(process, database=3))) as heard:
            await heard.parts(length(1))
        async with running(source(at(process))) as heard:
            await heard.parts(length(0))
        async with running(source(at(process, database=999))) as heard:
            await heard.failure("answers: DB index is out of range; is server.database right?")


async def test_the_controllers_server_is_read_where_a_signal_names_none(tmp_path: Path) -> None:
    with redis(tmp_path) as process:
        process.call("RPUSH", "jobs", "a", options=["-n", "2"])
        servers = RedisServers(default=at(process))
        async with running(source(RedisServer(database=2), servers=servers)) as heard:
            await heard.parts(length(1))


async def test_without_any_server_each_round_says_so() -> None:
    async with running(source(RedisServer())) as heard:
        await heard.failure(
            "nobody says which Redis: give the signal server.addresses, or the controller --redis"
        )
        await heard.failure("nobody says which Redis")


# ------------------------------------------------------------------ who asks


@contextmanager
def guarded(folder: Path) -> Iterator[RedisProcess]:
    """A Redis that wants a password, with a user that may read `jobs` and do nothing else."""
    with redis(folder, "--requirepass", "master-key", wanted="NOAUTH") as process:
        process.call(
            "ACL",
            "SETUSER",
            "reader",
            "on",
            ">first",
            "~jobs",
            "+llen",
            "+type",
            "+select",
            password="master-key",
        )
        process.call("RPUSH", "jobs", "a", password="master-key")
        yield process


async def test_a_user_with_a_password_from_a_file_reads_with_read_access_alone(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("first\n")
    with guarded(tmp_path) as process:
        server = at(process, username="reader", password_file=str(secret))
        async with running(source(server)) as heard:
            await heard.parts(length(1))


async def test_the_default_user_needs_no_name(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("master-key")
    with guarded(tmp_path) as process:
        async with running(source(at(process, password_file=str(secret)))) as heard:
            await heard.parts(length(1))


async def test_a_rotated_password_is_read_when_the_connection_is_made_anew(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("wrong")
    with guarded(tmp_path) as process:
        server = at(process, username="reader", password_file=str(secret))
        async with running(source(server)) as heard:
            refused = await heard.failure("do server.username and server.passwordFile fit?")
            secret.unlink()
            await heard.failure(f"{secret} can't be read: no such file or directory")
            missing = [(await heard.failure()).why for _ in range(3)]
            assert all("can't be read" in why for why in missing)  # and nothing is asked without a password
            secret.write_text("first")
            await heard.parts(length(1))
            process.call("ACL", "SETUSER", "reader", "resetpass", ">second", password="master-key")
            secret.write_text("second")
            process.call("CLIENT", "KILL", "USER", "reader", password="master-key")
            await heard.parts(length(1))
        assert "wrong" not in refused.why


async def test_a_server_that_wants_a_password_says_what_to_set(tmp_path: Path) -> None:
    with guarded(tmp_path) as process:
        async with running(source(at(process))) as heard:
            await heard.failure("do server.username and server.passwordFile fit?")


async def test_a_key_that_a_user_may_not_read_is_said(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("first")
    with guarded(tmp_path) as process:
        server = at(process, username="reader", password_file=str(secret))
        async with running(source(server, name="others")) as heard:
            await heard.failure("; the ACL user needs read access to the key")


# ------------------------------------------------------------------ TLS


@contextmanager
def encrypted(folder: Path) -> Iterator[tuple[RedisProcess, Path]]:
    file, secret = certificate(folder)
    tls, plain = free_ports(2)
    options = ["--tls-port", str(tls), "--tls-cert-file", str(file), "--tls-key-file", str(secret)]
    options += ["--tls-ca-cert-file", str(file), "--tls-auth-clients", "no"]
    process = RedisProcess(folder, *options, port=plain)
    process.start()
    try:
        process.wait()
        process.call("RPUSH", "jobs", "a")
        process.port = tls
        yield process, file
    finally:
        process.kill()


async def test_tls_trusts_what_the_policy_says(tmp_path: Path) -> None:
    with encrypted(tmp_path) as (process, file):
        slow = {"interval_milliseconds": 1000, "timeout_milliseconds": 1000}
        async with running(source(at(process, tls=Tls(ca_file=str(file))), **slow)) as heard:
            await heard.parts(length(1))
        async with running(source(at(process, tls=Tls(skip_verify=True)), **slow)) as heard:
            await heard.parts(length(1))
        async with running(source(at(process, tls=Tls()), **slow)) as heard:
            await heard.failure("its certificate isn't trusted: self-signed certificate")


@pytest.mark.wall_clock
async def test_a_tls_server_that_hangs_keeps_nobody_from_ending(tmp_path: Path) -> None:
    with encrypted(tmp_path) as (process, file):
        async with running(source(at(process, tls=Tls(ca_file=str(file))))) as heard:
            await heard.reading()
            process.freeze()
            ending = time.monotonic()
        assert time.monotonic() - ending < 1.0
        process.thaw()
        gc.collect()


# ------------------------------------------------------------------ sentinels


@contextmanager
def sentinel_of(folder: Path, master: RedisProcess) -> Iterator[RedisProcess]:
    """A sentinel that is quick to decide."""
    file = folder / "sentinel.conf"
    file.write_text(
        f"sentinel monitor jobs-master 127.0.0.1 {master.port} 1\n"
        "sentinel down-after-milliseconds jobs-master 300\n"
        "sentinel failover-timeout jobs-master 2000\n"
    )
    sentinel = RedisProcess(folder, "--sentinel", file=file)
    sentinel.start()
    try:
        sentinel.wait("flags\nmaster\n", "SENTINEL", "MASTER", "jobs-master")
        yield sentinel
    finally:
        sentinel.kill()


def behind(*sentinels: RedisProcess, **fields: Any) -> RedisServer:
    addresses = tuple(sentinel.address for sentinel in sentinels)
    return RedisServer(mode=RedisMode.SENTINEL, addresses=addresses, **fields)


async def test_sentinels_lead_to_the_master_and_to_the_next_one(tmp_path: Path) -> None:
    with ExitStack() as stack:
        master = stack.enter_context(redis(tmp_path))
        replica = stack.enter_context(redis(tmp_path, "--replicaof", "127.0.0.1", str(master.port)))
        master.call("RPUSH", "jobs", "a")
        replica.wait("1", "LLEN", "jobs")
        sentinel = stack.enter_context(sentinel_of(tmp_path, master))
        sentinel.wait("num-slaves\n1", "SENTINEL", "MASTER", "jobs-master")
        gone = RedisProcess(tmp_path)  # never started
        async with running(source(behind(gone, sentinel, sentinel_master="jobs-master"))) as heard:
            await heard.parts(length(1))
            master.kill()
            await heard.failure()
            replica.wait("role:master", "INFO", "replication")
            replica.call("RPUSH", "jobs", "b")
            await heard.parts(length(2))


async def test_a_sentinel_that_hangs_delays_no_answer_of_another(tmp_path: Path) -> None:
    with (
        redis(tmp_path) as master,
        sentinel_of(tmp_path, master) as sentinel,
        redis(tmp_path) as stuck,
    ):
        master.call("RPUSH", "jobs", "a")
        stuck.freeze()
        async with running(source(behind(stuck, sentinel, sentinel_master="jobs-master"))) as heard:
            await heard.parts(length(1))
        stuck.thaw()
        async with running(source(behind(sentinel, sentinel_master="others"))) as heard:
            await heard.failure("no sentinel names a master 'others': they don't know it")


async def test_sentinels_that_are_all_away_are_named(tmp_path: Path) -> None:
    async with running(source(behind(RedisProcess(tmp_path), sentinel_master="jobs-master"))) as heard:
        await heard.failure("no sentinel names a master 'jobs-master': connection refused")


# ------------------------------------------------------------------ clusters


@contextmanager
def node_of_a_cluster(folder: Path) -> Iterator[RedisProcess]:
    file = folder / "nodes.conf"
    with redis(folder, "--cluster-enabled", "yes", "--cluster-config-file", str(file)) as node:
        yield node


def shards(*nodes: RedisProcess, **fields: Any) -> RedisServer:
    return RedisServer(mode=RedisMode.CLUSTER, addresses=tuple(node.address for node in nodes), **fields)


async def test_a_cluster_that_was_killed_is_found_again_even_where_it_forgot_what_it_was(
    tmp_path: Path,
) -> None:
    with node_of_a_cluster(tmp_path) as node:
        node.call("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        node.wait("cluster_state:ok", "CLUSTER", "INFO")
        node.call("RPUSH", "jobs", "a", "b")
        gone = RedisProcess(tmp_path)  # never started
        async with running(source(shards(gone, node))) as heard:
            await heard.parts(length(2))
            node.kill()
            await heard.failure("no cluster: connection refused")
            (tmp_path / "nodes.conf").unlink()
            node.start()
            node.wait()
            await heard.failure("unexpected")  # the library stumbles: nobody has any slots
            node.call("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            await heard.parts(length(0))
        assert clients(node) == 0


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        (
            RedisMode.CLUSTER,
            "no cluster: Cluster mode is not enabled on this node; set server.mode: Standalone",
        ),
        (RedisMode.SENTINEL, "no sentinel names a master 'm': unknown command 'SENTINEL'"),
    ],
)
async def test_a_standalone_server_that_is_taken_for_another_is_named(
    tmp_path: Path, mode: RedisMode, why: str
) -> None:
    name = "m" if mode is RedisMode.SENTINEL else None
    with redis(tmp_path) as process:
        async with running(source(at(process, mode=mode, sentinel_master=name))) as heard:
            await heard.failure(why)


async def test_a_cluster_that_is_taken_for_standalone_is_named(tmp_path: Path) -> None:
    with node_of_a_cluster(tmp_path) as node:
        async with running(source(at(node, database=1))) as heard:
            await heard.failure("set server.mode: Cluster, and no database")

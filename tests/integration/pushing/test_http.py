"""Samples over HTTP from anyone, over real sockets: what is good counts, and what isn't hurts nobody else."""

import asyncio
import contextlib
import gzip
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from scaler.core.model import Load, Quality
from scaler.gateway.settings import GatewaySettings
from scaler.signals.sample import MAX_BYTES, MOST_BYTES, Kind
from tests.integration.gateway.rig import rig as gateway_rig
from tests.integration.pushing.rig import CODE, SIGNAL_TOKEN, TOKEN, Server, sample, served


async def test_what_anyone_pushes_is_load_and_is_shown() -> None:
    async with served() as on:
        status, _ = await on.post(sample("exporter", 1, {"backlog": 40, "backlogAgeSeconds": 12}))
        assert status == 204
        assert (on.load().backlog.value, on.load().backlog_age.value) == (40, 12)
        assert on.load(CODE) == Load()
        chat, code = await on.get()
        assert [(part["part"], part["value"]) for part in chat["parts"]] == [
            ("Backlog", 40),
            ("BacklogAgeSeconds", 12),
        ]
        assert [(each["name"], each["kind"]) for each in chat["instances"]] == [("exporter", "Queue")]
        assert code["parts"] == []


async def test_what_is_refused_for_lack_of_room_is_load_and_is_shown() -> None:
    async with served() as on:
        at = time.time()
        for number, refused in enumerate((40, 43, 46)):
            numbers = {"queued": 5, "inFlight": 2, "refused": refused}
            assert (await on.post(sample("gw", number, numbers, at=at - 0.4 + number / 5)))[0] == 204
        assert on.load().refused.value == 6
        chat, _ = await on.get()
        assert {part["part"]: part["value"] for part in chat["parts"]} == {
            "Queued": 5,
            "InFlight": 2,
            "Refused": 6,
        }


@pytest.mark.parametrize("refused", [-1, "3", True, None, 2.0**60], ids=repr)
async def test_a_total_of_refusals_that_is_none_is_refused_whole(refused: object) -> None:
    async with served() as on:
        status, text = await on.post(sample("gw", 1, {"queued": 5, "refused": refused}))
        assert status == 400
        assert "policies.chat.refused must be a finite number ≥ 0" in json.loads(text)["error"]["message"]
        assert on.load() == Load()


@pytest.mark.parametrize(
    ("token", "status"),
    [
        pytest.param(SIGNAL_TOKEN, 204, id="the token of those who push"),
        pytest.param(TOKEN, 204, id="the agents' token"),
        pytest.param("another", 401, id="another"),
        pytest.param("", 401, id="an empty one"),
    ],
)
async def test_who_pushes_shows_a_token(token: str, status: int) -> None:
    async with served() as on:
        answered, text = await on.post(sample("x", 1, {"backlog": 1}), token=token)
        assert answered == status
        assert ("EMBERPOOL_SIGNAL_TOKEN or EMBERPOOL_AGENT_TOKEN" in text) == (status == 401)
        assert on.load().backlog.known == (status == 204)
        assert on.counted("Unauthorized") == (status == 401)


ROLES = """\
gateway:gw   one
queue:jobs   two
queue        three
agent        four
"""


@pytest.mark.parametrize(
    ("token", "fields", "status", "outcome"),
    [
        pytest.param("one", {"kind": "Gateway"}, 204, "Accepted", id="a gateway as one"),
        pytest.param("one", {}, 403, "NotAllowed", id="a gateway as a queue"),
        pytest.param("two", {"kind": "Gateway"}, 403, "NotAllowed", id="a queue as a gateway"),
        pytest.param("two", {"instance": "jobs-7"}, 204, "Accepted", id="a queue by its name"),
        pytest.param("two", {"instance": "other"}, 403, "NotAllowed", id="a queue by another name"),
        pytest.param("three", {"instance": "jobs-7"}, 403, "NotAllowed", id="a queue by another's name"),
        pytest.param("three", {"instance": "any"}, 204, "Accepted", id="a queue without a name"),
        pytest.param("four", {}, 403, "NotAllowed", id="an agent"),
        pytest.param(SIGNAL_TOKEN, {"kind": "Gateway", "instance": "any"}, 204, "Accepted", id="no role"),
        pytest.param(
            SIGNAL_TOKEN, {"kind": "Gateway"}, 403, "NotAllowed", id="no role, a gateway's own name"
        ),
        pytest.param("five", {}, 401, "Unauthorized", id="nobody"),
    ],
)
async def test_a_token_says_what_may_be_pushed_with_it(
    tmp_path: Path, token: str, fields: dict[str, Any], status: int, outcome: str
) -> None:
    file = tmp_path / "tokens"
    file.write_text(ROLES, "utf-8")
    async with served(file) as on:
        body = {**sample("gw-1", 1, {"queued": 1}), **fields}
        assert (await on.post(body, token=token))[0] == status
        assert on.counted(outcome) == 1
        assert on.load().queued.known == (status == 204)


async def test_another_token_cannot_take_an_instance_over(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("queue one\nqueue two\n", "utf-8")
    async with served(file) as on:
        assert (await on.post(sample("exporter", 1, {"backlog": 40}), token="one"))[0] == 204
        status, text = await on.post(sample("exporter", 2**50, {"backlog": 0}), token="two")
        assert (status, on.counted("NameTaken")) == (409, 1)
        assert (
            "who shows another token (queue) pushes as this instance" in json.loads(text)["error"]["message"]
        )
        assert (await on.post(sample("exporter", 2, {"backlog": 41}), token="one"))[0] == 204
        assert on.load().backlog.value == 41
        chat, _ = await on.get()
        assert [each["pusher"] for each in chat["instances"]] == ["queue"]


async def test_a_second_gateway_of_one_name_is_refused_and_its_demand_counts_nowhere() -> None:
    async with served() as on:
        first = {"kind": "Gateway", "run": "a"}
        assert (await on.post(sample("gw", 1, {"queued": 3}, **first), token=SIGNAL_TOKEN))[0] == 204
        second = sample("gw", 2**50, {"queued": 40}, kind="Gateway", run="b")
        status, text = await on.post(second, token=SIGNAL_TOKEN)
        assert (status, on.counted("NameTaken")) == (409, 1)
        assert "give each a name of its own" in json.loads(text)["error"]["message"]
        assert on.load().queued.value == 3


async def test_a_queue_pushes_less_at_once_than_a_gateway_and_that_is_known_before_it_is_read(
    tmp_path: Path,
) -> None:
    file = tmp_path / "tokens"
    file.write_text("queue one\ngateway two\n", "utf-8")
    async with served(file) as on:
        for token, kind in (("one", Kind.QUEUE), ("two", Kind.GATEWAY)):
            status, said = await on.post(b" " * (MOST_BYTES[kind] + 1), token=token)
            assert status == 413
            assert f"at most {MOST_BYTES[kind] // 1024} KiB of a {kind} are taken" in said
            assert (await on.post(b" " * MOST_BYTES[kind], token=token))[0] == 400


async def test_without_a_token_nothing_is_taken() -> None:
    async with (
        served() as on,
        on.session.post(f"{on.url}/v1/signals", json=sample("x", 1, {"backlog": 1})) as answer,
    ):
        assert answer.status == 401
        assert on.load() == Load()


async def test_a_policy_that_nobody_knows_is_named_in_the_answer() -> None:
    async with served() as on:
        body = sample("x", 1, {"backlog": 1})
        body["policies"]["chatt"] = {"backlog": 1}
        status, text = await on.post(body)
        assert (status, json.loads(text)) == (200, {"ignored": ["chatt"]})
        assert on.load().backlog.value == 1


async def test_the_gateway_pushes_with_its_token() -> None:
    async with served() as on:
        settings = GatewaySettings(instance="gw-1", controllers=(on.url,), token=SIGNAL_TOKEN)
        async with gateway_rig(settings):
            await on.until(lambda: on.signals.gateways() == ["gw-1"], "the gateway")
        assert on.counted("Unauthorized") == 0


BROKEN = [
    pytest.param(b"", 400, "Rejected", id="nothing"),
    pytest.param(b"{", 400, "Rejected", id="no JSON"),
    pytest.param(b"\x00\xff\xfe", 400, "Rejected", id="no text"),
    pytest.param(b"[" * 60_000, 400, "Rejected", id="too deep"),
    pytest.param(sample("x", 2, {"backlog": "40"}), 400, "Rejected", id="a number as text"),
    pytest.param(sample("x", 2, {"backlog": None}), 400, "Rejected", id="null"),
    pytest.param(sample("x", 2, {"backlog": float("nan")}), 400, "Rejected", id="NaN"),
    pytest.param(sample("x", 2, {"backlog": float("inf")}), 400, "Rejected", id="infinity"),
    pytest.param(sample("x", 2, {"backlog": -1}), 400, "Rejected", id="negative"),
    pytest.param(sample("x", 2, {"backlog": 10**400}), 400, "Rejected", id="beyond floats"),
    pytest.param(sample("x", 2, {}), 400, "Rejected", id="no numbers"),
    pytest.param(sample("x", 2, {"backlog": 9}, at=9e12), 400, "Rejected", id="of the future"),
    pytest.param(sample("x", 2, {"backlog": 9}, at=1.0), 400, "Rejected", id="of the past"),
    pytest.param(sample("x", 1, {"backlog": 9}), 400, "Rejected", id="the same sequence again"),
    pytest.param(b" " * (MAX_BYTES + 1), 413, "TooLarge", id="just too large"),
    pytest.param(b" " * 1_000_000, 413, "TooLarge", id="a megabyte"),
]


@pytest.mark.parametrize(("body", "status", "outcome"), BROKEN)
async def test_what_is_broken_is_refused_counted_and_changes_nothing(
    body: object, status: int, outcome: str
) -> None:
    async with served() as on:
        assert (await on.post(sample("x", 1, {"backlog": 40})))[0] == 204
        if isinstance(body, dict) and 1e9 < body["at"] < 1e10:
            body = body | {"at": time.time()}
        found, text = await on.post(body)
        assert (found, json.loads(text)["error"]["code"]) == (status, "SampleRejected")
        assert on.counted(outcome) == 1
        assert on.load().backlog.value == 40


async def chunks(of: bytes, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield of


async def test_a_body_without_an_end_in_sight_is_cut_off() -> None:
    async with served() as on:
        headers = {"Authorization": f"Bearer {SIGNAL_TOKEN}"}
        status = 0
        with contextlib.suppress(aiohttp.ClientError):  # it may hang up on us while we still talk
            async with on.session.post(
                f"{on.url}/v1/signals", data=chunks(b" " * 65_536, 10_000), headers=headers
            ) as answer:
                status = answer.status
        assert status in {0, 413}
        assert on.counted("TooLarge") == 1


async def test_a_small_body_that_unpacks_to_a_large_one_is_refused() -> None:
    async with served() as on:
        headers = {"Authorization": f"Bearer {SIGNAL_TOKEN}", "Content-Encoding": "gzip"}
        packed = gzip.compress(b" " * 50_000_000)
        async with on.session.post(f"{on.url}/v1/signals", data=packed, headers=headers) as answer:
            assert answer.status in {400, 413}
        assert on.counted("TooLarge") + on.counted("Rejected") == 1


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async with served() as on:
        reader, writer = await asyncio.open_connection(*on.url.removeprefix("http://").split(":"))
        head = f"POST /v1/signals HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SIGNAL_TOKEN}\r\n"
        try:
            writer.write(f"{head}Content-Length: 100\r\n\r\n{{".encode())
            async with asyncio.timeout(10):
                assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        finally:
            writer.close()
            await writer.wait_closed()
        assert on.counted("Rejected") == 1


# ------------------------------------------------------------------ beside others


Nuisance = Callable[[Server, aiohttp.ClientSession, int], Awaitable[Any]]


async def broken(on: Server, session: aiohttp.ClientSession, number: int) -> None:
    await on.post(sample("bad", number, {"backlog": float("nan")}), session=session)


async def flooding(on: Server, session: aiohttp.ClientSession, number: int) -> None:
    """Good samples, two hundred at once over one connection, faster than anyone needs."""
    del session
    reader, writer = await asyncio.open_connection(*on.url.removeprefix("http://").split(":"))
    try:
        for each in range(200):
            body = json.dumps(sample("bad", 1000 * number + each, {"backlog": each})).encode()
            head = f"POST /v1/signals HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SIGNAL_TOKEN}\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answered = 0
        while answered < 200 and (line := await reader.readline()):
            answered += line.startswith(b"HTTP/1.1 ")
    finally:
        writer.close()
        await writer.wait_closed()


async def huge(on: Server, session: aiohttp.ClientSession, number: int) -> None:
    del number
    await on.post(b" " * 1_000_000, session=session)


async def renamed(on: Server, session: aiohttp.ClientSession, number: int) -> None:
    """A new name for each sample, as of a job that takes its process's id."""
    body = sample(f"bad-{number}", number, {"backlog": number}, intervalSeconds=60)
    await on.post(body, session=session)


async def stranger(on: Server, session: aiohttp.ClientSession, number: int) -> None:
    await on.post(sample("good-code", number + 10**9, {"backlog": 10**6}), token="guess", session=session)


@asynccontextmanager
async def pestered(on: Server, nuisance: Nuisance) -> AsyncIterator[None]:
    """Pester a server over several connections, as fast as it answers."""

    async def pester(lane: int) -> None:
        async with aiohttp.ClientSession() as session:
            number = lane
            while True:
                number += 4
                try:
                    await nuisance(on, session, number)
                except (aiohttp.ClientError, OSError):
                    await asyncio.sleep(0)  # it hung up

    async with asyncio.TaskGroup() as tasks:
        lanes = [tasks.create_task(pester(lane)) for lane in range(4)]
        try:
            yield
        finally:
            for task in lanes:
                task.cancel()


@pytest.mark.wall_clock
@pytest.mark.parametrize(
    ("nuisance", "outcome"),
    [
        pytest.param(broken, "Rejected", id="broken samples"),
        pytest.param(flooding, "Accepted", id="a flood"),
        pytest.param(huge, "TooLarge", id="megabytes"),
        pytest.param(renamed, "Rejected", id="a new name each time"),
        pytest.param(stranger, "Unauthorized", id="a stranger"),
    ],
)
async def test_whoever_pushes_nonsense_hurts_no_other_policy(nuisance: Nuisance, outcome: str) -> None:
    async with served() as on, pestered(on, nuisance):
        await on.until(lambda: on.counted(outcome) >= 20, f"samples that end as {outcome}")
        answers = []
        for number in range(20):
            began = time.monotonic()
            assert await on.push({"backlog": number}, "code", "good-code") == 204
            answers.append(time.monotonic() - began)
            load = on.load(CODE)
            assert (load.backlog.value, load.backlog.quality) == (number, Quality.FRESH)
            await asyncio.sleep(0.02)  # a pace of its own
        assert sorted(answers)[len(answers) // 2] < 0.25
        assert on.counted("Accepted") >= 20

"""What an agent learns of its seat's memory, and that it never takes unknown for nothing."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.fakes.nvml_library import CONTEXT_BYTES, H200_BYTES, H200_RESERVED, FakeGpu, FakeLibrary
from warmpool.engines.deadline import Deadline
from warmpool.nodehealth.client import (
    DeviceTotals,
    NodeAgent,
    NoMemory,
    SeatMemory,
    connect,
    seat_health,
    seat_memory,
    unknown,
)
from warmpool.nodehealth.nvml import DriverNvml, NvmlAbsent
from warmpool.seats import Verdict

A, B = "GPU-a", "GPU-b"


def process(*ids: int, size: int, namespace: str = "") -> Mapping[str, Any]:
    return {"ids": list(ids), "bytes": size, "pidNamespace": namespace}


def answer(
    *gpus: tuple[Mapping[str, Any], ...], verified: bool = True, complete: bool = True
) -> Mapping[str, Any]:
    return {
        "verified": verified,
        "reason": "" if verified else "it hangs",
        "complete": complete,
        "gpus": [
            {"totalBytes": 100, "usedBytes": 30, "freeBytes": 60, "processes": list(processes)}
            for processes in gpus
        ],
    }


def test_gpus_and_processes_are_added_up_by_every_id_that_a_process_goes_by() -> None:
    found = seat_memory(
        answer(
            (process(70, 40, size=5), process(71, 40, size=7)), (process(70, 40, size=1), process(9, size=2))
        )
    )
    assert (found.total_bytes, found.used_bytes, found.free_bytes) == (200, 60, 120)
    assert found.by_process == {70: 6, 71: 7, 40: 13, 9: 2}
    assert found.verified


@pytest.mark.parametrize(
    ("found", "pid", "held"),
    [
        pytest.param(answer((process(70, 40, size=5),)), 40, 5, id="it has workers"),
        pytest.param(answer((process(70, size=5),)), 99, 0, id="it has nothing"),
        pytest.param(answer((process(70, size=5),), complete=False), 99, None, id="it may be another's"),
        pytest.param(answer((process(70, size=5),), complete=False), 70, 5, id="it is known all the same"),
        pytest.param(answer((process(70, size=5),), verified=False), 70, None, id="not verified"),
        pytest.param(answer((), verified=False), 70, None, id="not verified and not listed"),
    ],
)
def test_what_a_process_holds_is_a_number_only_where_it_is_certain(
    found: Mapping[str, Any], pid: int, held: int | None
) -> None:
    assert seat_memory(found).held_by(pid) == held


def test_equal_ids_in_two_containers_are_nobodys_and_the_others_stay_known() -> None:
    found = seat_memory(answer((process(7, 1, size=5, namespace="a"), process(8, 1, size=6, namespace="b"))))
    assert (found.held_by(7), found.held_by(8)) == (5, 6)
    assert found.held_by(1) is None
    assert (found.held_by(1, "a"), found.held_by(1, "b")) == (5, 6)
    assert found.held_by(99) is None
    assert "same ids on the GPUs: 1" in found.reason


@pytest.mark.parametrize(("complete", "held"), [(True, 0), (False, None)])
def test_the_same_id_in_another_container_is_somebody_else(*, complete: bool, held: int | None) -> None:
    found = seat_memory(answer((process(7, 1, size=5, namespace="pid:[1]"),), complete=complete))
    assert (found.held_by(1, "pid:[1]"), found.held_by(1, "pid:[2]")) == (5, held)


def test_a_total_that_one_gpu_lacks_is_unknown() -> None:
    found = dict(answer((), ()))
    found["gpus"][0]["usedBytes"] = None
    assert (seat_memory(found).used_bytes, seat_memory(found).total_bytes) == (None, 200)


def test_no_gpu_at_all_is_no_total_of_zero() -> None:
    assert seat_memory(answer(verified=False)) == SeatMemory(
        None, None, None, None, verified=False, reason="it hangs", complete=True
    )


async def test_without_anybody_to_ask_nothing_is_known() -> None:
    found = await NoMemory("nothing is installed").read([A], deadline=Deadline.after(1))
    assert found == unknown("no node agent is configured, and nothing is installed")


@pytest.fixture
def library() -> FakeLibrary:
    return FakeLibrary(
        FakeGpu(A, processes={7: CONTEXT_BYTES}), FakeGpu(B, minor=1, bus_id="00000000:07:00.0")
    )


@pytest.mark.parametrize("gpus", [[A, B], ["0", "1"], [A, "1"]])
async def test_nvml_here_tells_totals_and_proves_nothing(library: FakeLibrary, gpus: list[str]) -> None:
    totals = DeviceTotals(lambda: DriverNvml(library))
    found = await totals.read(gpus, deadline=Deadline.after(5))
    assert (found.total_bytes, found.used_bytes) == (2 * H200_BYTES, CONTEXT_BYTES)
    assert found.free_bytes == 2 * (H200_BYTES - H200_RESERVED - CONTEXT_BYTES)  # in equal parts
    assert (found.by_process, found.verified) == (None, False)
    assert "totals alone" in found.reason
    await totals.close()


@pytest.mark.parametrize(
    ("gpus", "reason"), [([], "which GPUs"), (["GPU-c"], "no GPU GPU-c"), (["7"], "no GPU 7")]
)
async def test_gpus_that_are_not_there_have_no_totals(
    library: FakeLibrary, gpus: list[str], reason: str
) -> None:
    totals = DeviceTotals(lambda: DriverNvml(library))
    found = await totals.read(gpus, deadline=Deadline.after(5))
    assert found.total_bytes is None
    assert reason in found.reason
    await totals.close()


async def test_a_driver_that_was_reloaded_is_opened_again_at_the_next_question(library: FakeLibrary) -> None:
    totals = DeviceTotals(lambda: DriverNvml(library))
    await totals.read([A], deadline=Deadline.after(5))
    library.reload()
    assert "Uninitialized" in (await totals.read([A], deadline=Deadline.after(5))).reason
    assert (await totals.read([A], deadline=Deadline.after(5))).total_bytes == H200_BYTES
    await totals.close()


async def test_a_driver_that_hangs_is_given_up_at_the_deadline_and_not_asked_twice(
    library: FakeLibrary,
) -> None:
    totals = DeviceTotals(lambda: DriverNvml(library))
    with library.hanging("nvmlDeviceGetMemoryInfo"):
        for _ in range(3):
            found = await totals.read([A], deadline=Deadline.after(0.02))
            assert "has not returned" in found.reason
    assert library.most_at_once[A] == 1
    await totals.close()


async def test_a_machine_without_a_driver_says_so() -> None:
    library = FakeLibrary()
    library.fail("nvmlInit", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    totals = DeviceTotals(lambda: DriverNvml(library))
    assert "NVML error 12" in (await totals.read([A], deadline=Deadline.after(5))).reason
    await totals.close()


async def test_a_node_agent_that_is_not_there_leaves_what_is_known_without_it(
    library: FakeLibrary, tmp_path: Path
) -> None:
    alone = DeviceTotals(lambda: DriverNvml(library))
    agent = NodeAgent(f"unix://{tmp_path}/node.sock", alone)
    found = await agent.read([A], deadline=Deadline.after(5))
    assert (found.total_bytes, found.verified) == (H200_BYTES, False)
    assert found.reason.startswith(f"the node agent at unix://{tmp_path}/node.sock can't be asked: ")
    await agent.close()


async def test_a_node_agent_that_does_not_answer_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    agent = NodeAgent(f"unix://{path}", NoMemory("nothing is installed"))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        found = await agent.read([A], deadline=Deadline.after(0.05))
    assert found == unknown(f"the node agent at unix://{path} can't be asked: it didn't answer in time")
    await agent.close()


@asynccontextmanager
async def answering(directory: Path, body: bytes) -> AsyncIterator[NodeAgent]:
    """Yield the client of a node agent that says one thing, whatever it is asked."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)
        )
        with suppress(ConnectionError):  # who asked has read enough
            await writer.drain()
        writer.close()

    path = directory / "node.sock"
    server = await asyncio.start_unix_server(serve, path)
    agent = NodeAgent(f"unix://{path}", NoMemory("nothing is installed"))
    try:
        yield agent
    finally:
        await agent.close()
        server.close()


NONSENSE = {
    "nothing": b"",
    "nothing in it": b"{}",
    "a list": b"[]",
    "no JSON": b"not json",
    "another kind": b'{"gpus": 1, "verified": true, "reason": ""}',
    "too deep": b"[" * 100_000,
    "too long": b" " * 2**20 + b"{}",
}


@pytest.mark.parametrize("body", NONSENSE.values(), ids=NONSENSE.keys())
async def test_an_answer_that_makes_no_sense_is_none(tmp_path: Path, body: bytes) -> None:
    async with answering(tmp_path, body) as agent:
        found = await agent.read([A], deadline=Deadline.after(5))
        assert not found.verified
        assert "what it says is no answer" in found.reason
        health = await agent.health([A], deadline=Deadline.after(5))
        assert (health.verdict, health.known) == (Verdict.OK, False)


@pytest.mark.parametrize("body", [b"", b"[]", b"[" * 100_000])
async def test_a_canary_that_gets_no_sensible_answer_was_not_told(tmp_path: Path, body: bytes) -> None:
    async with answering(tmp_path, body) as agent:
        assert not await agent.canary([A], passed=False, proof="", deadline=Deadline.after(5))


async def test_an_answer_that_comes_in_pieces_is_read_whole(tmp_path: Path) -> None:
    body = json.dumps(answer((process(70, size=5),))).encode() + b" " * 900_000
    async with answering(tmp_path, body) as agent:
        assert (await agent.read([A], deadline=Deadline.after(5))).held_by(70) == 5


def test_an_address_makes_it_the_node_agent_and_none_the_driver() -> None:
    assert isinstance(connect("unix:///run/node.sock"), NodeAgent)
    assert isinstance(connect(""), DeviceTotals)


async def test_an_absent_library_is_told_of_and_not_raised() -> None:
    def absent() -> DriverNvml:
        raise NvmlAbsent("nvidia-ml-py is not installed")

    totals = DeviceTotals(absent)
    assert "not installed" in (await totals.read([A], deadline=Deadline.after(5))).reason
    await totals.close()


# ---------------------------------------------------------------------- health


def told(*words: str) -> Mapping[str, Any]:
    return {
        "reason": "",
        "gpus": [
            {
                "uuid": f"GPU-{place}",
                "verdict": word,
                "reasons": [{"verdict": word, "text": "why"}, {"verdict": "Suspect", "text": "more"}],
            }
            for place, word in enumerate(words)
        ],
    }


@pytest.mark.parametrize(
    ("words", "verdict", "known", "reason"),
    [
        (["Ok", "Ok"], Verdict.OK, True, ""),
        (["Ok", "Unknown"], Verdict.OK, False, ""),
        (["Suspect", "Ok"], Verdict.SUSPECT, True, "GPU-0 is Suspect: why; more"),
        (["Bad", "Suspect"], Verdict.BAD, True, "GPU-0 is Bad: why. GPU-1 is Suspect: why; more"),
        (["Suspect", "Bad"], Verdict.BAD, True, "GPU-0 is Suspect: why; more. GPU-1 is Bad: why"),
        ([], Verdict.OK, False, ""),
    ],
)
def test_a_seats_health_is_the_worst_of_its_gpus(
    words: list[str],
    verdict: Verdict,
    known: bool,  # noqa: FBT001
    reason: str,
) -> None:
    found = seat_health(told(*words))
    assert (found.verdict, found.known, found.reason) == (verdict, known, reason)


@pytest.mark.parametrize(
    "answer", [{}, {"gpus": [{}]}, {"gpus": [{"verdict": "Worse", "uuid": "x", "reasons": []}]}]
)
def test_what_is_no_answer_about_health_is_said(answer: Mapping[str, Any]) -> None:
    with pytest.raises((KeyError, ValueError)):
        seat_health(answer)


async def test_without_a_node_agent_nothing_is_known_of_health_and_nobody_takes_canaries() -> None:
    for memory in (NoMemory("x"), DeviceTotals(lambda: DriverNvml(FakeLibrary(FakeGpu(A))))):
        found = await memory.health([A], deadline=Deadline.after(1))
        assert (found.verdict, found.known) == (Verdict.OK, False)
        assert not await memory.canary([A], passed=True, proof="", deadline=Deadline.after(1))
        await memory.close()

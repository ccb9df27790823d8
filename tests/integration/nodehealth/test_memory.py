"""Asking the node agent for memory over its Unix socket: who is told what, how fast, and what becomes of everything that fails."""

import asyncio
import os
import time
from dataclasses import replace
from typing import Any

import pynvml
import pytest

from tests.fakes.nvml_library import H200_BYTES, H200_RESERVED
from tests.fakes.proc_tree import pod_cgroup
from tests.integration.nodehealth.conftest import GB, MINE, YOURS, A, B, Caller, Node
from warmpool.engines.deadline import Deadline
from warmpool.nodehealth.reader import Limits

SLOW_MACHINE_SECONDS = 0.1


def held(answer: dict[str, Any]) -> dict[str, dict[int, int | None]]:
    return {gpu["uuid"]: {each["pid"]: each["bytes"] for each in gpu["processes"]} for gpu in answer["gpus"]}


async def test_a_pod_is_told_its_gpu_and_its_processes_and_one_sum_of_all_others(caller: Caller) -> None:
    answer = await caller.memory()
    (gpu,) = answer["gpus"]
    assert (answer["verified"], answer["reason"], answer["complete"], answer["notes"]) == (True, "", True, [])
    assert held(answer) == {A: {70: 5 * GB, 71: GB}}
    assert (gpu["othersBytes"], gpu["usedBytes"], gpu["totalBytes"]) == (3 * GB, 9 * GB, H200_BYTES)
    assert (gpu["freeBytes"], gpu["reservedBytes"]) == (H200_BYTES - 9 * GB - H200_RESERVED, H200_RESERVED)
    assert (gpu["given"], gpu["unaccountedBytes"]) == (True, 0)
    assert gpu["processes"][0] == {
        "pid": 70,
        "nsPid": 8,
        "bytes": 5 * GB,
        "pod": MINE,
        "container": "a" * 64,
        "ids": [8, 6, 1],
        "pidNamespace": "pid:[4026531836]",
    }


async def test_nothing_of_another_pod_is_in_the_answer(caller: Caller) -> None:
    text = str(await caller.memory(gpu=A))
    assert YOURS not in text
    assert "'pid': 90" not in text
    assert "b" * 64 not in text


async def test_an_agent_learns_what_its_engine_holds_with_all_that_it_started(caller: Caller) -> None:
    client = caller.client(pod=MINE)
    memory = await client.read([A], deadline=Deadline.after(5))
    assert memory.verified
    assert (memory.held_by(6), memory.held_by(8), memory.held_by(33)) == (6 * GB, 5 * GB, 0)
    assert (memory.total_bytes, memory.used_bytes) == (H200_BYTES, 9 * GB)
    await client.close()


async def test_what_was_given_back_before_the_question_is_not_in_the_answer(caller: Caller) -> None:
    client = caller.client()
    await client.read([A], deadline=Deadline.after(5))
    caller.node.gpus[0].processes[70] = GB
    assert (await client.read([A], deadline=Deadline.after(5))).held_by(8) == GB
    await client.close()


async def test_processes_can_be_asked_for_by_the_ids_that_the_caller_knows(caller: Caller) -> None:
    answer = await caller.memory(pid="9,33")
    assert held(answer) == {A: {71: GB}}
    assert answer["gpus"][0]["othersBytes"] == 8 * GB


async def test_a_pods_name_for_itself_is_its_own_or_refused(caller: Caller) -> None:
    assert held(await caller.memory(pod=MINE)) == {A: {70: 5 * GB, 71: GB}}
    status, body = await caller.ask(pod=YOURS)
    assert (status, body["error"]["code"]) == (403, "NotYours")


async def test_a_gpu_that_the_pod_was_not_given_has_totals_and_says_so(caller: Caller) -> None:
    (gpu,) = (await caller.memory(gpu="1"))["gpus"]
    assert (gpu["uuid"], gpu["given"], gpu["usedBytes"], gpu["othersBytes"]) == (B, False, 0, 0)


async def test_a_process_outside_containers_is_told_of_its_own_users(caller: Caller) -> None:
    node = caller.node
    node.gpus[1].processes = {300: GB, 301: GB}
    node.tree.add(300, uid=os.getuid())
    node.tree.add(301, uid=os.getuid() + 1)
    node.caller_is()
    answer = await caller.memory(maxAgeMilliseconds="0")
    assert held(answer) == {A: {}, B: {300: GB}}
    assert (answer["verified"], answer["complete"]) == (True, False)


async def test_the_nodes_root_may_ask_for_any_pod(caller: Caller) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root, which is what the kernel says of the caller")
    caller.node.caller_is()
    assert held(await caller.memory(pod=YOURS)) == {A: {90: 3 * GB}}


async def test_a_container_outside_pods_is_told_of_its_own_processes(caller: Caller) -> None:
    caller.node.caller_is(cgroup=f"0::/docker/{'b' * 64}")
    caller.node.tree.add(90, cgroup=f"0::/docker/{'b' * 64}")
    answer = await caller.memory(maxAgeMilliseconds="0")
    assert held(answer) == {A: {90: 3 * GB}, B: {}}
    assert not answer["complete"]
    status, body = await caller.ask(pod=MINE)
    assert (status, body["error"]["code"]) == (403, "NotYours")


async def test_a_caller_whom_nobody_knows_is_told_totals(caller: Caller) -> None:
    caller.node.tree.remove(os.getpid())
    answer = await caller.memory(gpu=A)
    assert held(answer) == {A: {}}
    assert not answer["verified"]
    assert "who asks can't be identified" in answer["reason"]
    assert answer["gpus"][0]["totalBytes"] == H200_BYTES


async def test_a_size_that_the_driver_does_not_tell_is_unknown_and_not_zero(caller: Caller) -> None:
    caller.node.gpus[0].processes[70] = None
    answer = await caller.memory(maxAgeMilliseconds="0")
    assert held(answer) == {A: {70: None, 71: GB}}
    assert (answer["verified"], answer["gpus"][0]["unaccountedBytes"]) == (False, None)
    client = caller.client()
    assert (await client.read([A], deadline=Deadline.after(5))).held_by(6) is None
    await client.close()


async def test_memory_that_no_listed_process_holds_makes_everything_unverified(caller: Caller) -> None:
    caller.node.gpus[0].beyond = GB
    answer = await caller.memory(maxAgeMilliseconds="0")
    assert not answer["verified"]
    assert "953 MiB in use are held by nobody" in answer["reason"]


async def test_a_process_that_ended_meanwhile_makes_it_unverified(caller: Caller) -> None:
    caller.node.tree.remove(90)
    answer = await caller.memory(maxAgeMilliseconds="0")
    assert "process 90 on the device can't be identified" in answer["reason"]


@pytest.mark.wall_clock
async def test_a_hanging_gpu_is_answered_as_unknown_in_time_and_the_other_as_known(node: Node) -> None:
    async with node.agent(replace(node.options, limits=Limits())) as calling:
        with node.library.hanging("nvmlDeviceGetMemoryInfo", uuid=A):
            began = time.perf_counter()
            for _ in range(10):
                answer = await calling.memory(gpu=f"{A},{B}", maxAgeMilliseconds="0")
                hanging, _ = answer["gpus"]
                assert (hanging["totalBytes"], answer["verified"]) == (None, False)
            took = time.perf_counter() - began
        assert took / 10 < 0.05 + SLOW_MACHINE_SECONDS
        assert node.library.most_at_once[f"nvmlDeviceGetMemoryInfo {A}"] == 1


@pytest.mark.wall_clock
async def test_a_hundred_callers_share_readings(caller: Caller) -> None:
    before = caller.node.library.calls.count("nvmlDeviceGetMemoryInfo")
    answers = await asyncio.gather(*(caller.memory(gpu=A) for _ in range(100)))
    assert [answer["reason"] for answer in answers] == [""] * 100
    assert caller.node.library.calls.count("nvmlDeviceGetMemoryInfo") - before < 40
    assert all(answer["ageMilliseconds"] <= 150 for answer in answers)


async def test_a_lost_gpu_is_noted(caller: Caller) -> None:
    for function in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetHandleByIndex"):
        caller.node.library.fail(function, pynvml.NVML_ERROR_GPU_IS_LOST, uuid=B)
    await caller.memory(maxAgeMilliseconds="0")
    answer = await caller.until(lambda body: bool(body["notes"]), "/v1/memory?maxAgeMilliseconds=0")
    assert answer["notes"] == ["GPU 1: GPU is lost (NVML error 15)"]
    assert answer["verified"]


async def test_a_reloaded_driver_is_answered_for_again(caller: Caller) -> None:
    caller.node.library.reload()
    answer = await caller.memory(maxAgeMilliseconds="0")
    assert "Uninitialized" in answer["reason"]
    await caller.until(lambda body: body["verified"], "/v1/memory?maxAgeMilliseconds=0")


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"pid": "0"}, "BadQuestion"),
        ({"pid": "-1"}, "BadQuestion"),
        ({"pid": "1,"}, "BadQuestion"),
        ({"pid": "٣"}, "BadQuestion"),
        ({"pid": "9" * 4000}, "BadQuestion"),
        ({"pid": ",".join(["1"] * 257)}, "BadQuestion"),
        ({"pod": "x" * 65}, "BadQuestion"),
        ({"gpu": ","}, "BadQuestion"),
        ({"maxAgeMilliseconds": "101"}, "BadQuestion"),
        ({"maxAgeMilliseconds": "-1"}, "BadQuestion"),
        ({"process": "1"}, "BadQuestion"),
        ({"gpu": "GPU-c"}, "UnknownGpu"),
        ({"gpu": "2"}, "UnknownGpu"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(
    caller: Caller, query: dict[str, str], code: str
) -> None:
    status, body = await caller.ask(**query)
    assert (status, body["error"]["code"]) == ({"BadQuestion": 400, "UnknownGpu": 404}[code], code)
    assert body["error"]["message"]


async def test_a_question_is_not_asked_twice_in_one(caller: Caller) -> None:
    async with caller.session.get("http://node/v1/memory?pid=1&pid=2") as response:
        assert response.status == 400


async def test_pods_that_share_ids_are_told_apart(node: Node) -> None:
    node.tree.add(70, ns_pids=(70, 8), cgroup=pod_cgroup(MINE), namespace="pid:[1]")
    node.tree.add(71, ns_pids=(71, 8), cgroup=pod_cgroup(MINE, "c" * 64), namespace="pid:[2]")
    async with node.agent() as calling:
        client = calling.client(pod=MINE)
        memory = await client.read([A], deadline=Deadline.after(5))
        assert memory.verified
        assert memory.held_by(8) is None
        assert "same ids" in memory.reason
        await client.close()


async def test_a_client_goes_on_with_a_node_agent_that_was_started_anew(node: Node) -> None:
    async with node.agent() as calling:
        client = calling.client(pod=MINE)
        assert (await client.read([A], deadline=Deadline.after(5))).verified
    assert "can't be asked" in (await client.read([A], deadline=Deadline.after(5))).reason
    async with node.agent():
        assert (await client.read([A], deadline=Deadline.after(5))).verified
        await client.close()

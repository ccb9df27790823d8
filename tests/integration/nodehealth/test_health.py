"""A whole node agent that watches over its GPUs: what it says of them, what it remembers, and who may tell it of canaries."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from aiohttp import web

from tests.integration.nodehealth.conftest import MINE, WAIT_SECONDS, YOURS, A, B, Caller, Json, Node
from warmpool.engines.deadline import Deadline
from warmpool.nodehealth.app import NodeAgentOptions
from warmpool.nodehealth.client import NodeAgent, NoMemory
from warmpool.nodehealth.monitor import boot_id
from warmpool.nodehealth.records import Rules
from warmpool.seats import Verdict

XID, RECOVERY = 0x8, 0x8000


def gpu(body: Json, uuid: str = A) -> Json:
    return next(each for each in body["gpus"] if each["uuid"] == uuid)


def codes(body: Json, uuid: str = A) -> list[str]:
    return [each["code"] for each in gpu(body, uuid)["reasons"]]


async def health(caller: Caller, **query: str) -> Json:
    status, body = await caller.ask("/v1/health", **query)
    assert status == 200, body
    return body


async def canary(caller: Caller, **query: str) -> tuple[int, Json]:
    async with caller.session.post("http://node/v1/canary", params=query) as response:
        return response.status, await response.json()


async def emit(caller: Caller, kind: int, data: int, place: int = 0) -> None:
    """Tell of an event as soon as it is watched for."""
    library = caller.node.library
    async with asyncio.timeout(WAIT_SECONDS):
        while not library.emit(library.gpus[place], kind, data):
            await asyncio.sleep(0.005)


async def said(caller: Caller, word: str, uuid: str = A) -> Json:
    return await caller.until(
        lambda body: any(each["uuid"] == uuid and each["verdict"] == word for each in body["gpus"]),
        f"/v1/health?gpu={uuid}",
    )


@pytest.fixture
async def watcher(node: Node) -> AsyncIterator[Caller]:
    """A node agent that has read its GPUs, called from outside pods."""
    node.caller_is()
    async with node.agent() as calling:
        await calling.until(lambda body: not body["reason"], "/v1/health")
        yield calling


async def test_healthy_gpus_are_ok_and_nothing_is_said_against_them(watcher: Caller) -> None:
    body = await health(watcher)
    assert [each["verdict"] for each in body["gpus"]] == ["Ok", "Ok"]
    assert gpu(body)["reasons"] == gpu(body)["notes"] == []
    assert gpu(body)["ageMilliseconds"] < WAIT_SECONDS * 1000
    assert (body["verdict"], body["expectedGpus"], body["listedGpus"]) == ("Ok", 2, 2)
    assert body["bootId"] == boot_id() != ""
    assert body["sources"]["File"] == ""


async def test_an_error_makes_its_gpu_suspect_at_once_and_the_driver_is_heard(watcher: Caller) -> None:
    before = (await health(watcher))["epoch"]
    await emit(watcher, XID, 119)
    body = await said(watcher, "Suspect")
    assert codes(body) == ["Xid119"]
    assert "the driver's word" in gpu(body)["reasons"][0]["clears"]
    assert body["epoch"] == before + 1
    assert gpu(await health(watcher), B)["verdict"] == "Ok"


async def test_a_gpu_off_the_bus_is_bad(watcher: Caller) -> None:
    await emit(watcher, XID, 79)
    body = await said(watcher, "Bad")
    assert (body["verdict"], codes(body)) == ("Bad", ["Xid79"])
    assert gpu(body)["reasons"][0]["clears"] == "a boot of the node"


async def test_the_drivers_own_verdict_is_read_when_it_changes(watcher: Caller) -> None:
    watcher.node.gpus[1].health.fields[230] = (1, 2)
    await emit(watcher, RECOVERY, 0, place=1)
    body = await said(watcher, "Bad", B)
    assert codes(body, B) == ["RecoveryAction"]
    assert gpu(body, B)["reasons"][0]["text"] == "the driver wants the node booted"
    watcher.node.gpus[1].health.fields[230] = (1, 0)
    await emit(watcher, RECOVERY, 0, place=1)
    await watcher.until(lambda body: codes(body, B) == ["Held"], f"/v1/health?gpu={B}")


async def test_a_restart_forgets_nothing(node: Node) -> None:
    node.caller_is()
    file = node.directory / "gpu-health.json"
    async with node.agent() as calling:
        await emit(calling, XID, 79)
        first = await said(calling, "Bad")
        await calling.until(lambda _: file.exists() and "Xid79" in file.read_text(), "/v1/health")
    async with node.agent() as calling:
        body = await said(calling, "Bad")
    assert gpu(body)["reasons"] == gpu(first)["reasons"]
    assert gpu(body)["since"] == gpu(first)["since"]
    assert body["epoch"] >= first["epoch"]


async def test_what_is_found_just_before_the_end_is_remembered_too(node: Node) -> None:
    node.caller_is()
    async with node.agent() as calling:
        await emit(calling, XID, 79)
        await said(calling, "Bad")
    async with node.agent() as calling:
        await said(calling, "Bad")


async def test_a_file_that_makes_no_sense_makes_gpus_unknown_where_the_driver_has_no_word(node: Node) -> None:
    node.caller_is()
    (node.directory / "gpu-health.json").write_text("{")
    node.gpus[0].health.fields.pop(230)
    async with node.agent() as calling:
        body = await calling.until(lambda body: not body["reason"], "/v1/health")
        assert [gpu(body, uuid)["verdict"] for uuid in (A, B)] == ["Unknown", "Ok"]
        assert gpu(body)["notes"] == ["what was found of it before is not known"]
        assert (await canary(calling, gpu=A, passed="true"))[0] == 200
        assert gpu(await health(calling))["verdict"] == "Ok"


async def test_a_file_that_cannot_be_written_is_said_and_stops_nothing(node: Node) -> None:
    node.caller_is()
    (node.directory / "file").write_text("")
    options = replace(node.options, latches=node.directory / "file" / "gpu-health.json")
    async with node.agent(options) as calling:
        body = await calling.until(lambda body: body["sources"]["File"] != "", "/v1/health")
        assert str(node.directory) in body["sources"]["File"]
        await emit(calling, XID, 79)
        await said(calling, "Bad")
        assert 'emberpool_node_health_source{source="File"} 0.0' in await calling.page()


async def test_a_hanging_look_makes_a_gpu_unknown_in_time_and_the_other_stays_known(node: Node) -> None:
    node.caller_is()
    node.gpus[0].health.rows = (0, 1, 1, 0)
    async with node.agent() as calling:
        await said(calling, "Suspect")
        with node.library.hanging("nvmlDeviceGetTemperature", uuid=A):
            await emit(calling, RECOVERY, 0)
            async with asyncio.timeout(WAIT_SECONDS):
                while node.library.calls.count("nvmlDeviceGetRepairStatus") < 3:
                    await asyncio.sleep(0.005)
            body = await health(calling)
            assert sorted(codes(body)) == ["RecoveryChanged", "RowRemapPending"]
            assert gpu(body, B)["verdict"] == "Ok"
            assert await calling.memory(gpu=A)  # is answered in another lane


async def test_a_lost_gpu_is_suspect_and_then_bad_and_told_of_by_name(node: Node) -> None:
    node.caller_is()
    functions = [name for name in vars(type(node.library)) if name.startswith("nvmlDeviceGet")]
    async with node.agent(replace(node.options, rules=Rules(confirm_seconds=0.5))) as calling:
        await emit(calling, XID, 13)
        for function in functions:
            if function != "nvmlDeviceGetCount":
                node.library.fail(function, pynvml.NVML_ERROR_GPU_IS_LOST, uuid=B)
        await emit(calling, XID, 13)
        await said(calling, "Suspect", B)
        body = await said(calling, "Bad", B)
    assert set(codes(body, B)) & {"Lost", "Missing"}
    assert body["verdict"] == "Bad"


async def test_a_reloaded_driver_is_watched_again(watcher: Caller) -> None:
    await emit(watcher, XID, 13)
    watcher.node.library.reload()
    await watcher.ask("/v1/memory", maxAgeMilliseconds="0")
    await watcher.until(lambda body: body["nvml"] == "Open")
    await emit(watcher, XID, 79)
    await said(watcher, "Bad")


async def test_an_outdated_library_is_no_fault_of_the_gpus(watcher: Caller) -> None:
    watcher.node.library.fail("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    await emit(watcher, XID, 13)
    body = await watcher.until(lambda body: "NVML error 18" in body["reason"], "/v1/health")
    assert body["verdict"] == "Ok"


async def test_the_kernels_log_is_read_where_it_is_given(node: Node) -> None:
    node.caller_is()
    read, write = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
    try:
        async with node.agent(replace(node.options, kmsg=Path(f"/proc/self/fd/{read}"))) as calling:
            await calling.until(lambda body: body["sources"]["KernelLog"] == "", "/v1/health")
            os.write(
                write, b"4,7,1000,-;NVRM: Xid (PCI:0000:07:00): 79, pid=1, GPU has fallen off the bus.\n"
            )
            assert codes(await said(calling, "Bad", B), B) == ["Xid79"]
            os.write(write, b"4,8,1000,-;NVRM: Xid (PCI:0000:99:00): 79, of no GPU here\n")
            await calling.until(lambda body: not gpu(body)["reasons"], "/v1/health")
            async with asyncio.timeout(WAIT_SECONDS):
                while "emberpool_node_unplaced_events_total 1.0" not in await calling.page():
                    await asyncio.sleep(0.005)
    finally:
        os.close(read)
        os.close(write)


# ---------------------------------------------------------------------- who asks


async def test_a_pod_is_told_of_its_own_gpus_and_of_any_that_it_names(caller: Caller) -> None:
    await caller.until(lambda body: not body["reason"], "/v1/health")
    assert [each["uuid"] for each in (await health(caller))["gpus"]] == [A]
    assert [each["uuid"] for each in (await health(caller, gpu="1"))["gpus"]] == [B]


async def test_a_gpu_that_is_not_there_is_refused(watcher: Caller) -> None:
    status, body = await watcher.ask("/v1/health", gpu="GPU-z")
    assert (status, body["error"]["code"]) == (404, "UnknownGpu")


@pytest.mark.parametrize("query", [{"pid": "1"}, {"maxAgeMilliseconds": "1"}, {"gpu": ","}])
async def test_a_question_that_makes_no_sense_is_refused(watcher: Caller, query: dict[str, str]) -> None:
    status, body = await watcher.ask("/v1/health", **query)
    assert (status, body["error"]["code"]) == (400, "BadQuestion")


async def test_a_canary_is_believed_of_a_pod_that_has_the_gpu(caller: Caller) -> None:
    status, body = await canary(caller, passed="false")
    assert (status, body) == (200, {"gpus": [A], "counts": True})
    caller.node.caller_is()
    assert codes(await said(caller, "Suspect")) == ["CanaryFailed"]
    status, body = await canary(caller, passed="maybe")
    assert (status, body["error"]["code"]) == (400, "BadQuestion")


async def test_a_canary_of_another_pods_gpu_is_not_believed(caller: Caller) -> None:
    status, body = await canary(caller, gpu=B, passed="false")
    assert (status, body["error"]["code"]) == (403, "NotYours")
    status, body = await caller.ask("/v1/health", pod=YOURS)
    assert (status, body["error"]["code"]) == (403, "NotYours")


async def test_on_tcp_health_wants_the_token(node: Node) -> None:
    options: NodeAgentOptions = replace(node.options, port=0, token="secret")
    async with node.agent(options) as calling:
        await calling.until(lambda body: not body["reason"], f"/v1/health?gpu={A}")


# ---------------------------------------------------------------------- the client


async def test_an_agent_learns_the_worst_of_its_gpus(watcher: Caller) -> None:
    client = watcher.client()
    found = await client.health([A, B], deadline=Deadline.after(5))
    assert (found.verdict, found.known, found.reason) == (Verdict.OK, True, "")
    await emit(watcher, XID, 79)
    await said(watcher, "Bad")
    found = await client.health([A, B], deadline=Deadline.after(5))
    assert (found.verdict, found.reason) == (
        Verdict.BAD,
        f"{A} is Bad: Xid 79: The GPU has fallen off the bus",
    )
    assert (await client.health([B], deadline=Deadline.after(5))).verdict is Verdict.OK
    await client.close()


async def test_a_seat_whose_gpus_nobody_knows_is_not_stopped_by_one_of_the_nodes(watcher: Caller) -> None:
    await emit(watcher, XID, 79)
    await said(watcher, "Bad")
    client = watcher.client()
    found = await client.health([], deadline=Deadline.after(5))
    assert (found.verdict, found.known) == (Verdict.OK, False)
    await client.close()


async def test_an_agent_tells_of_a_canary(caller: Caller) -> None:
    client = caller.client(pod=MINE)
    await caller.until(lambda body: not body["reason"], "/v1/health")
    assert await client.canary([A], passed=False, proof="", deadline=Deadline.after(5))
    assert (await client.health([A], deadline=Deadline.after(5))).verdict is Verdict.SUSPECT
    assert await client.canary([A], passed=True, proof="", deadline=Deadline.after(5))
    assert (await client.health([A], deadline=Deadline.after(5))).verdict is Verdict.OK
    await client.close()


async def test_a_proof_that_never_passed_says_nothing_of_the_gpu(caller: Caller) -> None:
    client = caller.client(pod=MINE)
    await caller.until(lambda body: not body["reason"], "/v1/health")
    for proof, passed, verdict in (
        ("p", False, Verdict.OK),
        ("p", True, Verdict.OK),
        ("q", False, Verdict.OK),
        ("p", False, Verdict.SUSPECT),
    ):
        assert await client.canary([A], passed=passed, proof=proof, deadline=Deadline.after(5))
        assert (await client.health([A], deadline=Deadline.after(5))).verdict is verdict
    await client.close()
    page = await caller.page()
    assert f'emberpool_gpu_canaries_total{{gpu="{A}",outcome="Uncounted"}} 2.0' in page
    status, body = await canary(caller, passed="false", proof="p" * 65)
    assert (status, body["error"]["code"]) == (400, "BadQuestion")


async def test_what_was_found_of_a_gpu_before_an_engine_started_is_told_in_its_words(caller: Caller) -> None:
    client = caller.client(pod=MINE)
    await caller.until(lambda body: not body["reason"], "/v1/health")
    assert await client.fault([A], text="2 words were wrong", deadline=Deadline.after(5))
    health = await client.health([A], deadline=Deadline.after(5))
    assert (health.verdict, health.reason) == (Verdict.SUSPECT, f"{A} is Suspect: 2 words were wrong")
    await client.close()
    assert f'emberpool_gpu_canaries_total{{gpu="{A}",outcome="Refused"}} 1.0' in await caller.page()
    for query in (
        {"passed": "true", "fault": "x"},
        {"passed": "false", "fault": "x" * 301},
        {"passed": "false", "fault": "x\ny"},
    ):
        status, body = await canary(caller, **query)
        assert (status, body["error"]["code"]) == (400, "BadQuestion")


async def test_an_agent_whose_node_agent_is_gone_knows_nothing_and_is_not_stopped(node: Node) -> None:
    async with node.agent() as calling:
        client = calling.client()
    found = await client.health([A], deadline=Deadline.after(5))
    assert (found.verdict, found.known) == (Verdict.OK, False)
    assert "can't be asked" in found.reason
    assert not await client.canary([A], passed=True, proof="", deadline=Deadline.after(5))
    await client.close()


async def test_a_node_agent_of_an_older_version_is_one_that_says_nothing(tmp_path: Path) -> None:
    app = web.Application()
    runner = web.AppRunner(app)
    await runner.setup()
    path = tmp_path / "old.sock"
    await web.UnixSite(runner, str(path)).start()
    client = NodeAgent(f"unix://{path}", NoMemory("nothing"))
    try:
        found = await client.health([A], deadline=Deadline.after(5))
        assert (found.verdict, found.known) == (Verdict.OK, False)
    finally:
        await client.close()
        await runner.cleanup()


# ---------------------------------------------------------------------- metrics


async def test_the_metrics_page_shows_verdicts_reasons_and_readings(watcher: Caller) -> None:
    watcher.node.gpus[1].health.rows = (0, 3, 1, 0)
    watcher.node.gpus[1].health.links, watcher.node.gpus[1].health.link_errors = [1, 1, 0], 2
    watcher.node.gpus[1].health.fabric = (3, 0, 0)
    await emit(watcher, XID, 13)
    await said(watcher, "Suspect", B)
    page = await watcher.page()
    for line in (
        f'emberpool_gpu_health{{gpu="{A}",verdict="Ok"}} 1.0',
        f'emberpool_gpu_health{{gpu="{B}",verdict="Suspect"}} 1.0',
        f'emberpool_gpu_health_reason{{gpu="{B}",reason="RowRemapPending"}} 1.0',
        f'emberpool_gpu_xids_total{{gpu="{A}",source="Nvml",xid="13"}} 1.0',
        f'emberpool_gpu_events_total{{gpu="{A}",source="Nvml",told="Xid"}} 1.0',
        f'emberpool_gpu_remapped_rows{{cause="Uncorrectable",gpu="{B}"}} 3.0',
        f'emberpool_gpu_temperature_celsius{{gpu="{A}",sensor="Core"}} 31.0',
        f'emberpool_gpu_power_watts{{gpu="{A}"}} 117.994',
        f'emberpool_gpu_slowed{{gpu="{A}"}} 0.0',
        f'emberpool_gpu_pcie_lanes{{gpu="{A}"}} 16.0',
        f'emberpool_gpu_recovery_action{{gpu="{A}"}} 0.0',
        f'emberpool_gpu_memory_errors{{gpu="{A}",kind="Uncorrected",place="Sram"}} 0.0',
        f'emberpool_gpu_pcie_replays{{gpu="{A}"}} 1.0',
        f'emberpool_gpu_links{{gpu="{B}",state="Inactive"}} 1.0',
        f'emberpool_gpu_link_errors{{gpu="{B}",kind="Replayed"}} 6.0',
        f'emberpool_gpu_fabric_joined{{gpu="{B}"}} 1.0',
        'emberpool_node_gpus{state="Expected"} 2.0',
        'emberpool_node_health_source{source="Events"} 1.0',
    ):
        assert line in page

"""The kubelet's side of it: which GPUs a pod has, without a kubelet, with one that refuses, and with one that comes back."""

from dataclasses import replace

import grpc
import pytest

from tests.integration.nodehealth.conftest import MINE, A, B, Caller, Node
from warmpool.nodehealth.allocations import Allocation, GivenDevice, PodName
from warmpool.nodehealth.pod_resources import KubeletUnreachable, list_allocations


async def test_all_that_pods_were_given_is_listed_claims_too(node: Node) -> None:
    node.kubelet.pods = {"serving/seat-0": [A]}
    node.kubelet.claims = {"serving/seat-1": ["gpu-1"]}
    async with node.kubelet.listening(node.directory / "kubelet.sock"):
        found = await list_allocations(node.directory / "kubelet.sock", seconds=5)
    assert found == (
        Allocation(PodName("serving", "seat-0"), (GivenDevice("nvidia.com/gpu", A),)),
        Allocation(PodName("serving", "seat-1"), (GivenDevice("gpu.nvidia.com", "gpu-1"),)),
    )


async def test_many_pods_are_more_than_grpcs_usual_message(node: Node) -> None:
    node.kubelet.pods = {f"serving/{'x' * 200}-{number}": [A] * 100 for number in range(1200)}
    async with node.kubelet.listening(node.directory / "kubelet.sock"):
        found = await list_allocations(node.directory / "kubelet.sock", seconds=10)
    assert len(found) == 1200


async def test_a_socket_that_is_not_there_is_said_so(node: Node) -> None:
    with pytest.raises(KubeletUnreachable, match=r"kubelet\.sock: UNAVAILABLE: .*No such file"):
        await list_allocations(node.directory / "kubelet.sock", seconds=5)


async def test_a_kubelet_that_knows_no_such_call_is_said_so(node: Node) -> None:
    node.kubelet.refusal = grpc.StatusCode.UNIMPLEMENTED
    async with node.kubelet.listening(node.directory / "kubelet.sock"):
        with pytest.raises(KubeletUnreachable, match="UNIMPLEMENTED: said no"):
            await list_allocations(node.directory / "kubelet.sock", seconds=5)


async def test_a_claimed_gpu_is_the_pods_without_a_process_on_it(node: Node) -> None:
    node.kubelet.pods = {"serving/seat-1": [A]}
    node.kubelet.claims = {"serving/seat-0": ["gpu-1"]}
    node.gpus[0].processes.clear()
    async with node.kubelet.listening(node.directory / "kubelet.sock"), node.agent() as calling:
        await calling.told_of_pods()
        answer = await calling.memory()
    assert [(gpu["uuid"], gpu["given"]) for gpu in answer["gpus"]] == [(B, True)]
    assert answer["verified"]


async def test_without_a_kubelet_a_named_gpu_is_verified_and_what_is_missing_is_noted(node: Node) -> None:
    async with node.agent() as calling:
        answer = await calling.memory(gpu=A)
        assert answer["verified"]
        assert answer["gpus"][0]["given"] is None
        noted = await calling.until(lambda body: "UNAVAILABLE" in str(body["notes"]), "/v1/memory")
        assert noted["notes"][0].startswith("which pods have which GPUs is unknown: ")
        assert "emberpool_node_pod_resources_answering 0.0" in await calling.page()


async def test_without_a_kubelet_a_pods_gpus_are_not_guessed_from_its_processes(node: Node) -> None:
    async with node.agent() as calling:
        answer = await calling.memory()
    assert [gpu["uuid"] for gpu in answer["gpus"]] == [A]
    assert not answer["verified"]
    assert "which pods have which GPUs" in answer["reason"] or "not asked yet" in answer["reason"]


async def test_a_machine_that_has_no_kubelet_misses_nothing(node: Node) -> None:
    async with node.agent(replace(node.options, kubelet=None)) as calling:
        answer = await calling.memory(gpu=A)
        assert (answer["verified"], answer["notes"]) == (True, [])
        assert "\nemberpool_node_pod_resources_answering" not in await calling.page()


async def test_a_kubelet_that_comes_later_is_found(node: Node) -> None:
    async with node.agent() as calling:
        await calling.until(lambda body: "UNAVAILABLE" in str(body["notes"]), "/v1/memory")
        async with node.kubelet.listening(node.directory / "kubelet.sock"):
            await calling.told_of_pods()
            assert (await calling.memory())["gpus"][0]["given"]


async def test_a_new_pod_is_found_without_waiting_for_the_next_round(caller: Caller) -> None:
    node = caller.node
    late = "22222222-2222-3333-4444-555555555555"
    node.kubelet.pods = {**node.kubelet.pods, "serving/late": [B]}
    (node.directory / "pods" / f"serving_late_{late}").mkdir()
    node.caller_is(pod=late)
    answer = await caller.until(lambda body: bool(body["gpus"]), "/v1/memory")
    assert [(gpu["uuid"], gpu["given"]) for gpu in answer["gpus"]] == [(B, True)]
    assert MINE not in str(answer)


async def test_a_folder_without_pods_logs_is_noted(node: Node) -> None:
    options = replace(node.options, pod_logs=node.directory / "proc")
    async with node.kubelet.listening(node.directory / "kubelet.sock"), node.agent(options) as calling:
        answer = await calling.until(lambda body: "log folder" in str(body["notes"]), "/v1/memory")
    assert not answer["verified"]

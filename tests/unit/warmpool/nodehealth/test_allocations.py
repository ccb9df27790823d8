"""From a kubelet's names of devices and pods to UUIDs of both."""

import pytest

from warmpool.nodehealth.allocations import (
    Allocation,
    GivenDevice,
    PodName,
    gpus_of_pods,
    pod_uids,
    resolve,
)
from warmpool.nodehealth.nvml import Device

A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
B = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
M = "MIG-cccccccc-0000-0000-0000-000000000000"
DEVICES = (
    Device(uuid=A, index=0, minor=1),
    Device(uuid=M, index=0, minor=1, parent=A),
    Device(uuid=B, index=1, minor=0),
)
POD = PodName("serving", "spares-h200-abc12")
GPU_RESOURCE = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("source", "device", "uuid"),
    [
        pytest.param(GPU_RESOURCE, A, A, id="a GPU"),
        pytest.param(GPU_RESOURCE, f"{A}::3", A, id="a replica of a GPU"),
        pytest.param("nvidia.com/mig-1g.18gb", M, M, id="a MIG device"),
        pytest.param("nvidia.com/gpu.shared", f"{B}::0", B, id="a shared GPU under another name"),
        pytest.param("example.com/rented", A, A, id="a UUID says whose it is under any name"),
        pytest.param(GPU_RESOURCE, "1", B, id="an index"),
        pytest.param(GPU_RESOURCE, "0:1", A, id="a MIG device by its place stands for its GPU"),
        pytest.param(GPU_RESOURCE, "nvidia0", B, id="a device file"),
        pytest.param(GPU_RESOURCE, "nvidia1/vgpu2", A, id="a share of a device file"),
        pytest.param(GPU_RESOURCE, "nvidia1/gi3", A, id="a MIG device of a device file"),
        pytest.param("gpu.nvidia.com", "gpu-0", B, id="a claimed GPU"),
        pytest.param("gpu.nvidia.com", "gpu-1-mig-9-0-1", A, id="a claimed MIG device"),
        pytest.param("gpu.nvidia.com", A.lower(), A, id="a claimed GPU by UUID"),
        pytest.param(GPU_RESOURCE, "7", None, id="an index that isn't there"),
        pytest.param(GPU_RESOURCE, "GPU-dddddddd", None, id="a UUID that isn't there"),
        pytest.param("gpu.nvidia.com", "gpu-9", None, id="a device file that isn't there"),
        pytest.param("example.com/fpga", "0", None, id="somebody else's index"),
        pytest.param("dra.example.com", "gpu-0", None, id="somebody else's claim"),
        pytest.param(GPU_RESOURCE, "", None, id="nothing"),
    ],
)
def test_a_given_device_is_one_of_the_nodes(source: str, device: str, uuid: str | None) -> None:
    assert resolve(GivenDevice(source, device), DEVICES) == uuid


def test_a_pod_has_what_its_containers_were_given() -> None:
    allocation = Allocation(
        POD, (GivenDevice(GPU_RESOURCE, A), GivenDevice("gpu.nvidia.com", "gpu-0"), GivenDevice("x/y", "1"))
    )
    assert gpus_of_pods([allocation], {POD: frozenset({"uid-1"})}, DEVICES) == {"uid-1": {A, B}}


def test_a_gpu_may_be_several_pods() -> None:
    other = PodName("serving", "ended")
    allocations = [Allocation(pod, (GivenDevice(GPU_RESOURCE, A),)) for pod in (POD, other)]
    uids = {POD: frozenset({"uid-1"}), other: frozenset({"uid-2"})}
    assert gpus_of_pods(allocations, uids, DEVICES) == {"uid-1": {A}, "uid-2": {A}}


def test_a_name_that_was_used_again_stands_for_both_pods() -> None:
    found = gpus_of_pods(
        [Allocation(POD, (GivenDevice(GPU_RESOURCE, A),))], {POD: frozenset({"uid-1", "uid-2"})}, DEVICES
    )
    assert found == {"uid-1": {A}, "uid-2": {A}}


def test_pods_without_a_gpu_and_pods_without_a_uid_are_left_out() -> None:
    cpu_only, nameless = PodName("a", "b"), PodName("c", "d")
    allocations = [
        Allocation(cpu_only, (GivenDevice("x/y", "1"),)),
        Allocation(nameless, (GivenDevice(GPU_RESOURCE, A),)),
    ]
    assert gpus_of_pods(allocations, {cpu_only: frozenset({"uid-1"})}, DEVICES) == {}


def test_uids_are_read_from_the_names_of_log_folders() -> None:
    folders = [
        "serving_spares-h200-abc12_9fb3ac5b-5a36-4a91-b9a1-0b1a2c7c5a11",
        "kube-system_kube-proxy_8c0c8e0e3bfe0a2ec3b1a1dd60ed4d0f",
        "serving_spares-h200-abc12_11111111-2222-3333-4444-555555555555",
        "no-pod",
        "a__b",
        "a_b_c_d",
    ]
    assert pod_uids(folders) == {
        POD: {"9fb3ac5b-5a36-4a91-b9a1-0b1a2c7c5a11", "11111111-2222-3333-4444-555555555555"},
        PodName("kube-system", "kube-proxy"): {"8c0c8e0e3bfe0a2ec3b1a1dd60ed4d0f"},
    }

"""Who a process belongs to, in the words of every runtime and cgroup driver."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.nodehealth.processes import NOBODY, Owner, owner_of, start_ticks_of, status_of

POD = "9fb3ac5b-5a36-4a91-b9a1-0b1a2c7c5a11"
UNDER = POD.replace("-", "_")
OTHER = "11111111-2222-3333-4444-555555555555"
STATIC = "8c0c8e0e3bfe0a2ec3b1a1dd60ed4d0f"
C = "0123456789abcdef" * 4
D = "fedcba9876543210" * 4
IN_POD = Owner(POD, C)

OWNERS = {
    "containerd, systemd, v2, burstable": (
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDER}.slice/cri-containerd-{C}.scope",
        IN_POD,
    ),
    "containerd, systemd, v2, guaranteed": (
        f"0::/kubepods.slice/kubepods-pod{UNDER}.slice/cri-containerd-{C}.scope",
        IN_POD,
    ),
    "containerd, cgroupfs, v2": (f"0::/kubepods/besteffort/pod{POD}/{C}", IN_POD),
    "containerd, cgroupfs, guaranteed": (f"0::/kubepods/pod{POD}/{C}", IN_POD),
    "containerd, its driver differs from the kubelet's": (
        f"1:name=systemd:/system.slice/containerd.service/kubepods-burstable-pod{UNDER}.slice:cri-containerd:{C}",
        IN_POD,
    ),
    "cri-o, systemd": (
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDER}.slice/crio-{C}.scope",
        IN_POD,
    ),
    "cri-o, with a cgroup of the container's own below": (
        f"0::/kubepods.slice/kubepods-pod{UNDER}.slice/crio-{C}.scope/container",
        IN_POD,
    ),
    "cri-o, cgroupfs": (f"3:devices:/kubepods/burstable/pod{POD}/crio-{C}", IN_POD),
    "docker, cgroupfs, v1": (
        "\n".join(
            [
                f"12:pids:/kubepods/burstable/pod{POD}/{C}",
                f"11:cpu,cpuacct:/kubepods/burstable/pod{POD}/{C}",
                f"1:name=systemd:/kubepods/burstable/pod{POD}/{C}",
            ]
        ),
        IN_POD,
    ),
    "docker, systemd, v1": (
        f"4:memory:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDER}.slice/docker-{C}.scope",
        IN_POD,
    ),
    "v1 beside v2, where v2 says nothing": (
        f"9:devices:/kubepods/burstable/pod{POD}/{C}\n0::/system.slice/containerd.service",
        IN_POD,
    ),
    "k3s": (f"0::/kubepods/burstable/pod{POD}/{C}", IN_POD),
    "k3s, rootless": (
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/k3s-rootless.scope/kubepods/pod{POD}/{C}",
        IN_POD,
    ),
    "a node that is a container itself, systemd": (
        f"0::/docker/{D}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{UNDER}.slice/cri-containerd-{C}.scope",
        IN_POD,
    ),
    "a node that is a container itself, cgroupfs": (
        f"0::/docker/{D}/kubelet/kubepods/besteffort/pod{POD}/{C}",
        IN_POD,
    ),
    "a cluster in a pod: the outer kubelet knows the outer pod": (
        f"0::/kubepods/burstable/pod{POD}/{C}/kubepods/besteffort/pod{OTHER}/{D}",
        IN_POD,
    ),
    "seen from a cgroup namespace of another service class": (
        f"0::/../../../kubepods-burstable.slice/kubepods-burstable-pod{UNDER}.slice/cri-containerd-{C}.scope",
        IN_POD,
    ),
    "seen from a cgroup namespace of the same service class": (
        f"0::/../../kubepods-besteffort-pod{UNDER}.slice/cri-containerd-{C}.scope",
        IN_POD,
    ),
    "seen from a cgroup namespace, cgroupfs": (f"0::/../../pod{POD}/{C}", IN_POD),
    "a static pod, whose UID is a hash": (
        f"0::/kubepods/burstable/pod{STATIC}/{C}",
        Owner(STATIC, C),
    ),
    "a zombie in a pod that is gone": (
        f"0::/kubepods.slice/kubepods-pod{UNDER}.slice/cri-containerd-{C}.scope (deleted)",
        IN_POD,
    ),
    "a pod's own cgroup, in no container": (f"0::/kubepods/burstable/pod{POD}", Owner(POD, "")),
    "docker": (f"0::/docker/{C}", Owner("", C)),
    "docker, systemd": (f"0::/system.slice/docker-{C}.scope", Owner("", C)),
    "docker in docker: the inner one is the narrower": (f"0::/docker/{D}/docker/{C}", Owner("", C)),
    "podman": (f"0::/machine.slice/libpod-{C}.scope/container", Owner("", C)),
    "podman, rootless": (
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{C}.scope",
        Owner("", C),
    ),
    "containerd without Kubernetes": (f"0::/default/{C}", Owner("", C)),
    "a Slurm job": ("0::/system.slice/slurmstepd.scope/job_812/step_0/user/task_0", NOBODY),
    "a login": ("0::/user.slice/user-1000.slice/session-3.scope", NOBODY),
    "a service": ("0::/system.slice/nvidia-persistenced.service", NOBODY),
    "the root of a cgroup namespace": ("0::/", NOBODY),
    "nothing": ("", NOBODY),
    "no cgroup at all": ("garbage\n:\n::", NOBODY),
    "a folder that only looks like a pod's": (f"0::/podman/{POD}", NOBODY),
    "controllers that disagree about the pod": (
        f"2:cpu:/kubepods/pod{POD}/{C}\n1:memory:/kubepods/pod{OTHER}/{C}",
        NOBODY,
    ),
    "controllers that disagree about the container": (
        f"2:cpu:/kubepods/pod{POD}/{C}\n1:memory:/kubepods/pod{POD}/{D}",
        Owner(POD, ""),
    ),
}


@pytest.mark.parametrize(("cgroup", "owner"), OWNERS.values(), ids=OWNERS)
def test_a_cgroup_names_pod_and_container(cgroup: str, owner: Owner) -> None:
    assert owner_of(cgroup) == owner
    assert owner_of(cgroup + "\n") == owner


@given(st.text(max_size=400))
def test_no_text_is_too_strange_to_be_read(text: str) -> None:
    assert isinstance(owner_of(text), Owner)
    assert status_of(text) is None
    assert isinstance(start_ticks_of(text), int | None)


STATUS = """\
Name:\tpython3
Umask:\t0022
State:\tS (sleeping)
Tgid:\t481
Pid:\t481
PPid:\t480
Uid:\t1000\t0\t0\t0
Gid:\t0\t0\t0\t0
NStgid:\t481\t7
NSpid:\t481\t7
NSpgid:\t452\t0
NSsid:\t447\t0
VmSize:\t  100 kB
"""


def test_a_status_says_by_which_ids_the_process_is_known() -> None:
    status = status_of(STATUS)
    assert status is not None
    assert (status.parent, status.uid) == (480, 1000)
    assert (status.ns_pids, status.ns_sessions) == ((481, 7), (447, 0))


def test_a_kernel_without_namespace_ids_knows_one() -> None:
    status = status_of("\n".join(line for line in STATUS.splitlines() if not line.startswith("NS")))
    assert status is not None
    assert (status.ns_pids, status.ns_sessions) == ((481,), ())


@pytest.mark.parametrize("field", ["Pid", "PPid", "Uid"])
def test_a_status_that_lacks_what_a_process_has_is_none(field: str) -> None:
    assert (
        status_of("\n".join(line for line in STATUS.splitlines() if not line.startswith(f"{field}:"))) is None
    )


REST = "S 480 452 447 0 -1 4194560 1 0 0 0 2 0 0 0 20 0 1 0 {start} 1 1"


@pytest.mark.parametrize("name", ["python3", "a b", "a) S 1 (b", "(sd-pam)", ") 9 9 9"])
def test_the_start_is_found_whatever_the_program_is_called(name: str) -> None:
    assert start_ticks_of(f"481 ({name}) " + REST.format(start=123_456)) == 123_456


@pytest.mark.parametrize("stat", ["", "481 (python3) S 1 2", "481 (python3) " + REST.format(start="x")])
def test_a_stat_without_a_start_has_none(stat: str) -> None:
    assert start_ticks_of(stat) is None

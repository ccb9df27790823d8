"""Reading /proc: identities, kin, and everything that makes a process another one than the driver meant."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fakes.proc_tree import ProcTree, pod_cgroup
from warmpool.nodehealth.proc_files import ProcFiles
from warmpool.nodehealth.processes import INITIAL_PID_NAMESPACE, Identity, Owner, Unseen

POD = "9fb3ac5b-5a36-4a91-b9a1-0b1a2c7c5a11"
LATER = float("inf")


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path / "proc")


def look(tree: ProcTree, pid: int, before: float | None = None) -> Identity | Unseen:
    files = ProcFiles(tree.root)
    return files.look([pid], before=files.since_boot() if before is None else before)[pid]


def test_a_process_is_known_by_its_pod_and_by_all_its_ids(tree: ProcTree) -> None:
    tree.add(481, ns_pids=(481, 7), cgroup=pod_cgroup(POD), namespace="pid:[1]", uid=5)
    assert look(tree, 481) == Identity(
        ns_pids=(481, 7),
        namespace="pid:[1]",
        owner=Owner(POD, "a" * 64),
        uid=5,
        kin=((481, 7), (0, 0)),
    )


def test_kin_are_the_ancestors_in_the_same_container_and_the_leader_of_the_session(tree: ProcTree) -> None:
    tree.add(50, ns_pids=(50,))  # the runtime's shim
    tree.add(60, parent=50, ns_pids=(60, 1), cgroup=pod_cgroup(POD))
    tree.add(70, parent=60, ns_pids=(70, 8), cgroup=pod_cgroup(POD))
    tree.add(80, parent=70, ns_pids=(80, 9), sessions=(66, 6), cgroup=pod_cgroup(POD))
    found = look(tree, 80)
    assert isinstance(found, Identity)
    assert found.kin == ((80, 9), (70, 8), (60, 1), (66, 6))


def test_parents_that_go_in_a_circle_come_to_an_end(tree: ProcTree) -> None:
    tree.add(70, parent=80)
    tree.add(80, parent=70)
    found = look(tree, 80)
    assert isinstance(found, Identity)
    assert set(found.kin) == {(80,), (70,), (0,)}


def test_a_process_that_is_not_there_is_gone(tree: ProcTree) -> None:
    assert look(tree, 99) is Unseen.GONE


def test_a_process_that_started_after_the_driver_named_its_id_is_another_one(tree: ProcTree) -> None:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    tree.add(99, started=now + 1)
    assert look(tree, 99, now) is Unseen.GONE
    assert isinstance(look(tree, 99, now + 2), Identity)


@pytest.mark.parametrize("name", ["stat", "status"])
def test_a_process_whose_files_make_no_sense_is_unreadable(tree: ProcTree, name: str) -> None:
    tree.add(99)
    (tree.root / "99" / name).write_text("")
    assert look(tree, 99) is Unseen.UNREADABLE


def test_a_process_that_may_not_be_read_is_unreadable(tree: ProcTree) -> None:
    tree.add(99)
    (tree.root / "99" / "cgroup").unlink()
    (tree.root / "99" / "cgroup").mkdir()
    assert look(tree, 99) is Unseen.UNREADABLE


@pytest.mark.parametrize(("gpu", "sure"), [(True, True), (False, False)])
def test_outside_the_hosts_namespace_who_has_no_gpu_open_is_somebody_else(
    tmp_path: Path, *, gpu: bool, sure: bool
) -> None:
    tree = ProcTree(tmp_path / "elsewhere", initial=False)
    tree.add(99, gpu=gpu)
    found = look(tree, 99)
    assert isinstance(found, Identity) is sure
    assert sure or found is Unseen.NO_GPU
    assert not ProcFiles(tree.root).sees_all()


def test_in_the_hosts_namespace_the_driver_is_believed(tree: ProcTree) -> None:
    tree.add(99, gpu=False)
    assert ProcFiles(tree.root).sees_all()
    assert isinstance(look(tree, 99), Identity)


def test_this_very_process_is_found_in_the_real_proc() -> None:
    found = ProcFiles().identify(os.getpid())
    assert isinstance(found, Identity)
    assert found.ns_pids[0] == os.getpid()
    assert found.uid == os.getuid()
    assert found.namespace == str(Path("/proc/self/ns/pid").readlink())
    assert ProcFiles().sees_all() is (found.namespace == INITIAL_PID_NAMESPACE)


def test_a_child_has_its_parent_among_its_kin_and_leads_its_session() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    ) as child:
        found = ProcFiles().identify(child.pid)
        assert child.stdin is not None
        child.stdin.close()
    assert isinstance(found, Identity)
    own = [ids[0] for ids in found.kin]
    assert own[:2] == [child.pid, os.getpid()]

import mmap
import os
import threading
from pathlib import Path

import pytest
import torch

from loader.copiers.numa import cores_of, node_of_address, prefer_node, stay_on

ADDRESS = "0000:3b:00.0"


def machine(root: Path, node: str, *, nodes: int) -> Path:
    device = root / "sys/bus/pci/devices" / ADDRESS
    device.mkdir(parents=True)
    (device / "numa_node").write_text(f"{node}\n")
    for number in range(nodes):
        (root / f"sys/devices/system/node/node{number}").mkdir(parents=True)
        cores = f"{4 * number}-{4 * number + 1},{4 * number + 3}\n"
        (root / f"sys/devices/system/node/node{number}/cpulist").write_text(cores)
    return root


@pytest.mark.parametrize(
    ("node", "nodes", "found"),
    [
        pytest.param("1", 2, 1, id="two nodes"),
        pytest.param("-1", 2, None, id="the system doesn't tell"),
        pytest.param("0", 1, None, id="nothing to choose"),
        pytest.param("x", 2, None, id="nonsense"),
    ],
)
def test_the_node_of_a_device(tmp_path: Path, node: str, nodes: int, found: int | None) -> None:
    assert node_of_address(ADDRESS, machine(tmp_path, node, nodes=nodes)) == found


def test_a_device_that_is_not_listed(tmp_path: Path) -> None:
    assert node_of_address(ADDRESS, tmp_path) is None


def test_cores_of_a_node(tmp_path: Path) -> None:
    root = machine(tmp_path, "1", nodes=2)
    assert (cores_of(1, root), cores_of(7, root)) == ({4, 5, 7}, frozenset())


def test_a_node_that_is_not_there_is_refused_or_ignored_and_memory_works() -> None:
    block = torch.frombuffer(mmap.mmap(-1, 2**20), dtype=torch.uint8)
    prefer_node(block.data_ptr(), 2**20, 900)
    block.fill_(3)
    assert int(block.sum()) == 3 * 2**20


def test_only_the_calling_thread_is_kept_on_a_node() -> None:
    before = os.sched_getaffinity(0)
    thread = threading.Thread(target=stay_on, args=(0,))
    thread.start()
    thread.join()
    assert os.sched_getaffinity(0) == before

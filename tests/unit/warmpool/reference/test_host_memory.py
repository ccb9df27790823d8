"""What the machine can still give, read from files as kernels write them."""

from pathlib import Path

import pytest

from warmpool.reference.errors import NotEnoughHostMemory
from warmpool.reference.host_memory import SPARE_BYTES, available, require

GIB = 1 << 30


class Machine:
    """A root directory with the files that tell of memory."""

    def __init__(self, root: Path, *, free: int) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal: 99 kB\nMemAvailable: {free // 1024} kB\nCached: 1 kB\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def member_of(self, *lines: str) -> None:
        self.write("proc/self/cgroup", "".join(f"{line}\n" for line in lines))

    def v2(self, group: str, limit: int | str, used: int = 0, *, cached: int = 0) -> None:
        inside = f"sys/fs/cgroup/{group}".rstrip("/")
        self.write(f"{inside}/memory.max", f"{limit}\n")
        self.write(f"{inside}/memory.current", f"{used}\n")
        self.write(f"{inside}/memory.stat", f"anon 1\ninactive_file {cached}\nactive_file 0\nfile {cached}\n")

    def v1(self, group: str, limit: int, used: int = 0, *, cached: int = 0) -> None:
        inside = f"sys/fs/cgroup/memory/{group}".rstrip("/")
        self.write(f"{inside}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"{inside}/memory.usage_in_bytes", f"{used}\n")
        self.write(
            f"{inside}/memory.stat", f"cache {cached}\ntotal_inactive_file 0\ntotal_active_file {cached}\n"
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, free=64 * GIB)


def test_without_groups_it_is_what_the_machine_has_left(machine: Machine) -> None:
    assert available(machine.root).nbytes == 64 * GIB


def test_page_cache_in_a_group_can_still_be_taken(machine: Machine) -> None:
    machine.member_of("0::/")
    machine.v2("", 32 * GIB, 30 * GIB, cached=17 * GIB)
    assert available(machine.root).nbytes == 19 * GIB


@pytest.mark.parametrize("tight", ["pods", "pods/one", "pods/one/engine"])
def test_the_tightest_of_the_groups_above_it_rules(machine: Machine, tight: str) -> None:
    machine.member_of("0::/pods/one/engine")
    for group in ("pods", "pods/one", "pods/one/engine"):
        machine.v2(group, 8 * GIB if group == tight else 40 * GIB, 2 * GIB)
    there = available(machine.root)
    assert (there.nbytes, there.bound.rpartition("cgroup/")[2]) == (6 * GIB, tight)


def test_a_group_without_a_limit_doesn_t_bound(machine: Machine) -> None:
    machine.member_of("0::/pods")
    machine.v2("pods", "max", 50 * GIB)
    assert available(machine.root).nbytes == 64 * GIB


def test_groups_of_the_first_version_bound_too(machine: Machine) -> None:
    machine.member_of("4:cpu,memory:/pods/one", "0::/")
    machine.v1("pods", 1 << 62)
    machine.v1("pods/one", 16 * GIB, 10 * GIB, cached=3 * GIB)
    assert available(machine.root).nbytes == 9 * GIB


def test_inside_a_container_the_group_that_is_mounted_rules(machine: Machine) -> None:
    machine.member_of("4:memory:/host/path/that/is/not/mounted/here")
    machine.v1("", 16 * GIB, 10 * GIB)
    assert available(machine.root).nbytes == 6 * GIB


def test_a_group_above_its_limit_has_nothing_left(machine: Machine) -> None:
    machine.member_of("0::/")
    machine.v2("", 8 * GIB, 9 * GIB)
    assert available(machine.root).nbytes == 0


def test_what_leaves_enough_for_others_may_be_taken(machine: Machine) -> None:
    require(64 * GIB - SPARE_BYTES, "a copy", machine.root)


def test_what_does_not_is_refused_and_says_what_bounds_it(machine: Machine) -> None:
    machine.member_of("0::/pods")
    machine.v2("pods", 20 * GIB, 4 * GIB)
    with pytest.raises(
        NotEnoughHostMemory, match=r"a copy needs 16384 MiB .*; 16384 MiB are left by .*cgroup/pods"
    ):
        require(16 * GIB, "a copy", machine.root)

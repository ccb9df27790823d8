"""Where the kernel counts OOM kills, on machines of all sorts."""

from pathlib import Path

import pytest

from warmpool.launcher import memory_control_files

V2_OWN_NAMESPACE = ("0::/\n", "36 25 0:31 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n")
V2_OF_THE_HOST = (
    "0::/kubepods.slice/pod1/cri-2\n",
    "36 25 0:31 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
)
V1_BOUND = (
    "5:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/system.slice\n",
    """\
40 31 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory
41 31 0:29 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct
""",
)
V1_OF_THE_HOST = (
    "5:memory:/user/x\n",
    "40 31 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
)
HYBRID = (
    "5:memory:/job\n0::/\n",
    "40 31 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n41 31 0:38 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n",
)
ELSEWHERE = ("0::/../other\n", "36 25 0:31 /mine /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
A_LIKE_NAME = ("5:memory:/jobs\n", "40 31 0:28 /job /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
NONE = ("", "36 25 0:31 / / rw - ext4 /dev/vda rw\n")


@pytest.mark.parametrize(
    ("texts", "files"),
    [
        (V2_OWN_NAMESPACE, ["/sys/fs/cgroup/memory.events"]),
        (V2_OF_THE_HOST, ["/sys/fs/cgroup/kubepods.slice/pod1/cri-2/memory.events"]),
        (V1_BOUND, ["/sys/fs/cgroup/memory/memory.oom_control"]),
        (V1_OF_THE_HOST, ["/sys/fs/cgroup/memory/user/x/memory.oom_control"]),
        (HYBRID, ["/sys/fs/cgroup/memory/job/memory.oom_control", "/sys/fs/cgroup/unified/memory.events"]),
        (ELSEWHERE, ["/sys/fs/cgroup/memory.events"]),
        (A_LIKE_NAME, ["/sys/fs/cgroup/memory/memory.oom_control"]),
        (NONE, []),
    ],
)
def test_the_files_are_found(texts: tuple[str, str], files: list[str]) -> None:
    assert [path for path, _start in memory_control_files(*texts)] == [Path(file) for file in files]


def test_those_of_this_machine_exist_or_there_are_none() -> None:
    cgroups = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    assert all(path.is_absolute() for path, _start in memory_control_files(cgroups, mounts))

from pathlib import Path

import pytest

from loader.admission import SPARE_BYTES, Limits, Needs, Reason, admit, shortages
from loader.errors import LoadRefused
from loader.sources.limits import read_limits

GIB = 2**30


@pytest.mark.parametrize(
    ("needs", "limits", "reasons"),
    [
        pytest.param(Needs(host=GIB), Limits(host=GIB + SPARE_BYTES), [], id="just enough"),
        pytest.param(
            Needs(host=GIB), Limits(host=GIB + SPARE_BYTES - 1), [Reason.HOST_MEMORY], id="a byte too little"
        ),
        pytest.param(
            Needs(pinned=GIB, shared=GIB, host=1),
            Limits(host=2 * GIB),
            [Reason.HOST_MEMORY],
            id="page-locked and shared memory are the pod's",
        ),
        pytest.param(Needs(device=2), Limits(device=1), [Reason.DEVICE_MEMORY], id="device"),
        pytest.param(Needs(locked=2), Limits(locked=1), [Reason.LOCKED_MEMORY], id="memlock"),
        pytest.param(
            Needs(shared=2 * GIB, device=2),
            Limits(host=GIB, device=1),
            [Reason.HOST_MEMORY, Reason.DEVICE_MEMORY],
            id="the largest lack first",
        ),
        pytest.param(Needs(host=GIB, device=GIB), Limits(), [], id="what nothing tells refuses nothing"),
        pytest.param(Needs(), Limits(host=0, device=0, locked=0), [], id="nothing needed"),
    ],
)
def test_what_is_too_little(needs: Needs, limits: Limits, reasons: list[Reason]) -> None:
    assert [shortage.reason for shortage in shortages(needs, limits)] == reasons


def test_a_refusal_has_codes_and_a_mend() -> None:
    with pytest.raises(LoadRefused) as caught:
        admit(Needs(host=4 * GIB), Limits(host=GIB, host_bound="the control group's memory limit"), file="/m")
    assert caught.value.reasons == (Reason.HOST_MEMORY,)
    assert "4160 MiB are needed and the control group's memory limit leaves 1024 MiB" in str(caught.value)
    assert caught.value.hint


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MACHINE = {"proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable: 4000000 kB\n"}


def test_the_least_limit_of_all_groups_above_counts(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        MACHINE
        | {
            "proc/self/cgroup": "0::/pod/engine\n",
            "sys/fs/cgroup/pod/memory.max": "2000000000\n",
            "sys/fs/cgroup/pod/memory.current": "1500000000\n",
            "sys/fs/cgroup/pod/memory.stat": "inactive_file 100000000\nactive_file 200000000\nshmem 700000000\n",
            "sys/fs/cgroup/pod/engine/memory.max": "max\n",
            "sys/fs/cgroup/pod/engine/memory.current": "1\n",
        },
    )
    limits = read_limits(root)
    assert limits.host == 800_000_000, "page cache counts as free, shared memory doesn't"
    assert limits.host_bound == "the control group's memory limit"


def test_groups_of_the_first_version(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        MACHINE
        | {
            "proc/self/cgroup": "4:memory,cpu:/pod\n0::/\n",
            "sys/fs/cgroup/memory/pod/memory.limit_in_bytes": "1000\n",
            "sys/fs/cgroup/memory/pod/memory.usage_in_bytes": "400\n",
        },
    )
    assert read_limits(root).host == 600


def test_without_groups_the_machine_counts(tmp_path: Path) -> None:
    limits = read_limits(write(tmp_path, MACHINE), device_bytes=7)
    assert (limits.host, limits.device) == (4_096_000_000, 7)


def test_where_nothing_tells_nothing_is_known(tmp_path: Path) -> None:
    assert read_limits(tmp_path).host is None


def test_this_machine_tells() -> None:
    assert (read_limits().host or 0) > 0

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from warmpool.reference import zygote_place as place
from warmpool.reference.zygote_standin import asks
from warmpool.standins import VARIABLE


@pytest.mark.parametrize(
    ("arguments", "environment", "path", "rest"),
    [
        (["serve", "--port", "1"], {}, "", ["serve", "--port", "1"]),
        (["serve", "--zygote", "/a", "--port", "1"], {}, "/a", ["serve", "--port", "1"]),
        (["serve", "--zygote=/a"], {VARIABLE: "/b"}, "/a", ["serve"]),
        (["expect"], {VARIABLE: "/b"}, "/b", ["expect"]),
        (["serve"], {VARIABLE: ""}, "", ["serve"]),
        (["make-checkpoint", "d"], {VARIABLE: "/b"}, "", ["make-checkpoint", "d"]),
        (["zygote", "--socket", "/b"], {VARIABLE: "/b"}, "", ["zygote", "--socket", "/b"]),
        ([], {VARIABLE: "/b"}, "", []),
    ],
)
def test_whom_a_command_line_asks(
    arguments: list[str], environment: Mapping[str, str], path: str, rest: list[str]
) -> None:
    assert asks(arguments, environment) == (path, rest)


@pytest.mark.parametrize(
    "name",
    ["OMP_NUM_THREADS", "PYTHONHASHSEED", "LD_PRELOAD", "LANG", "TZ", "TORCH_LOGS", "MALLOC_ARENA_MAX"],
)
def test_what_libraries_have_read_cannot_be_changed(name: str) -> None:
    assert place.read_when_loaded({name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    "name", ["CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "HOME", "LANGUAGE_MODEL", "OPENBLAS_NUM_THREADS"]
)
def test_what_is_read_later_or_never_may_differ(name: str) -> None:
    assert place.read_when_loaded({name: "1"}) == {}


def test_differences_are_named_from_both_sides() -> None:
    found = place.differences({"same": 1, "flags": 2}, {"same": 1, "cgroup": "/b"})
    assert list(found) == [
        "cgroup is '/b', and None for the zygote",
        "flags is None, and 2 for the zygote",
    ]


def test_a_child_lives_where_its_parent_does() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = place.unchangeable(child.pid)
    assert list(place.differences(place.unchangeable(os.getpid()), found)) == []
    assert {"Uid", "Groups", "CapEff", "pid namespace", "cgroup", "root directory"} <= set(found)

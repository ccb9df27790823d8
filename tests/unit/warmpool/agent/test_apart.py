"""Which launcher has which resident: one for all of them, or one for each container."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.warmpool.agent.rig import config, resident
from warmpool.agent.keeping import Kept, keeper_of

APART = "/run/emberpool/{container}/launcher.sock"
Json = dict[str, Any]


def two(**others: Any) -> list[Json]:
    return [resident("a", container="x") | others, resident("b", container="y") | others]


@pytest.mark.parametrize(
    ("launcher", "sockets"),
    [
        ("/run/emberpool/launcher.sock", ["/run/emberpool/launcher.sock"] * 2),
        (APART, ["/run/emberpool/x/launcher.sock", "/run/emberpool/y/launcher.sock"]),
        ("/run/{container}.sock", ["/run/x.sock", "/run/y.sock"]),
    ],
)
def test_a_residents_launcher_listens_at_its_containers_socket(
    tmp_path: Path, launcher: str, sockets: list[str]
) -> None:
    read = config(tmp_path, two(), launcher=launcher)
    assert [str(read.socket_of(each)) for each in read.residents] == sockets
    assert read.apart is (len(set(sockets)) > 1)


def test_residents_of_one_container_have_one_launcher(tmp_path: Path) -> None:
    read = config(tmp_path, [resident(name, container="x") for name in "ab"], launcher=APART)
    assert len({read.socket_of(each) for each in read.residents}) == 1


def test_a_launcher_may_know_the_command_and_its_ports_are_asked_for_then(tmp_path: Path) -> None:
    read = config(tmp_path, two(command=[]), launcher=APART)
    assert [each.placeholders for each in read.residents] == [("{port}", "{controlPort}")] * 2


@pytest.mark.parametrize(
    ("residents", "others", "complaint"),
    [
        ([resident("a")], {"launcher": APART}, r"residents\[0\].container: missing"),
        ([resident("a", container="../x")], {"launcher": APART}, "container"),
        (
            [resident("a", command=[])],
            {"launcher": None, "logDirectory": "logs"},
            r"residents\[0\].command: missing",
        ),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, residents: list[Json], others: Json, complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        config(tmp_path, residents, **others)


@pytest.mark.parametrize(
    ("launcher", "kept"),
    [("launcher.sock", "launcher.sock.agent.json"), ("{container}/launcher.sock", "agent.json")],
)
def test_what_outlives_an_agent_is_kept_where_no_engine_has_a_folder(
    tmp_path: Path, launcher: str, kept: str
) -> None:
    read = config(tmp_path, two(), launcher=str(tmp_path / launcher))
    keeper_of(read).write(Kept(epoch=7))
    assert (tmp_path / kept).is_file()
    assert keeper_of(read).read().epoch == 7

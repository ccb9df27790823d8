"""`emberpool local`: what its arguments become."""

from pathlib import Path

import pytest

from scaler.cli.local import name_of, parse_checkpoints
from scaler.errors import UserError


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        ("Llama-3.1-8B", "llama-3-1-8b"),
        ("phi_4 mini", "phi-4-mini"),
        ("___", ""),
        ("a" * 70, "a" * 63),
    ],
)
def test_a_directory_gives_its_name(directory: str, expected: str) -> None:
    assert name_of(Path("/models") / directory) == expected


def test_checkpoints_with_and_without_names(tmp_path: Path) -> None:
    (tmp_path / "Llama-8B").mkdir()
    (tmp_path / "x=y").mkdir()
    assert parse_checkpoints(
        [str(tmp_path / "Llama-8B"), f"chat={tmp_path / 'x=y'}", str(tmp_path / "x=y")]
    ) == {
        "llama-8b": tmp_path / "Llama-8B",
        "chat": tmp_path / "x=y",
        "x-y": tmp_path / "x=y",
    }


def test_a_trailing_slash_and_a_dot_are_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "phi").mkdir()
    monkeypatch.chdir(tmp_path / "phi")
    assert list(parse_checkpoints([".", f"b={tmp_path}/phi/"])) == ["phi", "b"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(["chat={0}/none"], "there is no directory {0}/none", id="no-directory"),
        pytest.param(["{0}/file"], "there is no directory {0}/file", id="file"),
        pytest.param(["a={0}/one", "a={0}/two"], "two checkpoints are called a", id="same-name"),
        pytest.param(["{0}/___"], "no name can be made from '{0}/___'", id="no-name"),
        pytest.param(["={0}/one"], "no name can be made from '={0}/one'", id="empty-name"),
    ],
)
def test_what_cant_be_a_checkpoint(tmp_path: Path, given: list[str], message: str) -> None:
    for name in ("one", "two", "___"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as raised:
        parse_checkpoints([text.format(tmp_path) for text in given])
    assert str(raised.value) == message.format(tmp_path)
    assert "NAME=DIR" in raised.value.hint.replace("[NAME=]DIR", "NAME=DIR")

"""`emberpool policy schema`: what it prints is what the repository's file holds, and what it writes too."""

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from scaler.cli.app import main
from scaler.cli.formats import FORMATS, POLICIES
from scaler.policy.schema import FILE_NAME

SCHEMA = POLICIES / "schema" / FILE_NAME


def test_it_prints_the_schema_of_all_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "schema"]) == 0
    assert capsys.readouterr() == (SCHEMA.read_text("utf-8"), "")


def test_yaml_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "schema", "-o", "yaml"]) == 0
    assert YAML(typ="safe", pure=True).load(capsys.readouterr().out) == json.loads(SCHEMA.read_text("utf-8"))


def test_it_writes_the_file_that_a_modeline_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "policies" / "schema"
    assert main(["policy", "schema", "--write", str(folder)]) == 0
    assert (folder / FILE_NAME).read_bytes() == SCHEMA.read_bytes()
    assert capsys.readouterr() == ("", f"wrote {folder / FILE_NAME}\n")


def test_one_kind_can_be_had_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "schema", "--kind", "Controller"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["title"] == "Controller"
    assert schema["properties"]["kind"]["const"] == "Controller"


@pytest.mark.parametrize(
    ("kind", "hint"), [("fleet", "did you mean Fleet?"), ("Pod", f"known: {', '.join(FORMATS)}")]
)
def test_an_unknown_kind_is_refused(capsys: pytest.CaptureFixture[str], kind: str, hint: str) -> None:
    assert main(["policy", "schema", "--kind", kind]) == 2
    assert capsys.readouterr() == ("", f"error: there is no kind '{kind}'\n\nhint: {hint}\n\n")


def test_a_folder_that_cannot_be_written_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert main(["policy", "schema", "--write", str(tmp_path / "file")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path / 'file' / FILE_NAME} can't be written: ")
    assert "hint: name a folder that can be written: --write DIR" in error


def test_the_help_tells_the_modeline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "schema", "--help"]) == 0
    assert f"# yaml-language-server: $schema=schema/{FILE_NAME}" in capsys.readouterr().out

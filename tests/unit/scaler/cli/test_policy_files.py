"""How the policy commands take files: stdin as `-`, no empty paths, and faults as data where data is asked for."""

import io
import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from scaler.cli.app import main

SET = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: own}
spec: {maxSeats: 2}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec: {fleets: [{name: own, targetInFlight: 8}]}
"""
BAD = SET.replace("maxSeats: 2", "maxSeats: x")
COMMANDS = {
    "validate": lambda path: [path],
    "lint": lambda path: [path],
    "explain": lambda path: [path, "--load", "chat=1"],
    "diff": lambda path: [path, "set.yaml"],
}


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set.yaml").write_text(SET, "utf-8")
    (tmp_path / "bad.yaml").write_text(BAD, "utf-8")


def run(capsys: pytest.CaptureFixture[str], command: str, path: str, *more: str) -> tuple[int, str, str]:
    code = main(["policy", command, *COMMANDS[command](path), *more])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def pipe(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_hyphen_is_stdin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    pipe(monkeypatch, SET)
    assert run(capsys, command, "-")[0] == 0


def test_faults_come_in_the_order_of_the_files_as_they_are_named_stdin_among_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torn.yaml").write_text("kind: [", "utf-8")
    pipe(monkeypatch, BAD.replace("own", "piped").replace("chat", "talk"))
    assert main(["policy", "validate", "torn.yaml", "-", "bad.yaml", "-", "nowhere.yaml"]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert [line.split(": ")[1] for line in errors] == [
        "torn.yaml:1:8",
        "stdin:4:18",
        "bad.yaml:4:18",
        "nowhere.yaml:1:1",
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_fault_in_stdin_has_its_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    pipe(monkeypatch, BAD)
    code, out, err = run(capsys, command, "-")
    assert (code, out) == (2, "")
    assert err.startswith("error: stdin:4:18: spec.maxSeats: must be an integer")


def test_stdin_and_files_are_one_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, SET.replace("chat", "code").partition("---\n")[2])
    code, out, _ = run(capsys, "validate", "-", "set.yaml")
    assert code == 0
    assert out.startswith("ok: 1 fleet and 2 policies")


def test_nothing_in_stdin_is_a_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, "")
    code, _, err = run(capsys, "validate", "-")
    assert code == 2
    assert err.startswith("error: stdin:1:1: the file holds no document\n")


def test_more_than_a_policy_file_may_hold_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, "#" * (1 << 20) + "\n")
    code, _, err = run(capsys, "validate", "-")
    assert code == 2
    assert err.startswith("error: stdin:1:1: is larger than 1024 KiB\n")


def test_both_sides_of_a_comparison_cannot_be_stdin(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["policy", "diff", "-", "-"])
    assert code == 2
    assert capsys.readouterr().err.startswith("error: stdin can be one of the two only\n")


@pytest.mark.parametrize(
    "arguments",
    [
        *(["policy", command, *arguments("")] for command, arguments in COMMANDS.items()),
        ["policy", "lint", "set.yaml", "--template", ""],
        ["policy", "new", "code", "--beside", ""],
        ["policy", "new", "code", "--output", ""],
        ["policy", "schema", "--write", ""],
    ],
    ids=lambda arguments: " ".join(arguments[1:]),
)
def test_an_empty_path_is_not_the_current_directory(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    code = main(arguments)
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert "a path must not be empty" in captured.err
    assert sorted(path.name for path in Path().iterdir()) == ["bad.yaml", "set.yaml"]


@pytest.mark.parametrize("rendering", ["json", "yaml"])
@pytest.mark.parametrize("command", COMMANDS)
def test_faults_are_data_where_data_is_asked_for(
    capsys: pytest.CaptureFixture[str], command: str, rendering: str
) -> None:
    code, out, err = run(capsys, command, "bad.yaml", "-o", rendering)
    assert (code, err) == (2, "")
    tree = json.loads(out) if rendering == "json" else YAML(typ="safe", pure=True).load(out)
    assert (tree["valid"], tree["warnings"]) == (False, [])
    assert [(fault["file"], fault["line"], fault["path"]) for fault in tree["faults"]] == [
        ("bad.yaml", 4, "spec.maxSeats")
    ]


def test_a_bad_manifest_beside_good_policies_is_told_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "lint", "set.yaml", "--template", "nowhere.yaml", "-o", "json")
    assert code == 2
    assert [fault["message"] for fault in json.loads(out)["faults"]] == ["no such file"]

"""`emberpool policy diff`: exit codes, sentences, and plain data."""

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from scaler.cli.app import main

POLICY = """\
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec: {fleets: [{name: own, targetInFlight: 8}], serving: {max: 4}}
"""
CHANGED = POLICY.replace("max: 4", "max: 8").replace("targetInFlight: 8", "targetInFlight: 16")
FLEET = "apiVersion: emberpool.dev/v1alpha1\nkind: Fleet\nmetadata: {name: own}\nspec: {maxSeats: 4}\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(POLICY, "utf-8")
    (tmp_path / "b.yaml").write_text(CHANGED, "utf-8")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["policy", "diff", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_differences_are_sentences_and_end_with_1(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    assert run(capsys, "a.yaml", "b.yaml") == (
        1,
        (
            "policy chat: fleets[own].targetInFlight 8 → 16 requests in flight (each resident there holds more "
            "requests: fewer residents for the same load)\n"
            "policy chat: serving.max 4 → 8 residents (more residents may serve at once)\n"
        ),
        "",
    )


def test_what_means_the_same_ends_with_0(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    (files / "c.yaml").write_text(POLICY + "  # the same\n", "utf-8")
    assert run(capsys, "a.yaml", "c.yaml") == (0, "", "a.yaml and c.yaml mean the same\n")


def test_directories_are_sets(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    for name, texts in (("old", (FLEET, POLICY)), ("new", (POLICY,))):
        (files / name).mkdir()
        for index, text in enumerate(texts):
            (files / name / f"{index}.yaml").write_text(text, "utf-8")
    code, out, _ = run(capsys, "old", "new")
    assert (code, out) == (
        1,
        "fleet own: removed (its seats stay as they are, and nobody promotes or counts them any more)\n",
    )


def test_json_is_a_list_of_changes(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    code, out, _ = run(capsys, "a.yaml", "b.yaml", "-o", "json")
    assert code == 1
    assert json.loads(out)[1] == {
        "kind": "ScalingPolicy",
        "name": "chat",
        "path": "spec.serving.max",
        "before": 4,
        "after": 8,
        "meaning": "more residents may serve at once",
    }


def test_yaml_says_the_same_as_json(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    _, as_json, _ = run(capsys, "a.yaml", "b.yaml", "-o", "json")
    _, as_yaml, _ = run(capsys, "a.yaml", "b.yaml", "-o", "yaml")
    assert YAML(typ="safe", pure=True).load(as_yaml) == json.loads(as_json)


def test_no_difference_is_an_empty_list(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    assert run(capsys, "a.yaml", "a.yaml", "-o", "json") == (0, "[]\n", "")


def test_faults_of_both_end_with_2(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    (files / "bad.yaml").write_text(POLICY.replace("max: 4", 'max: "4"'), "utf-8")
    code, out, err = run(capsys, "bad.yaml", "nowhere.yaml")
    assert (code, out) == (2, "")
    assert "error: bad.yaml:4:65: spec.serving.max: must be" in err
    assert "error: nowhere.yaml:1:1: no such file" in err


def test_help_teaches_by_example(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "emberpool policy diff" in out.partition("Examples:")[2]

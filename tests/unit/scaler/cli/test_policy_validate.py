"""`emberpool policy validate -o json`: the verdict and all faults as data on stdout."""

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from scaler.cli.app import main
from tests.unit.scaler.runtime.policy_sets import fleet, policy


def validated(capsys: pytest.CaptureFixture[str], file: Path, rendering: str) -> tuple[int, str]:
    code = main(["policy", "validate", str(file), "-o", rendering])
    captured = capsys.readouterr()
    assert captured.err == ""
    return code, captured.out


def test_a_usable_set_is_told_with_its_hash_and_names(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(f"{fleet()}---\n{policy('chat')}", "utf-8")
    code, out = validated(capsys, file, "json")
    body = json.loads(out)
    assert code == 0
    assert len(body.pop("hash")) == 12
    assert body == {"valid": True, "faults": [], "warnings": [], "fleets": ["spares"], "policies": ["chat"]}


def test_faults_beyond_a_hundred_are_counted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(fleet() + "\n".join(f"key{number}: 1" for number in range(150)), "utf-8")
    code, out = validated(capsys, file, "json")
    body = json.loads(out)
    assert (code, len(body["faults"]), body["moreFaults"]) == (2, 100, 50)
    assert main(["policy", "validate", str(file)]) == 2
    assert capsys.readouterr().err.endswith(": and 50 more, which are told once these are mended\n\n")


def test_faults_are_told_with_their_places(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(fleet(maxSeats="1:30"), "utf-8")
    code, out = validated(capsys, file, "json")
    assert code == 2
    assert json.loads(out) == {
        "valid": False,
        "faults": [
            {
                "file": str(file),
                "line": 4,
                "column": 18,
                "path": "spec.maxSeats",
                "message": 'must be an integer from 1 to 100000, is "1:30"',
                "hint": "YAML 1.2 reads 1:30 as text: write 90 if that is meant",
            }
        ],
        "moreFaults": 0,
        "warnings": [],
    }
    again, yaml = validated(capsys, file, "yaml")
    assert (again, YAML(typ="safe", pure=True).load(yaml)) == (2, json.loads(out))

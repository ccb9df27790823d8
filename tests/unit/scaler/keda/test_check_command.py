"""`emberpool keda check` over files; with a server it is in tests/integration/keda."""

import json
from pathlib import Path
from typing import Any

import pytest

from scaler.cli.app import main
from tests.unit.scaler.keda.kubernetes import RECORDED, hpa, scaled_object

POLICIES = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares, namespace: serving}
spec: {maxSeats: 44, resizedBy: Keda, spare: {min: 2}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat, namespace: serving}
spec: {fleets: [{name: spares, targetInFlight: 8}], serving: {min: 1, max: 40}}
"""


def run(
    capsys: pytest.CaptureFixture[str], folder: Path, changes: dict[str, Any], *others: str
) -> tuple[int, str]:
    (folder / "so.json").write_text(json.dumps(scaled_object(changes)), "utf-8")
    (folder / "policies.yaml").write_text(POLICIES, "utf-8")
    code = main(
        [
            "keda",
            "check",
            "--scaled-object",
            str(folder / "so.json"),
            "-f",
            str(folder / "policies.yaml"),
            *others,
        ]
    )
    return code, capsys.readouterr().out


def test_of_a_right_object_is_said_that_nothing_was_found(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(capsys, tmp_path, {}) == (0, "nothing found\n")


def test_a_fault_is_told_with_its_place_and_mend(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out = run(capsys, tmp_path, {"spec.minReplicaCount": 0})
    assert code == 1
    assert (
        "Error: ScaledObject spec.minReplicaCount: 0 is below the 3 seats that fleet spares always has" in out
    )
    assert "\n  hint: set it to 3" in out


def test_a_fleets_workload_on_a_policys_value_is_found_by_its_workload(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out = run(capsys, tmp_path, {"spec.triggers.0.metadata": {"policy": "chat"}})
    assert code == 1
    assert "(PolicyScalesFleet)" in out


def test_the_hpa_is_looked_at_too_and_its_replicas_are_the_running_ones(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = hpa({"spec.maxReplicas": 10, "status": {"currentReplicas": 9}})
    (tmp_path / "hpa.json").write_text(json.dumps(made), "utf-8")
    changes = {"spec.fallback": {"failureThreshold": 3, "replicas": 4}}
    code, out = run(capsys, tmp_path, changes, "--hpa", str(tmp_path / "hpa.json"), "-o", "json")
    found = {each["code"]: each for each in json.loads(out)["findings"]}
    assert code == 1
    assert found["MaxBelowSeats"]["object"] == "HorizontalPodAutoscaler"
    assert "the fleet has 9" in found["FallbackBelowRunning"]["message"]


def test_the_recorded_objects_are_no_scaled_object_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["keda", "check", "--scaled-object", str(RECORDED / "scaledobject.json")])
    assert code == 1
    assert "needs `fleet: NAME` or `policy: NAME`" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is nothing to check"),
        (["--fleet", "a"], "nobody was named to ask"),
        (["--hpa", str(RECORDED / "hpa-created-by-keda.json")], "--hpa says little without the ScaledObject"),
        (["--scaled-object", str(RECORDED / "hpa-created-by-keda.json")], "this is no ScaledObject"),
        (["--address", "127.0.0.1:1", "--fleet", "a", "--metadata", "x"], "--metadata 'x' is not KEY=VALUE"),
        (["--scaled-object", "/nowhere.json"], "/nowhere.json"),
        (["--address", "127.0.0.1:1", "--fleet", "a", "--listen", "0.5"], "nobody answers at 127.0.0.1:1"),
        (["--address", "127.0.0.1:1", "--fleet", "a", "--listen", "nan"], "--listen"),
        (
            ["--address", "127.0.0.1:1", "--fleet", "a"],
            "nobody answers at 127.0.0.1:1: the connection is refused",
        ),
    ],
)
def test_what_cant_be_checked_is_said_with_the_mend(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["keda", "check", *arguments]) == 2
    assert message in capsys.readouterr().err

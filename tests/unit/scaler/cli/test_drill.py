"""What `emberpool drill` says of its options, before anything runs."""

import io
import json
from pathlib import Path

import pytest

from scaler.cli.app import main
from scaler.cli.drill import Shape
from scaler.drill.scenario import SHAPES

DRILLS = Path(__file__).parents[4] / "policies" / "drills"
SMOKE = str(DRILLS / "smoke.yaml")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["drill", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_shapes_are_those_of_scenarios() -> None:
    assert tuple(Shape) == SHAPES


def test_the_help_names_scenarios_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    text = ""
    for command in ("run", "validate"):
        code, out, _ = run(capsys, command, "--help")
        assert code == 0
        text += out
    named = {word for word in text.split() if word.startswith("policies/drills/")}
    assert named
    assert all((DRILLS.parents[1] / word).is_file() for word in named)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        pytest.param(
            ["run", SMOKE, "--shape", "llama-9b"],
            ["'--shape': 'llama-9b' is not one of 'tiny', 'small', 'llama-1b', 'llama-8b'"],
            id="shape",
        ),
        pytest.param(
            ["run", SMOKE, "--grafana-url", "grafana:3000"],
            ["'grafana:3000' is not the URL of a server", "such as http://grafana.example:3000"],
            id="grafana",
        ),
        pytest.param(["run", SMOKE, "--metrics-port", "70000"], ["'--metrics-port'", "65535"], id="port"),
        pytest.param(
            ["run", SMOKE, "--controller-port", "70000"], ["'--controller-port'", "65535"], id="other-port"
        ),
        pytest.param(
            ["run", SMOKE, "--targets-file", "/nowhere/drill.json"],
            ["the targets can't be written to /nowhere/drill.json: No such file", "--targets-file"],
            id="targets",
        ),
        pytest.param(
            ["run", SMOKE, "--gateway", "http://gateway:8000"],
            ["one of them wasn't named", "name both: --gateway URL --controller URL"],
            id="gateway-alone",
        ),
        pytest.param(
            ["run", SMOKE, "--gateway", "gateway:8000", "-s", "http://controller:9080"],
            ["'gateway:8000' is no URL of a gateway", "http://host:8000"],
            id="gateway",
        ),
        pytest.param(["run", str(DRILLS)], ["is a directory", "name one scenario"], id="directory"),
        pytest.param(
            ["validate", str(DRILLS / "default-policies.yaml")],
            ['must be one of DrillScenario, is "Fleet"'],
            id="policies",
        ),
        pytest.param(
            ["run", SMOKE, "--out", SMOKE],
            ["the report can't be written to", "smoke.yaml", "name another folder with --out DIR"],
            id="out-is-a-file",
        ),
    ],
)
def test_what_can_not_be_used_is_named_with_its_mend(
    capsys: pytest.CaptureFixture[str], arguments: list[str], parts: list[str]
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    for part in parts:
        assert part in " ".join(err.split())


def test_a_drill_that_can_be_run_is_told_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "validate", SMOKE, "-o", "json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert (found["valid"], found["faults"], found["warnings"]) == (True, [], [])
    assert (found["models"], found["stages"], found["seconds"]) == (
        ["chat"],
        ["baseline", "burst", "decay", "after"],
        12,
    )


def test_a_load_that_is_fitted_to_the_machine_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "validate", str(DRILLS / "default.yaml"))
    assert code == 0
    assert out.startswith("ok: 2 models, 9 stages, 78 s of load, fitted to 65 % of the machine (policy hash ")
    _, out, _ = run(capsys, "validate", str(DRILLS / "default.yaml"), "-o", "json")
    assert json.loads(out)["fit"] == {"cpuPercent": 65, "minLengthPercent": 25}
    _, out, _ = run(capsys, "validate", SMOKE, "-o", "json")
    assert json.loads(out)["fit"] is None


def test_a_drill_is_read_from_stdin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(SMOKE).read_bytes())))
    code, out, err = run(capsys, "validate", "-")
    assert (code, err) == (0, "")
    assert out.startswith("ok: 1 model, 4 stages, 12 s of load")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"kind: Fleet")))
    code, _, err = run(capsys, "validate", "-")
    assert code == 2
    assert err.startswith("error: stdin:1:")


def test_all_faults_of_a_drill_are_told_as_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "smoke.yaml"
    text = (
        Path(SMOKE)
        .read_text("utf-8")
        .replace("maxSeats: 2", "maxSeats: two")
        .replace("seconds: 3", "seconds: 0")
    )
    path.write_text(text, "utf-8")
    code, out, err = run(capsys, "validate", str(path), "-o", "json")
    found = json.loads(out)
    assert (code, err, found["valid"]) == (2, "", False)
    assert [fault["path"] for fault in found["faults"]] == [
        "spec.policies.documents[0].spec.maxSeats",
        "spec.stages[0].seconds",
    ]


def test_what_a_drill_s_policies_ask_for_in_vain_is_a_warning(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "smoke.yaml"
    text = (
        Path(SMOKE)
        .read_text("utf-8")
        .replace("spare: {mode: Fixed, min: 1}", "spare: {mode: Fixed, min: 1, replenish: {maxPerNode: 1}}")
    )
    path.write_text(text, "utf-8")
    code, out, err = run(capsys, "validate", str(path))
    line = 1 + text[: text.index("maxPerNode")].count("\n")
    assert code == 0
    assert out.startswith("ok: 1 model, 4 stages, 12 s of load")
    assert err.startswith(
        f"warning: {path}:{line}:64: spec.policies.documents[0].spec.spare.replenish.maxPerNode: is not acted on yet"
    )


def test_the_address_of_grafana_may_come_from_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBERPOOL_GRAFANA_URL", "grafana:3000")
    code, _, err = run(capsys, "run", SMOKE)
    assert code == 2
    assert "not the URL of a server" in err

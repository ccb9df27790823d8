"""What `emberpool drill` says of its options, before anything runs."""

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


def test_the_address_of_grafana_may_come_from_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBERPOOL_GRAFANA_URL", "grafana:3000")
    code, _, err = run(capsys, "run", SMOKE)
    assert code == 2
    assert "not the URL of a server" in err

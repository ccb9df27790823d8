"""`emberpool keda findings`, to the letter, over a real socket; and its exit code."""

import json
from typing import Any

import pytest

from scaler.cli.app import main
from tests.integration.cli.fake_controller import FakeController

FINDING = {
    "object": "HorizontalPodAutoscaler",
    "name": "keda-hpa-spares",
    "severity": "Error",
    "code": "MaxBelowSeats",
    "path": "spec.maxReplicas",
    "message": "12 is below the 44 seats that fleet spares may have",
    "hint": "set it to 44",
}


def page(*findings: dict[str, str], paused: tuple[str, ...] = (), scaled: bool = True) -> dict[str, Any]:
    return {
        "lookedAt": {"scaledobjects": scaled, "horizontalpodautoscalers": True},
        "items": [
            {"fleet": "own", "paused": [], "findings": []},
            {"fleet": "spares", "paused": list(paused), "findings": list(findings)},
        ],
    }


def ask(
    controller: FakeController, capsys: pytest.CaptureFixture[str], body: dict[str, Any], *options: str
) -> tuple[int, str, str]:
    controller.say("/v1/keda/findings", body)
    code = main(["keda", "findings", "--server", controller.url, *options])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_what_was_found(controller: FakeController, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(controller, capsys, page(FINDING, paused=("paused at 3 replicas",))) == (
        1,
        """\
own: nothing to say
spares: paused at 3 replicas
spares: Error: HorizontalPodAutoscaler/keda-hpa-spares spec.maxReplicas: 12 is below the 44 seats that fleet spares may have (MaxBelowSeats)
  hint: set it to 44
""",
        "",
    )


def test_a_warning_is_no_error(controller: FakeController, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ask(controller, capsys, page({**FINDING, "severity": "Warning", "hint": ""}))
    assert code == 0
    assert "spares: Warning: " in out


def test_what_could_not_be_seen_is_said_beside_the_data(
    controller: FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ask(controller, capsys, page(scaled=False))
    assert (code, out) == (0, "own: nothing to say\nspares: nothing to say\n")
    assert "scaledobjects are not looked at" in err


def test_json_is_the_answer_itself(controller: FakeController, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ask(controller, capsys, page(FINDING), "-o", "json")
    assert (code, json.loads(out)) == (1, page(FINDING))


def test_a_controller_without_kubernetes_has_none_and_that_is_said(
    controller: FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keda", "findings", "--server", controller.url]) == 2
    said = capsys.readouterr().err
    assert "has no findings: ScaledObjects and HPAs are looked at on Kubernetes alone" in said
    assert "emberpool keda check --scaled-object FILE" in said


def test_nobody_to_ask_is_neither_right_nor_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keda", "findings", "--server", "http://127.0.0.1:9"]) == 2
    assert "no controller answers" in capsys.readouterr().err

"""`emberpool policy status`, to the letter, over a real socket; and its exit code."""

import json
import re
import time
from typing import Any

import pytest

from scaler.cli.app import main
from tests.integration.cli.fake_controller import FakeController, serving

FAULT = {
    "file": "policies/chat.yaml",
    "line": 6,
    "column": 21,
    "path": "spec.serving.mux",
    "message": "is not a known key",
    "hint": "did you mean max?",
}


def status(**changes: Any) -> dict[str, Any]:
    now = time.time()
    return {
        "hash": "c50886355170",
        "since": now - 184.5,
        "fleets": 1,
        "policies": 2,
        "files": ["policies/chat.yaml", "policies/code.yaml"],
        "notChangedLive": [],
        "lastAttempt": None,
        **changes,
    }


def attempt(outcome: str, **changes: Any) -> dict[str, Any]:
    return {
        "at": time.time() - 12.5,
        "cause": "change",
        "outcome": outcome,
        "hash": "c50886355170",
        **changes,
    }


def ask(
    controller: FakeController, capsys: pytest.CaptureFixture[str], body: dict[str, Any], *options: str
) -> tuple[int, str, str]:
    controller.say("/v1/policies/status", body)
    code = main(["policy", "status", "--server", controller.url, *options])
    captured = capsys.readouterr()
    return code, re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", captured.out), captured.err


def test_a_fresh_start(controller: FakeController, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(controller, capsys, status()) == (
        0,
        """\
Policy hash:     c50886355170
In force since:  TIME (3m4s)
Holds:           1 fleet, 2 policies
Files:           2: policies/chat.yaml, policies/code.yaml
Last attempt:    none since the start
""",
        "",
    )


def test_a_reload_with_what_it_changed_and_what_it_could_not(
    controller: FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = attempt("Loaded", added=["ScalingPolicy/math"], removed=["ScalingPolicy/code"])
    note = "policy chat: spec.engine is not what its engines were started with"
    code, out, _ = ask(controller, capsys, status(lastAttempt=loaded, notChangedLive=[note]))
    assert code == 0
    assert out.splitlines()[4:] == [
        "Last attempt:    Loaded, 12s ago, because of a change",
        "Added:    ScalingPolicy/math",
        "Removed:  ScalingPolicy/code",
        "Not changed while the process runs:",
        f"  - {note}",
    ]


def test_conditions_of_fleets_are_told(
    controller: FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    conditions = [
        {"fleet": "shared", "type": "SizeDrifted", "reason": "SizeDrifted", "message": "somebody wrote 4"},
        {"fleet": "own", "type": "KedaMisfit", "reason": "DeadZone", "message": "a tolerance of 10%"},
    ]
    code, out, _ = ask(controller, capsys, status(conditions=conditions))
    assert (code, out.splitlines()[5:]) == (
        0,
        [
            "Conditions:",
            "  - fleet shared: somebody wrote 4 [SizeDrifted]",
            "  - fleet own: a tolerance of 10% [KedaMisfit: DeadZone]",
        ],
    )
    assert main(["fleet", "describe", "shared", "--controller", controller.url]) == 0
    out = capsys.readouterr().out
    assert "Conditions:\n  - somebody wrote 4 [SizeDrifted]\nSeat list:\n" in out


def test_files_with_faults_end_with_1(controller: FakeController, capsys: pytest.CaptureFixture[str]) -> None:
    rejected = attempt("Rejected", cause="signal", faults=[FAULT], moreFaults=7)
    code, out, err = ask(controller, capsys, status(lastAttempt=rejected))
    assert (code, err) == (1, "")
    assert out.splitlines()[4:] == [
        "Last attempt:    Rejected, 12s ago, because of a signal",
        "Faults:",
        "  - policies/chat.yaml:6:21: spec.serving.mux: is not a known key",
        "    hint: did you mean max?",
        "  - and 7 more",
    ]


def test_files_that_cant_be_read_end_with_1(
    controller: FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = ask(
        controller, capsys, status(lastAttempt=attempt("Failed", problem="no answer for 60 s"))
    )
    assert code == 1
    assert out.endswith("Last attempt:    Failed, 12s ago, because of a change: no answer for 60 s\n")


def test_json_is_what_the_controller_said_with_the_same_exit_code(
    controller: FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    body = status(lastAttempt=attempt("Rejected", faults=[FAULT]), newer="field")
    code, out, _ = ask(controller, capsys, body, "-o", "json")
    assert (code, json.loads(out)) == (1, body)


def test_a_controller_that_is_not_there_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeController()) as fake:
        nowhere = fake.url
    code = main(["policy", "status", "--server", nowhere])
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert captured.err.startswith(f"error: no controller answers at {nowhere} (")
    assert "hint: start one with `emberpool local`" in captured.err


def test_what_answers_as_no_controller_does_ends_with_2(
    controller: FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(controller, capsys, {"hash": 3})[0] == 2
    assert main(["policy", "status", "--server", f"{controller.url}/elsewhere"]) == 2


def test_policies_that_nobody_wrote(controller: FakeController, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ask(controller, capsys, status(files=[], since=None))
    assert code == 0
    assert "In force since:  -\n" in out
    assert "Files:           none: the policies were made up by `emberpool local`\n" in out

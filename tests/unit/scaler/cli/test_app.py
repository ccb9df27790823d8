"""The command's grammar: exit codes, errors in one form, data on stdout and chatter on stderr."""

from pathlib import Path

import pytest

from scaler.cli.app import COMMANDS, main

FLEET = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: f}
spec: {maxSeats: 2}
"""
POLICY = """\
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: p}
spec: {fleets: [{name: f, targetInFlight: 8}]}
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_usable_policy_is_said_on_stdout(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET, encoding="utf-8")
    (tmp_path / "policy.yaml").write_text(POLICY, encoding="utf-8")
    code, out, err = run(capsys, "policy", "validate", str(tmp_path))
    assert (code, err) == (0, "")
    assert out.startswith("ok: 1 fleet and 1 policy (policy hash ")


def test_every_fault_is_an_error_with_its_hint_on_stderr(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "bad.yaml"
    text = FLEET.replace("maxSeats", "maxseats") + "---\n" + POLICY.replace("8", '"8"')
    file.write_text(text, encoding="utf-8")
    assert run(capsys, "policy", "validate", str(file)) == (
        2,
        "",
        (
            f"error: {file}:4:8: spec.maxseats: is not a known key\n"
            "\n"
            "hint: did you mean maxSeats?\n"
            "\n"
            f'error: {file}:9:43: spec.fleets[0].targetInFlight: must be an integer from 1 to 100000, is "8"\n'
            "\n"
            "hint: remove the quotes\n"
            "\n"
        ),
    )


def test_answers_that_quote_a_file_hold_no_control_characters(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("one", "two"):
        frozen = f'frozen: {{until: 2030-01-01T00:00:00Z, reason: "\\e[2J{name}"}}'
        text = FLEET.replace("maxSeats: 2", f"maxSeats: 2, {frozen}")
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    _, out, _ = run(capsys, "policy", "diff", str(tmp_path / "one.yaml"), str(tmp_path / "two.yaml"))
    assert out == "fleet f: frozen.reason \\e[2Jone → \\e[2Jtwo (for whoever finds it)\n"


def test_a_terminal_gets_no_control_characters_of_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "bad.yaml"
    text = FLEET.replace("name: f", 'name: "\\e]0;x\\a\\u202e"').replace("maxSeats", '"max\\e[2J"')
    file.write_text(text, encoding="utf-8")
    code, _, err = run(capsys, "policy", "validate", str(file))
    assert code == 2
    assert err.replace("\n", "").isprintable()
    assert r'is "\e]0;x\x07\u202e"' in err
    assert r"spec.max\e[2J: is not a known key" in err


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        pytest.param(
            ["flet"], "no such command 'flet'. Did you mean 'fleet'?", "see emberpool --help", id="command"
        ),
        pytest.param(
            ["fleet", "gte"],
            "no such command 'gte'. Did you mean 'get'?",
            "see emberpool fleet --help",
            id="sub-command",
        ),
        pytest.param(
            ["fleet", "get", "--sever", "x"],
            "no such option: --sever (Possible options: --server)",
            "see emberpool fleet get --help",
            id="option",
        ),
        pytest.param(
            ["seat", "get", "-o", "xml"],
            "invalid value for '--output' / '-o': 'xml' is not one of 'table', 'wide', 'json', 'yaml', 'name'",
            "see emberpool seat get --help",
            id="format",
        ),
        pytest.param(
            ["seat", "describe"],
            "missing argument 'NAME'",
            "see emberpool seat describe --help",
            id="argument",
        ),
        pytest.param(
            ["fleet", "get", "--server", "localhost:9080"],
            "'localhost:9080' is not the URL of a server",
            "such as http://127.0.0.1:9080",
            id="server",
        ),
        pytest.param(
            ["fleet", "get", "--server", "http://[::1"],
            "'http://[::1' is not the URL of a server",
            "such as http://127.0.0.1:9080",
            id="broken-url",
        ),
        pytest.param(
            ["local"],
            "no checkpoint was given",
            "name one: emberpool local --checkpoint NAME=DIR",
            id="local-without-checkpoint",
        ),
        pytest.param(
            ["local", "--checkpoint", "a=.", "--policy", "p.yaml", "--seats", "2"],
            "--seats has no meaning beside --policy",
            "set maxSeats in the Fleet document",
            id="seats-beside-policy",
        ),
        pytest.param(
            ["decision", "explain", "--file", "/nowhere/decisions.jsonl"],
            "/nowhere/decisions.jsonl can't be read: No such file or directory",
            "name a state directory that `emberpool local --state-dir DIR` has written to",
            id="missing-ledger",
        ),
        pytest.param(
            ["drill", "report", "/nowhere"],
            "/nowhere/report.json can't be read: No such file or directory",
            "name the folder that `emberpool drill run` wrote",
            id="missing-report",
        ),
    ],
)
def test_what_must_be_mended_ends_with_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str, hint: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err == f"error: {message}\n\nhint: {hint}\n\n"


def test_an_agent_without_its_config_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "agent", "--config", "/nowhere/seat.json")
    assert (code, out) == (2, "")
    assert err.startswith("error: /nowhere/seat.json: ")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, err = run(capsys, name, "--help")
    assert (code, err) == (0, "")
    assert f"Usage: emberpool {name}" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["fleet", "get"],
        ["fleet", "describe"],
        ["seat", "get"],
        ["seat", "describe"],
        ["seat", "promote"],
        ["seat", "demote"],
        ["seat", "switch"],
        ["seat", "drain"],
        ["fleet", "freeze"],
        ["node", "get"],
        ["node", "describe"],
        ["doctor"],
        ["policy", "validate"],
        ["policy", "get"],
        ["policy", "describe"],
        ["decision", "list"],
        ["decision", "explain"],
        ["drill", "run"],
        ["drill", "validate"],
        ["drill", "report"],
        ["local"],
        ["agent"],
    ],
    ids=" ".join,
)
def test_every_help_teaches_by_example(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, out, _ = run(capsys, *arguments, "--help")
    assert code == 0
    assert f"emberpool {' '.join(arguments)}" in out.partition("Examples:")[2]


@pytest.mark.parametrize("arguments", [[], ["fleet"], ["drill"]], ids=["root", "fleet", "drill"])
def test_a_group_without_a_command_shows_its_help_on_stderr(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert "Commands:" in err


def test_the_root_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--help")
    listed = [line.split()[0] for line in out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()]
    assert listed == list(COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert out.startswith("emberpool")

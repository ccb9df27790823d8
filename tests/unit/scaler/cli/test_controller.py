"""`emberpool controller`: where its seats are is said once, by a list or by a cluster."""

from pathlib import Path

import pytest

from scaler.cli.app import main

FILE = ["--agents", "agents.yaml"]


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ([], "there is no word of where the seats are", "--kubernetes finds them"),
        ([*FILE, "--kubernetes"], "--agents and --kubernetes were both given", "either listed or"),
        ([*FILE, "--namespace", "x"], "are for --kubernetes", "add --kubernetes"),
        ([*FILE, "--kubeconfig", "x"], "are for --kubernetes", "add --kubernetes"),
        ([*FILE, "--policy-config-map", "x"], "are for --kubernetes", "add --kubernetes"),
        (
            ["--kubernetes", "--policy-config-map", "x"],
            "--policy and --policy-config-map were both",
            "choose one",
        ),
        (["--kubernetes", "--policy-config-map", "/x"], "'/x' names no ConfigMap", "NAMESPACE/NAME"),
        (["--kubernetes", "--policy-config-map", "a/b/c"], "'a/b/c' names no ConfigMap", "NAMESPACE/NAME"),
        (["--context", "x"], "there is no word of where the seats are", "--agents FILE"),
        (
            ["--kubernetes", "--kubeconfig", "/nowhere/config"],
            "no such kubeconfig",
            "--kubeconfig or KUBECONFIG",
        ),
    ],
)
def test_what_contradicts_itself_is_said_with_the_mend(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    hint: str,
) -> None:
    monkeypatch.setenv("EMBERPOOL_AGENT_TOKEN", "t")
    policies = tmp_path / "policies.yaml"
    policies.write_text(
        "apiVersion: emberpool.dev/v1alpha1\nkind: Fleet\nmetadata: {name: spares}\nspec: {maxSeats: 2}\n"
    )
    assert main(["controller", "--policy", str(policies), "--port", "0", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert hint in said


def test_somebody_must_say_where_the_policies_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBERPOOL_AGENT_TOKEN", "t")
    assert main(["controller", "--kubernetes"]) == 2
    said = capsys.readouterr().err
    assert "there is no word of where the policies are" in said
    assert "--policy-config-map NAME" in said

"""`emberpool fleet template`: the file, the diff, what is said, and what is refused."""

import io
import json
import stat
import sys
from pathlib import Path

import pytest

from scaler.cli.app import main

POLICIES = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: chat}
spec: {maxSeats: 2}
---
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: empty}
spec: {maxSeats: 2}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec: {fleets: [{name: chat, targetInFlight: 8}], engine: {type: VLLM, port: 8001, pausedMiB: 16800}}
"""
MANIFEST = """\
# ours
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  template:
    metadata:
      labels:
        app: chat   # the Service's
    spec:
      containers:
      - name: vllm
        image: "vllm/vllm-openai:v0.32.0"
        resources: {limits: {nvidia.com/gpu: "1"}}"""
DONE = """\
# ours
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  template:
    metadata:
      labels:
        app: chat   # the Service's
        emberpool.dev/fleet: chat
      annotations:
        emberpool.dev/residents: '[{"policy": "chat", "container": "vllm", "port": 8001, "enginePort": 8000, "pausedMiB": 16800, "targetInFlight": 8}]'
    spec:
      containers:
      - name: vllm
        image: "vllm/vllm-openai:v0.32.0"
        resources: {limits: {nvidia.com/gpu: "1"}}
      readinessGates:
      - conditionType: emberpool.dev/admitted"""
ASSUMED = (
    "the engine of chat is not told its port here: it is taken to listen on port 8000, as vLLM does by default; if it"
    " listens elsewhere, say so with --port N in its command or its container's args, or as enginePort in the annotation"
)
FACTS = "container vllm, port 8001, enginePort 8000, pausedMiB 16800, targetInFlight 8"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("p.yaml").write_text(POLICIES, encoding="utf-8")
    Path("m.yaml").write_text(MANIFEST, encoding="utf-8")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["fleet", "template", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def said(name: str) -> str:
    return (
        f"{name}: Deployment chat: label emberpool.dev/fleet: chat\n"
        f"{name}: Deployment chat: annotation emberpool.dev/residents: resident chat added ({FACTS})\n"
        f"{name}: Deployment chat: readiness gate: emberpool.dev/admitted\n"
        f"note: {ASSUMED}\n"
    )


def test_the_manifest_goes_to_stdout_and_the_file_stays(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "chat", "-f", "p.yaml", "-m", "m.yaml") == (0, DONE, said("m.yaml"))
    assert Path("m.yaml").read_text(encoding="utf-8") == MANIFEST


def test_in_place_writes_the_file_and_nothing_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "chat", "-f", "p.yaml", "-m", "m.yaml", "--in-place") == (0, "", said("m.yaml"))
    assert Path("m.yaml").read_text(encoding="utf-8") == DONE
    assert sorted(each.name for each in Path().iterdir()) == ["m.yaml", "p.yaml"]


def test_a_second_run_leaves_the_file_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Path("m.yaml").write_text(DONE, encoding="utf-8")
    before = Path("m.yaml").stat()
    code, out, err = run(capsys, "chat", "-f", "p.yaml", "-m", "m.yaml", "--in-place")
    assert (code, out, err) == (0, "", "m.yaml: Deployment chat: up to date\n")
    after = Path("m.yaml").stat()  # reading it changes when it was read last
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_in_place_keeps_mode_links_line_breaks_and_byte_order_mark(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("m.yaml").write_bytes(b"\xef\xbb\xbf" + MANIFEST.replace("\n", "\r\n").encode())
    Path("m.yaml").chmod(0o640)
    Path("link.yaml").symlink_to("m.yaml")
    assert run(capsys, "chat", "-f", "p.yaml", "-m", "link.yaml", "--in-place")[0] == 0
    assert Path("link.yaml").is_symlink()
    assert stat.S_IMODE(Path("m.yaml").stat().st_mode) == 0o640
    assert Path("m.yaml").read_bytes() == b"\xef\xbb\xbf" + DONE.replace("\n", "\r\n").encode()


def test_a_dry_run_shows_a_diff_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "chat", "-f", "p.yaml", "-m", "m.yaml", "--in-place", "--dry-run")
    assert (code, err) == (0, said("m.yaml"))
    assert out.splitlines()[:5] == [
        "--- a/m.yaml",
        "+++ b/m.yaml",
        "@@ -7,8 +7,13 @@",
        "     metadata:",
        "       labels:",
    ]
    assert [line for line in out.splitlines() if line.startswith(("+ ", "- ", "\\"))] == [
        "+        emberpool.dev/fleet: chat",
        "+      annotations:",
        (
            '+        emberpool.dev/residents: \'[{"policy": "chat", "container": "vllm", "port": 8001, "enginePort":'
            ' 8000, "pausedMiB": 16800, "targetInFlight": 8}]\''
        ),
        '-        resources: {limits: {nvidia.com/gpu: "1"}}',
        "\\ No newline at end of file",
        '+        resources: {limits: {nvidia.com/gpu: "1"}}',
        "+      readinessGates:",
        "+      - conditionType: emberpool.dev/admitted",
        "\\ No newline at end of file",
    ]
    assert Path("m.yaml").read_text(encoding="utf-8") == MANIFEST


def test_json_says_what_was_done(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "chat", "-f", "p.yaml", "-m", "m.yaml", "--in-place", "-o", "json")
    resident = {"policy": "chat", "container": "vllm", "port": 8001, "enginePort": 8000, "pausedMiB": 16800}
    resident |= {"targetInFlight": 8}
    template = ["spec", "template"]
    assert code == 0
    assert json.loads(out) == {
        "fleet": "chat",
        "manifest": "m.yaml",
        "workload": {"kind": "Deployment", "name": "chat", "line": 3},
        "written": True,
        "changes": [
            {
                "path": [*template, "metadata", "labels", "emberpool.dev/fleet"],
                "before": None,
                "after": "chat",
            },
            {
                "path": [*template, "metadata", "annotations", "emberpool.dev/residents"],
                "before": None,
                "after": [resident],
            },
            {
                "path": [*template, "spec", "readinessGates", 0],
                "before": None,
                "after": "emberpool.dev/admitted",
            },
        ],
        "residents": [resident],
        "notes": [ASSUMED],
    }


def test_a_pipe_is_read_and_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MANIFEST.encode())))
    assert run(capsys, "chat", "-f", "p.yaml", "-m", "-") == (0, DONE, said("stdin"))


def test_what_becomes_of_each_resident_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    old = '[{"policy":"old","command":["a","b c"],"port":1},{"policy":"chat","container":"vllm","port":8001}]'
    text = DONE.replace(DONE[DONE.index("'[") : DONE.index("]'") + 2], f"'{old}'")
    Path("m.yaml").write_text(text, encoding="utf-8")
    _, _, err = run(capsys, "chat", "-f", "p.yaml", "-m", "m.yaml", "--in-place")
    assert err == (
        "m.yaml: Deployment chat: annotation emberpool.dev/residents: resident chat changed (pausedMiB none → 16800, targetInFlight none → 8)\n"
        "m.yaml: Deployment chat: annotation emberpool.dev/residents: resident old removed: its policy doesn't name the"
        " fleet\n"
    )


def test_a_command_is_split_as_a_shell_would(capsys: pytest.CaptureFixture[str]) -> None:
    command = "chat=vllm serve '/models/my chat' --port 9001"
    _, out, _ = run(capsys, "chat", "-f", "p.yaml", "-m", "m.yaml", "--command", command, "-o", "json")
    (resident,) = json.loads(out)["residents"]
    assert resident["command"] == ["vllm", "serve", "/models/my chat", "--port", "9001"]
    assert resident["enginePort"] == 9001


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        pytest.param(["cht"], "there is no fleet cht", "did you mean chat?", id="misspelt-fleet"),
        pytest.param(["zzz"], "there is no fleet zzz", "known fleets: chat, empty", id="unknown-fleet"),
        pytest.param(
            ["empty"],
            "no policy names fleet empty: its seats would have no resident",
            "add the fleet to spec.fleets of a policy, and give the policy's file with --policy",
            id="fleet-without-policy",
        ),
        pytest.param(
            ["chat", "--command", "code=a"],
            "no policy code is on fleet chat",
            "policies on it: chat",
            id="unknown-policy",
        ),
        pytest.param(
            ["chat", "--container", "vllm"],
            "--container 'vllm' names no policy and value",
            "--container POLICY=VALUE",
            id="no-assignment",
        ),
        pytest.param(
            ["chat", "--container", "chat=a", "--container", "chat=b"],
            "--container is given twice for chat",
            "keep one of the two",
            id="twice",
        ),
        pytest.param(
            ["chat", "--container", "chat=vllm", "--command", "chat=a"],
            "chat has both a command and a container",
            "a container starts its engine by its own command: keep one of the two",
            id="both",
        ),
        pytest.param(
            ["chat", "--command", "chat='a"],
            "the command of chat can't be split into words: No closing quotation",
            "quote it as a shell would read it",
            id="open-quote",
        ),
        pytest.param(
            ["chat", "--command", "chat= "],
            "the command of chat is empty",
            "--command POLICY='PROGRAM ARGUMENTS'",
            id="empty-command",
        ),
        pytest.param(
            ["chat", "-m", "nowhere.yaml"],
            "nowhere.yaml can't be read: No such file or directory",
            "name the file with the fleet's workload: --manifest FILE",
            id="no-file",
        ),
        pytest.param(
            ["chat", "-m", "-", "--in-place"],
            "stdin can't be written in place",
            "leave --in-place out, or name the file with --manifest",
            id="stdin-in-place",
        ),
        pytest.param(
            ["chat", "-m", "latin.yaml"],
            "latin.yaml is not UTF-8: byte 2 can't be decoded",
            "save the file with the encoding UTF-8",
            id="not-utf-8",
        ),
        pytest.param(
            ["chat", "-m", "chart.yaml"],
            "chart.yaml:1:5: a key must be text, is a mapping",
            "this looks like a chart's template: render it first (helm template), and give that",
            id="chart",
        ),
        pytest.param(
            ["chat", "-m", "other.yaml"],
            "other.yaml:1:1: there is no Deployment chat here, the workload of fleet chat",
            "the manifest holds: Service chat; spec.target of the fleet says which one is meant",
            id="no-workload",
        ),
    ],
)
def test_what_must_be_mended_ends_with_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str, hint: str
) -> None:
    Path("latin.yaml").write_bytes(b"a:\xe9\n")
    Path("chart.yaml").write_text("a: {{ .Values.a }}\n", encoding="utf-8")
    Path("other.yaml").write_text("apiVersion: v1\nkind: Service\nmetadata: {name: chat}\n", encoding="utf-8")
    given = arguments if "-m" in arguments else [*arguments, "-m", "m.yaml"]
    code, out, err = run(capsys, *given, "-f", "p.yaml")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}\n\nhint: {hint}\n\n")


def test_a_file_that_cant_be_replaced_is_said_and_leaves_nothing_behind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Path("m.yaml").open("rb") as stream:
        Path("m.yaml").unlink()  # what is open can still be read, and has no name to be replaced under
        path = f"/proc/self/fd/{stream.fileno()}"
        code, out, err = run(capsys, "chat", "-f", "p.yaml", "-m", path, "--in-place")
    assert (code, out) == (2, "")
    assert err == (
        f"error: {path} can't be written: No such file or directory\n\nhint: without --in-place the manifest is printed,"
        " and the file stays as it is\n\n"
    )
    assert [each.name for each in Path().iterdir()] == ["p.yaml"]


def test_the_help_teaches_by_example(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "emberpool fleet template chat --policy policies/ --manifest chat.yaml --dry-run" in out

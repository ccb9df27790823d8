"""`policy lint`: exit codes, what people read, and what machines get."""

import json
import re
from pathlib import Path

import pytest

from scaler.cli.app import main
from scaler.cli.policy_lint import ASSUMPTIONS

SET = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares}
spec:
  maxSeats: 6
  seat: {memoryMiB: 143771}
  spare: {min: 2}
  costPerGpuHour: {cents: 250}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec:
  fleets: [{name: spares, targetInFlight: 32}]
  engine: {type: VLLM, pausedMiB: 16800, kvMiB: 65536, startSeconds: 60}
  serving: {min: 0, queueDrainSeconds: 1}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: code}
spec:
  fleets: [{name: spares, targetInFlight: 16}]
  engine: {type: VLLM, pausedMiB: 30000}
  serving: {queueDrainSeconds: 1}
"""

HEAD_OF_CODE = "---\napiVersion: emberpool.dev/v1alpha1\nkind: ScalingPolicy\nmetadata: {name: code}\n"

TABLE = """\
Fleet spares: at most 6 seats of 1 GPU, 2 spare; residents chat, code
  TIME                      AT MOST   MADE OF
  2 of 2 spare seats back   unknown   pod until its containers run unknown + start of chat 60.0s + start of code unknown
  spares 6→3                5m        scaleDown window 5m
  COST               A DAY     MADE OF
  spare seats        120 USD   2 seats × 1 GPU of each × 24 hours × 2.50 USD for a GPU's hour
  all of maxSeats    360 USD   6 seats × 1 GPU of each × 24 hours × 2.50 USD for a GPU's hour
  saved by sharing   120 USD   2 seats × 1 further model × 1 GPU of each × 24 hours × 2.50 USD for a GPU's hour
  GPU MEMORY            OF 143,771 MiB   MADE OF
  residents of a seat   > 49,676 MiB     chat paused 16,800 MiB + code paused 30,000 MiB + KV of whoever serves unknown + 2 % reserve 2,876 MiB
  IN MIB   PAUSED   KV       ALONE     SHARED   SHARE   IN-FLIGHT
  chat     16,800   65,536   124,095   94,095   100%    32/32
  code     30,000   -        110,895   94,095   85%     13/16

Policy chat: on spares
  TIME                  AT MOST   MADE OF
  0→1 on a spare seat   0.23s     signal gateway 10ms + tick 20ms + decision 1ms + promotion to first token 0.14s + KV memory 52.8ms
  0→1 on a new seat     unknown   signal gateway 10ms + pod until its containers run unknown + start of chat 60.0s + start of code unknown + tick 20ms + decision 1ms + promotion to first token 0.14s + KV memory 52.8ms
  1→3 on spare seats    0.23s     signal gateway 10ms + tick 20ms + decision 1ms + promotion to first token 0.14s + KV memory 52.8ms
  1→5 on new seats      unknown   signal gateway 10ms + pod until its containers run unknown + start of chat 60.0s + start of code unknown + tick 20ms + decision 1ms + promotion to first token 0.14s + KV memory 52.8ms
  5→0, paused           2m38s     signal gateway 10ms + burst window runs out 7.00s + calm for a stable window 60.0s + smaller answer holds 60.0s + tick and decision 21ms + drain, at most 30.0s
  5→0, seats deleted    7m38s     signal gateway 10ms + burst window runs out 7.00s + calm for a stable window 60.0s + smaller answer holds 60.0s + tick and decision 21ms + drain, at most 30.0s + scaleDown window 5m
  PATH    READY-SEAT   OBJECTIVE   QUEUE   NEW-SEAT   CONNECT   FIRST-TOKEN   WHOLE-ANSWER   SILENCE   DEMOTED   SWITCHED   POD-ENDS
  after   0.23s        1.00s       60.0s   unknown    1.00s     2m            10m            5m        30.0s     5.00s      10.0s

Policy code: on spares
  TIME                 AT MOST   MADE OF
  0→1                  never     serving.min keeps 1 serving
  1→3 on spare seats   0.18s     signal gateway 10ms + tick 20ms + decision 1ms + promotion to first token 0.14s
  1→6 on new seats     unknown   signal gateway 10ms + pod until its containers run unknown + start of chat 60.0s + start of code unknown + tick 20ms + decision 1ms + promotion to first token 0.14s
  6→1, paused          2m38s     signal gateway 10ms + burst window runs out 7.00s + calm for a stable window 60.0s + smaller answer holds 60.0s + tick and decision 21ms + drain, at most 30.0s
  6→1, seats deleted   7m38s     signal gateway 10ms + burst window runs out 7.00s + calm for a stable window 60.0s + smaller answer holds 60.0s + tick and decision 21ms + drain, at most 30.0s + scaleDown window 5m
  PATH    READY-SEAT   OBJECTIVE   QUEUE   NEW-SEAT   CONNECT   FIRST-TOKEN   WHOLE-ANSWER   SILENCE   DEMOTED   SWITCHED   POD-ENDS
  after   0.18s        1.00s       60.0s   unknown    1.00s     2m            10m            5m        30.0s     5.00s      10.0s

info: {file}:6:21: spec.seat.memoryMiB: whether 2 residents fit a seat can't be told without engine.kvMiB of code [MemoryUnknown]

hint: set them as measured, and seat.memoryMiB or --seat-memory-mib N

info: {file}:7:16: spec.spare.min: spare seats cost 120 USD a day; all of maxSeats would cost 360 USD [SpareCost]

info: {file}:7:16: spec.spare.min: 2 models share 2 spare seats; as many for each alone would be 4, so sharing saves 120 USD a day [SharingSaves]

hint: they take one model's burst of that size, or several smaller ones, at a time

info: {file}:15:3: spec.engine: to share seats on spares it must be started with --enable-sleep-mode, --kv-cache-memory-bytes 68719476736, --gpu-memory-utilization 0.05, VLLM_SERVER_DEV_MODE=1, unless what starts it says so already [EngineLacksArguments]

hint: `emberpool engine args --engine VLLM` prints them, each with its reason (known of VLLM 0.32.0)

info: {file}:16:18: spec.serving.min: after a rest, while code has the ready seats, a new seat takes 60.2 s at least, and the gateway refuses what has waited for 60 s: requests of the first 0.2 s get 503 instead of an answer [ColdStartRefused]

hint: one more of spare.min on one of its fleets, serving.min: 1, or a longer queue.maxColdSeconds; else clients have to try again once

info: {file}:23:3: spec.engine: to share seats on spares it must be started with --enable-sleep-mode, --gpu-memory-utilization 0.05, VLLM_SERVER_DEV_MODE=1, unless what starts it says so already [EngineLacksArguments]

hint: `emberpool engine args --engine VLLM` prints them, each with its reason (known of VLLM 0.32.0)

Assumed: promotionMilliseconds=142, drainSeconds=30, gatewayReceiveSeconds=60, gatewayQueueSeconds=60, gatewayConnectSeconds=1, gatewayDeadlineSeconds=120, gatewayAnswerSeconds=600, gatewayIdleSeconds=300, gatewayStallSeconds=300, gatewayDrainSeconds=30 (--assume NAME=VALUE)
The 142 ms of a promotion were measured on the reference engine: measure those of other engines, and assume them

1 fleet and 2 policies: 0 errors, 0 warnings, 6 notes
"""


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "set.yaml"
    path.write_text(SET, encoding="utf-8")
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(("policy", "lint", *arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_people_read_each_number_with_what_it_is_made_of(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    assert run(capsys, str(file)) == (0, TABLE.replace("{file}", str(file)), "")


@pytest.mark.parametrize("output", ["table", "wide"])
@pytest.mark.parametrize("columns", [100, 120, 200])
def test_tables_fit_the_terminal(
    capsys: pytest.CaptureFixture[str], file: Path, monkeypatch: pytest.MonkeyPatch, columns: int, output: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = run(capsys, str(file), "-o", output)
    too_long = [line for line in out.splitlines() if line.startswith("  ") and len(line) > columns]
    assert [line for line in too_long if len(line.split()[-1]) < 20] == []  # but for a name without a space


def test_the_table_of_memory_fits_eighty_columns(
    capsys: pytest.CaptureFixture[str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    host = "spare: {min: 2, parked: {hostMemoryMiB: 250000}}"
    sizes = [
        ("pausedMiB: 16800, kvMiB: 65536", "pausedMiB: 116800, kvMiB: 15536"),
        ("pausedMiB: 30000", "pausedMiB: 130000, kvMiB: 10000"),
        ("name: chat", "name: chat-with-a-name"),
    ]
    text = SET
    for before, after in sizes:
        text = text.replace(before, after)
    for changed, columns in ((text, 7), (text.replace("spare: {min: 2}", host), 7)):
        file.write_text(changed, encoding="utf-8")
        lines = run(capsys, str(file))[1].splitlines()
        at = next(number for number, line in enumerate(lines) if line.startswith("  IN MIB"))
        table = lines[at : at + 3]
        assert len(table[0].split()) == columns + 1  # IN MIB is two words
        assert max(map(len, table)) <= 80
    assert [line.split()[-1] for line in table] == ["TIER", "Paused", "Parked"]


def test_a_promotion_of_another_engine_says_where_its_time_was_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = "The 142 ms of a promotion were measured on the reference engine"
    file = tmp_path / "set.yaml"
    file.write_text(SET.replace("type: Reference", "type: VLLM"), encoding="utf-8")
    assert said in run(capsys, str(file))[1]
    assert said not in run(capsys, str(file), "--assume", "promotionMilliseconds=142")[1]
    file.write_text(SET.replace("type: VLLM", "type: Reference"), encoding="utf-8")
    assert said not in run(capsys, str(file))[1]


def test_wide_says_where_each_part_comes_from(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    _, out, _ = run(capsys, str(file), "-o", "wide")
    lines = [line.split(maxsplit=1) for line in out.splitlines()]
    assert [
        "unknown",
        "start of code                  unknown: set spec.engine.startSeconds of policy code, as measured",
    ] in lines
    assert ["60.0s", "start of chat                  engine.startSeconds"] in lines


def test_wide_says_what_happens_on_a_request_s_path(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    _, out, _ = run(capsys, str(file), "-o", "wide", "--assume", "gatewayStallSeconds=7")
    rows = [re.split(" {3,}", line.strip()) for line in out.splitlines()]
    assert [
        "stall",
        "7.00s",
        "the connection is cut: the client takes nothing",
        "assumption gatewayStallSeconds",
    ] in rows
    (new,) = [row for row in rows if row[:2] == ["new seat", "> 60.2s"]]
    assert "start of code unknown" in new[3]


def test_what_is_assumed_of_the_gateway_changes_path_and_findings(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    _, out, _ = run(capsys, str(file), "--assume", "gatewayQueueSeconds=100", "--assume", "answerSeconds=20")
    assert re.search(r"after +0.23s +1.00s +100.0s ", out)
    assert "[ColdStartRefused]" not in out
    assert "another model takes their seat (5 s), their pod ends (10 s) [AnswersCut]" in out


def test_machines_get_figures_findings_and_their_places(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    code, out, err = run(capsys, str(file), "-o", "json")
    tree = json.loads(out)
    assert (code, err) == (0, "")
    assert set(tree) == {"policyHash", "assumptions", "fleets", "policies", "findings", "summary"}
    assert tree["assumptions"]["hpaTolerancePercent"] == 10
    assert tree["summary"] == {"errors": 0, "warnings": 0, "infos": 6}
    (spares,) = tree["fleets"]
    assert set(spares) == {"name", "policies", "times", "costsPerDay", "memory"}
    assert spares["memory"]["residents"][1] == {
        "policy": "code",
        "tier": None,
        "displaces": [],
        "pausedMiB": 30_000,
        "kvMiB": None,
        "kvAloneMiB": 110_895,
        "kvSharedMiB": 94_095,
        "share": pytest.approx(94_095 / 110_895),
        "targetInFlight": 16,
        "inFlight": 13,
    }
    zero = tree["policies"][1]["times"][0]
    assert zero == {
        "name": "0→1",
        "unit": "seconds",
        "total": None,
        "exact": False,
        "never": "serving.min keeps 1 serving",
        "operator": "Sum",
        "terms": [],
    }
    queue = next(each for each in tree["policies"][1]["path"] if each["stage"] == "queue")
    assert queue == {
        "stage": "queue",
        "then": "503 QueueTooOld, Retry-After 1 s or more: no slot became free",
        "name": "queue",
        "unit": "seconds",
        "total": 60.0,
        "exact": True,
        "never": None,
        "operator": "Sum",
        "terms": [
            {
                "name": "queue",
                "value": 60.0,
                "unit": "seconds",
                "origin": "assumption gatewayQueueSeconds",
            }
        ],
    }
    assert tree["findings"][1] == {
        "code": "SpareCost",
        "severity": "Info",
        "kind": "Fleet",
        "namespace": "default",
        "name": "spares",
        "file": str(file),
        "line": 7,
        "column": 16,
        "path": "spec.spare.min",
        "message": "spare seats cost 120 USD a day; all of maxSeats would cost 360 USD",
        "hint": "",
        "terms": [
            {"name": "seats", "value": 2.0, "unit": "seats", "origin": "spare.min"},
            {"name": "GPU of each", "value": 1.0, "unit": "GPUs", "origin": "seat.gpus"},
            {"name": "hours", "value": 24.0, "unit": "hours", "origin": "a day"},
            {
                "name": "USD for a GPU's hour",
                "value": 2.5,
                "unit": "USD",
                "origin": "costPerGpuHour.cents / 100",
            },
        ],
    }


def test_yaml_holds_the_same(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    _, out, _ = run(capsys, str(file), "-o", "yaml")
    assert "summary:\n  errors: 0\n  warnings: 0\n  infos: 6\n" in out


WARNED = SET.replace("pausedMiB: 30000", "pausedMiB: 90000")
WRONG = SET.replace("kvMiB: 65536", "kvMiB: 199999")


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        pytest.param(SET, [], 0, id="notes"),
        pytest.param(SET, ["--strict"], 0, id="notes-strict"),
        pytest.param(WARNED, [], 0, id="warnings"),
        pytest.param(WARNED, ["--strict"], 1, id="warnings-strict"),
        pytest.param(WRONG, [], 1, id="errors"),
        pytest.param(WRONG, ["-o", "json"], 1, id="errors-as-json"),
        pytest.param(SET.replace("6", "x"), [], 2, id="no-set"),
    ],
)
def test_the_exit_code_says_how_bad_it_is(
    capsys: pytest.CaptureFixture[str], file: Path, text: str, options: list[str], expected: int
) -> None:
    file.write_text(text, encoding="utf-8")
    assert run(capsys, str(file), *options)[0] == expected


def test_assumptions_replace_what_is_unknown(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    _, out, _ = run(
        capsys, str(file), "--assume", "podStartSeconds=40", "--assume", "promotionMilliseconds=1000"
    )
    assert "pod until its containers run 40.0s" in out
    assert "podStartSeconds=40, promotionMilliseconds=1000, drainSeconds=30" in out


def test_a_seat_s_memory_can_be_told(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text(SET.replace("  seat: {memoryMiB: 143771}\n", ""), encoding="utf-8")
    code, out, _ = run(capsys, str(file), "--seat-memory-mib", "40000")
    assert code == 1
    assert "OF 40,000 MiB" in out
    assert f"error: {file}:4:1: spec.seat: the residents of a seat need" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--assume", "podStart"], "--assume podStart is not NAME=VALUE with a whole number"),
        (
            ["--assume", "podStartSeconds=x"],
            "--assume podStartSeconds=x is not NAME=VALUE with a whole number",
        ),
        (
            ["--assume", "podStartSecond=1"],
            "--assume podStartSecond=1: there is no assumption podStartSecond",
        ),
        (
            ["--assume", "hpaTolerancePercent=101"],
            "hpaTolerancePercent must be an integer from 0 to 100, is 101",
        ),
        (["--seat-memory-mib", "0"], "seatMemoryMiB must be an integer from 1 to 67108864, is 0"),
        (["--template", "/nowhere.yaml"], "/nowhere.yaml:1:1: no such file"),
    ],
)
def test_wrong_options_are_usage_errors(
    capsys: pytest.CaptureFixture[str], file: Path, options: list[str], message: str
) -> None:
    code, out, err = run(capsys, str(file), *options)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}\n")


MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: spares
spec:
  template:
    metadata:
      labels: {emberpool.dev/fleet: spares}
      annotations:
        emberpool.dev/residents: |
          [{"policy": "chat", "command": ["vllm"], "port": 8001}]
    spec:
      containers:
        - name: engines
          resources: {limits: {nvidia.com/gpu: 2}}
"""


def test_findings_about_a_manifest_point_into_it(
    capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path
) -> None:
    manifest = tmp_path / "deployment.yaml"
    manifest.write_text(MANIFEST, encoding="utf-8")
    code, out, _ = run(capsys, str(file), "--template", str(manifest))
    assert code == 1
    assert f"error: {manifest}:13:7: spec.template.spec.containers: the pod asks for 2 GPUs" in out
    assert (
        f"warning: {manifest}:10:34: spec.template.metadata.annotations.emberpool.dev/residents: policy code names"
        in out
    )


def test_an_annotation_that_can_t_be_used_is_an_input_error(
    capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path
) -> None:
    manifest = tmp_path / "deployment.yaml"
    manifest.write_text(MANIFEST.replace("8001", '"8001"'), encoding="utf-8")
    code, out, err = run(capsys, str(file), "--template", str(manifest))
    assert (code, out) == (2, "")
    assert 'emberpool.dev/residents[0].port: must be an integer from 1 to 65535, is "8001"' in err


def test_faults_of_policies_hide_none_of_a_manifest(
    capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path
) -> None:
    manifest = tmp_path / "deployment.yaml"
    manifest.write_text(MANIFEST.replace("8001", '"8001"'), encoding="utf-8")
    file.write_text(SET.replace("maxSeats: 6", "maxSeats: x"), encoding="utf-8")
    code, _, err = run(capsys, str(file), "--template", str(manifest))
    assert code == 2
    assert err.index(f"{file}:5:13: spec.maxSeats") < err.index(f"{manifest}:")


@pytest.mark.parametrize(
    ("window", "paused", "deleted"),
    [
        pytest.param(500, "2m38s", "10m58s", id="beyond ten minutes"),
        pytest.param(3500, "2m38s", "1h58s", id="beyond an hour"),
    ],
)
def test_the_most_that_something_takes_is_never_less_than_it_takes(
    capsys: pytest.CaptureFixture[str], file: Path, window: int, paused: str, deleted: str
) -> None:
    """Exactly 157.031 s, and the window."""
    down = f"  scaleDown: {{stabilizationWindowSeconds: {window}}}\n  costPerGpuHour"
    file.write_text(SET.replace("  costPerGpuHour", down), encoding="utf-8")
    _, out, _ = run(capsys, str(file))
    cells = [re.split(" {3,}", line.strip()) for line in out.splitlines() if "→" in line]
    totals = {name: total for name, total, *_ in cells}
    assert (totals["5→0, paused"], totals["5→0, seats deleted"]) == (paused, deleted)


def test_help_lists_what_can_be_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    words = out.replace(",", " ").replace(".", " ").split()
    assert set(ASSUMPTIONS) <= set(words)


def test_what_is_not_acted_on_is_a_warning_with_its_place(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    file.write_text(SET.replace("spare: {min: 2}", "spare: {min: 2, replenish: {maxPerNode: 1}}"), "utf-8")
    code, out, _ = run(capsys, str(file), "--strict")
    assert code == 1
    assert (
        f"warning: {file}:7:43: spec.spare.replenish.maxPerNode: is not acted on yet: "
        "seats that are starting are not counted by node [NotActedOn]" in out
    )


def test_the_example_for_keda_warns_of_nothing_that_it_cannot_know(
    capsys: pytest.CaptureFixture[str],
) -> None:
    keda = Path(__file__).parents[4] / "policies" / "keda.yaml"
    _, out, _ = run(capsys, str(keda), "-o", "json")
    warned = [each["code"] for each in json.loads(out)["findings"] if each["severity"] == "Warning"]
    assert set(warned) <= {"NotActedOn"}


def test_what_a_policy_says_of_its_queue_goes_before_what_is_assumed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "own.yaml"
    queue = "  queue: {maxAgeSeconds: 30, maxColdSeconds: 300}\n"
    chat, code = SET.split(HEAD_OF_CODE)
    file.write_text(f"{chat}{queue}{HEAD_OF_CODE}{code}{queue}", "utf-8")
    _, out, _ = run(capsys, str(file), "-o", "json")
    first, second = (
        {stage["stage"]: stage["terms"][0] for stage in policy["path"] if stage["terms"]}
        for policy in json.loads(out)["policies"]
    )
    assert (first["queue"]["value"], first["queue"]["origin"]) == (300, "queue.maxColdSeconds")
    assert first["first token"]["value"] == 420
    assert (second["queue"]["value"], second["queue"]["origin"]) == (30, "queue.maxAgeSeconds")
    assert second["first token"]["value"] == 120, "one of it always serves"

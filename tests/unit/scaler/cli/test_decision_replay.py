"""`emberpool decision replay`: a ledger run again, under its own policies and under others."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from scaler.cli.app import main
from scaler.core.decide import decide
from scaler.core.islands import Island
from scaler.core.ledger import Entry, Ledger
from scaler.core.memory import Memory
from scaler.core.model import FleetSpec, Load, PolicySpec, Snapshot
from scaler.policy.compile import compile_set
from scaler.policy.document import parse_documents
from tests.unit.scaler.core.world import load, simple

SET = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares}
spec: {maxSeats: 3, spare: {min: 1}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec: {fleets: [{name: spares, targetInFlight: 8}], serving: {min: 1}, burst: {stableWindowSeconds: 10}}
"""
HIGHER = SET.replace("min: 1}, burst", "min: 2}, burst")


@dataclass(frozen=True)
class Rules:
    policies: tuple[PolicySpec, ...]
    fleets: tuple[FleetSpec, ...]
    hash: str


def lines(ticks: int = 120) -> list[dict[str, Any]]:
    """A minute of one run, half a second a tick: some load, then silence."""
    return list(json.loads(ledger_of(ticks)))


@cache
def ledger_of(ticks: int) -> str:
    policies = compile_set(parse_documents(SET, "set.yaml"))
    rules = Rules(
        tuple(policies.policy_specs.values()), tuple(policies.fleet_specs.values()), policies.short_hash
    )
    ledger, memory, written = Ledger(), Memory.initial(10.0), []
    for number in range(1, ticks + 1):
        now, before = 10.0 + number / 2, memory
        snapshot = Snapshot(
            loads={"chat": load(3 + number % 4) if number < 80 else Load()},  # type: ignore[dict-item]
            fleets={"spares": simple({"chat": 1}, 2)},  # type: ignore[dict-item]
        )
        decision, memory = decide(rules.policies, rules.fleets, snapshot, before, now)
        entry = Entry(
            number=number,
            at=1767225600.0 + now,
            causes={"sample": 1},
            rules=rules,
            on=Island(rules.policies, rules.fleets),
            before=before,
            snapshot=snapshot,
            decision=decision,
            actions=[],
        )
        written.append(ledger.line(entry))
    return json.dumps(written)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(lines())
    Path("same.yaml").write_text(SET, "utf-8")
    Path("higher.yaml").write_text(HIGHER, "utf-8")
    return tmp_path


def write(written: list[dict[str, Any]]) -> None:
    Path("decisions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in written), "utf-8")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["decision", "replay", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("named", ["decisions.jsonl", "."], ids=["the-file", "the-state-directory"])
def test_a_ledger_replays(capsys: pytest.CaptureFixture[str], state: Path, named: str) -> None:
    records = sum("decision" in line for line in lines())
    assert run(capsys, named) == (0, f"{records} decisions replayed, all equal (120 ticks)\n", "")


def test_large_numbers_are_readable(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    write(lines(2100))
    _, out, _ = run(capsys, ".")
    assert out.startswith("1,0")
    assert out.endswith("(2,100 ticks)\n")


def test_the_first_difference_is_named_and_ends_with_1(
    capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    written = lines()
    victim = [line for line in written if "decision" in line][30]
    victim["decision"]["policies"]["chat"]["serving"]["spares"] = 3
    write(written)
    code, out, err = run(capsys, ".")
    assert (code, err) == (1, "")
    assert out.startswith(f"decision {victim['number']} (20")
    assert ") differs: policy chat, serving.spares: the ledger says 3, the replay 1\n" in out
    assert out.endswith(" ticks before it were replayed, and 31 decisions compared\n")


def test_a_difference_in_what_was_remembered_is_told_by_its_field(
    capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    written = lines(150)
    victim = [line for line in written if "start" in line][1]
    victim["start"]["memory"]["policies"]["chat"]["fedSince"] = 7.5
    write(written)
    code, out, _ = run(capsys, ".")
    assert code == 1
    assert ") differs: policy chat, memory.fedSince: the ledger says 7.5, the replay 10.5\n" in out


@pytest.mark.parametrize(
    ("index", "line", "code", "said"),
    [
        pytest.param(
            9,
            "{",
            1,
            "decisions.jsonl:10: the line is torn, and is passed over\n1 tick is missing",
            id="torn",
        ),
        pytest.param(
            9,
            "x",
            1,
            "decisions.jsonl:10: the line is no JSON, and is passed over\n1 tick is missing",
            id="no-json",
        ),
        pytest.param(
            9, "3", 1, "decisions.jsonl:10: the line is no JSON object, and is passed over\n", id="no-object"
        ),
        pytest.param(
            119, '{"a', 0, "decisions.jsonl:120: the last line is torn, and is passed over\n", id="the-last"
        ),
        pytest.param(0, "x", 2, "error: decisions.jsonl is no ledger: line 1 is no JSON\n", id="the-first"),
    ],
)
def test_a_line_that_is_no_record_is_named(
    capsys: pytest.CaptureFixture[str], state: Path, index: int, line: str, code: int, said: str
) -> None:
    written = [json.dumps(each) for each in lines()]
    written[index] = line
    Path("decisions.jsonl").write_text("\n".join(written), "utf-8")
    found, _, err = run(capsys, "decisions.jsonl")
    assert found == code
    assert err.startswith(said)


def test_json_holds_the_difference(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    written = lines()
    written[0]["decision"]["fleets"]["spares"]["total"] = 9
    write(written)
    code, out, _ = run(capsys, ".", "-o", "json")
    assert code == 1
    assert json.loads(out) == {
        "ticks": 1,
        "compared": 1,
        "difference": {
            "number": 1,
            "at": written[0]["at"],
            "subject": "fleet spares",
            "field": "total",
            "recorded": 9,
            "replayed": 3,
        },
        "skipped": 0,
        "missing": 0,
    }


def test_json_of_a_ledger_without_a_difference(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    code, out, _ = run(capsys, ".", "-o", "json")
    assert (code, json.loads(out)["difference"]) == (0, None)


def test_another_law_is_said(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    written = lines()
    written[0]["decision"]["law"] = "0"
    write(written)
    code, out, _ = run(capsys, ".")
    assert code == 1
    assert "only the version that wrote it gives the same decisions" in out


def _cut(written: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*written[:60], *written[62:]]


def _headless(written: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return written[5:]


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        pytest.param(
            _cut,
            1,
            (
                "2 ticks are missing from the ledger\n"
                "58 ticks not replayed: what the law remembered before them is not in the ledger\n"
            ),
            id="a-gap",
        ),
        pytest.param(
            _headless,
            1,
            (
                "error: decisions.jsonl holds nothing that can be replayed\n\n"
                "hint: a replay begins at a decision with `start`, which a controller writes first and then once a "
                "minute\n\n"
            ),
            id="no-beginning",
        ),
        pytest.param(
            lambda _: [],
            1,
            (
                "error: decisions.jsonl holds nothing that can be replayed\n\n"
                "hint: a replay begins at a decision with `start`, which a controller writes first and then once a "
                "minute\n\n"
            ),
            id="empty",
        ),
        pytest.param(
            lambda written: [written[0], {**written[1], "changes": 3}],
            1,
            (
                "error: decisions.jsonl: decision 2 can't be read: 'int' object is not a mapping\n\n"
                "hint: was it edited, or written by another version?\n\n"
            ),
            id="nonsense",
        ),
    ],
)
def test_what_a_ledger_lacks_is_said(
    capsys: pytest.CaptureFixture[str],
    state: Path,
    change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]],
    code: int,
    said: str,
) -> None:
    write(change(lines()))
    found, _, err = run(capsys, "decisions.jsonl")
    assert (found, err) == (code, said)


def test_a_ledger_that_is_not_there_ends_with_2(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    code, out, err = run(capsys, "nowhere.jsonl")
    assert (code, out) == (2, "")
    assert err.startswith("error: nowhere.jsonl can't be read: No such file or directory")


# ------------------------------------------------------------------ other policies

CAVEAT = (
    "seats and queues are those that the recorded policies led to: this is what would have been decided at each "
    "moment, and not how things would have gone on\n"
)


def test_the_same_policies_would_have_changed_nothing(
    capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    assert run(capsys, ".", "--policy", "same.yaml") == (
        0,
        (
            "policy chat: all 120 decisions would have been the same\n"
            "fleet spares: all 120 decisions would have been the same\n"
        ),
        CAVEAT,
    )


def test_what_other_policies_would_have_changed_is_told_in_words(
    capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    code, out, err = run(capsys, ".", "--policy", "higher.yaml")
    assert (code, err) == (0, CAVEAT)
    first, second, third = out.splitlines()
    assert first == (
        "policy chat: 120 of 120 decisions would have been different, for 59.5 of 59.5 s; up to 1 resident more; "
        "59.5 resident-seconds more in all"
    )
    assert second.startswith("  first in decision 1 (20")
    assert second.endswith("): serving {spares: 1} → {spares: 2}")
    assert third == "fleet spares: all 120 decisions would have been the same"


def test_the_effects_as_data(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    code, out, _ = run(capsys, ".", "--policy", "higher.yaml", "-o", "json")
    tree = json.loads(out)
    assert code == 0
    assert tree["policies"]["chat"]["mostMore"] == 1
    assert tree["policies"]["chat"]["residentSecondsMore"] == 59.5
    assert tree["policies"]["chat"]["first"]["replayed"] == {"spares": 2}
    assert tree["fleets"]["spares"]["seatSecondsMore"] == 0
    assert (tree["ticks"], tree["notInLedger"], tree["notInPolicies"]) == (120, [], [])


def test_what_only_one_side_knows_is_named(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    Path("renamed.yaml").write_text(SET.replace("name: chat", "name: talk"), "utf-8")
    _, out, _ = run(capsys, ".", "--policy", "renamed.yaml")
    assert "policy talk: not in the ledger, which therefore says nothing of it\n" in out
    assert "policy chat: not in the other policies\n" in out


def test_the_clock_of_the_other_policies_counts(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    """The ledger was written in the first minute of 2026, UTC."""
    floor = ', schedules: [{name: eve, start: "0 0 1 1 *", end: "0 1 1 1 *", minServing: 2}]}'
    Path("eve.yaml").write_text(SET.rstrip().removesuffix("}") + floor + "\n", "utf-8")
    _, out, _ = run(capsys, ".", "--policy", "eve.yaml")
    assert "up to 1 resident more" in out


def test_policies_that_cannot_be_used_end_with_2(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    Path("bad.yaml").write_text(SET.replace("maxSeats: 3", "maxSeats: 0"), "utf-8")
    code, out, err = run(capsys, ".", "--policy", "bad.yaml")
    assert (code, out) == (2, "")
    assert err.startswith("error: bad.yaml:4:18: spec.maxSeats: must be")


# ------------------------------------------------------------------ list and explain


def test_ticks_between_decisions_are_not_listed(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    assert main(["decision", "list", "--state-dir", ".", "--last", "1000", "-o", "json"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert len(items) == sum("decision" in line for line in lines())
    assert not any("start" in item for item in items)


def test_help_teaches_by_example(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "emberpool decision replay" in out.partition("Examples:")[2]

"""`emberpool decision`: the ledger as a table and as sentences."""

import json
from datetime import datetime
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from scaler.cli.app import main
from scaler.core.model import (
    Decision,
    FleetDecision,
    Mode,
    PolicyDecision,
    Reason,
    ReasonCode,
)
from scaler.core.replay import decision_to_json


def decision(serving: int, mode: Mode, reason: Reason) -> Decision:
    return Decision(
        at=100.0,
        policies={
            "chat": PolicyDecision(
                policy="chat",
                mode=mode,
                demand=12.5,
                needed=16.0,
                capacity=8.0,
                wanted={"shared": serving + 1},
                serving={"shared": serving},
                reasons=(reason,),
            )
        },
        fleets={
            "shared": FleetDecision(
                fleet="shared",
                serving=serving,
                spare=1,
                held=0,
                total=3,
                reasons=(Reason(code=ReasonCode.REPLENISHING, facts={"seats": 1.0, "spareTarget": 1.0}),),
            )
        },
    )


def record(number: int, serving: int, mode: Mode, **changes: object) -> str:
    facts = {"demand": 12.0, "window": "burst", "windowSeconds": 6.0, "capacity": 8.0}
    made = decision(serving, mode, Reason(code=ReasonCode.CONCURRENCY, facts=facts))
    line = {
        "at": 1767225600.25 + number,
        "number": number,
        "causes": {"sample": number, "cluster": 1},
        "policyHash": "0123456789abcdef",
        "inputs": {},
        "decision": decision_to_json(made),
        "actions": ["chat: one more is wanted"] if number == 2 else [],
    }
    return json.dumps({**line, **changes})


@pytest.fixture
def state(tmp_path: Path) -> Path:
    lines = [record(1, 1, Mode.STABLE), record(2, 2, Mode.BURST), '"not a record"', '{"torn": ']
    (tmp_path / "decisions.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_list(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    code, out, _ = run(capsys, "decision", "list", "--state-dir", str(state), "-o", "wide")
    assert code == 0
    times = [datetime.fromtimestamp(1767225600.25 + n).astimezone().strftime("%H:%M:%S.250") for n in (1, 2)]
    assert out.splitlines() == [
        "NUMBER   TIME           CAUSE              SERVING         SEATS      POLICY-HASH    ACTIONS",
        f"1        {times[0]}   sample,cluster     chat=1          shared=3   0123456789ab   -",
        f"2        {times[1]}   sample×2,cluster   chat=2(Burst)   shared=3   0123456789ab   chat: one more is wanted",
    ]


def test_the_list_can_be_cut(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    _, out, _ = run(capsys, "decision", "list", "--state-dir", str(state), "--last", "1", "-o", "name")
    assert out == "decision/2\n"


def test_json_gives_the_records_as_they_were_written(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    _, out, _ = run(capsys, "decision", "list", "--state-dir", str(state), "-o", "json")
    written = (state / "decisions.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(out)["items"] == [json.loads(line) for line in written[:2]]


def test_explain_says_why_in_sentences(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    code, out, _ = run(capsys, "decision", "explain", "2", "--state-dir", str(state))
    assert code == 0
    assert out.splitlines()[0] == "Decision:     2"
    assert out.splitlines()[2:] == [
        "Causes:       sample×2, cluster",
        "Policy hash:  0123456789ab",
        "Actions:      chat: one more is wanted",
        "Policy chat: Burst, demand 12.5, needed 16, capacity 8; to serve: 2 on shared (3 wanted)",
        "  - Demand reached 12 requests within the last 6 s; what serves holds 8. [Concurrency]",
        "Fleet shared: 3 seats (2 serving, 1 spare, 0 held)",
        "  - 1 seat to be started so that 1 spare seat are there again. [Replenishing]",
    ]


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_explain_as_data_is_the_record_with_its_sentences(
    capsys: pytest.CaptureFixture[str], state: Path, output: str
) -> None:
    code, out, err = run(capsys, "decision", "explain", "2", "--state-dir", str(state), "-o", output)
    found = json.loads(out) if output == "json" else YAML(typ="safe").load(out)
    written = (state / "decisions.jsonl").read_text(encoding="utf-8").splitlines()
    assert (code, err, found) == (0, "", json.loads(written[1]))
    (reason,) = found["decision"]["policies"]["chat"]["reasons"]
    assert reason["sentence"].startswith("Demand reached 12 requests")


@pytest.mark.parametrize("command", ["list", "explain"])
def test_a_ledger_that_is_named_without_its_option_is_told_which_one(
    capsys: pytest.CaptureFixture[str], state: Path, command: str
) -> None:
    code, out, err = run(capsys, "decision", command, str(state))
    assert (code, out) == (2, "")
    assert err == (
        f"error: no path can stand here, and {state} does\n\n"
        f"hint: a state directory is given with its option: --state-dir {state}\n\n"
    )
    _, _, err = run(capsys, "decision", command, str(state / "decisions.jsonl"))
    assert f"hint: a ledger is given with its option: --file {state}/decisions.jsonl\n" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "/nowhere/at/all"], "got unexpected extra argument(s) (/nowhere/at/all)"),
        (["explain", "second"], "invalid value for '[NUMBER]'"),
    ],
)
def test_what_is_no_path_is_wrong_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, _, err = run(capsys, "decision", *arguments)
    assert code == 2
    assert err.startswith(f"error: {message}")


# ------------------------------------------------------------------ records that tell of a part


def part(number: int, kind: str, /, *names: str, **changes: object) -> str:
    """Write a record that looked at some policies, or some fleets."""
    whole = json.loads(record(number, number, Mode.STABLE))
    answer = whole["decision"][kind]["chat" if kind == "policies" else "shared"]
    whole["decision"] |= {"policies": {}, "fleets": {}, kind: dict.fromkeys(names, answer)}
    whole["inputs"] = {"loads": {name: {} for name in names if kind == "policies"}, "gpuBudget": number}
    looked = {"policies": [], "fleets": [], kind: list(names)}
    return json.dumps({**whole, "looked": looked, **changes})


def ledger(folder: Path, *lines: str) -> str:
    file = folder / "parts.jsonl"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(file)


def test_without_a_number_what_the_last_one_did_not_look_at_comes_from_before(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = ledger(
        tmp_path,
        part(1, "policies", "chat", "code"),
        part(2, "fleets", "shared"),
        part(3, "policies", "code"),
    )
    code, out, _ = run(capsys, "decision", "explain", "--file", file)
    times = [datetime.fromtimestamp(1767225600.25 + n).astimezone().strftime("%H:%M:%S.250") for n in (1, 2)]
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "Decision:     3"
    assert lines[2] == "Looked at:    policy code; of the others, what was decided last"
    assert [
        line.partition(":  ")[0].partition(": Stable")[0] for line in lines if line.startswith("Policy c")
    ] == [
        f"Policy chat (decision 1, {times[0]})",
        "Policy code",
    ]
    assert f"Fleet shared (decision 2, {times[1]}): 3 seats (2 serving, 1 spare, 0 held)" in lines


def test_as_data_every_answer_has_the_number_and_time_of_its_decision(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = ledger(tmp_path, part(1, "policies", "chat", "code"), part(2, "policies", "code"))
    _, out, _ = run(capsys, "decision", "explain", "--file", file, "-o", "json")
    found = json.loads(out)
    answers = found["decision"]["policies"]
    assert {name: (each["number"], each["at"]) for name, each in answers.items()} == {
        "chat": (1, 1767225601.25),
        "code": (2, 1767225602.25),
    }
    assert (found["number"], found["looked"]["policies"]) == (2, ["code"])
    assert found["inputs"]["loads"].keys() == {"chat", "code"}
    assert found["inputs"]["gpuBudget"] == 2


@pytest.mark.parametrize(
    ("later", "why"),
    [
        pytest.param({"policyHash": "another"}, "other policies are in force", id="reload"),
        pytest.param({"number": 1}, "another run has begun", id="restart"),
    ],
)
def test_what_was_decided_before_a_new_beginning_is_not_told_any_more(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, later: dict[str, object], why: str
) -> None:
    file = ledger(tmp_path, part(1, "policies", "gone"), part(2, "policies", "chat", **later))
    _, out, _ = run(capsys, "decision", "explain", "--file", file)
    assert "Policy chat" in out
    assert "gone" not in out, why


def test_a_number_that_another_run_has_as_well_is_a_part_of_what_its_own_run_had(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = [
        part(1, "policies", "a", "b"),
        part(2, "policies", "a"),
        part(1, "policies", "a"),
        part(2, "policies", "a"),
    ]
    _, out, _ = run(capsys, "decision", "explain", "2", "--file", ledger(tmp_path, *lines), "-o", "json")
    assert json.loads(out)["of"] == {"policies": ["a"], "fleets": []}


def test_the_list_keeps_to_those_that_looked_at_a_policy_and_a_fleet(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    whole = record(3, 1, Mode.STABLE)
    file = ledger(
        tmp_path, part(1, "policies", "chat"), part(2, "fleets", "shared"), whole, part(4, "policies", "code")
    )

    def numbers(*options: str) -> list[str]:
        code, out, _ = run(capsys, "decision", "list", "--file", file, "-o", "name", *options)
        assert code == 0
        return [line.removeprefix("decision/") for line in out.split()]

    assert numbers("--policy", "chat") == ["1", "3"]
    assert numbers("--policy", "chat", "--last", "1") == ["3"]
    assert numbers("--fleet", "shared") == ["2", "3"]
    assert numbers("--policy", "chat", "--fleet", "shared") == ["3"]
    assert numbers("--policy", "code", "--fleet", "shared") == []


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--policy", "chta"], "looked at policy chta\n\nhint: did you mean chat?\n\n"),
        (["--fleet", "zzz"], "looked at fleet zzz\n\nhint: they looked at: shared\n\n"),
    ],
)
def test_a_name_that_no_decision_looked_at_ends_with_1(
    capsys: pytest.CaptureFixture[str], state: Path, option: list[str], message: str
) -> None:
    code, out, err = run(capsys, "decision", "list", "--state-dir", str(state), *option)
    assert (code, out) == (1, "")
    assert err == f"error: no decision in {state}/decisions.jsonl {message}"


def test_explain_takes_the_last_of_a_number(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    ledger = state / "decisions.jsonl"
    ledger.write_text(record(1, 1, Mode.STABLE) + "\n" + record(1, 2, Mode.HOLD) + "\n", encoding="utf-8")
    _, out, _ = run(capsys, "decision", "explain", "1", "--file", str(ledger))
    assert "Policy chat: Hold" in out


def test_a_number_that_is_not_there_ends_with_1(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    code, out, err = run(capsys, "decision", "explain", "7", "--state-dir", str(state))
    assert (code, out) == (1, "")
    assert err == (
        f"error: {state}/decisions.jsonl holds no decision 7\n\n"
        "hint: it holds 2, from 1 to 2; decisions that change nothing are written once a second\n\n"
    )


def test_an_empty_ledger_lists_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "decisions.jsonl").touch()
    assert run(capsys, "decision", "list", "--state-dir", str(tmp_path)) == (0, "", "No decisions found.\n")
    assert run(capsys, "decision", "explain", "--state-dir", str(tmp_path))[0] == 1


def test_a_record_of_another_version_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "decisions.jsonl").write_text('{"number": 1, "at": 1.0}\n', encoding="utf-8")
    code, _, err = run(capsys, "decision", "explain", "--state-dir", str(tmp_path))
    assert code == 1
    assert err.startswith("error: the decision can't be read: decision: Field required")


@pytest.mark.parametrize("command", ["list", "explain"])
def test_a_file_that_is_no_ledger_ends_with_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    (tmp_path / "hostname").write_text("somewhere\n", encoding="utf-8")
    code, out, err = run(capsys, "decision", command, "--file", str(tmp_path / "hostname"))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {tmp_path}/hostname is no ledger: line 1 is no JSON\n")


def test_a_directory_that_is_named_as_the_ledger_is_told_its_option(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, err = run(capsys, "decision", "list", "--file", str(tmp_path))
    assert code == 2
    assert err == (
        f"error: {tmp_path} is a directory\n\n"
        f"hint: a state directory is given with its option: --state-dir {tmp_path}\n\n"
    )


def test_a_file_that_is_no_text_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "decisions.jsonl").write_bytes(b"\xff\xfe\n")
    code, _, err = run(capsys, "decision", "list", "--state-dir", str(tmp_path))
    assert code == 2
    assert "it isn't UTF-8" in err

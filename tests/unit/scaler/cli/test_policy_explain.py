"""`emberpool policy explain`: the law's answer to a load, as text and as plain data."""

import json
from pathlib import Path

import pytest

from scaler.cli.app import main

SET = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: own}
spec: {maxSeats: 2}
---
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares}
spec: {maxSeats: 3, spare: {min: 1}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec: {fleets: [{name: own, targetInFlight: 8}, {name: spares, targetInFlight: 8}]}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: code}
spec:
  fleets: [{name: spares, targetInFlight: 8}]
  serving: {min: 0}
  signals: [{name: engines, type: EngineMetrics}, {name: up, type: Prometheus, query: up, measures: QueueDepth}]
"""
LIST = (
    SET
    + """---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: list}
spec:
  fleets: [{name: own, targetInFlight: 8}]
  serving: {min: 0, queueDrainSeconds: 60}
  signals: [{name: jobs, type: RedisList, key: jobs, server: {addresses: ["redis:6379"]}}]
"""
)


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "set.yaml").write_text(SET, "utf-8")
    return str(tmp_path / "set.yaml")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["policy", "explain", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_text_goes_from_the_load_to_the_seats(capsys: pytest.CaptureFixture[str], file: str) -> None:
    code, out, err = run(capsys, file, "--load", "chat=20", "--for", "70", "--seats", "all")
    assert (code, err) == (0, "")
    assert out == (
        "Load:      chat 20 in flight, 0 queued (the oldest for 0 s), 10 s a request\n"
        "Held for:  70 s\n"
        "Seats up:  own 2, spares 3\n"
        "Assumed:   nobody asked before; promotions and drains take no time; no seat is started\n"
        "\n"
        "At first:\n"
        "  Policy chat:\n"
        "    Demand:              20 requests\n"
        "    Mean over 60 s:      0.3\n"
        "    Peak over 6 s:       20   ← rules\n"
        "    Drain in 2 s:        -\n"
        "    First token in 1 s:  -, not at risk\n"
        "    Mode:                Burst\n"
        "    Needed:              capacity for 20, serving have 8\n"
        "    Wanted:              2 on own, 1 on spares\n"
        "    Seats give:          2 on own, 1 on spares\n"
        "    - Demand reached 20 requests within the last 6 s; what serves holds 8. [Concurrency]\n"
        "    - Burst began: demand reached 20 requests against a capacity of 8 (threshold 150 %), or an objective is at risk."
        " [BurstEntered]\n"
        "  Fleet own: 2 to serve (chat 2) + 0 spare + 0 held = 2; total 2 seats\n"
        "  Fleet spares: 1 to serve (chat 1, code 0) + 1 spare + 0 held = 2; total 3 seats\n"
        "    - 2 seats would do, but a smaller total has to last for 300 s before seats are deleted; 3 stay; this may change in"
        " 300 s. [ScaleDownDelayed]\n"
        "\n"
        "After 62 s:\n"
        "  Policy chat:\n"
        "    Demand:              20 requests\n"
        "    Mean over 60 s:      20   ← rules\n"
        "    Peak over 6 s:       20\n"
        "    Drain in 2 s:        -\n"
        "    First token in 1 s:  -, not at risk\n"
        "    Mode:                Stable\n"
        "    Needed:              capacity for 20, serving have 24\n"
        "    Wanted:              2 on own, 1 on spares\n"
        "    Seats give:          2 on own, 1 on spares\n"
        "    - Demand was 20 requests on average over the last 60 s. [Concurrency]\n"
        "  Fleet own: 2 to serve (chat 2) + 0 spare + 0 held = 2; total 2 seats\n"
        "  Fleet spares: 1 to serve (chat 1, code 0) + 1 spare + 0 held = 2; total 3 seats\n"
        "    - 2 seats would do, but a smaller total has to last for 300 s before seats are deleted; 3 stay; this may change in"
        " 238 s. [ScaleDownDelayed]\n"
        "\n"
        "Whenever an answer changes:\n"
        "  TIME   POLICY   MODE     DEMAND   NEEDED   CAPACITY   SERVING          WANTED           WHY\n"
        "  0 s    chat     Burst    20       20       8          own=2,spares=1   own=2,spares=1   Concurrency,BurstEntered\n"
        "  0 s    code     Stable   0        0        0          spares=0         spares=0         Floor\n"
        "  1 s    chat     Burst    20       20       24         own=2,spares=1   own=2,spares=1   Concurrency,BurstHeld\n"
        "  61 s   chat     Stable   20       20       24         own=2,spares=1   own=2,spares=1   Concurrency,BurstEnded\n"
        "  62 s   chat     Stable   20       20       24         own=2,spares=1   own=2,spares=1   Concurrency\n"
        "\n"
        "  TIME   FLEET    TOTAL   SERVING   SPARE   UP   WHY\n"
        "  0 s    own      2       2         0       2    -\n"
        "  0 s    spares   3       1         1       3    ScaleDownDelayed\n"
        "\n"
        "Until 70 s nothing changes any more.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "marked"),
    [
        pytest.param(["--load", "chat=20"], "Peak over 6 s:", id="a-peak"),
        pytest.param(
            ["--load", "chat=6", "--queued", "chat=3", "--oldest-wait", "chat=1.5"],
            "First token in 1 s:",
            id="an-old-queue",
        ),
        pytest.param(["--load", "chat=0"], "Ruled by:", id="nothing-to-do"),
    ],
)
def test_the_term_that_rules_is_marked(
    capsys: pytest.CaptureFixture[str], file: str, arguments: list[str], marked: str
) -> None:
    _, out, _ = run(capsys, file, *arguments, "--for", "0")
    (line,) = [line for line in out.splitlines() if "← rules" in line or "Ruled by:" in line]
    assert line.strip().startswith(marked)


def test_a_work_queue_says_what_it_asks_for_and_of_what_that_is_made(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "list.yaml"
    file.write_text(LIST, "utf-8")
    arguments = [str(file), "--load", "list=4", "--service", "list=30", "--backlog", "list=60", "--for", "0"]
    _, out, _ = run(capsys, *arguments)
    assert (
        "Load:      list 4 in flight, 0 queued (the oldest for 0 s), 60 in work queues, 30 s a request\n"
        in out
    )
    # each slot takes up 2 more within a minute, and what it has: 4 + 60 / 3
    assert (
        "    With work queues:    24 = 4 in flight + 60 waiting / (1 + 0.0333 per second and slot × 60 s)   ← rules\n"
        in out
    )
    _, out, _ = run(capsys, *arguments, "-o", "json")
    tree = json.loads(out)
    terms = tree["answers"][0]["policies"]["list"]
    assert (terms["ruledBy"], terms["terms"]["backlog"]) == ("backlog", pytest.approx(24.0))
    assert (tree["loads"]["list"]["backlog"], tree["loads"]["list"]["backlogAgeSeconds"]) == (60, 0)


def test_a_list_knows_no_age(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "list.yaml"
    file.write_text(LIST, "utf-8")
    code, _, err = run(capsys, str(file), "--backlog", "list=10", "--backlog-age", "list=1")
    assert (code, err) == (
        2,
        (
            "error: --backlog-age list: none of its signals says the age of a work queue\n\n"
            "hint: such signals have type RedisStream, RedisSortedSet, Pushed: add one to spec.signals\n\n"
        ),
    )


def test_before_anybody_knows_how_long_work_takes_it_gets_one_seat(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "list.yaml"
    file.write_text(LIST, "utf-8")
    _, out, _ = run(capsys, str(file), "--backlog", "list=60", "--for", "0")
    assert (
        "With work queues:    8 for 60 waiting: one seat at first, then twice what serves, until it is known"
        in out
    )


def test_how_long_the_oldest_work_has_waited_is_told(capsys: pytest.CaptureFixture[str], file: str) -> None:
    _, out, _ = run(capsys, file, "--backlog", "chat=5", "--backlog-age", "chat=90", "--for", "0")
    assert "5 in work queues (the oldest for 90 s)" in out
    assert "5 entries in the work queue, the oldest for 90 s" in out


def test_how_long_a_request_takes_says_how_long_a_queue_waits(
    capsys: pytest.CaptureFixture[str], file: str
) -> None:
    arguments = [file, "--load", "chat=8", "--queued", "chat=12", "--for", "0"]
    _, slow, _ = run(capsys, *arguments, "--service", "chat=10")
    _, fast, _ = run(capsys, *arguments, "--service", "chat=1")
    assert "at risk (15 s more predicted)" in slow  # 12 requests, of which 8 slots finish 0.1 a second each
    assert "at risk (1.5 s more predicted)" in fast


def test_json_holds_every_change_with_its_terms(capsys: pytest.CaptureFixture[str], file: str) -> None:
    code, out, _ = run(capsys, file, "--load", "chat=20", "--for", "70", "--seats", "all", "-o", "json")
    tree = json.loads(out)
    assert code == 0
    assert tree["heldSeconds"] == 70
    assert tree["loads"]["chat"] == {
        "inFlight": 20,
        "queued": 0,
        "oldestWaitSeconds": 0,
        "backlog": None,
        "backlogAgeSeconds": None,
        "serviceSeconds": 10,
    }
    assert [answer["seconds"] for answer in tree["answers"]] == [0, 1, 61, 62]
    chat = tree["answers"][0]["policies"]["chat"]
    assert chat["ruledBy"] == "burst"
    assert chat["terms"].keys() == {
        *("mean", "peak", "drain", "backlog", "deadline", "atRisk", "predictedWaitSeconds"),
        "finishedPerSecondAndSlot",
    }
    assert chat["terms"]["finishedPerSecondAndSlot"] == pytest.approx(0.1)
    assert chat["serving"] == {"own": 2, "spares": 1}
    assert tree["answers"][0]["seats"] == {"own": 2, "spares": 3}


def test_residents_and_seats_can_be_given(capsys: pytest.CaptureFixture[str], file: str) -> None:
    _, out, _ = run(
        capsys,
        file,
        "--load",
        "chat=20",
        "--seats",
        "own=1",
        "--serving",
        "chat=2",
        "--for",
        "0",
        "-o",
        "json",
    )
    first = json.loads(out)["answers"][0]
    assert first["seats"] == {"own": 1, "spares": 2}
    assert first["policies"]["chat"]["capacity"] == 16


def test_a_moment_can_be_given(capsys: pytest.CaptureFixture[str], file: str) -> None:
    _, out, _ = run(
        capsys, file, "--load", "chat=1", "--at", "2026-12-24T08:00:00+01:00", "--for", "0", "-o", "json"
    )
    assert json.loads(out)["at"] == "2026-12-24T08:00:00+01:00"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        pytest.param(["--load", "caht=4"], "--load caht=4: there is no policy caht", "did you mean chat?", id="policy"),
        pytest.param(["--load", "x=4"], "--load x=4: there is no policy x", "there are: chat, code", id="no-guess"),
        pytest.param(["--load", "chat"], "--load chat: must be NAME=NUMBER", "such as --load chat=4", id="form"),
        pytest.param(["--load", "chat=-1"], "--load chat=-1: must be NAME=NUMBER", "such as --load chat=4", id="minus"),
        pytest.param(["--load", "chat=nan"], "--load chat=nan: must be NAME=NUMBER", "such as --load chat=4", id="nan"),
        pytest.param(
            ["--load", "chat=1", "--load", "chat=2"],
            "--load chat=2: policy chat is given twice",
            "keep one of the two",
            id="twice",
        ),
        pytest.param(
            ["--load", "chat=1", "--serving", "chat=1.5"],
            "--serving chat=1.5: must be a whole number",
            "such as --serving chat=2: requests, residents and seats are counted",
            id="half-a-resident",
        ),
        pytest.param(
            ["--load", "chat=1.5"],
            "--load chat=1.5: must be a whole number",
            "such as --load chat=2: requests, residents and seats are counted",
            id="half-a-request",
        ),
        pytest.param(
            ["--load", "chat=1", "--oldest-wait", "chat=10"],
            "--oldest-wait chat: no request of it waits",
            "give --queued chat=N as well",
            id="the-age-of-nothing",
        ),
        pytest.param(
            ["--load", "chat=1", "--service", "code=10"],
            "--service code: it has no load",
            "give --load code=N as well",
            id="how-long-nothing-takes",
        ),
        pytest.param(
            ["--load", "chat=1", "--serving", "chat=99"],
            "serving chat=99: its fleets have seats for 5",
            "let fewer serve at first, or give its fleets more seats",
            id="more-residents-than-seats",
        ),
        pytest.param(
            ["--load", "chat=1", "--seats", "spare=1"],
            "--seats spare=1: there is no fleet spare",
            "did you mean spares?",
            id="fleet",
        ),
        pytest.param(
            ["--load", "chat=1", "--seats", "own=9"],
            "--seats own=9: the fleet may have 2",
            "raise maxSeats in its document",
            id="too-many-seats",
        ),
        pytest.param(
            ["--load", "chat=1", "--service", "chat=0"],
            "--service chat=0: a request takes some time",
            "give more than 0 seconds",
            id="no-time-at-all",
        ),
        pytest.param(
            ["--load", "chat=1", "--at", "tomorrow"],
            "--at tomorrow: there is no such time",
            "such as 2026-12-24T08:00:00+01:00",
            id="no-moment",
        ),
        pytest.param(
            ["--load", "chat=1", "--at", "2026-12-24T08:00:00"],
            "--at 2026-12-24T08:00:00: lacks a time zone",
            "such as 2026-12-24T08:00:00+01:00",
            id="no-zone",
        ),
        pytest.param([], "no load is given", "such as --load chat=4, or --backlog batch=300", id="no-load"),
        pytest.param(
            ["--load", "chat=1", "--backlog-age", "chat=10"],
            "--backlog-age chat: no work of it waits",
            "give --backlog chat=N as well",
            id="the-age-of-no-work",
        ),
        pytest.param(
            ["--backlog", "code=10"],
            "--backlog code: none of its signals says how much waits in a work queue",
            "such signals have type RedisList, RedisStream, RedisSortedSet, Pushed: add one to spec.signals",
            id="no-work-queue",
        ),
        pytest.param(
            ["--backlog", "chat=1.5"],
            "--backlog chat=1.5: must be a whole number",
            "such as --backlog chat=2: requests, residents and seats are counted",
            id="half-an-entry",
        ),
    ],
)  # fmt: skip
def test_what_must_be_mended_ends_with_2(
    capsys: pytest.CaptureFixture[str], file: str, arguments: list[str], message: str, hint: str
) -> None:
    assert run(capsys, file, *arguments) == (2, "", f"error: {message}\n\nhint: {hint}\n\n")


def test_help_teaches_by_example(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "emberpool policy explain" in out.partition("Examples:")[2]


def test_by_default_there_are_the_seats_of_floors_and_spares(
    capsys: pytest.CaptureFixture[str], file: str
) -> None:
    _, out, _ = run(capsys, file, "--load", "chat=20", "--for", "0")
    assert "Seats up:  own 1, spares 1 (as many as there are at rest; --seats says otherwise)\n" in out
    assert "Seats give:          1 on own, 1 on spares\n" in out


def test_all_seats_but_for_a_fleet_that_is_named(capsys: pytest.CaptureFixture[str], file: str) -> None:
    _, out, _ = run(capsys, file, "--load", "chat=1", "--seats", "all", "--seats", "spares=2", "--for", "0")
    assert "Seats up:  own 2, spares 2\n" in out


def test_what_is_not_acted_on_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "set.yaml"
    file.write_text(
        SET.replace("{maxSeats: 2}", "{maxSeats: 2, spare: {replenish: {maxPerNode: 1}}}"), "utf-8"
    )
    sentence = "is not acted on yet: seats that are starting are not counted by node"
    _, out, _ = run(capsys, str(file), "--load", "chat=1", "--for", "0")
    assert f"\n\nNot acted on:\n  Fleet own: spec.spare.replenish.maxPerNode {sentence}\n\n" in out
    _, out, _ = run(capsys, str(file), "--load", "chat=1", "--for", "0", "-o", "json")
    assert json.loads(out)["notActedOn"] == [
        {"kind": "Fleet", "name": "own", "path": "spec.spare.replenish.maxPerNode", "message": sentence}
    ]


def test_a_file_that_cannot_be_used_is_told_as_data(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "set.yaml"
    file.write_text(SET.replace("maxSeats: 2", "maxSeats: x"), "utf-8")
    code, out, err = run(capsys, str(file), "--load", "chat=1", "-o", "json")
    assert (code, err) == (2, "")
    assert [fault["path"] for fault in json.loads(out)["faults"]] == ["spec.maxSeats"]


def test_a_policy_that_shares_nothing_is_left_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = (
        SET.replace("own", "far").replace("spares", "away").replace("chat", "talk").replace("code", "prose")
    )
    (tmp_path / "a.yaml").write_text(SET, "utf-8")
    (tmp_path / "b.yaml").write_text(other, "utf-8")
    _, out, _ = run(capsys, str(tmp_path), "--load", "chat=1", "--for", "0", "-o", "json")
    assert json.loads(out)["answers"][0]["policies"].keys() == {"chat", "code"}

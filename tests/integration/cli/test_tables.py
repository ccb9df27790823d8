"""What people see of a running controller, to the letter."""

import json

import pytest
from ruamel.yaml import YAML

from scaler.cli.app import main
from scaler.runtime.sockets import listen, url_of
from tests.integration.cli.fake_controller import FakeController, serving


@pytest.fixture
def ask(controller: FakeController, capsys: pytest.CaptureFixture[str]) -> "Ask":
    return Ask(controller, capsys)


class Ask:
    def __init__(self, controller: FakeController, capsys: pytest.CaptureFixture[str]) -> None:
        self.controller = controller
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--server", self.controller.url])
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err


TABLES = {
    "fleet get": """\
NAME     MODE      SERVING   SPARE   STARTING   TOTAL   MAX   AGE
shared   Enforce   2         1/2     0          3       4     3m4s
own      Observe   0         0/0     0          0       1     -
""",
    "fleet get -o wide": """\
NAME     MODE      SERVING   SPARE   STARTING   TOTAL   MAX   DRAINING   HELD   REPLICAS   POLICIES    AGE
shared   Enforce   2         1/2     0          3       4     0          0      3          chat,code   3m4s
own      Observe   0         0/0     0          0       1     0          0      0          -           -
""",
    "fleet get own": """\
NAME   MODE      SERVING   SPARE   STARTING   TOTAL   MAX   AGE
own    Observe   0         0/0     0          0       1     -
""",
    "seat get": """\
NAME       FLEET    VALUE       SERVING   RESIDENTS        IN-FLIGHT   AGE
shared-0   shared   Serving     chat      2/2              3           3m4s
shared-1   shared   Promoting   -         0/1 (1 failed)   0           12s
""",
    "seat get -o wide": """\
NAME       FLEET    VALUE       SERVING   RESIDENTS        IN-FLIGHT   TIERS              CLAIM         VERDICT   NODE        GPUS    MEMORY    FREE       AGE
shared-0   shared   Serving     chat      2/2              3           1 awake,1 paused   -             -         localhost   -       700 MiB   49.2 GiB   3m4s
shared-1   shared   Promoting   -         0/1 (1 failed)   0           1 cold             Switch:chat   Unknown   localhost   GPU-1   -         -          12s
""",
    "policy get": """\
NAME   MODE    DEMAND   NEEDED   CAPACITY   SERVING   QUEUED   IN-FLIGHT   OLDEST
chat   Burst   24       30.5     16         2/4       3        21          0.12s
code   Hold    -        8        8          0/0       -        -           -
""",
    "policy get chat -o wide": """\
NAME   MODE    DEMAND   NEEDED   CAPACITY   SERVING   QUEUED   IN-FLIGHT   OLDEST   FLEETS           SIGNALS   MODELS
chat   Burst   24       30.5     16         2/4       3        21          0.12s    own=1,shared=1   Fresh     chat,chat-v2
""",
    "fleet get -o name": "fleet/shared\nfleet/own\n",
    "seat get shared-1 -o name": "seat/shared-1\n",
    "policy get -o name": "policy/chat\npolicy/code\n",
    "fleet describe shared": """\
Name:      shared
Mode:      Enforce
Total:     3 seats wanted, at most 4
Replicas:  3 asked for at present
Spare:     1 of 2
Seats:     1 Serving, 1 Promoting, 1 Spare
Policies:  chat, code
Age:       3m4s
Reasons:
  - 1 seat to be started. [Replenishing]
Seat list:
  NAME       FLEET    VALUE       SERVING   RESIDENTS        IN-FLIGHT   AGE
  shared-0   shared   Serving     chat      2/2              3           3m4s
  shared-1   shared   Promoting   -         0/1 (1 failed)   0           12s
""",
    "fleet describe own": """\
Name:      own
Mode:      Observe
Total:     0 seats wanted, at most 1
Replicas:  0 asked for at present
Spare:     0 of 0
Seats:     -
Policies:  -
Age:       -
Reasons:
  none
Seat list:
  none
""",
    "seat describe shared-0": """\
Name:         shared-0
Fleet:        shared
Value:        Serving
Serving:      chat
Node:         localhost
GPUs:         -
Age:          3m4s
Health:       ready, admitted, agent reports
Agent:        http://127.0.0.1:40000
Claim:        -
Memory:       48.0 GiB held, 40.0 GiB for computing, 1.0 GiB stage daemon, 2.8 GiB reserve, of 141.0 GiB, 49.2 GiB free
Measured:     yes
Host memory:  15.0 GiB of 64.0 GiB for parked weights
Residents:
  chat:
    State:        Serving for 12s
    In rotation:  yes
    In flight:    3
    Address:      http://127.0.0.1:40001
    Process:      pid 1234, 0 restarts
    Memory:       700 MiB
    Proven:       3m4s ago
    Phases:       spawn 0.42s, load 1.25s, warmup 83ms
  code:
    State:        Paused for 5m
    In rotation:  no
    In flight:    0
    Address:      -
    Process:      no process, 2 restarts
    Memory:       -, KV released, 15.0 GiB of host memory
    Proven:       never
    Wakes:        KvReleased 0.16s, Parked 2.31s
    Phases:       -
""",
    "policy describe chat": """\
Name:      chat
Models:    chat, chat-v2
Mode:      Burst
Signals:   Fresh
Load:      queued 3, in flight 21; the oldest waits for 0.12s
Demand:    24 requests in flight
Needed:    30.5 requests in flight
Capacity:  16 requests in flight
Fleets:
  FLEET    SERVING   WANTED
  own      1         1
  shared   1         3
Reasons:
  - Demand reached 24 requests. [Concurrency]
  - 1 resident on shared bridges the gap. [Bridged]
""",
    "policy describe code": """\
Name:      code
Models:    code
Mode:      Hold
Signals:   Missing
Load:      queued -, in flight -
Demand:    unknown
Needed:    8 requests in flight
Capacity:  8 requests in flight
Fleets:
  FLEET    SERVING   WANTED
  shared   0         0
Reasons:
  none
""",
}


@pytest.mark.parametrize("command", TABLES)
def test_output(ask: Ask, command: str) -> None:
    assert ask(*command.split()) == (0, TABLES[command], "")


def test_a_claim_and_a_failure_are_told_in_full(ask: Ask) -> None:
    code, out, _ = ask("seat", "describe", "shared-1")
    assert code == 0
    (claim,) = [line for line in out.splitlines() if line.startswith("Claim:")]
    assert claim.startswith(
        "Claim:    Switch chat in place of code, which may park code, tail, by ctl-1 (epoch 4) since "
    )
    assert ", overdue by 100." in claim
    assert "Health:   GPU verdict Unknown, not ready, not admitted, agent is silent\n" in out
    assert "    Failure:      the engine left with code 1\n" in out


def test_what_a_resident_waits_for_and_what_is_too_little_is_told(ask: Ask) -> None:
    said = json.loads(ask.controller.answers["/v1/seats"][1])
    seat = said["items"][0]
    seat["residents"][1] |= {"state": "Starting", "waiting": "no room for code"}
    seat["memory"] |= {"pausedBytes": 130 * 2**30, "verified": False}
    ask.controller.say("/v1/seats", said)
    _, out, _ = ask("seat", "describe", "shared-0")
    assert "    Waiting:      no room for code\n" in out
    assert ", of 141.0 GiB, 32.8 GiB too little\nMeasured:     no, or not all of it\n" in out


@pytest.mark.parametrize(
    ("gpus", "words", "acted_on", "shown"),
    [
        pytest.param(["GPU-1"], {}, "Ok", "Unknown", id="nobody-looks"),
        pytest.param(["GPU-1"], {"GPU-1": "Ok"}, "Ok", "Ok", id="it-was-looked-at"),
        pytest.param(
            ["GPU-1", "GPU-2"], {"GPU-1": "Ok", "GPU-2": "Unknown"}, "Ok", "Unknown", id="one-is-not"
        ),
        pytest.param(["GPU-1"], {"GPU-1": "Unknown"}, "Suspect", "Suspect", id="another-says-so"),
        pytest.param([], {}, "Ok", "-", id="no-gpu"),
        pytest.param([], {}, "Suspect", "Suspect", id="it-rests"),
    ],
)
def test_gpus_are_only_called_ok_where_somebody_has_looked(
    ask: Ask, gpus: list[str], words: dict[str, str], acted_on: str, shown: str
) -> None:
    said = json.loads(ask.controller.answers["/v1/seats"][1])
    health = [{"uuid": uuid, "verdict": word} for uuid, word in words.items()]
    said["items"][0] |= {"gpus": gpus, "gpuHealth": health, "verdict": acted_on}
    ask.controller.say("/v1/seats", said)
    head, row = ask("seat", "get", "shared-0", "-o", "wide")[1].splitlines()
    assert row[head.index("VERDICT") :].split()[0] == shown
    described = ask("seat", "describe", "shared-0")[1]
    assert f"GPU verdict {shown}, " in described or (shown == "-" and "GPU verdict" not in described)


def test_where_weights_are_ahead_and_what_is_left_of_each_gpu_is_told(ask: Ask) -> None:
    said = json.loads(ask.controller.answers["/v1/seats"][1])
    chat, code = said["items"][0]["residents"]
    chat |= {"checkpoint": "/models/chat", "stage": "Staged", "stageReason": ""}
    code |= {"checkpoint": "/models/code", "stage": "LeftOut", "stageReason": "17 GB don't fit"}
    gib = 2**30
    gpu = {"deviceBytes": 100 * gib, "largestComputeBytes": 0, "reserveBytes": 2 * gib, "stageBytes": 0}
    said["items"][0]["memory"]["gpus"] = [
        {"uuid": "GPU-1", "pausedBytes": 50 * gib, **gpu},
        {"uuid": "GPU-2", "pausedBytes": 102 * gib, **gpu},
    ]
    ask.controller.say("/v1/seats", said)
    _, out, _ = ask("seat", "describe", "shared-0")
    for line in (
        "    Stage:        staged in the node's host memory",
        "    Stage:        not to be had ahead: 17 GB don't fit",
        "GPU 0:        GPU-1 50.0 GiB held, 48.0 GiB free",
        "GPU 1:        GPU-2 102.0 GiB held, 4.0 GiB too little",
    ):
        assert f"{line}\n" in out
    assert "reserve, of 141.0 GiB, 8.0 GiB too little\n" in out  # of two, twice what the tightest lacks
    _, told, _ = ask("seat", "get", "shared-0", "-o", "json")
    assert [each["stage"] for each in json.loads(told)["residents"]] == ["Staged", "LeftOut"]


def test_a_pre_flight_that_keeps_an_engine_from_starting_is_told(ask: Ask) -> None:
    said = json.loads(ask.controller.answers["/v1/seats"][1])
    said["items"][1]["residents"][0] |= {"refused": True, "failure": "pre-flight: NoGpu: there is no GPU"}
    ask.controller.say("/v1/seats", said)
    described = ask("seat", "describe", "shared-1")[1]
    assert "a pre-flight keeps code from starting" in described
    assert "    Failure:      pre-flight: NoGpu: there is no GPU\n" in described


def test_json_is_what_the_controller_said(ask: Ask) -> None:
    said = json.loads(ask.controller.answers["/v1/seats"][1])
    assert json.loads(ask("seat", "get", "-o", "json")[1]) == said
    assert json.loads(ask("seat", "get", "shared-1", "-o", "json")[1]) == said["items"][1]


def test_yaml_is_what_the_controller_said(ask: Ask) -> None:
    said = json.loads(ask.controller.answers["/v1/policies"][1])
    assert YAML(typ="safe").load(ask("policy", "get", "-o", "yaml")[1]) == said


def test_nothing_to_list_is_chatter(ask: Ask) -> None:
    ask.controller.say("/v1/seats", {"items": []})
    assert ask("seat", "get") == (0, "", "No seats found.\n")
    assert json.loads(ask("seat", "get", "-o", "json")[1]) == {"items": []}


def test_a_newer_controller_may_say_more(ask: Ask) -> None:
    ask.controller.say("/v1/fleets", {"items": [{"name": "f", "somethingNew": 1}]})
    assert ask("fleet", "get", "-o", "name") == (0, "fleet/f\n", "")
    assert ask("fleet", "get")[1].splitlines()[1].split() == ["f", "-", "0", "0/-", "0", "-", "-", "-"]


# ------------------------------------------------------------------ when it goes wrong


def test_an_unknown_name_ends_with_1_and_says_what_there_is(ask: Ask) -> None:
    assert ask("seat", "describe", "shared-7") == (
        1,
        "",
        "error: there is no seat shared-7\n\nhint: there are: shared-0, shared-1\n\n",
    )
    ask.controller.say("/v1/seats", {"items": []})
    assert ask("seat", "get", "x")[2] == "error: there is no seat x\n\nhint: there are no seats\n\n"


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeController()) as gone:
        url = gone.url
    assert main(["fleet", "get", "--server", url]) == 1
    assert capsys.readouterr().err == (
        f"error: no controller answers at {url} (Connection refused)\n\n"
        "hint: start one with `emberpool local`, or name another: --controller URL\n\n"
    )


def test_who_listens_and_does_not_answer_may_still_be_starting(capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0, "--port") as mute:
        url = url_of(mute)
        assert main(["seat", "get", "--server", url]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: something listens at {url} and doesn't answer yet (waited 5 s)\n")
    assert "still starting" in said
    assert "start one with" not in said


def test_the_server_can_come_from_the_environment(
    controller: FakeController, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBERPOOL_SERVER", controller.url + "/")
    assert main(["seat", "get", "-o", "name"]) == 0
    assert capsys.readouterr().out == "seat/shared-0\nseat/shared-1\n"


def test_a_proxy_for_the_outside_is_not_asked_for_loopback(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert ask("seat", "get", "-o", "name")[0] == 0


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        pytest.param(404, b"", "/v1/seats answers with status 404", id="another-server"),
        pytest.param(503, b"starting", "/v1/seats answers with status 503", id="in-trouble"),
        pytest.param(200, b"<html>", "/v1/seats answers with something else than JSON", id="html"),
        pytest.param(200, b"\xff", "/v1/seats answers with something else than JSON", id="bytes"),
        pytest.param(200, b"[]", "/v1/seats answers with something else than a JSON object", id="list"),
        pytest.param(200, b"{}", "the answer holds no items", id="no-items"),
        pytest.param(200, b'{"items": [1]}', "the answer holds no items", id="items-of-another-kind"),
    ],
)
def test_whoever_answers_is_no_controller(ask: Ask, status: int, body: bytes, expected: str) -> None:
    ask.controller.answers["/v1/seats"] = (status, body)
    code, out, err = ask("seat", "get")
    assert (code, out) == (1, "")
    assert err.startswith(
        f"error: {ask.controller.url} doesn't answer as a controller does: {expected}\n\nhint: "
    )


def test_what_a_controller_says_is_wrong_is_passed_on(ask: Ask) -> None:
    said = {"error": {"code": "NoLeader", "message": "no controller leads", "hint": "ask again in 6 s"}}
    ask.controller.answers["/v1/seats"] = (503, json.dumps(said).encode())
    assert ask("seat", "get") == (1, "", "error: no controller leads\n\nhint: ask again in 6 s\n\n")


@pytest.mark.parametrize(
    ("path", "arguments", "expected"),
    [
        pytest.param(
            "/v1/seats",
            ["seat", "get"],
            "the controller's answer can't be read: not a seat: KeyError('uid')",
            id="seat",
        ),
        pytest.param(
            "/v1/fleets",
            ["fleet", "get"],
            "the controller's answer can't be read: maxSeats: Input should be a valid integer, unable to parse string"
            " as an integer",
            id="fleet",
        ),
    ],
)
def test_an_answer_that_cant_be_read(ask: Ask, path: str, arguments: list[str], expected: str) -> None:
    ask.controller.say(path, {"items": [{"name": "x", "maxSeats": "many"}]})
    code, out, err = ask(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {expected}\n\nhint: ")


def test_decisions_come_from_the_controller_unless_a_ledger_is_named(ask: Ask) -> None:
    decided = {
        "at": 1_700_000_000.5,
        "number": 7,
        "causes": {"sample": 1},
        "policyHash": "abc",
        "inputs": {},
        "decision": {"at": 1.0, "law": "1", "policies": {}, "fleets": {}, "nextWakeup": None},
        "actions": ["2 wanted, 1 serves"],
    }
    ask.controller.say("/v1/decisions", {"items": [decided]})
    code, out, _ = ask("decision", "list")
    assert (code, out.splitlines()[1].split()[0]) == (0, "7")
    code, out, _ = ask("decision", "explain")
    assert code == 0
    assert "2 wanted, 1 serves" in out
    code, _, err = ask("decision", "explain", "9")
    assert code == 1
    assert f"the controller at {ask.controller.url} holds no decision 9" in err

"""What people see of signals, to the letter."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ruamel.yaml import YAML

from scaler.cli.app import main
from tests.integration.cli.fake_controller import FakeController, serving

Ask = Callable[..., tuple[int, str, str]]

READINGS = {"read": 9, "failed": 0, "spoilt": 0}
SIGNALS: list[dict[str, Any]] = [
    {
        "policy": "chat",
        "name": "gateway",
        "type": "Pushed",
        "parts": [
            {"part": "Queued", "value": 3.0, "ageSeconds": 0.043, "quality": "Fresh"},
            {"part": "OldestWaitSeconds", "value": 0.82, "ageSeconds": 0.043, "quality": "Fresh"},
        ],
        "instances": [{"name": "gw-1", "kind": "Gateway", "ageSeconds": 0.043}],
        "lastError": None,
    },
    {
        "policy": "chat",
        "name": "ttft",
        "type": "Prometheus",
        "parts": [{"part": "LateShare", "value": 0.0312, "ageSeconds": 41.0, "quality": "Stale"}],
        "intervalSeconds": 15.0,
        "freshSeconds": 27.5,
        "expirySeconds": 275.0,
        "readings": READINGS,
        "lastError": {"message": "prometheus:9090: connection refused", "inARow": 2},
    },
    {
        "policy": "batch",
        "name": "jobs",
        "type": "RedisStream",
        "parts": [
            {"part": "Backlog", "value": 1240.0, "ageSeconds": 0.6, "quality": "Fresh"},
            {"part": "BacklogAgeSeconds", "value": 93.0, "ageSeconds": 0.6, "quality": "Fresh"},
        ],
        "intervalSeconds": 1.0,
        "freshSeconds": 2.0,
        "expirySeconds": 30.0,
        "readings": READINGS,
        "lastError": None,
    },
    {
        "policy": "batch",
        "name": "engine",
        "type": "EngineMetrics",
        "parts": [
            {
                "part": "Requests",
                "value": None,
                "ageSeconds": None,
                "quality": "Missing",
                "reason": "it has not been read yet",
            }
        ],
        "intervalSeconds": 0.25,
        "freshSeconds": 1.375,
        "expirySeconds": 30.0,
        "readings": READINGS,
        "lastError": None,
    },
    {"policy": "batch", "name": "gateway", "type": "Pushed", "parts": [], "instances": [], "lastError": None},
]


@pytest.fixture
def controller() -> Iterator[FakeController]:
    with serving(FakeController()) as fake:
        fake.say("/v1/signals", {"items": SIGNALS})
        yield fake


@pytest.fixture
def ask(controller: FakeController, capsys: pytest.CaptureFixture[str]) -> Ask:
    def asked(*arguments: str) -> tuple[int, str, str]:
        code = main(["signals", "get", *arguments, "--server", controller.url])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return asked


TABLES = {
    "": """\
POLICY   SIGNAL    TYPE            PART                VALUE   AGE     QUALITY
chat     gateway   Pushed          Queued              3       43ms    Fresh
chat     gateway   Pushed          OldestWaitSeconds   0.82s   43ms    Fresh
chat     ttft      Prometheus      LateShare           3.1%    41.0s   Stale
batch    jobs      RedisStream     Backlog             1240    0.60s   Fresh
batch    jobs      RedisStream     BacklogAgeSeconds   93.0s   0.60s   Fresh
batch    engine    EngineMetrics   Requests            -       -       Missing
batch    gateway   Pushed          -                   -       -       Missing
""",
    "chat": """\
POLICY   SIGNAL    TYPE         PART                VALUE   AGE     QUALITY
chat     gateway   Pushed       Queued              3       43ms    Fresh
chat     gateway   Pushed       OldestWaitSeconds   0.82s   43ms    Fresh
chat     ttft      Prometheus   LateShare           3.1%    41.0s   Stale
""",
    "batch -o wide": """\
POLICY   SIGNAL    TYPE            PART                VALUE   AGE     QUALITY   LAST-ERROR
batch    jobs      RedisStream     Backlog             1240    0.60s   Fresh     -
batch    jobs      RedisStream     BacklogAgeSeconds   93.0s   0.60s   Fresh     -
batch    engine    EngineMetrics   Requests            -       -       Missing   it has not been read yet
batch    gateway   Pushed          -                   -       -       Missing   nobody has said anything of late
""",
    "chat -o wide": """\
POLICY   SIGNAL    TYPE         PART                VALUE   AGE     QUALITY   LAST-ERROR
chat     gateway   Pushed       Queued              3       43ms    Fresh     -
chat     gateway   Pushed       OldestWaitSeconds   0.82s   43ms    Fresh     -
chat     ttft      Prometheus   LateShare           3.1%    41.0s   Stale     prometheus:9090: connection refused (2 in a row)
""",
    "-o name": """\
signal/chat/gateway
signal/chat/ttft
signal/batch/jobs
signal/batch/engine
signal/batch/gateway
""",
}


@pytest.mark.parametrize("arguments", TABLES)
def test_tables(ask: Ask, arguments: str) -> None:
    assert ask(*arguments.split()) == (0, TABLES[arguments], "")


@pytest.mark.parametrize(
    ("arguments", "items"),
    [
        pytest.param([], SIGNALS, id="all"),
        pytest.param(["chat"], SIGNALS[:2], id="those of one policy"),
    ],
)
def test_json_and_yaml_are_what_the_controller_says(
    ask: Ask, arguments: list[str], items: list[dict[str, Any]]
) -> None:
    code, out, _ = ask(*arguments, "-o", "json")
    assert (code, json.loads(out)) == (0, {"items": items})
    code, out, _ = ask(*arguments, "-o", "yaml")
    assert (code, YAML(typ="safe").load(out)) == (0, {"items": items})


def test_a_policy_without_signals_is_said_with_those_that_have_some(ask: Ask) -> None:
    code, out, err = ask("chatt")
    assert (code, out) == (1, "")
    assert err == "error: there is no signal of policy chatt\n\nhint: there are: chat, batch\n\n"


def test_no_signals_at_all_are_no_failure(ask: Ask, controller: FakeController) -> None:
    controller.say("/v1/signals", {"items": []})
    assert ask() == (0, "", "No signals found.\n")


def test_a_controller_that_says_more_and_less_is_understood(ask: Ask, controller: FakeController) -> None:
    controller.say(
        "/v1/signals", {"items": [{"policy": "chat", "name": "x", "news": 1, "parts": [{"part": "New"}]}]}
    )
    code, out, _ = ask()
    assert code == 0
    assert out.splitlines()[1].split() == ["chat", "x", "New", "-", "-"]

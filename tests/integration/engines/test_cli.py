"""`emberpool engine args`, and what `emberpool seat describe` says of a seat's engines."""

import json
import time
from collections.abc import Iterator

import pytest
from ruamel.yaml import YAML

from scaler.cli.app import main
from tests.integration.cli.fake_controller import FakeController, serving
from warmpool.engines.capabilities import (
    Capabilities,
    Capability,
    Change,
    Finding,
    Ground,
    Verdict,
    Verification,
)
from warmpool.engines.kinds import EngineKind
from warmpool.seats import FleetName, PolicyName, Resident, Seat, SeatName
from warmpool.states import ResidentState
from warmpool.wire import seat_to_json


@pytest.fixture
def controller() -> Iterator[FakeController]:
    with serving(FakeController()) as found:
        yield found


def args(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["engine", "args", *options]) == 0
    return capsys.readouterr().out


def test_each_line_that_is_no_comment_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    out = args(capsys, "--engine", "VLLM", "--kv-mib", "40960", "--port", "8101")
    pasted = [line for line in out.splitlines() if line and not line.startswith("#")]
    assert pasted == [
        "VLLM_SERVER_DEV_MODE=1",
        "--host 127.0.0.1",
        "--port 8101",
        "--enable-sleep-mode",
        "--kv-cache-memory-bytes 42949672960",
        "--gpu-memory-utilization 0.05",
    ]


def test_json_and_yaml_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--engine", "SGLang", "--kv-mib", "1024", "--engine-version", "0.4.0")
    as_json = json.loads(args(capsys, *options, "-o", "json"))
    as_yaml = YAML(typ="safe", pure=True).load(args(capsys, *options, "-o", "yaml"))
    assert as_json == as_yaml
    assert as_json["args"][:4] == ["--host", "127.0.0.1", "--port", "{controlPort}"]
    assert "Nobody tried 0.4.0" in as_json["facts"]


def test_an_engine_that_is_left_out_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "args"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(
        "error: missing option '--engine'. Choose from: Reference, VLLM, SGLang, Generic\n\nhint: "
    )


@pytest.mark.parametrize("engine", EngineKind)
def test_an_engine_that_does_not_fit_gets_no_arguments(
    capsys: pytest.CaptureFixture[str], engine: EngineKind
) -> None:
    sizes = ("--kv-mib", "40960", "--weights-mib", "153600", "--gpu-mib", "143771")
    assert main(["engine", "args", "--engine", engine, *sizes]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert "153600 MiB of weights and 40960 MiB of KV memory don't fit on a device of 143771 MiB" in err
    assert "lower --kv-mib" in err


def test_an_unknown_engine_is_a_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "args", "--engine", "Ollama"]) == 2
    assert "Ollama" in capsys.readouterr().err


def test_describe_tells_what_an_engine_was_found_to_do(
    controller: FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Capabilities(
        kind="VLLM",
        version="0.32.0",
        findings={
            Capability.SCHEDULER_PAUSE: Finding(ground=Ground.TRIED, reason="it held a request"),
            Capability.KV_RELEASE: Finding(ground=Ground.SWITCHED_OFF, reason="no --enable-sleep-mode"),
        },
    )
    last = Verification(change=Change.PAUSE, verdict=Verdict.VERIFIED, evidence=("GET /is_paused: true",))
    resident = Resident(
        policy=PolicyName("chat"),
        state=ResidentState.PAUSED,
        since=time.time(),
        capabilities=found,
        verification=last,
    )
    seat = Seat(name=SeatName("s-0"), uid="u", version="1", fleet=FleetName("f"), residents=(resident,))
    controller.say("/v1/seats", {"items": [seat_to_json(seat)]})
    assert main(["seat", "describe", "s-0", "--server", controller.url]) == 0
    out = capsys.readouterr().out
    assert "Engine:          VLLM 0.32.0\n" in out
    assert "SchedulerPause:  yes, Tried: it held a request\n" in out
    assert "KvRelease:       no, SwitchedOff: no --enable-sleep-mode\n" in out
    assert "Last change:     Pause Verified: GET /is_paused: true\n" in out

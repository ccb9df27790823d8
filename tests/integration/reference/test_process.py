"""The process: how it starts, fails and ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fakes import engine_zygote
from warmpool.standins import VARIABLE

WAIT_SECONDS = 60.0


def _run(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
        env={**os.environ, **environment},
    )


def _refused(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Start one that must not come to serve, as a fork: what is refused, and how that is said, is the same."""
    return _run(command, engine_zygote.asked())


def _break_config(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"architectures": ["GPT2LMHeadModel"]}))


def _truncate(directory: Path) -> None:
    shard = next(iter(sorted(directory.glob("*.safetensors"))))
    os.truncate(shard, shard.stat().st_size - 100)


def _other_shape(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"intermediate_size": 256}))


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        pytest.param(_break_config, "GPT2LMHeadModel", id="architecture"),
        pytest.param(_truncate, "model-00001-of-00002.safetensors", id="truncated"),
        pytest.param(_other_shape, "shape", id="other-shape"),
    ],
)
def test_a_checkpoint_that_cannot_be_served_ends_with_two_lines_and_code_2(
    tools: Any, copy: Path, damage: Callable[[Path], None], named: str
) -> None:
    damage(copy)
    result = _refused(tools.command(copy))
    error, hint = result.stderr.splitlines()[-2:]
    assert result.returncode == 2
    assert error.startswith("error: ")
    assert named in error
    assert hint.startswith("hint: ")
    assert "Traceback" not in result.stderr


def test_a_missing_checkpoint_is_named(tools: Any, tmp_path: Path) -> None:
    result = _run(tools.command(tmp_path / "absent"), {VARIABLE: ""})
    assert result.returncode == 2
    assert "absent" in result.stderr.splitlines()[-2]


def test_a_port_in_use_is_named(tools: Any, checkpoint: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = _refused([*tools.command(checkpoint), "--port", str(port)])
    error, hint = result.stderr.splitlines()[-2:]
    assert result.returncode == 2
    assert f"127.0.0.1:{port}" in error
    assert "another port" in hint


def test_too_long_a_context_is_refused(tools: Any, checkpoint: Path) -> None:
    result = _refused([*tools.command(checkpoint), "--max-model-len", "4096"])
    assert result.returncode == 2
    assert "2048 positions" in result.stderr.splitlines()[-2]


def test_health_says_loading_until_it_is_ready_and_the_guard_may_be_born_closed(
    tools: Any, checkpoint: Path
) -> None:
    process = subprocess.Popen(
        tools.command(checkpoint, "--guard", "closed"), stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        ports = json.loads(process.stderr.readline())
        assert ports["phase"] == "process"
        control = f"http://127.0.0.1:{ports['controlPort']}"
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(control + "/health", timeout=WAIT_SECONDS)
        with caught.value:
            assert caught.value.code == 503
            state = json.loads(caught.value.read())
        assert state["status"] == "loading"
        phases = [json.loads(process.stderr.readline())["phase"] for _ in range(6)]
        assert phases == ["import", "context", "weights", "compile", "capture", "ready"]
        with urllib.request.urlopen(control + "/health", timeout=WAIT_SECONDS) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(control + "/guard", timeout=WAIT_SECONDS) as answer:
            assert json.loads(answer.read()) == {"open": False, "inFlight": 0}
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(WAIT_SECONDS)
        process.stderr.close()
    assert code == 0


def test_sigterm_lets_requests_finish(tools: Any, checkpoint: Path) -> None:
    served = tools.start(checkpoint, ["--max-tokens-per-second", "40"])
    data = json.dumps(tools.body(max_tokens=30, stream=True)).encode()
    request = urllib.request.Request(served.public + "/v1/completions", data=data)
    with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as response:
        first = time.monotonic()
        response.readline()
        served.process.send_signal(signal.SIGTERM)
        rest = response.read().decode()
        took = time.monotonic() - first
    assert '"finish_reason":"length"' in rest
    assert rest.endswith("data: [DONE]\n\n")
    assert took >= 28 / 40
    assert served.process.wait(WAIT_SECONDS) == 0


def test_a_head_as_long_as_gateway_and_guard_let_through_is_taken(served: Any) -> None:
    request = urllib.request.Request(
        served.public + "/v1/models", headers={"Authorization": "Bearer " + "k" * 16_000}
    )
    with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as response:
        assert response.status == 200


def test_it_dies_with_its_parent(tools: Any, checkpoint: Path) -> None:
    script = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True); p.wait()"
    parent = subprocess.Popen(
        [sys.executable, "-c", script, *tools.command(checkpoint)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    assert parent.stderr is not None
    with parent.stdout, parent.stderr:
        child = psutil.Process(int(parent.stdout.readline()))
        assert json.loads(parent.stderr.readline())["phase"] == "process"
        parent.kill()
        parent.wait(WAIT_SECONDS)
        deadline = time.monotonic() + WAIT_SECONDS
        while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.01)

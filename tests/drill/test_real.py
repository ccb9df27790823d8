"""Real processes, real weights, real sockets: one whole drill, one killed engine, and every way to end. What can't start is in
`test_refusals`.

`make drill` holds the figures to their targets on a quiet machine; here only what must hold on any machine is held.
"""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.drill.leftovers import left_over, marked

ROOT = Path(__file__).resolve().parents[2]
EMBERPOOL = (sys.executable, "-m", "scaler")

pytestmark = [pytest.mark.drill, pytest.mark.timeout(400)]


def emberpool(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*EMBERPOOL, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env=marked(),
    )


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert left_over(5) == []


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoints") / "tiny"
    command = [
        sys.executable,
        "-m",
        "warmpool.reference",
        "make-checkpoint",
        "--shape",
        "tiny",
        "--seed",
        "1",
    ]
    subprocess.run([*command, str(directory)], check=True, capture_output=True, timeout=120)
    return directory


def report(directory: Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((directory / "report.json").read_text("utf-8"))
    return answer


def scraped(file: Path, component: str, deadline: float) -> str:
    """Read the page of a target as soon as the file has it, as Prometheus does."""
    while time.monotonic() < deadline:
        targets = json.loads(file.read_text("utf-8")) if file.exists() else []
        for target in targets:
            if target["labels"]["component"] == component:
                with urllib.request.urlopen(f"http://{target['targets'][0]}/metrics", timeout=10) as page:
                    text: str = page.read().decode()
                    return text
        time.sleep(0.05)  # between two looks
    pytest.fail(f"{file} never held the {component}")


def test_a_whole_drill_fails_no_request_and_shows_its_pages_while_it_runs(tmp_path: Path) -> None:
    targets, deadline = tmp_path / "targets.json", time.monotonic() + 60
    arguments = ["--metrics-port", "0", "--targets-file", str(targets), "--out", str(tmp_path / "out")]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(emberpool, "drill", "run", "policies/drills/smoke.yaml", *arguments)
        assert 'emberpool_drill_info{arm="warm",scenario="smoke"}' in scraped(targets, "drill", deadline)
        page = scraped(targets, "controller", deadline)
        done = running.result()
    assert "\nemberpool_build_info{" in page
    assert "\nemberpool_gateway_" in page  # the gateway lives in the same process
    assert json.loads(targets.read_text("utf-8")) == []
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"report.json", "report.md", "report.html"}
    assert report(tmp_path / "out")["passed"] is True


def test_killing_a_serving_engine_in_mid_burst_loses_only_what_had_begun(tmp_path: Path) -> None:
    arguments = ("tests/drill/kill.yaml", "--arm", "warm", "--out", str(tmp_path / "out"))
    done = emberpool("drill", "run", *arguments)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in (tmp_path / "out" / "events-warm.jsonl").read_text().splitlines()]
    failed = [event for event in events if event["kind"] == "resident" and event["state"] == "Failed"]
    # Before, at its start, a resident may have given way to one that is wanted sooner.
    (victim,) = [event for event in failed if event["failure"].endswith("was killed by SIGKILL")]
    later = [event for event in events if event["kind"] == "resident" and event["at"] > victim["at"]]
    assert not any(
        event["seat"] == victim["seat"] and event["policy"] != victim["policy"] and event["state"] == "Failed"
        for event in later
    )
    assert "kill" in (tmp_path / "out" / "report.md").read_text().lower()


# ------------------------------------------------------------------ ends


@pytest.mark.parametrize("after", [pytest.param("starting", marks=pytest.mark.long), "serving"])
def test_ctrl_c_ends_everything(checkpoint: Path, tmp_path: Path, after: str) -> None:
    state, temporary = tmp_path / "state", tmp_path / "tmp"
    temporary.mkdir()
    command = [*EMBERPOOL, "local", "--checkpoint", f"chat={checkpoint}", "--state-dir", str(state)]
    process = subprocess.Popen(
        [*command, "--controller-port", "0", "--gateway-port", "0"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        env=marked(TMPDIR=str(temporary)),
    )
    assert process.stderr is not None
    word = {"starting": "waiting for", "serving": "ready: "}[after]
    for line in process.stderr:
        if word in line:
            break
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0
    process.stderr.close()
    assert list(temporary.iterdir()) == []


@pytest.mark.long
def test_what_a_killed_one_left_goes_with_the_next_start(checkpoint: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = marked(TMPDIR=str(temporary))
    command = [*EMBERPOOL, "local", "--checkpoint", f"chat={checkpoint}", "--gateway-port", "0"]
    with subprocess.Popen(
        [*command, "--controller-port", "0"], cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "waiting for" in line)
        process.kill()
    left_over(20)  # its agents and engines end by themselves
    (left,) = temporary.glob("emberpool-*")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        again = [*command, "--controller-port", str(taken.getsockname()[1])]
        done = subprocess.run(
            again, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60, env=environment
        )
    assert done.returncode == 2, done.stderr
    assert f"removed {left}: who made it was killed" in done.stderr
    assert list(temporary.glob("emberpool-*")) == []

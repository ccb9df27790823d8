"""Whole drills against a stand-in for `emberpool local`: a real child process with real sockets and real engine processes."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from rich.console import Console

from scaler.drill import ArmName, DrillOptions
from scaler.drill.checkpoints import CheckpointFailed
from scaler.drill.child import ChildFailed
from scaler.drill.figures import Report, Status
from scaler.drill.report import read_report
from scaler.drill.run import drill
from scaler.errors import PolicyError, UserError
from tests.fakes.ports import free_port

Options = Callable[..., DrillOptions]
Scenario = Callable[..., Path]


ONE_STAGE = "\n  stages: [{name: only, kind: Baseline, seconds: 1}]\n"


def left_behind() -> list[str]:
    """State directories and processes that a drill should have taken away."""
    folders = [str(path) for path in Path(tempfile.gettempdir()).glob("emberpool-drill-*")]
    mine = set(psutil.Process().children(recursive=True)) - _BEFORE
    return folders + [str(process) for process in mine if process.status() != psutil.STATUS_ZOMBIE]


_BEFORE: set[psutil.Process] = set()
"""Children that other tests of this session have running: their fixtures may live as long as the session."""


@pytest.fixture(autouse=True)
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a folder for temporary files of its own, so that what is left behind can be seen."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    _BEFORE.clear()
    _BEFORE.update(psutil.Process().children(recursive=True))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))


def status(report: Report, name: str) -> Status:
    return next(check.status for check in report.checks if check.name == name)


def targets(file: Path) -> Any:
    """What Prometheus would read."""
    return json.loads(file.read_text("utf-8")) if file.exists() else []


async def follow(file: Path, seen: list[list[dict[str, str]]]) -> None:
    """Note the labels of all targets whenever they change, until cancelled."""
    while True:
        labels = [target["labels"] for target in targets(file)]
        if labels and seen[-1:] != [labels]:
            seen.append(labels)
        await asyncio.sleep(0.01)


async def test_both_arms_and_the_whole_report(options: Options, tmp_path: Path) -> None:
    given = options(arms=(ArmName.WARM, ArmName.COLD), metrics_port=0, targets_file=tmp_path / "targets.json")
    seen: list[list[dict[str, str]]] = []
    async with asyncio.TaskGroup() as group:
        following = group.create_task(follow(tmp_path / "targets.json", seen))
        result = await drill(given)
        following.cancel()
    page, warm_arm, cold_arm = (
        {"component": "drill"},
        {"component": "controller", "arm": "warm"},
        {"component": "controller", "arm": "cold"},
    )
    assert seen == [[page], [page, warm_arm], [page], [page, cold_arm], [page]]
    assert targets(tmp_path / "targets.json") == []
    assert result.passed, [check for check in result.report.checks if check.status is Status.FAIL]
    warm, cold = result.report.arms
    assert warm.bursts[0].ttft is not None
    assert cold.bursts[0].ttft is not None
    assert warm.bursts[0].ttft.p99 < cold.bursts[0].ttft.p99
    assert warm.bursts[0].first_added_seconds is not None
    assert cold.bursts[0].first_added_seconds is not None
    assert warm.bursts[0].first_added_seconds < cold.bursts[0].first_added_seconds
    assert len(warm.requests) == len(cold.requests) == sum(row.requests for row in warm.stages)
    assert [one.at for one in warm.requests] == [one.at for one in cold.requests]
    assert (warm.seat_budget, cold.seat_budget) == (None, 2)
    assert {one.operation for one in warm.promotions} == {"Promote"}
    assert warm.promotions[0].basis in {"Waited", "Composed"}  # the queue may have emptied just before
    assert warm.promotions[0].steps["rotation"] < warm.promotions[0].steps["firstToken"] < 1000
    assert warm.cpu[1].mean_percent is not None
    assert read_report(result.written.json) == result.report
    assert given.output is not None
    names = {path.name for path in given.output.iterdir()}
    assert {"report.html", "report.md", "summary.png", "events-warm.jsonl", "requests-cold.jsonl"} <= names
    assert left_behind() == []


async def test_a_load_is_fitted_before_the_first_arm_and_for_all(options: Options, short: Scenario) -> None:
    """The stand-in takes more than a hundredth of the machine, whichever it is: the least that can be asked for."""
    parts = (
        "\n  fit: {cpuPercent: 1, minLengthPercent: 50}\n  stages: [{name: only, kind: Hold, seconds: 1}]\n"
    )
    scenario = short(stages=parts, thresholds="  thresholds: {}\n")
    scenario.write_text(scenario.read_text().replace("requestsPerMinute: 600", "requestsPerMinute: 6000"))
    given = options(scenario=scenario, arms=(ArmName.WARM, ArmName.COLD))
    result = await drill(given)
    fit = result.report.fit
    assert fit is not None
    assert (fit.tokens_per_second, fit.answers, fit.enough) == ((100, 50), {"chat": (10, 10)}, False)
    assert status(result.report, "fitCpuPercent") is Status.WARN
    assert result.report.scenario.engine["maxTokensPerSecond"] == 50
    told = given.console.file
    assert isinstance(told, io.StringIO)
    warning, first = "warning: this machine is too small", "warm arm: ready"
    assert told.getvalue().index(warning) < told.getvalue().index(first)
    assert given.output is not None
    for arm in result.report.arms:
        lines = (given.output / f"requests-{arm.arm}.jsonl").read_text().splitlines()
        assert {json.loads(line)["tokens"] for line in lines} == {10}
        assert {json.loads(line)["outcome"] for line in lines} == {"Ok"}
    assert left_behind() == []


async def test_answers_are_as_long_as_written_for_whoever_says_so(options: Options, short: Scenario) -> None:
    parts = "\n  fit: {cpuPercent: 1}\n  stages: [{name: only, kind: Hold, seconds: 1}]\n"
    given = options(scenario=short(stages=parts, thresholds="  thresholds: {}\n"), fit=False)
    result = await drill(given)
    assert result.report.fit is None
    assert result.report.scenario.engine["maxTokensPerSecond"] == 100
    assert given.output is not None
    assert not (given.output / "local-gauge.log").exists()


async def test_failed_requests_fail_the_drill(options: Options, short: Scenario) -> None:
    result = await drill(options("Refuse", scenario=short(stages=ONE_STAGE, thresholds="  thresholds: {}\n")))
    assert result.exit_code == 1
    assert status(result.report, "maxFailures") is Status.FAIL
    assert set(result.report.arms[0].stages[0].failures) == {"Http5xx"}
    assert "Http5xx" in result.report.arms[0].failure_examples[0]


async def test_a_child_that_dies_at_its_start_is_quoted(options: Options) -> None:
    with pytest.raises(ChildFailed, match=r"(?s)ended with exit code 1; its last lines:.*no such checkpoint"):
        await drill(options("DieAtStart"))
    assert left_behind() == []


async def test_a_child_that_dies_in_mid_load_ends_the_drill(options: Options) -> None:
    with pytest.raises(ChildFailed, match=r"(?s)exit code 3; its last lines:.*out of memory"):
        await drill(options("DieInMiddle"))
    assert left_behind() == []


async def test_a_child_that_never_gets_ready_is_given_up(options: Options) -> None:
    with pytest.raises(ChildFailed, match="not ready after 0 s"):
        await drill(options(ready_seconds=0.05))
    assert left_behind() == []


async def test_a_child_that_can_not_be_started_says_so(options: Options) -> None:
    with pytest.raises(ChildFailed, match="can't start /nowhere/emberpool"):
        await drill(options(local_command=("/nowhere/emberpool", "local")))


async def test_what_a_child_leaves_behind_is_killed_and_told(options: Options, short: Scenario) -> None:
    scenario = short(stages=ONE_STAGE, thresholds="  thresholds: {}\n")
    result = await drill(options("Orphans", scenario=scenario, keep=True))
    assert len(result.report.arms[0].left_processes) == 2
    assert status(result.report, "leftProcesses") is Status.WARN
    (folder,) = left_behind()  # the state alone, as it was to be kept
    assert (Path(folder) / "events.jsonl").is_file()


class Told(io.StringIO):
    """A console's file that knows when the burst has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.burst = asyncio.Event()

    def write(self, text: str) -> int:
        if "burst (Burst" in text:
            self.burst.set()
        return super().write(text)


async def test_a_cancelled_drill_leaves_nothing(options: Options, tmp_path: Path) -> None:
    told, port, file = Told(), free_port(), tmp_path / "targets.json"
    given = options(console=Console(file=told, width=150), controller_port=port, targets_file=file)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        task = group.create_task(drill(given))
        await told.burst.wait()
        (target,) = targets(file)
        assert target == {
            "targets": [f"127.0.0.1:{port}"],
            "labels": {"component": "controller", "arm": "warm"},
        }
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{target['targets'][0]}/v1/status") as response,
        ):
            assert (await response.json())["ready"] is True
        task.cancel()
    assert targets(file) == []
    assert left_behind() == []
    assert given.output is not None
    assert not await asyncio.to_thread(given.output.exists)


# ------------------------------------------------------------------ before anything runs


async def test_a_bad_scenario_starts_nothing(options: Options, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        "apiVersion: emberpool.dev/v1alpha1\nkind: DrillScenario\nmetadata: {name: bad}\nspec: {}\n"
    )
    with pytest.raises(PolicyError):
        await drill(options(scenario=bad))
    assert not (tmp_path / "report").exists()


async def test_a_checkpoint_for_no_model_is_refused(options: Options, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such model"):
        await drill(options(checkpoints={"chatt": tmp_path}))


async def test_a_checkpoint_that_is_none_is_refused(options: Options, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no config\.json"):
        await drill(options(checkpoints={"chat": tmp_path}))


async def test_a_checkpoint_that_can_not_be_made_is_told(options: Options, tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import sys; sys.exit('disk full')")
    with pytest.raises(CheckpointFailed, match=r"(?s)exit code 1:.*disk full"):
        await drill(options(checkpoint_command=command))
    assert list((tmp_path / "checkpoints").iterdir()) == []


# ------------------------------------------------------------------ as a process


PROGRAM = """
import sys
from pathlib import Path
from scaler.drill import ArmName, DrillOptions, run_drill
scenario, output, cache, fake, maker, targets = sys.argv[1:]
run_drill(DrillOptions(
    scenario=Path(scenario), arms=(ArmName.WARM,), output=Path(output), checkpoint_cache=Path(cache), targets_file=Path(targets),
    local_command=(sys.executable, fake), checkpoint_command=(sys.executable, "-c", maker),
))
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [pytest.param(signal.SIGINT, 130, id="Ctrl-C"), pytest.param(signal.SIGTERM, 143, id="SIGTERM")],
)
@pytest.mark.long
def test_a_signal_ends_everything(
    options: Options, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    given = options()
    command = [
        given.scenario,
        given.output,
        given.checkpoint_cache,
        given.local_command[1],
        given.checkpoint_command[2],
        tmp_path / "targets.json",
    ]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, command)],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "burst (Burst" in line:
                break
        tree = psutil.Process(process.pid).children(recursive=True)
        assert len(tree) >= 2  # the child and its engines
        assert len(targets(tmp_path / "targets.json")) == 1
        process.send_signal(number)
        process.stderr.read()
        process.wait(20)
    assert process.returncode in {
        code,
        -number,
    }  # an uncaught KeyboardInterrupt ends Python by the signal itself
    _, alive = psutil.wait_procs(tree, 1)
    assert alive == []
    assert json.loads((tmp_path / "targets.json").read_text()) == []
    assert left_behind() == []
    assert given.output is not None
    assert not given.output.exists()


def test_the_command_line_says_2_for_a_bad_scenario(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("kind: DrillScenario\n")
    command = [sys.executable, "-m", "scaler", "drill", "run", str(bad)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 2
    assert "bad.yaml:1:1" in result.stderr

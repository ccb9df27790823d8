"""The bench of cold starts with a tiny model on the CPU: every arm is what it is called, and all that it started is gone."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the reference engine needs torch"),
]


def test_all_arms_but_those_of_a_device(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "warmpool.bench.cold_starts", "--device", "cpu", "--shape", "tiny"]
    command += ["--shards", "1", "--directory", str(tmp_path / "made"), "--out", str(tmp_path / "out.json")]
    command += ["--repeat", "1", "--requests", "3", "--per-second", "4", "--cap", "0.1", "--seconds", "280"]
    arms = ["zygote", "staged", "crash", "crash-deferred", "neighbour"]
    for arm in arms:
        command += ["--arm", arm]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "out.json").read_text())
    assert (told["unsound"], told["targets"]) == ([], [])
    starts = {row["arm"]: row for row in told["rows"] if "phases" in row}
    assert set(starts) == {"zygote", "staged", "crash", "crash-deferred"}
    assert {arm: row["tier"] for arm, row in starts.items() if arm != "zygote"} == dict.fromkeys(
        ["staged", "crash", "crash-deferred"], "Staged"
    )
    assert starts["crash"]["sameAnswer"]
    for row in starts.values():
        steps = [seconds for step, seconds in row["steps"].items() if step != "total"]
        assert sum(steps) == pytest.approx(row["steps"]["total"], abs=0.01)
    loads = {row["loading"]: row["ttft"] for row in told["rows"] if "ttft" in row}
    assert set(loads) == {"nothing", "files", "files, 0.1 GB/s", "staged"}
    assert all(each["requests"] and not each["failed"] for each in loads.values()), loads
    assert not (tmp_path / "made" / "tiny").exists()
    left = [
        each.info["cmdline"]
        for each in psutil.process_iter(["cmdline"])
        if str(tmp_path) in " ".join(each.info["cmdline"] or ())
    ]
    assert not left

"""The benches of residents with real processes, as small as they get: that they measure, and what is held on any machine."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.drill.leftovers import left_over, marked

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.drill, pytest.mark.long, pytest.mark.timeout(300)]


def bench(module: str, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    small = ("--shape", "tiny", "--device", "cpu", "--checkpoints", str(out.parent / "checkpoints"))
    return subprocess.run(
        [sys.executable, "-m", f"scaler.drill.bench.{module}", str(out), *small, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        env=marked(),
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[int, str, Path]]]:
    """Both at once: most of their time is spent waiting for windows to end and engines to start."""
    folder = tmp_path_factory.mktemp("bench")
    wanted = {
        "promotions": ("--depth", "KvReleased", "--count", "3", "--seats", "1"),
        "kills": ("--state", "Serving", "--victim", "agent"),
    }
    with ThreadPoolExecutor(len(wanted)) as pool:
        running = {
            name: pool.submit(bench, name, folder / name, *arguments) for name, arguments in wanted.items()
        }
        done = {name: one.result() for name, one in running.items()}
    yield {name: (one.returncode, one.stdout + one.stderr, folder / name) for name, one in done.items()}
    assert left_over(5) == []


def kept(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text("utf-8"))


def test_every_promotion_is_measured_in_all_its_parts(ran: dict[str, tuple[int, str, Path]]) -> None:
    code, said, folder = ran["promotions"]
    assert code == 0, said
    found = kept(folder, "promotions.json")
    assert [len(found["promotions"]), found["failures"]] == [3, []]
    assert {each["asked"]["depth"] for each in found["promotions"]} == {"KvReleased"}
    assert all("kv" in each["phases"] for each in found["promotions"])
    assert found["summary"]["sample to first token"]["count"] == 3


def test_a_stream_outlives_the_agent_of_its_engine(ran: dict[str, tuple[int, str, Path]]) -> None:
    code, said, folder = ran["kills"]
    assert code == 0, said
    (row,) = kept(folder, "kills.json")["rows"]
    served, *waited = row["clients"]
    assert (served["outcome"], served["tokens"], served["right"]) == ("Ok", 200, True)
    assert [each["outcome"] for each in waited] == ["Ok", "Ok"]
    assert row["neighbours"]

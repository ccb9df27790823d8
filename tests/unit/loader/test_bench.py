"""What is measured is measured on the same bytes, in processes that may fail, and what was promised is compared with it."""

import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import loader
from loader.bench import fresh, limits, names, places, report, ways
from loader.bench.child import measure
from loader.bench.shapes import make, shapes, total_bytes


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file({"a": torch.arange(100_000), "b": torch.ones(13, dtype=torch.bfloat16)}, path)
    return path


def test_all_ways_come_to_the_same_sum(weights: Path) -> None:
    figures: dict[str, Any] = {name: measure(name, weights, "cpu") for name in ways.available("cpu")}
    assert {"safetensors load_file", "loader.load", names.LOAD_FILE, names.INTO} <= figures.keys()
    assert len({figure["sum"] for figure in figures.values()}) == 1
    assert all(
        figure["bytes"] == 800_026 and 0 < figure["load"] <= figure["all"] for figure in figures.values()
    )


def test_our_way_may_have_any_number_of_threads(weights: Path) -> None:
    figure: Any = measure(names.tried(3, 1), weights, "cpu")
    assert figure["bytes"] == 800_026
    assert figure["secondsByStep"].keys() == set(loader.Step)


@pytest.mark.parametrize("name", limits.available("cpu"))
def test_a_limit_reads_all_bytes(weights: Path, name: str) -> None:
    assert names.is_limit(name)
    assert measure(name, weights, "cpu")["bytes"] == weights.stat().st_size


@pytest.mark.parametrize("layout", ["experts", "one"])
def test_layouts_to_measure_with_are_checkpoints(tmp_path: Path, layout: str) -> None:
    made = shapes(0.0015)[layout]
    make(tmp_path / layout, made)
    checkpoint = loader.open_checkpoint(tmp_path / layout)
    assert {entry.dtype for entry in checkpoint.tensors.values()} == {"BF16"}
    assert checkpoint.total_bytes == total_bytes(made)


@pytest.mark.parametrize(("layout", "tensors"), [("dense", 290), ("experts", 10_000), ("one", 1)])
def test_full_layouts_are_of_the_size_that_is_measured(layout: str, tensors: int) -> None:
    found = [shape for shard in shapes()[layout] for shape in shard.values()]
    nbytes = sum(2 * math.prod(shape) for shape in found)
    assert len(found) == tensors
    assert 16.5e9 < nbytes < 18e9


def test_a_fresh_process_answers() -> None:
    facts = fresh.call(lambda: {"pid": os.getpid()}, limit_seconds=60)
    assert facts["pid"] != os.getpid()


def fail() -> fresh.Facts:
    raise ValueError("no such thing")


def leave() -> fresh.Facts:
    sys.exit(3)


def die() -> fresh.Facts:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def hang() -> fresh.Facts:
    time.sleep(600)
    return {}


@pytest.mark.parametrize(
    ("work", "limit", "says"),
    [
        (fail, 60, "exit status 1: .*ValueError: no such thing"),
        (leave, 60, "exit status 1: .*SystemExit: 3"),
        (die, 60, "killed by SIGKILL"),
        (hang, 0.1, "not done after 0 s"),
        (lambda: {"x": object()}, 60, "not JSON serializable"),
    ],
)
def test_a_process_without_an_answer_is_told_apart(work: Any, limit: float, says: str) -> None:
    with pytest.raises(fresh.MeasurementFailed, match=f"(?s){says}"):
        fresh.call(work, limit_seconds=limit)
    assert fresh.call(dict, limit_seconds=60) == {}


def test_files_lie_in_a_folder_that_goes_again(tmp_path: Path) -> None:
    with places.folder(tmp_path / "disk", 1) as made:
        (made / "f").write_bytes(b"x")
    assert list((tmp_path / "disk").iterdir()) == []


def test_what_a_place_cannot_hold_is_said(tmp_path: Path) -> None:
    with pytest.raises(places.NoRoom, match="GB are needed"), places.folder(tmp_path, 10**15):
        pass


def run_of(rate: float, total: int = 7) -> dict[str, object]:
    """A measurement of 10 GB, at so many GB per second."""
    return {"load": 10 / rate, "all": 20 / rate, "bytes": 10 * 10**9, "sum": total}


def document(**parts: dict[str, list[dict[str, object]]]) -> report.Document:
    return {
        "device": {"name": "a GPU"},
        "torch": "2",
        "parts": {part: {"runs": runs} for part, runs in parts.items()},
    }


def test_the_limit_is_the_slower_of_reading_and_copying() -> None:
    found = report.rows(
        document(
            tmpfs={
                "preadv alone, 8 threads": [run_of(30)],
                "preadv alone, 16 threads": [run_of(40)],
                names.COPY: [run_of(55)],
                names.INTO: [run_of(39), run_of(20), run_of(39)],
            }
        )
    )
    (row,) = found
    assert row.against == "preadv alone, 16 threads: 40.0 GB/s"
    assert row.ratio == pytest.approx(39 / 40)
    assert row.holds


def test_the_peer_to_be_compared_with_is_the_best() -> None:
    found = report.rows(
        document(
            pagecache={
                "safetensors load_file": [run_of(2)],
                "fastsafetensors, 64 MiB buffers": [run_of(44)],
                names.LOAD_FILE: [run_of(40)],
            }
        )
    )
    (row,) = found
    assert row.against.startswith("fastsafetensors, 64 MiB buffers")
    assert not row.holds


def test_cold_files_are_compared_with_reads_past_the_cache() -> None:
    runs = {"O_DIRECT alone, 16 threads": [run_of(2)], names.INTO: [run_of(1.9)]}
    assert [row.ratio for row in report.rows(document(cold=runs))] == [pytest.approx(0.95)]


def test_other_layouts_are_compared_with_the_dense_one() -> None:
    found = report.rows(document(tmpfs={names.INTO: [run_of(40)]}, one={names.INTO: [run_of(37)]}))
    assert [(row.what, row.holds) for row in found] == [(f"one: {names.INTO}", True)]


def test_what_comes_from_pages_of_2_mib_is_held_against_a_rate() -> None:
    found = report.rows(document(hugepages={names.INTO: [run_of(50)], names.LOAD_FILE: [run_of(43)]}))
    assert [(row.what, row.holds) for row in found] == [
        (f"hugepages: {names.INTO}", True),
        (f"hugepages: {names.LOAD_FILE}", False),
    ]


def test_layouts_are_compared_without_opening_too() -> None:
    runs = [run_of(30) | {"openedSeconds": 10 / rate} for rate in (30, 40, 50)]
    found = report.rows(
        document(tmpfs={names.INTO: [run_of(40) | {"openedSeconds": 0.25}]}, experts={names.INTO: runs})
    )
    assert [(row.what, row.holds) for row in found] == [
        (f"experts: {names.INTO}", False),
        (f"experts: {names.INTO}, once opened", True),
    ]


def test_ways_that_come_to_other_bytes_are_named() -> None:
    runs = {"a": [run_of(1)], "b": [run_of(1, 8)], names.INTO: [run_of(1)]}
    made = document(tmpfs=runs)
    assert report.disagreeing(made, "tmpfs") == ["b"]
    assert "other bytes: b" in report.render(made)


def test_on_a_cpu_a_way_is_done_when_its_bytes_are_used() -> None:
    made = {**document(tmpfs={names.INTO: [run_of(10)]}), "device": {"name": "cpu"}}
    assert report.figures(made, "tmpfs")[names.INTO].rate == pytest.approx(5)


def test_what_shows_inside_a_process() -> None:
    runs: Any = {
        "start-up": [{"startUpSeconds": 0.05}],
        "page-locking": [{"lockSeconds": 0.2}],
        "sibling": [{"gigabytesPerSecond": 394.0, "link": "PEER"}],
        "digests": [{"digestSeconds": 0.02, "bytes": 17 * 10**9, "extraDeviceBytes": 0}],
    }
    assert [row.holds for row in report.rows(document(process=runs))] == [True, False, True, True, True]


def test_a_document_that_was_cut_off_can_be_shown() -> None:
    made = {
        "parts": {"tmpfs": {"failed": {"files": "no room"}, "leftOut": {"x": "2 s were left"}}, "one": {}}
    }
    assert "failed: files: no room" in report.render(made)
    assert report.rows({}) == []

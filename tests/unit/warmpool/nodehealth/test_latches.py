"""What is remembered survives restarts, and a file that can't be read is said so and forgets nobody's sickness."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.warmpool.nodehealth.history import A, B, History
from warmpool.nodehealth.kmsg import Position
from warmpool.nodehealth.latches import Kept, Latches, from_json, gist, to_json
from warmpool.nodehealth.readings import Clocks, Contact, Fabric, FabricState, Pages, SpareRows
from warmpool.nodehealth.records import NodeRecord
from warmpool.nodehealth.verdicts import judge
from warmpool.seats import Verdict


def full() -> Kept:
    """A record with something in every field."""
    history = History(judges=False).xid(48).reboot().read(A, recovery=1, clocks=Clocks.POWER_BRAKE)
    history.pass_(700).xid(79, uuid=B).xid(32).silent(20).xid(32).canary(passed=False)
    history.read(
        A,
        spare_rows=SpareRows(all=10, high=1, partial=2, low=3, none=4),
        fabric=Fabric(state=FabricState.IN_PROGRESS, ailments=("route", "bandwidth")),
    )
    return Kept(record=history.record, position=Position(boot="boot-1+", sequence=77))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "gpu-health.json"


def test_what_is_written_is_what_is_read(path: Path) -> None:
    kept = full()
    Latches(path).save(kept)
    assert Latches(path).load() == kept
    assert [each.name for each in path.parent.iterdir()] == ["gpu-health.json"]


def test_what_stands_and_is_read_again_and_again_is_written_once() -> None:
    history = History().read(A, recovery=1, pages=Pages(pending=True)).read(B, contact=Contact.LOST)
    history.pass_(30).canary(passed=True, proof="p")
    before = gist(history.record)
    history.pass_(60).canary(passed=True, proof="p")
    assert gist(history.record) == before
    for change in (
        lambda: history.xid(48),
        lambda: history.read(A, recovery=0),
        lambda: history.canary(passed=True, proof="q"),
        lambda: history.pass_(700),
    ):
        before = gist(history.record)
        change()
        assert gist(history.record) != before


def test_where_there_is_no_file_nothing_was_ever_remembered(path: Path) -> None:
    assert Latches(path).load() == Kept()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"version": 2, "kept": {}}',
        '{"version": 1}',
        '{"version": 1, "kept": {"record": {"gpus": []}}}',
        '{"version": 1, "kept": {"record": {"at": "now"}}}',
        '{"version": 1, "kept": {"record": {"at": true}}}',
        '{"version": 1, "kept": {"record": {"at": Infinity}}}',
        '{"version": 1, "kept": {"record": {"at": NaN}}}',
        '{"version": 1, "kept": {"record": {"at": 1e300}}}',
        '{"version": 1, "kept": {"record": {"unknown": 1}}}',
        '{"version": 1, "kept": {"record": {"gpus": {"GPU-a": {"uuid": "GPU-a", "verdict": "Fine"}}}}}',
        '{"version": 1, "kept": {"record": {"gpus": {"GPU-a": {}}}}}',
        "[" * 100_000,
    ],
)
def test_a_file_that_makes_no_sense_is_put_aside_and_everything_is_unknown(
    path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_text(text)
    assert Latches(path).load() == Kept(record=NodeRecord(lost=True))
    assert "is lost" in caplog.text
    assert (path.parent / "gpu-health.json.unreadable").read_text() == text
    assert Latches(path).load() == Kept()  # the next start says no more than there is


def test_a_folder_in_the_files_place_is_said(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.mkdir(parents=True)
    assert Latches(path).load().record.lost
    assert "can't be read" in caplog.text


def test_half_a_file_is_no_file(path: Path) -> None:
    latches = Latches(path)
    latches.save(full())
    raw = path.read_bytes()
    for end in range(0, len(raw), max(1, len(raw) // 40)):
        path.write_bytes(raw[:end])
        assert latches.load().record.lost


def test_a_write_that_fails_leaves_what_was_there(path: Path) -> None:
    kept = full()
    Latches(path).save(kept)
    path.with_name(f"{path.name}.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        Latches(path).save(Kept())
    assert Latches(path).load() == kept


def test_a_bad_gpu_is_bad_after_a_restart_and_no_worse_after_two(path: Path) -> None:
    history = History(judges=False).xid(48)
    Latches(path).save(Kept(record=history.record))
    for _ in range(2):
        history.record = Latches(path).load().record
        assert history.silent(60).read().verdict() is Verdict.BAD
        Latches(path).save(Kept(record=history.record))
    assert history.of().reasons[0].count == 1


def test_what_is_at_its_default_is_left_out() -> None:
    assert to_json(Kept()) == {}
    assert from_json(Kept, {}) == Kept()


def test_the_file_of_a_healthy_node_is_small() -> None:
    kept = Kept(record=History().record)
    record = replace(
        kept.record, gpus={uuid: replace(gpu, reading=None) for uuid, gpu in kept.record.gpus.items()}
    )
    assert len(json.dumps(to_json(record))) < 1500


def test_a_record_that_was_read_judges_as_before(path: Path) -> None:
    kept = full()
    Latches(path).save(kept)
    rules: Any = History().rules
    at = kept.record.at + 5
    assert judge(Latches(path).load().record, rules, at) == judge(kept.record, rules, at)

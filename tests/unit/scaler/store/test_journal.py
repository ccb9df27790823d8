import threading
from pathlib import Path

from scaler.store.journal import Journal, older, read


def test_records_come_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "events.jsonl")
    for number in range(500):
        journal.append({"number": number})
    journal.close()
    assert [record["number"] for record in read(journal.path)] == list(range(500))


def test_a_torn_last_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"a":1}\n{"a":2', "utf-8")
    assert list(read(path)) == [{"a": 1}]


def test_an_existing_file_is_appended_to(tmp_path: Path) -> None:
    for number in range(2):
        journal = Journal(tmp_path / "events.jsonl")
        journal.append({"number": number})
        journal.close()
    assert len(list(read(tmp_path / "events.jsonl"))) == 2


def test_closing_leaves_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())  # others' threads may end meanwhile
    Journal(tmp_path / "events.jsonl").close()
    assert set(threading.enumerate()) <= before


def test_a_journal_takes_twice_its_limit_at_most_and_keeps_the_newest(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "events.jsonl", limit_bytes=1000)
    for number in range(500):
        journal.append({"number": number})
    journal.close()
    kept = [record["number"] for record in read(journal.path)]
    assert kept == list(range(kept[0], 500))
    assert len(kept) >= 1000 // 15
    assert sum(path.stat().st_size for path in (journal.path, older(journal.path))) <= 2100

"""What outlives an agent."""

from pathlib import Path

import pytest

from warmpool.agent.keeping import Keeper, Kept
from warmpool.expectations import Answer, Ownership, Recording

RECORDING = Recording(
    ownership=Ownership(dtype="bfloat16"),
    answers=(Answer(prompt="p", tokens=(1, 2)),),
    witnesses=frozenset({"x", "y"}),
)
KEPT = Kept(epoch=7, recordings={"a": RECORDING})


def test_the_next_agent_of_the_seat_reads_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "agent.json"
    Keeper(path, "uid-1").write(KEPT)
    assert Keeper(path, "uid-1").read() == KEPT
    assert [each.name for each in path.parent.iterdir()] == ["agent.json"]


def test_another_seat_in_the_same_place_begins_anew(tmp_path: Path) -> None:
    Keeper(tmp_path / "f", "uid-1").write(KEPT)
    assert Keeper(tmp_path / "f", "uid-2").read() == Kept()


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "[]",
        "{}",
        '{"uid": "uid-1"}',
        '{"uid": "uid-1", "epoch": "7", "recordings": {}}',
        '{"uid": "uid-1", "epoch": 7, "recordings": {"a": {"answers": []}}}',
    ],
)
def test_what_can_not_be_read_counts_as_nothing(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "f").write_text(text)
    assert Keeper(tmp_path / "f", "uid-1").read() == Kept()


def test_what_can_not_be_written_ends_nothing_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    keeper = Keeper(tmp_path / "file" / "below", "uid-1")
    keeper.write(KEPT)
    keeper.write(Kept(epoch=8))
    assert [record.message.split(":")[0] for record in caplog.records] == [
        f"{tmp_path}/file/below can't be written, so the next agent won't know the term"
    ]


def test_what_could_not_be_written_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "place" / "f"
    path.parent.write_text("")
    keeper = Keeper(path, "uid-1")
    keeper.write(KEPT)
    path.parent.unlink()
    keeper.write(KEPT)
    assert Keeper(path, "uid-1").read() == KEPT


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "f", "uid-1")
    keeper.write(KEPT)
    (tmp_path / "f").unlink()
    keeper.write(KEPT)
    assert not (tmp_path / "f").exists()

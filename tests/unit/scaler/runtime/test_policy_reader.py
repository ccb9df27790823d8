"""The reader's side: it reads what has changed and kept still, and hands over what isn't in force."""

import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler.policy.reading import PolicyFiles
from scaler.runtime.policy_exchange import LENGTH, MOST_FAULTS
from scaler.runtime.policy_reader import Watch, serve
from tests.unit.scaler.runtime.policy_sets import fleet, policy


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "fleet.yaml").write_text(fleet(), "utf-8")
    (tmp_path / "chat.yaml").write_text(policy("chat"), "utf-8")
    return tmp_path


def test_a_change_is_read_once_it_has_kept_still(directory: Path) -> None:
    watch = Watch(PolicyFiles([directory]))
    answer, _ = watch.read("")
    in_force = answer.hash
    assert watch.look(in_force)[0].read is False
    (directory / "chat.yaml").unlink()  # as a checkout does it: first gone, then there again
    assert watch.look(in_force)[0].read is False
    (directory / "chat.yaml").write_text(policy("chat", minServing="2"), "utf-8")
    assert watch.look(in_force)[0].read is False
    answer, pieces = watch.look(in_force)
    assert answer.read
    assert answer.pieces == len(pieces) > 0
    assert watch.look(answer.hash)[0].read is False


def test_a_set_that_is_in_force_is_not_handed_over(directory: Path) -> None:
    watch = Watch(PolicyFiles([directory]))
    in_force = watch.read("")[0].hash
    (directory / "chat.yaml").write_text("# another comment\n" + policy("chat"), "utf-8")
    answer, pieces = watch.read(in_force)
    assert (answer.read, answer.hash, answer.pieces, list(pieces)) == (True, in_force, 0, [])


def test_faults_are_told_once_and_again_on_request(directory: Path) -> None:
    watch = Watch(PolicyFiles([directory]))
    in_force = watch.read("")[0].hash
    (directory / "chat.yaml").write_text("kind: [", "utf-8")
    watch.look(in_force)
    answer, _ = watch.look(in_force)
    assert [fault.line for fault in answer.faults] == [1]
    assert watch.look(in_force)[0].read is False
    assert watch.read(in_force)[0].faults


def test_faults_beyond_what_anybody_reads_are_counted(directory: Path) -> None:
    for number in range(3):
        keys = "".join(f"key{key}: 1\n" for key in range(90))
        (directory / f"broken{number}.yaml").write_text(fleet(f"f{number}") + keys, "utf-8")
    answer, _ = Watch(PolicyFiles([directory])).read("")
    assert (len(answer.faults), answer.more_faults) == (MOST_FAULTS, 270 - MOST_FAULTS)


def test_faults_of_a_document_that_are_not_told_are_counted_too(directory: Path) -> None:
    keys = "".join(f"key{key}: 1\n" for key in range(150))
    (directory / "broken.yaml").write_text(fleet("broken") + keys, "utf-8")
    answer, _ = Watch(PolicyFiles([directory])).read("")
    assert (len(answer.faults), answer.more_faults) == (100, 50)


def test_the_first_look_of_a_new_process_reads_too(directory: Path) -> None:
    watch = Watch(PolicyFiles([directory]))
    assert watch.look("")[0].read is False
    assert watch.look("")[0].read is True


def frames(raw: bytes) -> Iterator[Any]:
    stream = io.BytesIO(raw)
    while head := stream.read(LENGTH.size):
        yield pickle.loads(stream.read(LENGTH.unpack(head)[0]))


def test_requests_are_answered_until_they_end(directory: Path) -> None:
    answers = io.BytesIO()
    serve(Watch(PolicyFiles([directory])), io.BytesIO(b"read 0\nlook 0\n"), answers)
    first, *others = frames(answers.getvalue())
    pieces, second = others[: first.pieces], others[first.pieces]
    assert len(pieces) == first.pieces > 0
    assert second.read is False
    assert len(others) == first.pieces + 1

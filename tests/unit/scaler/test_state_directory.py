"""Temporary state directories: gone with their maker, and taken away by the next one where the maker was killed."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scaler.errors import UserError
from scaler.state_directory import LOCK, state_directory, sweep

MAKER = """
import sys
from scaler.state_directory import state_directory
with state_directory("test", sys.stderr.write) as directory:
    (directory / "logs").mkdir()
    (directory / "logs" / "engine.log").write_text("x")
    print(directory, flush=True)
    sys.stdin.read()
"""


def silent(text: str) -> None:
    pytest.fail(text)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this test alone."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@contextmanager
def maker() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process that has made a directory and lives."""
    with subprocess.Popen(
        [sys.executable, "-c", MAKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def killed() -> Path:
    """A directory whose maker was killed."""
    with maker() as (process, directory):
        process.send_signal(signal.SIGKILL)
    return directory


def test_it_is_there_while_it_is_needed_and_gone_afterwards(folder: Path) -> None:
    with state_directory("local", silent) as directory:
        assert directory.name.startswith("emberpool-local-")
        assert directory.parent == folder
        assert directory.stat().st_mode & 0o777 == 0o700
        (directory / "logs").mkdir()
        (directory / "logs" / "engine.log").write_text("x")
    assert list(folder.iterdir()) == []


def test_it_is_gone_after_an_error(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), state_directory("local", silent):
        raise ZeroDivisionError
    assert list(folder.iterdir()) == []


def test_what_a_killed_maker_left_is_removed_by_the_next_one_and_told(folder: Path) -> None:
    left, said = killed(), list[str]()
    assert (left / "logs" / "engine.log").exists()
    with state_directory("local", said.append) as directory:
        assert list(folder.iterdir()) == [directory]
    assert said == [f"removed {left}: who made it was killed"]


def test_what_a_living_maker_uses_stays() -> None:
    with maker() as (_, directory):
        assert sweep() == []
        assert (directory / "logs" / "engine.log").exists()


def test_one_s_own_stays() -> None:
    with state_directory("local", silent) as mine, state_directory("local", silent):
        assert sweep() == []
        assert mine.is_dir()


def test_what_is_kept_is_never_removed(folder: Path) -> None:
    with state_directory("drill-warm", silent, keep=True) as directory:
        (directory / "events.jsonl").write_text("{}")
    assert sweep() == []
    assert (directory / "events.jsonl").read_text() == "{}"
    assert list(folder.iterdir()) == [directory]


def test_without_a_folder_for_temporary_files_it_says_so(folder: Path) -> None:
    folder.rmdir()
    with pytest.raises(UserError, match="No such file or directory") as caught, state_directory("x", silent):
        pass
    assert "TMPDIR" in caught.value.hint


# ------------------------------------------------------------------ what is not ours


def without_a_lock_file(left: Path) -> None:
    (left / LOCK).unlink()


def under_another_name(left: Path) -> None:
    left.rename(left.with_name(left.name.replace("emberpool", "other")))


def with_a_link_for_a_lock_file(left: Path) -> None:
    (left / LOCK).rename(left / "elsewhere")
    (left / LOCK).symlink_to(left / "elsewhere")


def with_a_folder_for_a_lock_file(left: Path) -> None:
    (left / LOCK).unlink()
    (left / LOCK).mkdir()


def through_a_link(left: Path) -> None:
    real = left.rename(left.with_name("real"))
    left.symlink_to(real)


def of_another_user(left: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(left, 65534, 65534)


@pytest.mark.parametrize(
    "change",
    [
        without_a_lock_file,
        under_another_name,
        with_a_link_for_a_lock_file,
        with_a_folder_for_a_lock_file,
        through_a_link,
        of_another_user,
    ],
)
def test_a_directory_that_may_not_be_ours_stays(folder: Path, change: Callable[[Path], None]) -> None:
    change(killed())
    before = sorted(folder.rglob("*"))
    assert sweep() == []
    assert sorted(folder.rglob("*")) == before


def test_what_a_link_in_it_points_to_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "weights").write_text("x")
    left = killed()
    (left / "checkpoint").symlink_to(outside)
    assert sweep() == [left]
    assert (outside / "weights").exists()

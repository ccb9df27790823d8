"""Temporary directories for the state of one run, which don't outlive a killed run for long.

Who ends in order removes its directory. Who is killed can't, so the next one to make a directory removes what it finds
left. In each directory lies a lock file on which its maker holds a lock for life. The kernel lets go of that at any
death; a process id in a file could by then be somebody else's. A directory without this file was not made here, whatever
it is called, and is left alone.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from scaler.errors import UserError

PREFIX: Final = "emberpool-"
LOCK: Final = "maker.lock"
"""Name of the lock file."""


@contextmanager
def state_directory(name: str, say: Callable[[str], None], *, keep: bool = False) -> Iterator[Path]:
    """Make a directory that is gone when the context is left; first remove what killed runs have left.

    Args:
        name: says in the directory's name whose it is.
        say: called with what was removed that others had left.
        keep: leave the directory at the end, and to whoever starts later as well.

    Raises:
        UserError: no directory can be made.
    """
    for left in sweep():
        say(f"removed {left}: who made it was killed")
    try:
        directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{name}-"))
    except OSError as error:
        raise UserError(
            f"no temporary directory can be made: {error.strerror or error}",
            hint="set TMPDIR to a folder that is there and can be written to",
        ) from error
    lock = None if keep else _locked(directory)
    try:
        yield directory
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def sweep() -> list[Path]:
    """Remove the directories that killed runs of this user have left in the folder for temporary files.

    Returns:
        What was removed.
    """
    try:
        found = sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))
    except OSError:
        return []
    return [directory for directory in found if _removed(directory)]


def _locked(directory: Path) -> int | None:
    """Put a lock file into a directory and hold it; None where the file system knows no locks: nobody sweeps there then."""
    partial = directory / f"{LOCK}.partial"
    lock = None
    try:
        lock = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        partial.rename(directory / LOCK)  # under its name it is never seen unlocked
    except OSError:
        partial.unlink(missing_ok=True)
        if lock is not None:
            os.close(lock)
        return None
    return lock


def _removed(directory: Path) -> bool:
    """Remove a directory if it is one of ours and whoever made it is gone."""
    try:
        if not _mine(directory.lstat(), stat.S_IFDIR):
            return False
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if not _mine(os.fstat(lock), stat.S_IFREG):
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _emptied(directory)
    except OSError:  # its maker lives, or somebody else is removing it
        return False
    finally:
        os.close(lock)


def _mine(found: os.stat_result, kind: int) -> bool:
    return stat.S_IFMT(found.st_mode) == kind and found.st_uid == os.geteuid()


def _emptied(directory: Path) -> bool:
    """Remove a directory, its lock file last: what couldn't be removed now must stay recognizable for the next time."""
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != LOCK:
            with suppress(OSError):
                entry.unlink()
    if [entry.name for entry in directory.iterdir()] != [LOCK]:
        return False
    (directory / LOCK).unlink()
    directory.rmdir()
    return True

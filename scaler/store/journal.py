"""An append-only JSONL file that never makes its writer wait.

Records go into a bounded queue that one thread empties; when the disk is too slow the oldest queued records are dropped
and counted, because a promotion must not wait for its own history. A file that has grown to its limit becomes the older
one, in place of the one before it: a journal takes twice its limit at most.
"""

import json
import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_CAPACITY = 10_000
"""Records that may wait for the disk: several seconds of the busiest controller."""
LIMIT_BYTES = 256 * 1024 * 1024
"""Size at which a journal begins a new file: days of a small controller, hours of a very large one."""


class Journal:
    """One JSONL file with its writing thread, and the one before it.

    Args:
        path: created with its directory; appended to if it exists.
        limit_bytes: size at which a new file is begun.

    Raises:
        OSError: the file can't be opened.
    """

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.dropped = 0
        self._limit = limit_bytes
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._queue: queue.Queue[Mapping[str, Any] | None] = queue.Queue(_CAPACITY)
        self._thread = threading.Thread(target=self._write, name=f"journal {path.name}", daemon=True)
        self._thread.start()

    def append(self, record: Mapping[str, Any]) -> None:
        """Queue one record; drops the oldest queued one if the queue is full. Never blocks."""
        while True:
            try:
                self._queue.put_nowait(record)
            except queue.Full:
                with suppress(queue.Empty):
                    self._queue.get_nowait()
                    self.dropped += 1
            else:
                return

    def close(self) -> None:
        """Write what is queued and close the file. Blocks until that is done."""
        self._queue.put(None)
        self._thread.join()
        self._file.close()

    def _write(self) -> None:
        while (record := self._queue.get()) is not None:
            try:
                self._file.write(json.dumps(record, separators=(",", ":"), default=str) + "\n")
                if self._file.tell() >= self._limit:
                    self._begin_anew()
            except OSError:
                self.dropped += 1  # a full disk loses history, not promotions

    def _begin_anew(self) -> None:
        self.path.replace(older(self.path))
        self._file.close()
        self._file = self.path.open("a", encoding="utf-8", buffering=1)


def older(path: Path) -> Path:
    """Return where a journal's older records are."""
    return path.with_name(f"{path.name}.1")


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a journal, the older file's first; a torn last line (the writer was killed) is skipped.

    Raises:
        OSError: the file can't be read.
    """
    if (before := older(path)).is_file():
        yield from _records(before)
    yield from _records(path)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            with suppress(ValueError):
                yield json.loads(line)

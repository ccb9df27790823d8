"""Processes of a stage daemon that holds copies and of engines that attach to them, for tests that kill them."""

import queue
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Self

import loader
from loader.checkpoint import Checkpoint
from loader.errors import DigestMismatch
from loader.manifest import compare, describe
from loader.proof import digest_source
from tests.integration.loader.hold_engine import digests_from

WAIT_SECONDS = 240.0
"""For a process to come up on a busy machine, and to read some gigabytes."""


class Process:
    """A process whose lines are read as they come; killed at the end."""

    def __init__(self, command: Sequence[str]) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def expect(self, beginning: str) -> str:
        """The first line that begins so; what it ends with."""
        seen: list[str] = []
        try:
            while (line := self._lines.get(timeout=WAIT_SECONDS)) is not None:
                if line.startswith(beginning):
                    return line[len(beginning) :]
                seen.append(line)
        except queue.Empty:
            raise AssertionError(f"no {beginning!r} after {WAIT_SECONDS:.0f} s: {seen[-20:]}") from None
        raise AssertionError(f"it ended without {beginning!r}: {seen[-20:]}")

    def ask(self, word: str) -> str:
        """Send a word; what it answers to it."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{word}\n")
        return self.expect(f"{word} ")

    def ended(self) -> int:
        """Wait for its end; its status."""
        status = self.popen.wait(WAIT_SECONDS)
        self._reader.join()
        return status

    def kill(self) -> None:
        """Kill it, as SIGKILL does, and wait until it is gone."""
        self.popen.kill()
        self.popen.wait()
        self._reader.join()
        for stream in (self.popen.stdin, self.popen.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):  # what it hasn't read
                    stream.close()


def start_engine(socket_path: Path, model: Path, device: str) -> Process:
    """An engine that is attached; `device` is a number, or empty for the stand-in."""
    engine = Process(["-m", "tests.integration.loader.hold_engine", str(socket_path), str(model), device])
    engine.expect("attached ")
    return engine


class Weights:
    """What a checkpoint's tensors must be, read once."""

    def __init__(self, model: Path) -> None:
        self.checkpoint: Checkpoint = loader.open_checkpoint(model)
        self._expected = describe(self.checkpoint, digest_source(self.checkpoint))

    def are(self, answer: str) -> bool:
        """Whether an engine's answer to `digest` says so."""
        try:
            compare(digests_from(answer), self.checkpoint, self._expected)
        except DigestMismatch:
            return False
        return True

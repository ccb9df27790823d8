"""Processes that tests have started, known by a mark in their environment, and what is left of them afterwards."""

import os
import time
import uuid

import psutil

MARK = f"EMBERPOOL_TEST_{uuid.uuid4().hex}"
"""In the environment of everything that these tests start, so that it can be told from other people's processes."""


def marked(**others: str) -> dict[str, str]:
    """The environment of this process with the mark, and with other variables."""
    return {**os.environ, MARK: "1", **others}


def left_over(seconds: float) -> list[str]:
    """What hasn't ended by itself after so long."""
    deadline = time.monotonic() + seconds
    while (found := _running()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _running() -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if MARK in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found

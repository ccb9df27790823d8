"""One zygote of engines for all tests of a run: a start of the reference engine without its imports.

Importing torch takes four seconds of computing, a fork a tenth of one. Tests that aren't about a start of Python take forks:

    subprocess.Popen(command, env=os.environ | engine_zygote.asked())

Where a process has other libraries' variables than this one, or there is no torch, the engine starts as if it hadn't asked.
"""

import atexit
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from queue import SimpleQueue

from warmpool.standins import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0
"""What a busy machine may take to start Python. A zygote listens before it imports, and who asks waits for it."""
_PATH_VARIABLE = "ENGINE_ZYGOTE_PATH"
"""Where it listens, for the workers of a run of tests: they share one."""


def share() -> None:
    """Start it for this process and for all that it starts from now on, if there is torch; it ends with this one."""
    if importlib.util.find_spec("torch") is None:
        return
    folder = tempfile.TemporaryDirectory(prefix="emberpool-zygote-")
    path = Path(folder.name) / "s"
    started = SimpleQueue[subprocess.Popen[bytes]]()
    threading.Thread(target=_keep, args=(path, started), daemon=True).start()
    zygote = started.get()

    def close() -> None:
        """End it; who stands for one of its forks has ended."""
        zygote.kill()
        zygote.wait()
        folder.cleanup()

    atexit.register(close)
    os.environ[_PATH_VARIABLE] = str(path)


def _keep(path: Path, started: SimpleQueue[subprocess.Popen[bytes]]) -> None:
    """Start it and stay until its end: it dies with the thread that has started it, which of a test's may end before the next test."""
    command = [sys.executable, "-m", "warmpool.reference", "zygote", "--socket", str(path)]
    with path.with_name("log").open("wb") as log:
        zygote = subprocess.Popen(
            [*command, "--die-with-parent"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT
        )
    started.put(zygote)
    zygote.wait()


def asked() -> dict[str, str]:
    """Return the environment's variable by which an engine asks for a fork; wait until it can be asked."""
    if _PATH_VARIABLE not in os.environ:
        share()
    if _PATH_VARIABLE not in os.environ:
        return {}
    path = Path(os.environ[_PATH_VARIABLE])
    deadline = time.monotonic() + START_SECONDS
    while not path.is_socket():
        assert time.monotonic() < deadline, f"no zygote listens: {path.with_name('log').read_text('utf-8')}"
        time.sleep(0.01)  # between two looks
    return {VARIABLE: str(path)}

"""Builds the C files into libraries beside them. Standard library only."""

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
WINDOWS = HERE / "windows.so"
"""The library of `windows.c`, wherever this package lies."""
_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread")
_SECONDS = 120.0


class NotBuilt(Exception):
    """No library could be built; the text says why."""


def build() -> Path:
    """Build the library in place, replacing one that is there; its path.

    Environment:
        CC: the compiler, with options; `cc` by default.

    Raises:
        NotBuilt: there is no compiler, or it failed.
    """
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if not compiler or shutil.which(compiler[0]) is None:
        raise NotBuilt(f"there is no C compiler {' '.join(compiler)}")
    source = WINDOWS.with_suffix(".c")
    try:
        with tempfile.TemporaryDirectory(dir=HERE, prefix=".build-") as folder:
            made = Path(folder) / WINDOWS.name
            # The system's own compiler, or whichever the caller's environment names, on our own file.
            command = [*compiler, *_FLAGS, "-o", str(made), str(source)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
            if done.returncode:
                raise NotBuilt(f"{compiler[0]} failed:\n{done.stderr.strip()}")
            made.replace(WINDOWS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuilt(str(error)) from error
    return WINDOWS

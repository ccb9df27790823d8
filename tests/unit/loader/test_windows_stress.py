"""Teams of readers under the compiler's sanitizers, before a device that copies late, refuses, and files that are too short."""

import shutil
import subprocess
from pathlib import Path

import pytest

from loader.native.build import HERE

SOURCE = Path(__file__).parent / "native" / "stress.c"
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-pthread", f"-I{HERE}")

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def built(folder: Path, sanitizers: str) -> Path:
    program = folder / "stress"
    command = ["cc", *FLAGS, f"-fsanitize={sanitizers}", "-o", str(program), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if "cannot find" in done.stderr:
        pytest.skip(f"the compiler has no library for {sanitizers}")
    assert done.returncode == 0, done.stderr
    return program


@pytest.mark.parametrize(
    ("sanitizers", "rounds"),
    [
        ("address,undefined", 12),
        pytest.param("thread", 40, marks=pytest.mark.long),
    ],
)
def test_no_slot_is_read_into_too_early_and_every_failure_is_told(
    tmp_path: Path, sanitizers: str, rounds: int
) -> None:
    program = built(tmp_path, sanitizers)
    for seed in range(1, 4):
        command = [str(program), str(seed), str(rounds), str(tmp_path / "data")]
        if sanitizers == "thread":
            command = ["setarch", "-R", *command]  # it can't cope with all places that memory may be put at
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

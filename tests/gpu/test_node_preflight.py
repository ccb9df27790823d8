"""The pre-flight on a real card: what its memory holds, what the kernel finds, how fast it is, and who is left alone."""

import ctypes
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.warmpool.nodehealth.preflight_card import Card
from tests.unit.warmpool.nodehealth.preflight_memory import holds_what_was_written, passes_a_march
from warmpool.nodehealth.nvml import NvmlError, driver
from warmpool.nodehealth.preflight.command import pack
from warmpool.nodehealth.preflight.cuda import NoGpu
from warmpool.nodehealth.preflight.findings import REFUSED, Outcome
from warmpool.nodehealth.preflight.look import RESERVE_BYTES, Limits, Time, look
from warmpool.nodehealth.preflight.march import march
from warmpool.nodehealth.preflight.ports import DriverFailed

ROOT = Path(__file__).resolve().parents[2]
HOLDER = ROOT / "tests/fakes/cuda_holder.py"
GIB = 2**30


def _no_driver() -> str:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return str(error)
    return ""


REASON = _no_driver()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(REASON), reason=f"needs a GPU: {REASON}")]


def say(text: str) -> None:
    """Tell a figure; `pytest -s` shows it."""
    sys.stdout.write(text + "\n")


@pytest.fixture
def card() -> Card:
    try:
        return Card.first()
    except (NoGpu, DriverFailed) as error:
        pytest.skip(str(error))


def test_memory_holds_what_was_written_and_a_changed_word_is_found(card: Card) -> None:
    holds_what_was_written(card, 3 * GIB + 192 * 2**20)


def test_a_march_covers_what_it_takes_and_gives_it_back(card: Card) -> None:
    free, _ = card.sizes()
    passes_a_march(card, 2 * GIB)
    assert abs(card.sizes()[0] - free) <= 64 * 2**20


def test_all_free_memory_is_tested_within_seconds(card: Card) -> None:
    free, total = card.sizes()
    coverage = march(card, free - RESERVE_BYTES, 5.0, time.monotonic)
    assert coverage.wrong is None
    assert coverage.covered_bytes == coverage.taken_bytes > 0.9 * (free - RESERVE_BYTES)
    say(
        f"{coverage.covered_bytes / GIB:.1f} of {total / GIB:.1f} GiB, {coverage.patterns} pairs of patterns in "
        f"{coverage.seconds:.2f} s"
    )
    one = march(card, free - RESERVE_BYTES, 0.5, time.monotonic)
    say(f"in half a second: {one.covered_bytes / GIB:.1f} GiB covered, {one.patterns} pairs")


def test_a_look_passes_and_names_the_gpu_as_nvml_does(card: Card) -> None:
    found = look(card, Limits(seconds=1.0), Time(time.monotonic, time.sleep))
    assert found.outcome is Outcome.PASSED, found.line
    say(found.line)
    try:
        nvml = driver()
        nvml.start()
    except NvmlError as error:
        pytest.skip(str(error))
    assert card.uuid in {device.uuid for device in nvml.devices().devices}
    nvml.stop()


@contextmanager
def neighbour(nbytes: int) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, str(HOLDER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for order in ("", f"take {nbytes}\n"):
            process.stdin.write(order)
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"
        yield


def test_beside_somebody_little_is_tested(card: Card) -> None:
    with neighbour(4 * GIB):
        found = look(card, Limits(beside_bytes=GIB), Time(time.monotonic, time.sleep))
    assert found.outcome is Outcome.PASSED, found.line
    assert "1.0 of 1.0 GiB" in found.text


def test_the_memory_that_an_engine_needs_is_what_it_finds_without_the_looks_own_context(
    card: Card, tmp_path: Path
) -> None:
    free, _ = card.sizes()
    pack(tmp_path / "preflight.pyz")
    look_only = [sys.executable, "-I", "-S", str(tmp_path / "preflight.pyz"), "--seconds", "0.1"]
    for more_mib, status in ((-64, 0), (256, REFUSED)):
        needed = str(free // 2**20 + more_mib)
        ended = subprocess.run(
            [*look_only, "--needed-mib", needed, "--free-seconds", "0.2"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        say(f"{needed} MiB needed of {free // 2**20}: {ended.stderr.strip()}")
        assert ended.returncode == status, ended.stderr


def test_one_file_of_it_looks_and_becomes_the_engine_with_nothing_left_on_the_gpu(
    card: Card, tmp_path: Path
) -> None:
    free, _ = card.sizes()
    pack(tmp_path / "preflight.pyz")
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-I", "-S", str(tmp_path / "preflight.pyz"), "--", "echo", "up"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    say(f"{time.monotonic() - began:.2f} s: {ended.stderr.strip()}")
    assert (ended.returncode, ended.stdout) == (0, "up\n"), ended.stderr
    assert abs(card.sizes()[0] - free) <= 64 * 2**20

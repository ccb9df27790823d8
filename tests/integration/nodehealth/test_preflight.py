"""The pre-flight's process against a driver's library, with its calls as the driver takes them: what starts, and what is refused."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.agent.conftest import of, resident, running_agent
from warmpool.nodehealth.preflight.findings import REFUSED, Outcome, told_in

SOURCES = {"libcuda.so.1": "libcuda.c", "libnvidia-ml.so.1": "libnvidia-ml.c"}
GPU = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("driver")
    for name, source in SOURCES.items():
        made, read = folder / name, Path(__file__).with_name(source)
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(read)], check=True)
    return folder


def look(library: Path, wrong: str, *options: str, counters: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "warmpool.nodehealth.preflight",
            *options,
            "--",
            "echo",
            "up",
        ],
        env={**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_CUDA": wrong, "FAKE_NVML": counters},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_words_that_are_wrong_are_told_once_each(library: Path) -> None:
    """What is found in one sweep is not told again by the next: what holds of a real GPU holds of this one."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.warmpool.nodehealth.preflight_card"],
        env={**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_CUDA": "whole"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("wrong", "outcome", "text"),
    [
        ("", Outcome.PASSED, "0.1 of 0.1 GiB of free memory tested"),
        ("", Outcome.SKIPPED, "nothing was tested in 0.0"),
        ("none", Outcome.NO_GPU, "there is no GPU: cuInit: CUDA_ERROR_NO_DEVICE (100)"),
        ("jit", Outcome.SKIPPED, "its memory can't be tested: cuModuleLoadData"),
        ("wrong", Outcome.WRONG, "1 words were not what had been written"),
        ("ecc", Outcome.ERRORS, "cuCtxSynchronize: CUDA_ERROR_ECC_UNCORRECTABLE (214)"),
    ],
)
def test_a_look_says_what_it_finds_and_becomes_the_engine_or_ends(
    library: Path, wrong: str, outcome: Outcome, text: str
) -> None:
    ended = look(library, wrong, "--seconds", "0" if "nothing" in text else "2")
    found = told_in(ended.stderr)
    assert found is not None, ended.stderr
    assert (found.outcome, found.text[: len(text)]) == (outcome, text)
    starts = outcome in {Outcome.PASSED, Outcome.SKIPPED}
    assert (ended.returncode, ended.stdout) == ((0, "up\n") if starts else (REFUSED, ""))


@pytest.mark.parametrize(
    ("counters", "outcome", "text"),
    [
        ("4,0,9,8,0,0", Outcome.PASSED, "(uncorrected memory errors: 4 before)"),
        ("-1,-1,-1,-1,-1,-1", Outcome.PASSED, "(uncorrected memory errors: errors are not counted)"),
        ("-1,-1,0,0,1,0", Outcome.ROW_PENDING, "a memory row or page is replaced at the next reset"),
        ("-1,1,-1,0,0,0", Outcome.ROW_PENDING, "a memory row or page is replaced at the next reset"),
        ("0,0,0,0,1,1", Outcome.ROW_FAILED, "replacing a memory row has failed"),
    ],
    ids=["as usual", "no ECC", "a row waits", "a page waits", "a row has failed"],
)
def test_what_nvml_tells_of_memory_is_read_in_its_order(
    library: Path, counters: str, outcome: Outcome, text: str
) -> None:
    found = told_in(look(library, "", counters=counters).stderr)
    assert found is not None
    assert found.outcome is outcome
    assert found.text.endswith(text)


def test_memory_that_somebody_else_holds_is_waited_for_and_then_told(library: Path) -> None:
    ended = look(library, "full", "--needed-mib", "1000", "--free-seconds", "0.2")
    assert (ended.returncode, ended.stdout) == (REFUSED, "")
    assert ended.stderr == f"pre-flight: TooLittleFree: {GPU}: 577 MiB are free, and 1000 are needed\n"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--seconds", "-3"), "argument --seconds: '-3' is no number of seconds from 0 on"),
        (("--seconds", "nan"), "argument --seconds: 'nan' is no number of seconds from 0 on"),
        (("--free-seconds", "inf"), "argument --free-seconds: 'inf' is no number of seconds from 0 on"),
        (("--hang-seconds", "-0.1"), "argument --hang-seconds: '-0.1' is no number of seconds from 0 on"),
        (("--needed-mib", "-1"), "argument --needed-mib: '-1' is no whole number of MiB from 0 on"),
        (("--most-mib", "1.5"), "argument --most-mib: '1.5' is no whole number of MiB from 0 on"),
    ],
)
def test_a_limit_that_is_none_is_a_wrong_use(library: Path, arguments: tuple[str, str], why: str) -> None:
    ended = look(library, "", *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert why in ended.stderr


def test_a_driver_that_hangs_is_given_up_and_nothing_is_left_of_it(library: Path) -> None:
    began = time.monotonic()
    ended = look(library, "hang", "--hang-seconds", "0.5")
    assert (ended.returncode, ended.stdout) == (REFUSED, "")
    assert ended.stderr.startswith("pre-flight: NoAnswer: ")
    assert time.monotonic() - began < 30


@pytest.mark.long
async def test_an_agents_resident_is_what_it_becomes_or_says_what_was_found(
    library: Path, tmp_path: Path
) -> None:
    def looked_at(policy: str, wrong: str) -> dict[str, Any]:
        made = resident(policy)
        look = [sys.executable, "-m", "warmpool.nodehealth.preflight", "--seconds", "0.2", "--"]
        driver = {"LD_LIBRARY_PATH": str(library), "FAKE_CUDA": wrong}
        return made | {
            "command": [*look, *made["command"]],
            "environment": {**made["environment"], **driver},
        }

    residents = [looked_at("sick", "wrong"), looked_at("well", "")]
    async with running_agent(tmp_path, residents, wait=False) as agent:
        told = await agent.controller.until_states(sick="Failed", well="Paused")
    failure = of(told, "sick")["failure"]
    assert "exited with status 69; log: " in failure
    assert f"pre-flight: MemoryWrong: {GPU}: 1 words were not what had been written" in failure
    logged = (tmp_path / "logs/engine-spares-0-well.log").read_text()
    assert f"pre-flight: Passed: {GPU}: 0.1 of 0.1 GiB of free memory tested" in logged

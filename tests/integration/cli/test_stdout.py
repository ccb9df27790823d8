"""Standard output that can't take everything: an encoding without Unicode, a full disk, a reader who has gone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SET = ROOT / "policies" / "shared-spares.yaml"
LINT = ["policy", "lint", str(SET)]


def run(
    *arguments: str, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "scaler", *arguments],
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(ROOT), **environment},
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"PYTHONIOENCODING": "ascii"}, id="ascii", marks=pytest.mark.long),
        pytest.param({"PYTHONIOENCODING": "latin-1"}, id="latin-1", marks=pytest.mark.long),
        pytest.param({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, id="C"),
    ],
)
def test_what_an_encoding_lacks_is_replaced(environment: dict[str, str]) -> None:
    result = run(*LINT, **environment)
    assert (result.returncode, result.stderr) == (0, b"")
    assert b"  llama-8b 4?1   5m " in result.stdout


@pytest.mark.parametrize("rendering", ["json", pytest.param("yaml", marks=pytest.mark.long)])
def test_data_is_escaped_and_not_replaced(rendering: str) -> None:
    result = run(*LINT, "-o", rendering, PYTHONIOENCODING="ascii")
    assert result.returncode == 0
    assert rb"llama-8b 4\u21921" in result.stdout
    if rendering == "json":
        assert "llama-8b 4→1" in [each["name"] for each in json.loads(result.stdout)["fleets"][0]["times"]]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(LINT, id="text", marks=pytest.mark.long),
        pytest.param([*LINT, "-o", "json"], id="json"),
        pytest.param(["policy", "validate", str(SET)], id="a-line", marks=pytest.mark.long),
        pytest.param(["--version"], id="version"),
        pytest.param(["policy", "lint", "--help"], id="help", marks=pytest.mark.long),
    ],
)
def test_a_full_disk_is_an_error_with_its_reason(arguments: list[str]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        result = run(*arguments, stdout=full)
    finally:
        os.close(full)
    assert result.returncode == 1
    assert result.stderr.startswith(b"error: stdout can't be written: No space left on device\n")
    assert b"Traceback" not in result.stderr
    assert b"Exception ignored" not in result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize(
    ("file", "code"),
    [
        pytest.param("policies/keda.yaml", 0, id="a-warning", marks=pytest.mark.long),
        pytest.param("policies/nowhere.yaml", 2, id="an-error"),
    ],
)
def test_chatter_that_nobody_gets_changes_no_exit_code(file: str, code: int) -> None:
    with Path("/dev/full").open("wb") as full:
        result = run("policy", "validate", str(ROOT / file), stderr=full.fileno())
    assert result.returncode == code
    assert result.stdout.startswith(b"ok: ") is (code == 0)


def test_a_closed_stdout_is_no_error() -> None:
    shell = f"{sys.executable} -m scaler policy validate {SET} >&-"
    result = subprocess.run(["sh", "-c", shell], stderr=subprocess.PIPE, cwd=ROOT, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, b"")


def test_a_reader_who_has_gone_is_no_error_to_tell_of() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = run(*LINT, stdout=writing)
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (1, b"")

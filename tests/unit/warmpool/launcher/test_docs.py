"""docs/launcher.md tells everything that the launcher may say."""

import re
from pathlib import Path

import pytest

from warmpool import launcher

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs/launcher.md").read_text(encoding="utf-8")
SOURCE = Path(launcher.__file__).read_text(encoding="utf-8")
CODES = sorted({*re.findall(r'_Refused\(\s*"(\w+)"', SOURCE), *re.findall(r'_break_off\(\s*"(\w+)"', SOURCE)})
REQUESTS = sorted(re.findall(r'^            "(\w+)": (?:self\._|lambda)', SOURCE, re.MULTILINE))
CAUSES = sorted(set(re.findall(r'return "(Stuck|Forced|Asked|OutOfMemory|Exited)"', SOURCE)) | {"Signalled"})
OPTIONS = sorted(re.findall(r'add\(\s*"(--[\w-]+)"', SOURCE))


def test_there_is_something_to_tell() -> None:
    assert len(CODES) > 10
    assert REQUESTS == ["acknowledge", "drained", "kept", "list", "note", "owns", "signal", "start", "stop"]
    assert len(CAUSES) == 6
    assert "--socket" in OPTIONS


@pytest.mark.parametrize("word", [*CODES, *REQUESTS, *CAUSES])
def test_the_page_tells_of_it(word: str) -> None:
    assert f"`{word}`" in PAGE


@pytest.mark.parametrize("option", OPTIONS)
def test_the_page_tells_of_the_option(option: str) -> None:
    assert f"`{option} " in PAGE


@pytest.mark.parametrize(
    "status",
    [
        launcher.ENDED,
        launcher.UNSAID,
        launcher.UNFIT,
        launcher.STUBBORN,
        launcher.BROKEN,
        launcher.NotStarted.status,
    ],
)
def test_the_page_tells_of_the_status(status: int) -> None:
    assert f"\n| {status} |" in PAGE


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("of at most 1 MiB each", launcher.MESSAGE_BYTES == 2**20),
        ("of at most 8 KiB", launcher.HELLO_BYTES == 8 * 2**10),
        ('"protocol": 1', launcher.PROTOCOL == 1),
        (launcher.SECRET_VARIABLE, True),
    ],
)
def test_the_page_has_the_figures(what: str, value: bool) -> None:  # noqa: FBT001 (a row of the table)
    assert value
    assert what in PAGE

"""Every report of other loaders' users has a test that exists, or a reason."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROWS = re.findall(
    r"^\| (\d+) \| (.+) \| (.+) \|$", (ROOT / "docs/loader.md").read_text(encoding="utf-8"), re.MULTILINE
)


@pytest.fixture(scope="module")
def tests() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))


def test_all_reports_are_there() -> None:
    assert [int(number) for number, _, _ in ROWS] == list(range(1, 33))


@pytest.mark.parametrize(("number", "answer"), [(number, answer) for number, _, answer in ROWS])
def test_the_tests_that_it_names_exist(tests: str, number: str, answer: str) -> None:
    named = re.findall(r"`(test_\w+)`", answer)
    assert all(f"def {name}(" in tests for name in named)
    assert named or len(answer.split()) > 6, f"report {number} has neither test nor reason"

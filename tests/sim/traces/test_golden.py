"""The law under the golden traces: figures that don't change by accident, and what holds under any load."""

import json
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from scaler.runtime.bench.law.golden import RULES, Figures, Step, main
from scaler.runtime.bench.law.shapes import GOLDEN, MOST_SEATS, MOST_SERVING, Golden

HERE = Path(__file__).parent
BY_NAME = {golden.name: golden for golden in GOLDEN}


@cache
def run(name: str, rule: str) -> tuple[Figures, Sequence[Step]]:
    return RULES[rule](BY_NAME[name])


def recorded(golden: Golden, rule: str) -> Figures:
    return Figures(**json.loads((HERE / f"{golden.name}.json").read_text("utf-8"))[rule])


@pytest.fixture(params=GOLDEN, ids=lambda golden: golden.name)
def golden(request: pytest.FixtureRequest) -> Golden:
    return request.param


@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=() if rule == "law" else pytest.mark.long) for rule in RULES]
)
def test_the_figures_are_as_recorded(golden: Golden, rule: str) -> None:
    """If a change is meant: python -m scaler.runtime.bench.law.golden --write tests/sim/traces."""
    assert run(golden.name, rule)[0] == recorded(golden, rule)


def test_it_never_goes_below_the_floor(golden: Golden) -> None:
    _, steps = run(golden.name, "law")
    assert min(step.wanted for step in steps) >= golden.floor
    assert min(step.total for step in steps) >= golden.floor


def test_it_never_goes_above_the_most(golden: Golden) -> None:
    figures, steps = run(golden.name, "law")
    assert max(step.wanted for step in steps) <= MOST_SERVING
    assert max(step.total for step in steps) <= MOST_SEATS
    assert figures.most_serving <= MOST_SERVING


def test_nothing_is_taken_away_while_signals_are_stale_or_missing() -> None:
    blind = 0
    for name in ("signals-gone", "half-stale"):
        for before, after in pairwise(run(name, "law")[1]):
            if after.unknown:
                blind += 1
                assert after.wanted >= before.wanted, (name, after)
                assert after.total >= before.total, (name, after)
    assert blind > 500  # it was looked at all the time


def test_a_flat_load_moves_nothing() -> None:
    figures, _ = run("flat", "law")
    assert (figures.demotions, figures.lowest_total) == (0, figures.highest_total)


def test_every_trace_has_a_file_and_a_line_in_the_readme() -> None:
    readme = (HERE / "README.md").read_text("utf-8")
    assert {path.stem for path in HERE.glob("*.json")} == set(BY_NAME)
    assert [name for name in BY_NAME if f"`{name}`" not in readme] == []


def test_the_command_writes_the_files_that_are_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--write", str(tmp_path), "--only", "spike", "--only", "idle"]) == 0
    for name in ("spike.json", "idle.json"):
        assert (tmp_path / name).read_text("utf-8") == (HERE / name).read_text("utf-8")
    assert "flat" not in capsys.readouterr().out

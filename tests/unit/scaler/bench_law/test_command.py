"""The command: small runs of everything, what it prints and writes, and how it refuses."""

import json
import re
from pathlib import Path

import pytest

from scaler.runtime.bench.law.__main__ import main
from scaler.runtime.bench.law.arms import ARMS
from scaler.runtime.bench.law.report import table
from scaler.runtime.bench.law.scenarios import case_of, scenarios
from scaler.runtime.bench.law.sweep import sweep


def test_the_quick_run_prints_every_arm_and_writes_points_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--quick", "--jobs", "1", "--output", str(tmp_path / "law")]) == 0
    printed = capsys.readouterr().out
    for arm in ARMS:
        assert re.search(rf"^{arm} +[\d,]+ +[\d.]+ %", printed, re.MULTILINE), arm
    assert "25,600 tokens/s" in printed
    assert len(re.findall(r"^(?:met   |MISSED) ", printed, re.MULTILINE)) == 3
    points = json.loads((tmp_path / "law" / "points.json").read_text("utf-8"))
    assert {point["arm"] for found in points.values() for point in found} == set(ARMS)
    assert (tmp_path / "law" / "frontier.png").read_bytes()[:4] == b"\x89PNG"


def test_help_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert all(option in printed for option in ("--quick", "--jobs", "--output", "--only", "--no-plot"))


def test_an_unknown_scenario_is_refused_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--only", "z"]) == 2
    refused = capsys.readouterr().err
    assert "--only z: no scenario's name begins so" in refused
    assert "hint: there are: a: six models" in refused


@pytest.mark.long
def test_processes_change_nothing() -> None:
    (name,) = scenarios(quick=True)
    one, two = (sweep([name], quick=True, jobs=jobs, done=lambda *_: None) for jobs in (1, 2))
    assert one == two


@pytest.mark.long
def test_every_scenario_can_be_made_and_its_groups_fit_a_gpu() -> None:
    for name, scenario in scenarios(quick=False).items():
        case = case_of(name, quick=False)
        assert case.models, name
        assert all(model.trace.arrivals for model in case.models), name
        assert set(scenario.grids) <= set(ARMS), name
        for group in case.groups:
            weights = [model.gigabytes for model in group]
            assert case.gpu.in_flight(weights, group[0].trace.tokens(0.99)) > 0, name


def test_forty_models_take_seven_fleets_of_six_residents_at_most() -> None:
    names = [name for name in scenarios(quick=False) if name.startswith("e:")]
    for name in names:
        groups = case_of(name, quick=False).groups
        assert len(groups) == 7
        assert sorted(map(len, groups)) == [5, 5, 6, 6, 6, 6, 6]
    assert len(names) == 2


def test_a_table_puts_numbers_right_and_words_left() -> None:
    assert table([("arm", "held"), ("hpa", "9"), ("shared", "1,000")]) == [
        "arm      held",
        "------  -----",
        "hpa         9",
        "shared  1,000",
    ]

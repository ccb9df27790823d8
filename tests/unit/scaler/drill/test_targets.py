"""The file that tells Prometheus what to scrape while a drill runs."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from scaler.drill import metrics as drill
from scaler.drill.targets import Component, ScrapeTarget, Targets, listing
from scaler.errors import UserError
from scaler.gateway import observe as gateway
from scaler.runtime.metrics import catalogue as controller
from warmpool.metric_families import Family

DRILL = ScrapeTarget(url="http://127.0.0.1:9083/metrics", component=Component.DRILL)
WARM = ScrapeTarget(url="http://127.0.0.1:41001", component=Component.CONTROLLER, arm="warm")
COLD = ScrapeTarget(url="http://127.0.0.1:41002", component=Component.CONTROLLER, arm="cold")


def nothing_is_said(text: str) -> None:
    pytest.fail(text)


def read(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "drill.json"


def test_a_page_is_told_by_address_component_and_arm(file: Path) -> None:
    with listing(file, nothing_is_said) as targets:
        targets.add(DRILL)
        targets.add(WARM)
        assert read(file) == [
            {"targets": ["127.0.0.1:9083"], "labels": {"component": "drill"}},
            {"targets": ["127.0.0.1:41001"], "labels": {"component": "controller", "arm": "warm"}},
        ]


def test_an_arm_that_ended_is_gone_and_the_rest_stays(file: Path) -> None:
    with listing(file, nothing_is_said) as targets:
        for target in (DRILL, WARM, COLD):
            targets.add(target)
        targets.remove_arm("warm")
        assert read(file) == [DRILL.to_json(), COLD.to_json()]


def test_it_is_empty_before_anything_runs(file: Path) -> None:
    file.write_text(json.dumps([WARM.to_json()]))  # a drill that was killed left it
    with listing(file, nothing_is_said):
        assert read(file) == []


@pytest.mark.parametrize("error", [None, UserError("wrong"), KeyboardInterrupt()])
def test_it_is_empty_at_the_end_whatever_happens(file: Path, error: BaseException | None) -> None:
    ends = nullcontext() if error is None else pytest.raises(type(error))
    with ends, listing(file, nothing_is_said) as targets:
        targets.add(WARM)
        if error is not None:
            raise error
    assert read(file) == []


def test_prometheus_sees_no_other_file_in_the_folder(file: Path) -> None:
    with listing(file, nothing_is_said) as targets:
        targets.add(WARM)
        assert list(file.parent.iterdir()) == [file]


def test_a_reader_has_the_old_file_or_the_new_one(file: Path) -> None:
    with listing(file, nothing_is_said) as targets, file.open() as old:
        targets.add(WARM)
        assert json.load(old) == []


def test_without_a_file_nothing_is_written(tmp_path: Path) -> None:
    with listing(None, nothing_is_said) as targets:
        targets.add(WARM)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        pytest.param(
            "drill.txt", "Prometheus reads no targets from", "ends in .json, .yaml, .yml", id="name"
        ),
        pytest.param(
            "none/drill.json", "No such file or directory", "in a folder that is there", id="folder"
        ),
        pytest.param("folder.json", "Is a directory", "in a folder that is there", id="directory"),
    ],
)
def test_a_file_that_is_of_no_use_is_refused(tmp_path: Path, name: str, message: str, hint: str) -> None:
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(UserError, match=message) as caught, listing(tmp_path / name, nothing_is_said):
        pass
    assert hint in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["folder.json"]


def test_a_file_that_can_no_longer_be_written_is_told_once_and_fails_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "targets"
    folder.mkdir()
    said: list[str] = []
    targets = Targets(folder / "drill.json", said.append)
    folder.rmdir()
    targets.add(WARM)
    targets.add(COLD)
    assert said == [f"warning: {folder / 'drill.json'} isn't up to date: No such file or directory"]
    folder.mkdir()
    targets.clear()
    assert read(folder / "drill.json") == []


# ------------------------------------------------------------------ labels


def labels(*families: Family) -> set[str]:
    return {name for family in families for name in family.label_names}


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        pytest.param(DRILL, labels(*drill.FAMILIES), id="drill"),
        pytest.param(WARM, labels(*controller.FAMILIES, *gateway.FAMILIES), id="controller"),
    ],
)
def test_no_label_of_a_target_is_a_label_of_its_metrics(target: ScrapeTarget, shown: set[str]) -> None:
    assert shown
    assert not target.to_json()["labels"].keys() & shown  # Prometheus would rename the metrics' own

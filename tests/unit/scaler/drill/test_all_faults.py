"""Every fault of a scenario, of its policies and between both, in one run; and nothing that only follows from another one."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from scaler.drill.loading import load_scenario
from scaler.errors import PolicyError
from tests.unit.scaler.drill.conftest import POLICIES, SCENARIO

DRILLS = Path(__file__).parents[4] / "policies" / "drills"


def told(path: Path) -> list[str]:
    """Return the place of each fault: its file's name and line, and its path, or what is said of the whole file."""
    with pytest.raises(PolicyError) as caught:
        load_scenario(path)
    return [
        f"{Path(each.file).name}:{each.line}: {each.path or each.message}" for each in caught.value.faults
    ]


def changed(text: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


CASES = {
    "scenario, policies, and between both": (
        {"seed: 1": "sede: 1", "{policy: code, shape": "{policy: nobody, shape"},
        {"maxSeats: 3": "maxSeats: three", "milliseconds: 500": "milliseconds: 0"},
        [
            "scenario.yaml:6: spec.sede",
            "scenario.yaml:8: spec.models",
            "scenario.yaml:10: spec.models[1].policy",
            "policies.yaml:5: spec.maxSeats",
            "policies.yaml:12: spec.objectives.ttft.milliseconds",
        ],
    ),
    "a rule beside wrong values": (
        {
            "name: hold, kind": "name: burst, kind",
            "seconds: 20, loads": "seconds: long, loads",
            "name: decay": "name: Decay!",
        },
        {},
        [
            "scenario.yaml:13: spec.stages[1].seconds",
            "scenario.yaml:14: spec.stages[2].name",
            "scenario.yaml:15: spec.stages[3].name",
        ],
    ),
    "faults beside a stage whose length is wrong": (
        {
            "seconds: 20, loads": "seconds: 0, loads",
            "  stages:": "  faults: [{type: KillEngine, atSeconds: 600, policy: nobody}]\n  stages:",
        },
        {},
        ["scenario.yaml:11: spec.faults[0].policy", "scenario.yaml:14: spec.stages[1].seconds"],
    ),
    "a model whose policy is wrong names no policy": (
        {"{policy: code, shape": "{policy: Code!, shape"},
        {},
        ["scenario.yaml:10: spec.models[1].policy"],
    ),
    "a model that means another policy": (
        {"{policy: code, shape": "{policy: cod, shape"},
        {},
        ["scenario.yaml:10: spec.models[1].policy"],
    ),
    "a policy whose name is wrong isn't missing": (
        {},
        {"metadata: {name: code}": "metadata: {name: Code}"},
        ["policies.yaml:17: metadata.name"],
    ),
    "a policy whose kind is wrong isn't missing": (
        {},
        {"kind: ScalingPolicy\nmetadata: {name: code}": "kind: Scaling\nmetadata: {name: code}"},
        ["policies.yaml:16: kind"],
    ),
    "a file that isn't there hides policies": (
        {"[policies.yaml]": "[policies.yaml, more.yaml]", "{policy: code, shape": "{policy: other, shape"},
        {"maxSeats: 3": "maxSeats: 0"},
        [
            "scenario.yaml:7: spec.policies.files[1]",
            "scenario.yaml:8: spec.models",
            "policies.yaml:5: spec.maxSeats",
        ],
    ),
    "a document that is no YAML hides policies": (
        {"{policy: code, shape": "{policy: other, shape", "seed: 1": "seed: -1"},
        {"metadata: {name: code}": "metadata: {name: [code}"},
        [
            "scenario.yaml:6: spec.seed",
            "policies.yaml:17: is not valid YAML: expected ',' or ']', but got '}'",
        ],
    ),
    "another engine in a policy with a fault": (
        {},
        {"  serving: {min: 1, max: 3}": "  engine: {type: VLLM}\n  serving: {min: 1, max: 0}"},
        ["scenario.yaml:9: spec.models[0].policy", "policies.yaml:14: spec.serving.max"],
    ),
    "unknown, ignored, too long": (
        {
            "process: Poisson}": "process: Constant, burstinessPercent: 3}, promptTokens: {type: Uniform, max: 900}",
            "process: Constant}}": "proces: Gamma, burstinessPercent: 3}, outputTokens: {min: 3}}",
        },
        {},
        [
            "scenario.yaml:9: spec.models[0]",
            "scenario.yaml:9: spec.models[0].arrivals.burstinessPercent",
            "scenario.yaml:10: spec.models[1].arrivals.proces",
            "scenario.yaml:10: spec.models[1].outputTokens.min",
        ],
    ),
}


@pytest.mark.parametrize(("scenario", "policies", "expected"), CASES.values(), ids=CASES.keys())
def test_all_faults_come_in_one_run(
    files: Callable[..., Path], scenario: dict[str, str], policies: dict[str, str], expected: list[str]
) -> None:
    path = files(policies=changed(POLICIES, policies))
    path.write_text(changed(SCENARIO, scenario))
    assert told(path) == expected


def test_documents_in_a_scenario_are_told_beside_it_with_their_places(tmp_path: Path) -> None:
    path = tmp_path / "smoke.yaml"
    smoke = (DRILLS / "smoke.yaml").read_text()
    changes = {
        "maxSeats: 2": "maxSeats: 010",
        "{name: spares, targetInFlight: 4}": "{name: spare, targetInFlight: 4}",
        "threads: 1}": "threads: 0}",
        "minPromotions: 1": "minPromotion: 1",
    }
    path.write_text(changed(smoke, changes))
    lines = dict(enumerate(path.read_text().splitlines(), 1))
    found = told(path)
    assert [each.partition(": ")[2] for each in found] == [
        "spec.policies.documents[0].spec.maxSeats",
        "spec.policies.documents[1].spec.fleets[0].name",
        "spec.engine.threads",
        "spec.thresholds.minPromotion",
    ]
    for each, written in zip(found, changes.values(), strict=True):
        assert written in lines[int(each.split(":")[1])]


def test_a_document_in_a_scenario_that_is_none_hides_policies(tmp_path: Path) -> None:
    path = tmp_path / "smoke.yaml"
    smoke = (DRILLS / "smoke.yaml").read_text()
    path.write_text(
        changed(
            smoke, {"    documents:\n": "    documents:\n      - spares\n", "name: chat}": "name: other}"}
        )
    )
    with pytest.raises(PolicyError) as caught:
        load_scenario(path)
    assert [each.message for each in caught.value.faults] == [
        'must be a mapping, is "spares"',
        "ScalingPolicy other has no model here",
    ]


def test_what_stands_beside_a_scenario_is_told_and_hides_policies(files: Callable[..., Path]) -> None:
    path = files("policies: {files: [policies.yaml]}", "policies: {files: []}")
    path.write_text(f"{path.read_text()}---\n{POLICIES}")
    found = told(path)
    assert [each.partition(": ")[2] for each in found] == [
        "spec.policies",
        *["a scenario's file holds one document"] * 3,
    ]


def test_a_scenario_behind_others_is_the_one_that_is_checked(files: Callable[..., Path]) -> None:
    path = files("seed: 1", "seed: one")
    path.write_text(f"{POLICIES}---{path.read_text()}")
    assert [each.partition(": ")[2] for each in told(path)] == [
        *["a scenario's file holds one document"] * 3,
        "spec.seed",
    ]


def test_of_a_file_without_any_scenario_one_thing_is_said(tmp_path: Path) -> None:
    path = tmp_path / "policies.yaml"
    path.write_text(POLICIES)
    assert told(path) == ["policies.yaml:3: kind"]

"""The drill of five models on one GPU, on a machine that has none."""

import json
from pathlib import Path

import pytest

from scaler.drill.bench.five_models import SCENARIO, scenario
from scaler.drill.loading import load_scenario

ROOT = Path(__file__).resolve().parents[5]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_derived_scenario_differs_in_device_and_length_alone(device: str, tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(json.dumps(scenario(ROOT / SCENARIO, device)), "utf-8")
    derived, written = load_scenario(path), load_scenario(ROOT / SCENARIO)
    assert derived.scenario.spec.machine.device.lower() == device
    assert derived.policies.short_hash == written.policies.short_hash
    assert derived.scenario.spec.models == written.scenario.spec.models
    assert derived.scenario.spec.stages == written.scenario.spec.stages
    same_length = derived.scenario.spec.engine == written.scenario.spec.engine
    assert same_length is (device == "cuda")

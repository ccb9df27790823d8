from collections.abc import Callable
from pathlib import Path

import pytest

from scaler.drill.loading import load_scenario, with_shape
from scaler.errors import PolicyError, UserError
from tests.unit.scaler.drill.conftest import POLICIES

DRILLS = Path(__file__).parents[4] / "policies" / "drills"


def faults(path: Path) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        load_scenario(path)
    return [str(fault) for fault in caught.value.faults]


@pytest.mark.parametrize("name", ["default", "smoke", "kill-engine", "switch"])
def test_the_shipped_scenarios_can_be_loaded(name: str) -> None:
    loaded = load_scenario(DRILLS / f"{name}.yaml")
    assert loaded.scenario.metadata.name == name
    assert set(loaded.objectives) == {str(policy) for policy in loaded.policies.policies}


def test_objectives_are_seconds_in_the_scenarios_order(files: Callable[..., Path]) -> None:
    assert list(load_scenario(files()).objectives.items()) == [("chat", 0.5), ("code", 1.0)]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param("seed: 1", "sede: 1", ["6:3", "spec.sede", "did you mean seed?"], id="misspelt-key"),
        pytest.param("percent: 300", "percent: 3.5", ["integer"], id="float"),
        pytest.param("kind: Burst", "kind: Bust", ["13:27", "Warmup, Baseline, Burst", "did you mean Burst?"], id="unknown-kind"),
        pytest.param("{policy: chat, percent: 300}", "{policy: chta, percent: 300}", ["no model of this drill"], id="unknown-model-in-stage"),
        pytest.param("{policy: chat, percent: 300}", "{policy: chat}", ["loads[0].percent: is missing, and so is requestsPerMinute"], id="no-rate"),
        pytest.param("{policy: chat, percent: 300}", "{policy: chat, percent: 300, requestsPerMinute: 9}", ["loads[0].requestsPerMinute: is given, and percent as well"], id="two-rates"),
        pytest.param("name: hold", "name: burst", ["spec.stages[2].name: burst is listed twice"], id="stage-twice"),
        pytest.param("{policy: code, shape", "{policy: chat, shape", ["spec.models[1].policy: chat is listed twice"], id="model-twice"),
        pytest.param("{policy: code, shape", "{policy: cod, shape", ["there is no ScalingPolicy cod", "did you mean code?"], id="no-such-policy"),
        pytest.param("[policies.yaml]", "[nowhere.yaml]", ["7:22", "there is no file"], id="no-such-file"),
        pytest.param("{files: [policies.yaml]}", "{}", ["no policies are given"], id="no-policies"),
        pytest.param("  stages:", "  faults: [{type: KillEngine, atSeconds: 60, policy: chat}]\n  stages:", ["over after 60 s"], id="fault-too-late"),
        pytest.param("  models:", "  engine: {maxModelLen: 50}\n  models:", ["more than engine.maxModelLen"], id="too-long"),
        pytest.param("process: Poisson", "process: Poisson, burstinessPercent: 100", ["9:107", "arrivals.burstinessPercent: is for process Gamma, and process is Poisson", "set process: Gamma, or remove burstinessPercent"], id="burstiness-of-poisson"),
        pytest.param("process: Constant", "process: Constant, burstinessPercent: 400", ["and process is Constant"], id="burstiness-of-constant"),
        pytest.param("{process: Constant}", "{burstinessPercent: 400}", ["and process is Poisson"], id="burstiness-of-the-default"),
        pytest.param("shape: tiny, requestsPerMinute: 600", "shape: tiny, promptTokens: {min: 2, max: 9}, requestsPerMinute: 600", ["promptTokens.min: is for type Uniform, and type is Fixed", "promptTokens.max", "set type: Uniform, or remove max"], id="bounds-of-a-fixed-size"),
        pytest.param("shape: tiny, requestsPerMinute: 600", "shape: tiny, outputTokens: {type: Uniform, value: 9}, requestsPerMinute: 600", ["outputTokens.value: is for type Fixed, and type is Uniform"], id="value-of-a-drawn-size"),
        pytest.param("  models:", "  machine: {device: Cpu, seatsPerGpu: 1}\n  models:", ["machine.seatsPerGpu: is for device Auto or Cuda, and device is Cpu"], id="seats-on-no-gpu"),
        pytest.param("  stages:", "  thresholds: {replacementSeconds: 9}\n  stages:", ["thresholds.replacementSeconds: nothing is measured for it: spec.faults is empty"], id="no-fault-to-measure"),
        pytest.param("  models:", "  engine: {maxTokensPerSecond: null}\n  fit: {}\n  models:", ["9:3", "spec.fit: shorter answers keep their time by a slower pace", "set engine.maxTokensPerSecond, or remove fit"], id="fit-without-a-pace"),
        pytest.param("  models:", "  fit: {cpuPercent: 0}\n  models:", ["8:21", "spec.fit.cpuPercent", "1"], id="fit-to-nothing"),
        pytest.param("  models:", "  fit: {minLengthPercent: 101}\n  models:", ["spec.fit.minLengthPercent", "100"], id="fit-to-longer-answers"),
    ],
)  # fmt: skip
def test_a_fault_names_place_and_mend(
    files: Callable[..., Path], old: str, new: str, expected: list[str]
) -> None:
    found = "\n".join(faults(files(old, new)))
    assert "scenario.yaml:" in found
    for part in expected:
        assert part in found


def test_all_faults_come_at_once(files: Callable[..., Path]) -> None:
    path = files()
    path.write_text(path.read_text().replace("seed: 1", "sed: 1").replace("seconds: 20", "seconds: 0"))
    assert len(faults(path)) == 3


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("recoverySeconds", "Burst"),
        ("burstTtftP99Milliseconds", "Burst"),
        ("warmVsColdBurstTtftRatio", "Burst"),
        ("cpuPercent", "Hold"),
    ],
)
def test_a_threshold_wants_something_to_measure(files: Callable[..., Path], name: str, kind: str) -> None:
    path = files("  stages:", f"  thresholds: {{{name}: 9}}\n  stages:")
    load_scenario(path)
    path.write_text(path.read_text().replace(f"kind: {kind}", "kind: Warmup"))
    (found,) = faults(path)
    assert f"spec.thresholds.{name}: nothing is measured for it: no stage has kind {kind}" in found
    path.write_text(path.read_text().replace(f"{{{name}: 9}}", "{}"))
    load_scenario(path)


def test_a_load_is_fitted_to_its_hold_stages(files: Callable[..., Path]) -> None:
    path = files("  models:", "  fit: {}\n  models:")
    assert load_scenario(path).scenario.spec.fit is not None
    path.write_text(path.read_text().replace("kind: Hold", "kind: Burst"))
    (found,) = faults(path)
    assert "spec.fit: there is nothing that the load is fitted to: no stage has kind Hold" in found


def test_a_pace_that_a_policy_sets_itself_can_not_be_fitted(files: Callable[..., Path]) -> None:
    own = "  engine: {args: [--max-tokens-per-second=9]}\n  serving: {min: 1}\n"
    path = files(policies=POLICIES.replace("  serving: {min: 1}\n", own))
    load_scenario(path)
    path.write_text(path.read_text().replace("  models:", "  fit: {}\n  models:"))
    (found,) = faults(path)
    assert "spec.models[1].policy: code has --max-tokens-per-second in its own engine.args" in found
    assert "or remove spec.fit" in found
    load_scenario(path, local=False)  # a cluster's engines are what they are


def test_a_policy_without_a_model_is_a_fault(files: Callable[..., Path]) -> None:
    path = files()
    text = path.read_text()
    path.write_text("\n".join(line for line in text.splitlines() if "policy: code" not in line))
    assert "ScalingPolicy code has no model here" in faults(path)[0]


def test_a_fault_in_the_policies_names_their_file(files: Callable[..., Path]) -> None:
    path = files()
    policies = path.parent / "policies.yaml"
    policies.write_text(policies.read_text().replace("targetInFlight: 8", "targetInFlight: 0"))
    found = faults(path)
    assert len(found) == 2
    assert all("policies.yaml:" in fault for fault in found)


def test_a_fault_in_an_inline_document_points_into_the_scenario(tmp_path: Path) -> None:
    text = (DRILLS / "smoke.yaml").read_text().replace("maxSeats: 2", "maxSeats: two")
    path = tmp_path / "smoke.yaml"
    path.write_text(text)
    line = 1 + text[: text.index("maxSeats: two")].count("\n")
    assert f"{path}:{line}:" in faults(path)[0]
    assert "spec.policies.documents[0].spec.maxSeats" in faults(path)[0]


def test_another_engine_than_the_reference_is_a_fault(files: Callable[..., Path]) -> None:
    path = files()
    policies = path.parent / "policies.yaml"
    policies.write_text(
        policies.read_text().replace("  serving: {min: 1}", "  engine: {type: VLLM}\n  serving: {min: 1}")
    )
    assert "engine type VLLM" in faults(path)[0]


def test_a_missing_scenario_is_a_fault(tmp_path: Path) -> None:
    assert "no such file" in faults(tmp_path / "nothing.yaml")[0]


def test_a_shape_replaces_that_of_every_model(files: Callable[..., Path]) -> None:
    loaded = with_shape(load_scenario(files()), "llama-1b")
    assert [model.shape for model in loaded.scenario.spec.models] == ["llama-1b", "llama-1b"]
    assert [model.shape for model in with_shape(loaded, None).scenario.spec.models] == ["llama-1b"] * 2


@pytest.mark.parametrize(
    ("shape", "hint"),
    [("llama-8", "did you mean llama-8b?"), ("huge", "known: tiny, small, llama-1b, llama-8b")],
)
def test_an_unknown_shape_is_refused(files: Callable[..., Path], shape: str, hint: str) -> None:
    with pytest.raises(UserError, match=f"there is no shape '{shape}'") as caught:
        with_shape(load_scenario(files()), shape)
    assert caught.value.hint == hint


def test_a_directory_is_no_scenario(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a directory"):
        load_scenario(tmp_path)

from pathlib import Path

import pytest

from scaler.drill.arms import ArmName, make_arm, with_engine, without_spares
from scaler.drill.run import write_policies
from scaler.drill.scenario import Engine
from scaler.policy.compile import PolicySet, compile_set, load_policies
from scaler.policy.source import parse_documents

ENGINE = Engine(max_num_seqs=4, max_model_len=128, max_tokens_per_second=25, threads=1)


def compiled(text: str) -> PolicySet:
    return compile_set(parse_documents(text, "test.yaml"))


OWN_AND_SHARED = """
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: own}
spec: {maxSeats: 4, spare: {min: 2}}
---
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares}
spec: {maxSeats: 5, spare: {min: 2}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec: {fleets: [{name: own, targetInFlight: 8}, {name: spares, targetInFlight: 8}], serving: {min: 2}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: code}
spec: {fleets: [{name: spares, targetInFlight: 4}], serving: {min: 1, max: 3}}
"""


def test_the_warm_arm_is_what_was_written(policies: PolicySet) -> None:
    arm = make_arm(ArmName.WARM, policies, ENGINE)
    assert arm.policies.fleet_specs == policies.fleet_specs
    assert arm.policies.policy_specs == policies.policy_specs
    assert arm.seat_budget is None


def test_the_cold_arm_has_a_fleet_per_policy_without_spares(policies: PolicySet) -> None:
    arm = make_arm(ArmName.COLD, policies, ENGINE)
    fleets = arm.policies.fleet_specs
    assert {name: (spec.max_seats, spec.spare_target) for name, spec in fleets.items()} == {
        "spares-chat": (2, 0),  # 3 seats, one of which is code's floor
        "spares-code": (2, 0),
    }
    assert arm.seat_budget == 3


def test_the_cold_arms_differ_in_the_zygote_alone(policies: PolicySet) -> None:
    cold, forked = (make_arm(name, policies, ENGINE) for name in (ArmName.COLD, ArmName.COLD_ZYGOTE))
    assert (cold.zygote, forked.zygote) == (False, True)
    assert (forked.policies.hash, forked.seat_budget) == (cold.policies.hash, cold.seat_budget)


def test_the_cold_arm_keeps_law_windows_and_pace_of_growth(policies: PolicySet) -> None:
    cold = without_spares(policies)
    for name, spec in policies.policy_specs.items():
        other = cold.policy_specs[name]
        assert (other.burst, other.serving_min, other.serving_max) == (
            spec.burst,
            spec.serving_min,
            spec.serving_max,
        )
        assert other.ttft_objective == spec.ttft_objective
        assert [one.target_in_flight for one in other.fleets] == [one.target_in_flight for one in spec.fleets]
    for fleet in cold.fleet_specs.values():
        assert fleet.replenish.per_minute == 30


def test_a_fleet_of_one_policy_only_loses_its_spares() -> None:
    cold = without_spares(compiled(OWN_AND_SHARED))
    assert {name: (spec.max_seats, spec.spare_target) for name, spec in cold.fleet_specs.items()} == {
        "own": (4, 0),
        "spares-chat": (4, 0),  # 5 seats less code's floor; chat's own floor lives on its own fleet
        "spares-code": (3, 0),  # its serving.max
    }
    assert [share.fleet for share in cold.policy_specs["chat"].fleets] == ["own", "spares-chat"]


def test_all_arms_give_every_engine_the_same_arguments(policies: PolicySet) -> None:
    warm, *others = (make_arm(name, policies, ENGINE) for name in ArmName)
    for name in policies.policies:
        arguments = warm.policies.policies[name].spec.engine.args
        assert all(other.policies.policies[name].spec.engine.args == arguments for other in others)
        assert arguments[arguments.index("--max-num-seqs") + 1] == "4"
        assert arguments[arguments.index("--max-tokens-per-second") + 1] == "25"


@pytest.mark.parametrize("written", ['["--threads", "2"]', '["--threads=2"]'], ids=["apart", "joined"])
def test_a_policys_own_arguments_win(written: str) -> None:
    text = OWN_AND_SHARED.replace(
        "spec: {fleets: [{name: spares", f"spec: {{engine: {{args: {written}}}, fleets: [{{name: spares"
    )
    arguments = with_engine(compiled(text), ENGINE).policies["code"].spec.engine.args
    assert sum(argument.startswith("--threads") for argument in arguments) == 1


def test_the_cold_arm_can_be_written_and_read_back(policies: PolicySet, tmp_path: Path) -> None:
    arm = make_arm(ArmName.COLD, policies, ENGINE)
    path = tmp_path / "policies.yaml"
    write_policies(arm.policies, path)
    assert load_policies([path]).hash == arm.policies.hash

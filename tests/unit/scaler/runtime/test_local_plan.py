"""What one machine would run: everything that can be wrong is found before anything starts."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scaler.cluster.local.gpus import Gpu
from scaler.errors import UserError
from scaler.runtime.local_options import LocalOptions
from scaler.runtime.local_plan import LocalPlan, describe, make_plan, templates
from scaler.runtime.proofs import Served
from warmpool.nodehealth.preflight.command import options as preflight_options
from warmpool.seats import FleetName, PolicyName

GIB = 1024**3
CHAT, CODE = PolicyName("chat"), PolicyName("code")
H200 = [Gpu(f"GPU-{n}", "NVIDIA H200", 141 * GIB) for n in range(2)]

POLICY = """
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares}
spec: {maxSeats: 3, spare: {mode: Fixed, min: 1}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec:
  fleets: [{name: spares, targetInFlight: 5}]
  models: [chat, assistant]
  engine: {type: Reference, args: ["--max-model-len", "128"]}
"""


def write_checkpoint(directory: Path, *, hidden: int = 8, layers: int = 2, parameters: int = 16) -> Path:
    """A header with weights that take no space on disk: plans read none."""
    directory.mkdir()
    config = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
    }
    (directory / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **config}))
    size = 2 * parameters
    header = json.dumps({"w": {"dtype": "BF16", "shape": [parameters], "data_offsets": [0, size]}}).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    return directory


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "chat")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


def cpu(**changes: object) -> LocalOptions:
    return replace(LocalOptions(checkpoints={}, device="cpu"), **changes)  # type: ignore[arg-type]


def commands(plan: LocalPlan, options: LocalOptions) -> list[str]:
    proofs = {name: {"prompts": []} for name in plan.set.policies}
    (template,) = templates(options, plan, proofs, "token")
    command: list[str] = list(template.residents[0]["command"])
    return command


def test_without_policies_each_checkpoint_gets_one(checkpoint: Path) -> None:
    plan = make_plan(cpu(checkpoints={"chat": checkpoint}, seats=2), ())
    assert list(plan.set.policies) == ["chat"]
    assert plan.placements == {FleetName("local"): [(), ()]}
    assert commands(plan, cpu(checkpoints={"chat": checkpoint}, seats=2))[2] == "warmpool.reference"


def test_a_checkpoint_may_be_named_by_a_model(checkpoint: Path, policy: Path) -> None:
    plan = make_plan(cpu(checkpoints={"assistant": checkpoint}, policies=(policy,)), ())
    assert plan.directories == {CHAT: checkpoint}


def test_an_engine_takes_what_the_policy_promises_and_its_own_arguments_win(
    checkpoint: Path, policy: Path
) -> None:
    options = cpu(checkpoints={"chat": checkpoint}, policies=(policy,), max_model_len=512)
    command = commands(make_plan(options, ()), options)
    assert command[command.index("--max-num-seqs") + 1] == "5"
    assert command.count("--max-model-len") == 1
    assert command[command.index("--max-model-len") + 1] == "128"


def test_every_model_name_is_served_by_the_engine(checkpoint: Path, policy: Path) -> None:
    options = cpu(checkpoints={"chat": checkpoint}, policies=(policy,))
    command = commands(make_plan(options, ()), options)
    assert [command[i + 1] for i, word in enumerate(command) if word == "--model"] == ["chat", "assistant"]


def test_seats_get_a_gpu_each_and_share_one_where_asked(checkpoint: Path) -> None:
    options = LocalOptions(checkpoints={"chat": checkpoint}, seats_per_gpu=2)
    plan = make_plan(options, H200)
    assert sorted(plan.placements[FleetName("local")]) == [("GPU-0",), ("GPU-0",), ("GPU-1",), ("GPU-1",)]


def looks(tmp_path: Path, seat: str, **changes: object) -> list[list[str]]:
    """What is in front of each engine, of the two on a seat of one GPU."""
    options = two(tmp_path, seat, **changes)
    plan = make_plan(options, H200[:1])
    (template,) = templates(options, plan, {CHAT: {"prompts": []}, CODE: {"prompts": []}}, "token")
    found = [list(each["command"]) for each in template.residents]
    for command in found:
        assert command[command.index("--") + 1 :][:3] == [sys.executable, "-m", "warmpool.reference"]
        assert not set(command[3 : command.index("--")][::2]) - set(preflight_options())
    return [command[: command.index("--")] for command in found]


def test_an_engine_on_a_gpu_begins_with_a_look_at_it_that_asks_for_the_memory_it_takes(
    tmp_path: Path,
) -> None:
    for look in looks(tmp_path, "seat: {gpus: 1}"):
        assert look[:3] == [sys.executable, "-m", "warmpool.nodehealth.preflight"]
        needed = int(look[look.index("--needed-mib") + 1])
        assert needed > 1200
        assert int(look[look.index("--most-mib") + 1]) == needed  # the neighbour may come for the rest


def test_an_engine_that_has_its_gpu_to_itself_tests_all_of_it(checkpoint: Path) -> None:
    options = LocalOptions(checkpoints={"chat": checkpoint})
    assert "--most-mib" not in commands(make_plan(options, H200[:1]), options)


def test_a_seat_of_a_fleet_that_only_observes_loads_whatever_is_said_of_its_gpu(tmp_path: Path) -> None:
    found = settings(two(tmp_path, "seat: {gpus: 1}, gpuHealth: {mode: Observe}"), H200[0])
    assert found["gpuHealth"] == "Observe"


def test_kv_memory_counts_once_a_seat_and_weights_once_a_resident(tmp_path: Path) -> None:
    both = {name: write_checkpoint(tmp_path / name) for name in ("chat", "code")}
    plan = make_plan(cpu(checkpoints=both, seats=1), ())
    sizes = list(plan.footprints.values())
    assert plan.seat_bytes(FleetName("local")) == sum(
        s.weights_bytes + s.overhead_bytes for s in sizes
    ) + max(s.kv_bytes for s in sizes)
    # 2 (keys, values) × layers × KV heads × head × length × sequences × 4 bytes
    assert sizes[0].kv_bytes == 2 * 2 * 2 * 2 * 512 * 8 * 4


TWO = """
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares}
spec: {maxSeats: 1, SEAT}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec: {fleets: [{name: spares, targetInFlight: 8}], priority: 5, serving: {min: 0}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: code}
spec: {fleets: [{name: spares, targetInFlight: 8}], serving: {min: 0}}
"""


def two(tmp_path: Path, seat: str, **changes: object) -> LocalOptions:
    """Two models on one seat of one GPU, each of which takes 1.2 GiB and as much again for its weights."""
    file = tmp_path / "two.yaml"
    file.write_text(TWO.replace("SEAT", seat))
    both = {name: write_checkpoint(tmp_path / name, parameters=600 * 2**20) for name in ("chat", "code")}
    return replace(LocalOptions(checkpoints=both, policies=(file,)), **changes)  # type: ignore[arg-type]


def settings(options: LocalOptions, *gpus: Gpu, **more: str) -> dict[str, object]:
    plan = make_plan(options, gpus)
    proofs = {name: {"prompts": []} for name in plan.set.policies}
    (template,) = templates(options, plan, proofs, "token", **more)
    return dict(template.settings)


def test_an_agent_is_told_the_memory_of_its_seat(tmp_path: Path) -> None:
    seat = "seat: {gpus: 1, kvWhenPaused: Release}, spare: {parked: {hostMemoryMiB: 64}}"
    assert settings(two(tmp_path, seat), H200[0], node_agent="unix:///n.sock") == {
        "memory": {"deviceMiB": 141 * 1024, "hostMiB": 64},
        "kvWhenPaused": "Release",
        "nodeAgent": "unix:///n.sock",
    }


def test_seats_that_share_a_gpu_have_a_part_of_its_memory(tmp_path: Path) -> None:
    found = settings(two(tmp_path, "seat: {gpus: 1}", seats_per_gpu=3), H200[0])
    assert found == {"memory": {"deviceMiB": 47 * 1024, "hostMiB": 0}, "nodeAgent": ""}


@pytest.mark.parametrize(
    ("seat", "memory"),
    [
        pytest.param("seat: {gpus: 1, memoryMiB: 90000}", {"deviceMiB": 90_000, "hostMiB": 0}, id="less"),
        pytest.param(
            "seat: {gpus: 1, memoryMiB: 900000}", {"deviceMiB": 141 * 1024, "hostMiB": 0}, id="more"
        ),
    ],
)
def test_a_fleet_may_take_less_than_a_gpu_has(tmp_path: Path, seat: str, memory: dict[str, int]) -> None:
    assert settings(two(tmp_path, seat), H200[0])["memory"] == memory


def test_without_gpus_only_a_limit_is_told(tmp_path: Path) -> None:
    assert settings(two(tmp_path, "seat: {gpus: 0}"))["memory"] == {"hostMiB": 0}
    (tmp_path / "limited").mkdir()
    limited = two(tmp_path / "limited", "seat: {gpus: 0, memoryMiB: 8000}")
    assert settings(limited)["memory"] == {"deviceMiB": 8000, "hostMiB": 0}


def test_a_resident_is_told_apart_by_what_it_holds_and_what_it_takes(tmp_path: Path) -> None:
    options = two(tmp_path, "seat: {gpus: 1}", max_model_len=1024 * 1024)
    plan = make_plan(options, H200[:1])
    (template,) = templates(options, plan, {CHAT: {"prompts": []}, CODE: {"prompts": []}}, "token")
    size = plan.footprints[FleetName("spares"), CHAT]
    assert template.residents[0]["memoryMiB"] * 1024 * 1024 <= size.weights_bytes + size.overhead_bytes
    assert template.residents[0]["kvMiB"] * 1024 * 1024 == size.kv_bytes


def test_who_finds_no_room_is_parked_where_there_is_host_memory(tmp_path: Path) -> None:
    small = Gpu("GPU-0", "small", 4 * GIB)
    parking = two(tmp_path, "seat: {gpus: 1}, spare: {parked: {hostMemoryMiB: 2400}}")
    plan = make_plan(parking, [small])
    assert {name: str(tier) for name, tier in plan.rooms[FleetName("spares")].tiers.items()} == {
        "chat": "Paused",
        "code": "Parked",
    }
    lines = describe(plan).splitlines()
    assert [line.endswith(", parked until it is wanted") for line in lines] == [False, False, True]


@pytest.mark.parametrize(
    ("seat", "message"),
    [
        pytest.param(
            "seat: {gpus: 1}", "needs 4.8 GiB of GPU memory, and 4.0 GiB is there", id="no-host-memory"
        ),
        pytest.param(
            "seat: {gpus: 1, memoryMiB: 1000}, spare: {parked: {hostMemoryMiB: 64}}",
            "there is no room for chat, code: 1.0 GiB of GPU memory",
            id="too-little-for-any",
        ),
    ],
)
def test_who_finds_no_room_anywhere_is_refused(tmp_path: Path, seat: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make_plan(two(tmp_path, seat), [Gpu("GPU-0", "small", 4 * GIB)])
    assert "spare.parked.hostMemoryMiB" in caught.value.hint


@pytest.mark.parametrize(
    ("changes", "gpus", "message"),
    [
        pytest.param({"checkpoints": {}}, (), "no checkpoint", id="no checkpoint"),
        pytest.param({"device": "cuda"}, (), "no GPU", id="no GPU"),
        pytest.param({"seats": 100_000}, (), "GiB of memory", id="too little memory"),
        pytest.param(
            {"device": "auto", "max_model_len": 10**9}, H200, "GiB of GPU memory", id="too little GPU memory"
        ),
        pytest.param({"device": "auto", "seats": 3}, H200, "room is left for 2", id="more seats than GPUs"),
    ],
)
def test_what_cannot_work_is_said_with_its_mend(
    checkpoint: Path, changes: dict[str, object], gpus: tuple[Gpu, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make_plan(cpu(**{"checkpoints": {"chat": checkpoint}, **changes}), gpus)
    assert caught.value.hint


def test_engines_that_cant_be_started_here_are_named_before_anything_starts(
    checkpoint: Path, policy: Path
) -> None:
    other = (
        POLICY.partition("---\n")[2]
        .replace("name: chat", "name: code")
        .replace("[chat, assistant]", "[code]")
    )
    policy.write_text(f"{POLICY}---\n{other}".replace("type: Reference", "type: VLLM"))
    with pytest.raises(UserError) as caught:
        make_plan(cpu(checkpoints={"chat": checkpoint, "code": checkpoint}, policies=(policy,)), ())
    assert str(caught.value) == (
        "`emberpool local` starts the reference engine only, and these policies want another one: chat (VLLM), code (VLLM)"
    )
    assert "engine: {type: Reference}" in caught.value.hint


def test_a_policy_without_a_checkpoint_is_named(checkpoint: Path, policy: Path) -> None:
    with pytest.raises(UserError, match="policy chat has no checkpoint"):
        make_plan(cpu(checkpoints={"other": checkpoint}, policies=(policy,)), ())


def test_a_checkpoint_that_no_policy_wants_is_named(checkpoint: Path, policy: Path) -> None:
    with pytest.raises(UserError, match="no policy is called other") as caught:
        make_plan(cpu(checkpoints={"chat": checkpoint, "other": checkpoint}, policies=(policy,)), ())
    assert "chat" in caught.value.hint


def test_a_broken_checkpoint_is_named_with_its_fault(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="checkpoint of chat"):
        make_plan(cpu(checkpoints={"chat": tmp_path / "empty"}), ())


@pytest.mark.parametrize("length", [16, 128, 512])
def test_warm_up_requests_fit_into_a_sequence_even_if_every_byte_is_a_token(
    checkpoint: Path, length: int
) -> None:
    options = cpu(checkpoints={"chat": checkpoint}, max_model_len=length)
    (template,) = templates(options, make_plan(options, ()), {CHAT: {"prompts": []}}, "token")
    warmup = template.residents[0]["warmup"]
    begin = 1  # the begin token
    assert all(0 < begin + len(prompt) + warmup["maxTokens"] <= length for prompt in warmup["prompts"])


def test_the_plan_in_words(checkpoint: Path) -> None:
    text = describe(make_plan(cpu(checkpoints={"chat": checkpoint}, seats=2), ()))
    assert "fleet local: up to 2 seats on CPU" in text
    assert str(checkpoint) in text


def proof_of(options: LocalOptions, plan: LocalPlan, record: dict[str, object]) -> dict[str, object]:
    (template,) = templates(options, plan, {CHAT: record} if record else {}, "token")
    proof: dict[str, object] = template.residents[0]["proof"]
    return proof


def with_proof(policy: Path, proof: str) -> Path:
    policy.write_text(POLICY.replace('"128"]}', f'"128", "--dtype=bfloat16"], proof: {proof}}}'))
    return policy


def test_a_record_belongs_to_what_the_engine_computes_in_and_to_what_the_policy_says(
    checkpoint: Path, policy: Path
) -> None:
    options = cpu(
        checkpoints={"chat": checkpoint},
        policies=(with_proof(policy, "{tolerancePercent: 10, ownership: {weightsDigest: cafe}}"),),
    )
    plan = make_plan(options, ())
    assert plan.served[CHAT] == Served(directory=checkpoint, device="cpu", dtype="bfloat16")
    record = {"prompts": [], "tolerance": 0.5, "ownership": {"dtype": "bfloat16", "weightsDigest": "beef"}}
    assert proof_of(options, plan, record) == {
        "prompts": [],
        "tolerance": pytest.approx(math.log(1.1)),
        "ownership": {"dtype": "bfloat16", "weightsDigest": "cafe"},
    }


def test_residents_that_are_to_agree_need_no_record_and_a_second_seat(checkpoint: Path, policy: Path) -> None:
    agree = with_proof(policy, "{source: Agreement, prompts: [hello], maxTokens: 4}")
    options = cpu(checkpoints={"chat": checkpoint}, policies=(agree,))
    plan = make_plan(options, ())
    assert plan.served == {}
    assert proof_of(options, plan, {}) == {"prompts": [{"prompt": "hello"}], "agree": True, "maxTokens": 4}
    with pytest.raises(UserError, match="there is one seat at most"):
        make_plan(replace(options, seat_budget=1), ())

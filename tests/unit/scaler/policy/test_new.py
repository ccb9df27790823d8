"""A first policy file: what is written is what was decided for, it validates, and it explains itself."""

import re
from dataclasses import replace

import pytest

from scaler.policy.compile import PolicySet, compile_set
from scaler.policy.document import parse_documents
from scaler.policy.fleet import KvWhenPaused, ResizedBy
from scaler.policy.new import (
    MODELINE,
    NewFleet,
    NewPolicy,
    NewSet,
    free_ports,
    policy_name,
    written,
)
from scaler.policy.scaling_policy import EngineType

FLEET = NewFleet(
    name="chat",
    policies=("chat",),
    bridge=False,
    gpus=2,
    max_seats=5,
    spare=2,
    resized_by=ResizedBy.EMBERPOOL,
)
POLICY = NewPolicy(
    name="chat",
    model="meta-llama/Llama-3.1-8B",
    fleets=("chat",),
    engine=EngineType.VLLM,
    port=8001,
    target_in_flight=24,
    ttft_milliseconds=750,
    serving_min=1,
)
ALONE = NewSet(namespace="serving", fleets=(FLEET,), policies=(POLICY,))
TOGETHER = NewSet(
    namespace="serving",
    fleets=(replace(FLEET, policies=("chat", "code")),),
    policies=(POLICY, replace(POLICY, name="code", model="code", port=8002)),
)
BRIDGED = NewSet(
    namespace="serving",
    fleets=(
        replace(FLEET, spare=0),
        replace(FLEET, name="code", policies=("code",), spare=0),
        replace(FLEET, name="spares", policies=("chat", "code"), bridge=True, max_seats=4),
    ),
    policies=(
        replace(POLICY, fleets=("chat", "spares")),
        replace(POLICY, name="code", model="code", fleets=("code", "spares"), port=8002),
    ),
)


COMMENTED_OUT = re.compile(r"( *)# (\w+: \d+)$")
"""A key that is written once it has been measured."""


def read(new: NewSet) -> PolicySet:
    return compile_set(parse_documents(written(new), "new.yaml"))


def test_what_was_decided_for_is_what_the_file_says() -> None:
    policies = read(ALONE)
    fleet, policy = policies.fleets["chat"].spec, policies.policies["chat"].spec
    assert (fleet.max_seats, fleet.seat.gpus, fleet.spare.min) == (5, 2, 2)
    assert fleet.resized_by is ResizedBy.EMBERPOOL
    assert policy.models == ("meta-llama/Llama-3.1-8B",)
    assert (policy.engine.type, policy.engine.port) == (EngineType.VLLM, 8001)
    assert (policy.fleets[0].target_in_flight, policy.serving.min) == (24, 1)
    assert policy.objectives.ttft.limit_seconds == 0.75
    assert (
        policies.fleets["chat"].metadata.namespace
        == policies.policies["chat"].metadata.namespace
        == "serving"
    )


@pytest.mark.parametrize(
    ("new", "kv"),
    [
        pytest.param(ALONE, {"chat": "Keep"}, id="alone"),
        pytest.param(TOGETHER, {"chat": "Release"}, id="together"),
        pytest.param(BRIDGED, {"chat": "Keep", "code": "Keep", "spares": "Release"}, id="bridged"),
    ],
)
def test_kv_memory_is_given_back_where_a_seat_is_shared(new: NewSet, kv: dict[str, str]) -> None:
    found = {name: str(fleet.spec.seat.kv_when_paused) for name, fleet in read(new).fleets.items()}
    assert found == kv
    assert set(kv.values()) <= {KvWhenPaused.KEEP, KvWhenPaused.RELEASE}


def test_the_shared_fleet_stands_behind_the_own_ones() -> None:
    policies = read(BRIDGED)
    assert [share.name for share in policies.policies["code"].spec.fleets] == ["code", "spares"]
    assert {name: fleet.spec.spare.min for name, fleet in policies.fleets.items()} == {
        "chat": 0,
        "code": 0,
        "spares": 2,
    }


@pytest.mark.parametrize("new", [ALONE, TOGETHER, BRIDGED], ids=["alone", "together", "bridged"])
def test_each_document_names_its_schema_first(new: NewSet) -> None:
    documents = written(new).split("---\n")
    assert len(documents) == len(new.fleets) + len(new.policies)
    assert all(document.startswith(f"{MODELINE}\n") for document in documents)


@pytest.mark.parametrize("new", [ALONE, TOGETHER, BRIDGED], ids=["alone", "together", "bridged"])
def test_nothing_is_explained_twice(new: NewSet) -> None:
    comments = [
        line
        for line in written(new).splitlines()
        if line.strip().startswith("# ") and line != MODELINE and not COMMENTED_OUT.match(line)
    ]
    assert len(comments) == len(set(comments))


@pytest.mark.parametrize("key", ["maxSeats", "gpus", "kvWhenPaused", "min", "resizedBy", "fleets", "models", "port", "ttft"])  # fmt: skip
def test_every_key_that_is_written_is_explained_above(key: str) -> None:
    lines = written(ALONE).splitlines()
    index = next(index for index, line in enumerate(lines) if line.strip().startswith(f"{key}:"))
    assert lines[index - 1].strip().startswith("#")


def test_lines_fit_a_page() -> None:
    assert max(map(len, written(BRIDGED).splitlines())) <= 100


@pytest.mark.parametrize("name", ["123", "1e3", "true", "null", "0x1f"])
def test_a_name_that_yaml_would_take_for_something_else_is_quoted(name: str) -> None:
    new = NewSet(
        namespace=name,
        fleets=(replace(FLEET, name=name, policies=(name,)),),
        policies=(replace(POLICY, name=name, model=name, fleets=(name,)),),
    )
    policies = read(new)
    assert policies.policies.keys() == policies.fleets.keys() == {name}
    assert policies.policies[name].models == (name,)


@pytest.mark.parametrize(
    ("milliseconds", "text"), [(1000, "seconds: 1"), (500, "milliseconds: 500"), (2500, "milliseconds: 2500")]
)
def test_a_time_is_written_in_its_largest_whole_unit(milliseconds: int, text: str) -> None:
    new = replace(ALONE, policies=(replace(POLICY, ttft_milliseconds=milliseconds),))
    assert f"      {text}\n" in written(new)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("chat", "chat"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3-1-8b-instruct"),
        ("Qwen2.5_Coder", "qwen2-5-coder"),
        ("--", ""),
        ("m" * 80, "m" * 63),
        ("org/model/", "model"),
    ],
)
def test_a_policy_is_named_after_its_model(model: str, name: str) -> None:
    assert policy_name(model) == name


def test_ports_that_neighbours_have_are_not_given_again() -> None:
    policies = read(TOGETHER)
    assert free_ports(policies, ["chat"], 2) == [8003, 8004]
    assert free_ports(policies, ["another"], 2) == [8001, 8002]
    assert free_ports(None, ["chat"], 1) == [8001]


@pytest.mark.parametrize("new", [ALONE, TOGETHER, BRIDGED], ids=["alone", "together", "bridged"])
def test_what_is_to_be_measured_counts_once_its_mark_is_taken_away(new: NewSet) -> None:
    text = "\n".join(COMMENTED_OUT.sub(r"\1\2", line) for line in written(new).splitlines())
    policies = compile_set(parse_documents(text, "new.yaml"))
    assert all(fleet.spec.seat.memory_mib for fleet in policies.fleets.values())
    for policy in policies.policies.values():
        engine = policy.spec.engine
        assert None not in {engine.paused_mib, engine.kv_mib, engine.start_seconds}


def test_a_seat_without_gpus_has_no_memory_of_theirs() -> None:
    assert "memoryMiB" not in written(replace(ALONE, fleets=(replace(FLEET, gpus=0),)))

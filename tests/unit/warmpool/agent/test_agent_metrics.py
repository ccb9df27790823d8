"""The agent's metrics: bounded labels, zeros from the start, and the board as it is at the scrape."""

import ast
from pathlib import Path
from types import MappingProxyType

import pytest

from warmpool.agent import operations
from warmpool.agent.board import Board
from warmpool.agent.config import AgentConfig
from warmpool.agent.equipment import Equipment
from warmpool.agent.metrics import FAMILIES, ORDER_PHASES, OTHER, AgentMetrics
from warmpool.agent.orders import OrderKind, Result
from warmpool.engines.capabilities import Change, Verdict
from warmpool.metric_families import Kind
from warmpool.states import Depth, ResidentState
from warmpool.timeline import CacheUse, StartFacts, WeightLoad


@pytest.fixture
def equipment(tmp_path: Path) -> Equipment:
    proof = {"prompts": [{"prompt": "x", "tokens": [1]}]}
    command = ["engine", "{port}", "{controlPort}"]
    residents = [{"policy": each, "model": each, "command": command, "proof": proof} for each in ("a", "b")]
    raw = {"seat": "seat-7", "fleet": "f", "uid": "u", "logDirectory": str(tmp_path), "residents": residents}
    memory = {"deviceMiB": 100, "hostMiB": 7}
    return Equipment.of(AgentConfig.model_validate(raw | {"memory": memory}), None)


@pytest.fixture
def board(equipment: Equipment) -> Board:
    return equipment.board


@pytest.fixture
def metrics(equipment: Equipment) -> AgentMetrics:
    return AgentMetrics(equipment.board, equipment.room)


def read(metrics: AgentMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"emberpool_agent_{name}", labels)


def fill(board: Board) -> None:
    for record in board.records:
        record.memory_bytes, record.kv_bytes, record.proven_at = 700, 200, 12.5
        record.held[Depth.PARKED] = 300
        record.wakes.note(Depth.PARKED, 2.5)
        record.phases = MappingProxyType({"process": 0.5, "weights": 1.5, "warm-up": 2.0})
        record.start = StartFacts(
            at=1.0,
            weights=WeightLoad(tier="Staged", nbytes=300, seconds=1.5),
            compile_cache=CacheUse(hits=3, misses=1),
            first_request_seconds=0.25,
        )


def test_all_declared_families_are_exposed_as_declared_with_bounded_labels(
    board: Board, metrics: AgentMetrics
) -> None:
    fill(board)
    metrics.judged("a", Change.PARK, Verdict.VERIFIED)
    metrics.done(OrderKind.RESUME, Result(policy="a", state=ResidentState.SERVING, phases={"canary": 0.1}))
    metrics.not_done(OrderKind.PAUSE, "Busy")
    families = {family.stem: family for family in FAMILIES}
    found = {metric.name: metric for metric in metrics.registry.collect()}
    assert set(found) == set(families)
    for name, metric in found.items():
        family = families[name]
        assert (metric.type, metric.documentation) == (str(family.kind), family.help)
        allowed = {label.name: label.values or ("a", "b", "1", "") for label in family.labels}
        for sample in metric.samples:
            assert all(value in allowed[key] for key, value in sample.labels.items() if key != "le")


@pytest.mark.parametrize("kind", OrderKind)
@pytest.mark.parametrize(
    "outcome", ["Done", "Busy", "StaleEpoch", "WrongState", "EngineFailed", "DeadlineExceeded"]
)
def test_orders_are_zero_before_the_first(metrics: AgentMetrics, kind: OrderKind, outcome: str) -> None:
    assert read(metrics, "orders_total", kind=kind, outcome=outcome) == 0.0


def test_what_is_unknown_is_absent(board: Board, metrics: AgentMetrics) -> None:
    for name in ("resident_memory_bytes", "resident_kv_bytes", "resident_proven_timestamp_seconds"):
        assert read(metrics, name, policy="a") is None
    fill(board)
    assert read(metrics, "resident_memory_bytes", policy="a") == 700.0
    assert read(metrics, "resident_kv_bytes", policy="a") == 200.0
    board.record("a").kv_released = True
    assert read(metrics, "resident_kv_bytes", policy="a") == 0.0


def test_a_start_is_told_with_its_phases_and_what_else_is_known_of_it(
    board: Board, metrics: AgentMetrics
) -> None:
    assert read(metrics, "startup_phase_seconds", policy="a", phase="weights") is None
    fill(board)
    assert read(metrics, "startup_phase_seconds", policy="a", phase="weights") == 1.5
    assert read(metrics, "weight_load_seconds", policy="a", tier="Staged") == 1.5
    assert read(metrics, "weight_load_bytes_per_second", policy="a", tier="Staged") == 200.0
    assert read(metrics, "first_request_seconds", policy="a") == 0.25
    assert read(metrics, "compile_cache_lookups", policy="a", outcome="Hit") == 3.0
    assert read(metrics, "compile_cache_lookups", policy="a", outcome="Miss") == 1.0
    labels = {"model": "a", "tensor_parallel_size": "1", "memory_utilization": ""}
    assert metrics.registry.get_sample_value("emberpool_engine_init_duration_seconds", labels) == 2.0


def test_steps_of_orders_that_are_not_listed_are_told_as_other(metrics: AgentMetrics) -> None:
    metrics.done(
        OrderKind.DRAIN, Result(policy="a", state=ResidentState.DRAINING, phases={"new": 1.0}, aborted=2)
    )
    assert read(metrics, "order_phase_seconds_count", kind="drain", phase=OTHER) == 1.0
    assert read(metrics, "requests_aborted_total") == 2.0


def test_the_agents_own_steps_are_listed() -> None:
    tree = ast.parse(Path(str(operations.__file__)).read_text("utf-8"))
    steps = {
        constant.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step"
        for argument in node.args
        for constant in ([argument.body, argument.orelse] if isinstance(argument, ast.IfExp) else [argument])
        if isinstance(constant, ast.Constant)
    }
    assert steps
    assert steps <= set(ORDER_PHASES)


def test_depths_and_the_budget_have_figures_as_far_as_they_are_known(
    board: Board, metrics: AgentMetrics
) -> None:
    fill(board)
    assert read(metrics, "resident_held_bytes", policy="a", depth="Parked") == 300.0
    assert read(metrics, "resident_held_bytes", policy="a", depth="Paused") is None
    assert read(metrics, "resident_wake_seconds", policy="a", depth="Parked") == 2.5
    assert read(metrics, "device_memory_bytes", part="Device") == 100 * 2**20
    assert read(metrics, "device_memory_bytes", part="Reserve") == 2 * 2**20
    assert read(metrics, "device_memory_bytes", part="Free") == 98 * 2**20
    assert read(metrics, "host_memory_bytes", part="Budget") == 7 * 2**20
    assert read(metrics, "memory_verified") == 0.0
    assert read(metrics, "resident_waiting", policy="a") == 0.0
    board.wait(board.record("a"), "no room")
    assert read(metrics, "resident_waiting", policy="a") == 1.0


def test_judgements_are_counted(metrics: AgentMetrics) -> None:
    labels = {"policy": "a", "change": "Park", "verdict": "Contradicted"}
    assert read(metrics, "memory_checks_total", **labels) == 0.0
    metrics.judged("a", Change.PARK, Verdict.CONTRADICTED)
    assert read(metrics, "memory_checks_total", **labels) == 1.0


def test_the_seat_is_not_a_label(metrics: AgentMetrics) -> None:
    labels = {key for metric in metrics.registry.collect() for s in metric.samples for key in s.labels}
    assert labels <= {
        *("policy", "kind", "outcome", "check", "phase", "state", "le"),
        *("change", "verdict", "part", "tier"),
        *("model", "tensor_parallel_size", "memory_utilization"),
    }
    assert {family.kind for family in FAMILIES} == set(Kind)

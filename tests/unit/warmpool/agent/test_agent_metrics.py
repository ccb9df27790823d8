"""The agent's metrics: bounded labels, zeros from the start, and the board as it is at the scrape."""

import ast
from pathlib import Path
from types import MappingProxyType

import pytest

from warmpool.agent import life, operations
from warmpool.agent.board import Board
from warmpool.agent.config import AgentConfig
from warmpool.agent.metrics import FAMILIES, ORDER_PHASES, OTHER, START_PHASES, AgentMetrics
from warmpool.agent.orders import OrderKind, Result
from warmpool.metric_families import Kind
from warmpool.states import ResidentState


@pytest.fixture
def board(tmp_path: Path) -> Board:
    proof = {"prompts": [{"prompt": "x", "tokens": [1]}]}
    command = ["engine", "{port}", "{controlPort}"]
    residents = [{"policy": each, "model": each, "command": command, "proof": proof} for each in ("a", "b")]
    raw = {"seat": "seat-7", "fleet": "f", "uid": "u", "logDirectory": str(tmp_path), "residents": residents}
    return Board(AgentConfig.model_validate(raw))


def read(metrics: AgentMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"emberpool_agent_{name}", labels)


def fill(board: Board) -> None:
    for record in board.records:
        record.memory_bytes, record.kv_bytes, record.proven_at = 700, 200, 12.5
        record.phases = MappingProxyType({"spawn": 0.5, "warmup": 2.0})


def test_all_declared_families_are_exposed_as_declared_with_bounded_labels(board: Board) -> None:
    fill(board)
    metrics = AgentMetrics(board)
    metrics.done(OrderKind.RESUME, Result(policy="a", state=ResidentState.SERVING, phases={"canary": 0.1}))
    metrics.not_done(OrderKind.PAUSE, "Busy")
    families = {family.stem: family for family in FAMILIES}
    found = {metric.name: metric for metric in metrics.registry.collect()}
    assert set(found) == set(families)
    for name, metric in found.items():
        family = families[name]
        assert (metric.type, metric.documentation) == (str(family.kind), family.help)
        allowed = {label.name: label.values or ("a", "b") for label in family.labels}
        for sample in metric.samples:
            assert all(value in allowed[key] for key, value in sample.labels.items() if key != "le")


@pytest.mark.parametrize("kind", OrderKind)
@pytest.mark.parametrize(
    "outcome", ["Done", "Busy", "StaleEpoch", "WrongState", "EngineFailed", "DeadlineExceeded"]
)
def test_orders_are_zero_before_the_first(board: Board, kind: OrderKind, outcome: str) -> None:
    assert read(AgentMetrics(board), "orders_total", kind=kind, outcome=outcome) == 0.0


def test_what_is_unknown_is_absent(board: Board) -> None:
    metrics = AgentMetrics(board)
    for name in ("resident_memory_bytes", "resident_kv_bytes", "resident_proven_timestamp_seconds"):
        assert read(metrics, name, policy="a") is None
    fill(board)
    assert read(metrics, "resident_memory_bytes", policy="a") == 700.0
    assert read(metrics, "resident_kv_bytes", policy="a") == 200.0
    board.record("a").kv_released = True
    assert read(metrics, "resident_kv_bytes", policy="a") == 0.0


def test_steps_that_an_engine_made_up_add_up_under_one_name(board: Board) -> None:
    metrics = AgentMetrics(board)
    board.record("a").phases = MappingProxyType(
        {"load": 1.0, "graph capture 17": 2.0, "graph capture 18": 3.0}
    )
    assert read(metrics, "startup_phase_seconds", policy="a", phase="load") == 1.0
    assert read(metrics, "startup_phase_seconds", policy="a", phase=OTHER) == 5.0
    metrics.done(
        OrderKind.DRAIN, Result(policy="a", state=ResidentState.DRAINING, phases={"new": 1.0}, aborted=2)
    )
    assert read(metrics, "order_phase_seconds_count", kind="drain", phase=OTHER) == 1.0
    assert read(metrics, "requests_aborted_total") == 2.0


@pytest.mark.parametrize(("module", "known"), [(operations, ORDER_PHASES), (life, START_PHASES)])
def test_the_agents_own_steps_are_listed(module: object, known: tuple[str, ...]) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))  # type: ignore[attr-defined]
    steps = {
        constant.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step"
        for argument in node.args
        for constant in ([argument.body, argument.orelse] if isinstance(argument, ast.IfExp) else [argument])
        if isinstance(constant, ast.Constant)
    }
    assert steps
    assert steps <= set(known)


def test_the_seat_is_not_a_label(board: Board) -> None:
    metrics = AgentMetrics(board)
    labels = {key for metric in metrics.registry.collect() for s in metric.samples for key in s.labels}
    assert labels <= {"policy", "kind", "outcome", "check", "phase", "state", "le"}
    assert {family.kind for family in FAMILIES} == set(Kind)

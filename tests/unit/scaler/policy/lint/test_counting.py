"""What is said to be counted twice is what the board and the law count twice, and nothing else is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from scaler.core.demand import measure
from scaler.core.memory import Seen
from scaler.core.model import Load, Quality, Reading
from scaler.gateway.observe import FAMILIES
from scaler.policy.lint import Code
from scaler.policy.lint.subject import Subject
from scaler.policy.signals import EngineMetrics, Prometheus, Pushed, Signal
from scaler.runtime.metrics.catalogue import DEMAND
from scaler.signals.board import Board
from scaler.signals.engine_page import DIALECTS, Dialect
from scaler.signals.expected import PART_OF, expectation, signals_of
from scaler.signals.port import Part
from tests.unit.scaler.policy.lint.sets import findings, fleet, policy, subject
from warmpool.metric_families import Kind

GATEWAY = {"name": "gateway", "type": "Pushed"}
ENGINE = {"name": "engine", "type": "EngineMetrics"}

WAITING = "sum(vllm:num_requests_waiting)"
RUNNING = 'sum(vllm:num_requests_running{model_name="chat"})'
ENGINES = "sum(vllm:num_requests_running) + sum(vllm:num_requests_waiting)"
HELD = "sum(emberpool_gateway_queue_requests)"
SENT = "sum(emberpool_gateway_in_flight_requests)"
GATEWAYS = "sum(emberpool_gateway_queue_requests + emberpool_gateway_in_flight_requests)"
SENT_BY_DIFFERENCE = "sum(emberpool_demand_requests) - sum(emberpool_gateway_queue_requests)"


def prometheus(query: str, measures: str, name: str = "prom") -> dict[str, Any]:
    return {
        "name": name,
        "type": "Prometheus",
        "query": query,
        "measures": measures,
        "server": "http://p:9090",
    }


def work(kind: str = "RedisList", name: str = "jobs", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "key": "jobs", **more}


@dataclass(frozen=True)
class World:
    """Where requests and work are, all of one model, all requests through one gateway."""

    held: int
    waiting: int
    running: int
    jobs: int = 0

    def says(self, signal: Signal) -> Mapping[Part, float]:
        """Return what a signal's source reads of this."""
        match signal:
            case EngineMetrics():
                return {Part.REQUESTS: self.waiting + self.running}
            case Prometheus():
                return {PART_OF[signal.measures]: self.answers[signal.query]}
            case _:
                return {Part.BACKLOG: self.jobs}

    @property
    def answers(self) -> Mapping[str, float]:
        sent = self.waiting + self.running
        return {
            WAITING: self.waiting,
            RUNNING: self.running,
            ENGINES: sent,
            HELD: self.held,
            SENT: sent,
            GATEWAYS: self.held + sent,
            SENT_BY_DIFFERENCE: sent,
        }

    @property
    def requests(self) -> int:
        return self.held + self.waiting + self.running

    def counted(self, looked_at: Subject) -> tuple[float, float]:
        """Return demand and backlog as the law has them from what the set's signals say."""
        signals = signals_of(looked_at.policies)
        board = Board()
        board.expect({key: expectation(signal) for key, signal in signals.items()})
        for key, signal in signals.items():
            if not isinstance(signal, Pushed):
                board.observed(key, self.says(signal), 0.0)
        named = any(isinstance(signal, Pushed) for signal in signals.values())
        pushed = Load(queued=_fresh(self.held), in_flight=_fresh(self.waiting + self.running))
        (name,) = looked_at.policies.policies
        load = board.load(name, pushed if named else Load(), 0.0)
        demand, _ = measure(load, Seen(), serving=True, now=0.0)
        return demand.value or 0.0, demand.backlog


def _fresh(value: float) -> Reading:
    return Reading(value=float(value), age=0.0, quality=Quality.FRESH)


WORLDS = (
    World(held=0, waiting=10, running=20, jobs=5),
    World(held=40, waiting=10, running=20, jobs=5),
    World(held=40, waiting=0, running=20),
)

SETS = {
    "the gateway alone": [GATEWAY],
    "gateway and engines": [GATEWAY, ENGINE],
    "two signals for what is pushed": [GATEWAY, {**GATEWAY, "name": "other"}],
    "the gateway, and its queue from Prometheus": [GATEWAY, prometheus(HELD, "QueueDepth")],
    "the gateway, and its flight from Prometheus": [GATEWAY, prometheus(SENT, "Requests")],
    "the gateway, and engines from Prometheus": [GATEWAY, prometheus(ENGINES, "Requests")],
    "engines themselves and from Prometheus": [ENGINE, prometheus(ENGINES, "Requests")],
    "engines in two parts": [
        prometheus(RUNNING, "Requests"),
        prometheus(WAITING, "QueueDepth", "waiting"),
    ],
    "the gateway in two parts": [prometheus(SENT, "Requests"), prometheus(HELD, "QueueDepth", "held")],
    "engines' queue only": [prometheus(WAITING, "QueueDepth")],
    "all that a gateway has only": [prometheus(GATEWAYS, "Requests")],
    "a difference": [GATEWAY, prometheus(SENT_BY_DIFFERENCE, "Requests")],
    "the gateway and engines' queue": [GATEWAY, prometheus(WAITING, "QueueDepth")],
    "engines and their queue": [ENGINE, prometheus(WAITING, "QueueDepth")],
    "engines from Prometheus and their queue": [
        prometheus(ENGINES, "Requests"),
        prometheus(WAITING, "QueueDepth", "waiting"),
    ],
    "the gateway and all that it has": [GATEWAY, prometheus(GATEWAYS, "Requests")],
    "all that a gateway has, and its queue": [
        prometheus(GATEWAYS, "Requests"),
        prometheus(HELD, "QueueDepth", "held"),
    ],
    "the gateway, and all that it has as a queue": [GATEWAY, prometheus(GATEWAYS, "QueueDepth")],
    "a queue of work": [GATEWAY, work()],
    "one list twice": [GATEWAY, work(), work(name="again", intervalMilliseconds=5000)],
    "one group twice": [work("RedisStream", group="a"), work("RedisStream", "again", group="a")],
}


@pytest.mark.parametrize("signals", SETS.values(), ids=SETS.keys())
def test_what_is_counted_twice_is_told_and_nothing_else(signals: list[dict[str, Any]]) -> None:
    trees = (fleet(), policy(signals=signals))
    looked_at = subject(*trees)
    more = [
        counted > there
        for world in WORLDS
        for counted, there in zip(world.counted(looked_at), (world.requests, world.jobs), strict=True)
    ]
    assert bool(findings(Code.COUNTED_TWICE, *trees)) == any(more)


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(work("RedisSortedSet", "again"), id="another type"),
        pytest.param(work(name="again", server={"database": 3}), id="another database"),
        pytest.param(work(name="again", server={"addresses": ["redis:6379"]}), id="another server"),
    ],
)
def test_another_queue_of_the_same_name_is_no_repetition(second: dict[str, Any]) -> None:
    assert findings(Code.COUNTED_TWICE, fleet(), policy(signals=[work(), second])) == []


def test_groups_of_one_stream_have_work_of_their_own() -> None:
    signals = [work("RedisStream", group="a"), work("RedisStream", "again", group="b")]
    assert findings(Code.COUNTED_TWICE, fleet(), policy(signals=signals)) == []


@pytest.mark.parametrize(
    ("signals", "at_fault", "others"),
    [
        pytest.param(
            [GATEWAY, prometheus(WAITING, "QueueDepth"), ENGINE], 1, "gateway, engine", id="several"
        ),
        pytest.param(SETS["engines from Prometheus and their queue"], 1, "prom", id="what engines have"),
        pytest.param(SETS["all that a gateway has, and its queue"], 0, "held", id="what a gateway holds"),
    ],
)
def test_the_signal_at_fault_is_named_once_with_all_that_it_repeats(
    signals: list[dict[str, Any]], at_fault: int, others: str
) -> None:
    (found,) = findings(Code.COUNTED_TWICE, fleet(), policy(signals=signals))
    assert found.place.path == ("spec", "signals", at_fault, "measures")
    assert f"in signal {others} too" in found.message


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_every_engine_s_own_queue_is_known(dialect: Dialect) -> None:
    for name in (*dialect.waiting, *dialect.also_waiting):
        query = f'sum({name.decode()}{{model_name="chat"}})'
        assert findings(
            Code.COUNTED_TWICE, fleet(), policy(signals=[ENGINE, prometheus(query, "QueueDepth")])
        )


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_what_engines_work_on_is_known(dialect: Dialect) -> None:
    for name in dialect.running:
        query = f"sum({name.decode()})"
        assert findings(
            Code.COUNTED_TWICE, fleet(), policy(signals=[ENGINE, prometheus(query, "QueueDepth")])
        )


def test_the_gateway_s_and_the_controller_s_gauges_are_known() -> None:
    gauges = [each.name for each in FAMILIES if each.kind is Kind.GAUGE and each.unit == "requests"]
    assert len(gauges) == 2
    for name in (*gauges, DEMAND.name):
        signals = [
            GATEWAY,
            prometheus(f"sum({name})", "QueueDepth"),
            prometheus(f"sum({name})", "Requests", "b"),
        ]
        assert findings(Code.COUNTED_TWICE, fleet(), policy(signals=signals))

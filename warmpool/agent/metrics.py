"""What the agent counts, in Prometheus' terms."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from warmpool.agent.board import Board
from warmpool.agent.orders import OrderKind, Result
from warmpool.states import ResidentState

_ORDER_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class AgentMetrics:
    """The agent's metrics in a registry of their own.

    Attributes:
        registry: what `/metrics` shows.
    """

    def __init__(self, board: Board) -> None:
        self.registry = CollectorRegistry()
        self._orders = Counter(
            "emberpool_agent_orders",
            "Orders by kind and outcome.",
            ("kind", "outcome"),
            registry=self.registry,
        )
        self._phases = Histogram(
            "emberpool_agent_order_phase_seconds",
            "Seconds that each step of a carried-out order took.",
            ("kind", "phase"),
            buckets=_ORDER_BUCKETS,
            registry=self.registry,
        )
        self._aborted = Counter(
            "emberpool_agent_requests_aborted",
            "Requests ended early by a drain's deadline.",
            registry=self.registry,
        )
        for kind in OrderKind:
            self._orders.labels(kind, "Done")
        self.registry.register(_Residents(board))

    def done(self, kind: OrderKind, result: Result) -> None:
        """Count an order that was carried out."""
        self._orders.labels(kind, "Done").inc()
        self._aborted.inc(result.aborted)
        for phase, seconds in result.phases.items():
            self._phases.labels(kind, phase).observe(seconds)

    def not_done(self, kind: OrderKind, code: str) -> None:
        """Count an order that was refused or failed, by its error's code."""
        self._orders.labels(kind, code).inc()


class _Residents(Collector):
    """The board, read when somebody scrapes."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def describe(self) -> list[Metric]:
        """Return no names ahead of time: they are all this collector's own."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Read the board."""
        state = GaugeMetricFamily(
            "emberpool_agent_resident_state",
            "1 for the state that the resident is in.",
            labels=("policy", "state"),
        )
        memory = GaugeMetricFamily(
            "emberpool_agent_resident_memory_bytes", "Memory that its engine holds.", labels=("policy",)
        )
        in_flight = GaugeMetricFamily(
            "emberpool_agent_resident_requests_in_flight",
            "Requests that its guard has accepted.",
            labels=("policy",),
        )
        restarts = GaugeMetricFamily(
            "emberpool_agent_resident_restarts",
            "Restarts of its engine since the agent's start.",
            labels=("policy",),
        )
        for record in self._board.records:
            for each in ResidentState:
                state.add_metric((record.policy, str(each)), float(record.state is each))
            if record.memory_bytes is not None:
                memory.add_metric((record.policy,), record.memory_bytes)
            in_flight.add_metric((record.policy,), record.in_flight)
            restarts.add_metric((record.policy,), record.restarts)
        yield from (state, memory, in_flight, restarts)

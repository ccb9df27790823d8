"""The gateway's metrics: zeros from the start, and gone with their policy."""

import pytest
from prometheus_client import CollectorRegistry

from scaler.gateway.intake import Intake
from scaler.gateway.observe import FAMILIES, GatewayMetrics, Outcome, Sides
from scaler.gateway.queue import Counts, PolicyStats
from scaler.gateway.routes import Failure
from scaler.gateway.settings import GatewaySettings
from warmpool.metric_families import Kind
from warmpool.seats import PolicyName

CHAT, CODE = PolicyName("chat"), PolicyName("code")


class Stand:
    """A gateway's metrics and the numbers that they read."""

    def __init__(self) -> None:
        self.stats = {CHAT: PolicyStats(queued=2, queued_bytes=70, in_flight=3, oldest_wait_seconds=1.5)}
        self.registry = CollectorRegistry()
        self.intake = Intake(GatewaySettings(max_held_bytes=1000))
        self.sides = Sides(endpoints={}, connections=0, refused=0)
        self.metrics = GatewayMetrics(self.registry, lambda: self.stats, self.intake, lambda: self.sides)

    def read(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"emberpool_gateway_{name}", labels)

    def policies(self) -> set[str]:
        found = {s.labels.get("policy") for metric in self.registry.collect() for s in metric.samples}
        return {policy for policy in found if policy}


@pytest.fixture
def stand() -> Stand:
    return Stand()


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        pytest.param("requests_total", {"policy": "chat", "outcome": "Cut"}, id="requests"),
        pytest.param("requests_total", {"policy": "", "outcome": "Invalid"}, id="requests without a policy"),
        pytest.param("retries_total", {"policy": "chat", "failure": "NotServing"}, id="retries"),
        pytest.param("time_to_first_token_seconds_count", {"policy": "chat"}, id="first token"),
        pytest.param("queue_wait_seconds_bucket", {"policy": "chat", "le": "0.005"}, id="wait"),
        pytest.param("inter_token_latency_seconds_sum", {"policy": "chat"}, id="gaps"),
    ],
)
def test_a_routed_policy_has_all_its_series(stand: Stand, name: str, labels: dict[str, str]) -> None:
    assert stand.read(name, **labels) == 0.0


def test_queue_and_flight_are_read_at_the_scrape(stand: Stand) -> None:
    assert stand.read("queue_requests", policy="chat") == 2.0
    assert stand.read("queue_bytes", policy="chat") == 70.0
    assert stand.read("queue_age_seconds", policy="chat") == 1.5
    stand.stats = {CHAT: PolicyStats(in_flight=9, totals=Counts(arrived=12))}
    assert stand.read("in_flight_requests", policy="chat") == 9.0
    assert stand.read("arrived_requests_total", policy="chat") == 12.0


def test_what_is_held_of_how_much_is_read_at_the_scrape(stand: Stand) -> None:
    assert (stand.read("held_bytes"), stand.read("max_held_bytes")) == (0.0, 1000.0)
    stand.intake.held_bytes = 700
    assert stand.read("held_bytes") == 700.0


def test_endpoints_and_connections_are_read_at_the_scrape(stand: Stand) -> None:
    stand.sides = Sides(endpoints={CHAT: (3, 1)}, connections=7, refused=2)
    states = [stand.read("endpoints", policy="chat", state=state) for state in ("Open", "LeftAlone")]
    assert states == [3.0, 1.0]
    assert (stand.read("connections"), stand.read("refused_connections_total")) == (7.0, 2.0)


def test_series_go_with_their_policy_even_when_a_request_ends_later(stand: Stand) -> None:
    stand.stats[CODE] = PolicyStats()
    stand.metrics.finished(CODE, Outcome.COMPLETED)
    assert stand.policies() == {"chat", "code"}
    del stand.stats[CODE]
    assert stand.policies() == {"chat"}
    stand.metrics.retried(CODE, Failure.CUT)
    stand.metrics.first_content(CODE, ttft=0.1, waited=0.0)
    stand.metrics.finished(CODE, Outcome.CUT)
    assert stand.policies() == {"chat"}
    stand.stats[CODE] = PolicyStats()
    assert stand.read("requests_total", policy="code", outcome="Completed") == 0.0


def test_all_declared_families_are_exposed_as_declared(stand: Stand) -> None:
    stand.metrics.sample("http://controller", delivered=True)
    shown = {metric.name: (metric.type, metric.documentation) for metric in stand.registry.collect()}
    assert shown == {family.stem: (str(family.kind), family.help) for family in FAMILIES}
    assert all(family.buckets for family in FAMILIES if family.kind is Kind.HISTOGRAM)


def test_after_closing_another_gateway_may_use_the_registry(stand: Stand) -> None:
    stand.metrics.close()
    GatewayMetrics(stand.registry, dict, stand.intake, lambda: stand.sides)
    assert stand.policies() == set()

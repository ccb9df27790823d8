"""Numbers that are written down a second time say what the code says that they come from."""

from scaler.core.windows import BUCKET_SECONDS
from scaler.gateway.observe import FAMILIES
from scaler.gateway.routes import QueueLimits
from scaler.gateway.samples import HEARTBEAT_SECONDS, SMALLEST_GAP_SECONDS
from scaler.gateway.settings import GatewaySettings
from scaler.policy.lint import Assumptions, assumptions
from scaler.policy.lint.delays import interval_seconds
from scaler.policy.lint.objectives import ENGINE_EDGES, GATEWAY_EDGES
from scaler.policy.signals import Pushed
from scaler.runtime.actuator import Deadlines
from scaler.runtime.gateway_options import GatewayOptions
from scaler.runtime.mailbox import IDLE_SECONDS
from warmpool.agent.life import STOP_GRACE_SECONDS
from warmpool.agent.seat import DRAIN_AT_END_SECONDS
from warmpool.reference.metrics import Metrics


def test_times_are_the_controller_s() -> None:
    deadlines = Deadlines()
    assert deadlines.drain == Assumptions().drain_seconds
    assert deadlines.promote == assumptions.PROMOTE_DEADLINE_SECONDS
    assert assumptions.WAKE_SECONDS == IDLE_SECONDS
    assert assumptions.BUCKET_SECONDS == BUCKET_SECONDS


def test_times_are_the_gateway_s() -> None:
    assert assumptions.PUSH_SECONDS == SMALLEST_GAP_SECONDS
    assert interval_seconds(Pushed(name="gateway", type="Pushed")) == HEARTBEAT_SECONDS


def test_what_a_gateway_lets_requests_wait_for_is_the_gateway_s() -> None:
    assumed, settings = Assumptions(), GatewaySettings()
    assert assumed.gateway_queue_seconds == QueueLimits().max_age_seconds
    assert assumed.gateway_deadline_seconds == settings.deadline_seconds
    assert assumed.gateway_answer_seconds == settings.answer_seconds
    assert assumed.gateway_receive_seconds == settings.receive_seconds
    assert assumed.gateway_connect_seconds == settings.connect_seconds
    assert assumed.gateway_idle_seconds == settings.stream_idle_seconds
    assert assumed.gateway_stall_seconds == settings.client_stall_seconds
    assert assumed.gateway_drain_seconds == GatewayOptions(controllers=(), token="").drain_seconds
    assert settings.retry_after_seconds == assumptions.RETRY_AFTER_SECONDS


def test_what_a_pod_s_end_gives_is_the_agent_s() -> None:
    assert assumptions.POD_DRAIN_SECONDS == DRAIN_AT_END_SECONDS
    assert assumptions.STOP_SECONDS == STOP_GRACE_SECONDS


def test_a_switch_gives_half_of_a_promotion_s_deadline() -> None:
    assert Deadlines().promote / 2 == assumptions.SWITCH_DRAIN_SECONDS


def test_buckets_are_the_gateway_s() -> None:
    (family,) = [each for each in FAMILIES if each.name == "emberpool_gateway_time_to_first_token_seconds"]
    assert family.buckets == GATEWAY_EDGES


def test_buckets_are_the_engine_s() -> None:
    lines = Metrics("tiny", 16).text().decode().splitlines()
    found = [line for line in lines if line.startswith("vllm:time_to_first_token_seconds_bucket")]
    edges = [line.partition('le="')[2].partition('"')[0] for line in found]
    assert tuple(float(edge) for edge in edges if edge != "+Inf") == ENGINE_EDGES

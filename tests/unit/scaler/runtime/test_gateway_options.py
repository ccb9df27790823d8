"""What a gateway is told, and what it tells those who reckon with it."""

from scaler.gateway.routes import QueueLimits
from scaler.gateway.settings import GatewaySettings
from scaler.policy.lint import Assumptions
from scaler.runtime.gateway_options import GatewayOptions


def test_a_gateway_s_assumptions_are_lint_s() -> None:
    told = GatewayOptions(controllers=(), token="").assumptions()
    known = {field.alias: getattr(Assumptions(), name) for name, field in Assumptions.model_fields.items()}
    assert told == {name: value for name, value in known.items() if name in told}
    assert told.keys() == {name for name in known if name is not None and name.startswith("gateway")}


def test_times_that_are_set_are_told_in_whole_seconds() -> None:
    settings = GatewaySettings(queue=QueueLimits(max_age_seconds=12.4), connect_seconds=0.2)
    told = GatewayOptions(controllers=(), token="", settings=settings, drain_seconds=7.6).assumptions()
    assert (told["gatewayQueueSeconds"], told["gatewayConnectSeconds"], told["gatewayDrainSeconds"]) == (
        12,
        1,
        8,
    )


def test_secrets_are_not_shown() -> None:
    shown = GatewaySettings(token="secret").shown()
    assert "secret" not in str(shown)
    assert shown["queue"]["maxColdSeconds"] == 0.0
    assert shown["deadlineSeconds"] == 120.0

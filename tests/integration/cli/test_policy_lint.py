"""`policy lint --gateway`: a running gateway's settings take the place of what is assumed of it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler.cli.app import main
from tests.integration.cli.fake_controller import FakeController, serving

SET = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: own}
spec: {maxSeats: 2}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec:
  fleets: [{name: own, targetInFlight: 32}]
"""


@pytest.fixture
def gateway() -> Iterator[FakeController]:
    with FakeController() as made, serving(made):
        yield made


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "set.yaml"
    path.write_text(SET, encoding="utf-8")
    return str(path)


def test_a_gateway_s_settings_hold_where_no_option_says_otherwise(
    capsys: pytest.CaptureFixture[str], file: str, gateway: FakeController
) -> None:
    told = {"gatewayQueueSeconds": 7, "gatewayDeadlineSeconds": 33, "ofALaterVersion": 1}
    gateway.say("/v1/gateway", {"assumptions": told})
    main(
        ("policy", "lint", file, "-o", "json", "--gateway", gateway.url, "--assume", "gatewayQueueSeconds=9")
    )
    (policy,) = json.loads(capsys.readouterr().out)["policies"]
    found = {stage["stage"]: stage["total"] for stage in policy["path"]}
    assert (found["queue"], found["first token"]) == (9, 33)


@pytest.mark.parametrize("body", [{}, {"assumptions": []}, {"assumptions": {"gatewayQueueSeconds": "7"}}])
def test_who_is_no_gateway_is_told_so(
    capsys: pytest.CaptureFixture[str], file: str, gateway: FakeController, body: object
) -> None:
    gateway.say("/v1/gateway", body)
    code = main(("policy", "lint", file, "--gateway", gateway.url))
    error = capsys.readouterr().err
    assert code != 0
    assert "doesn't answer as a gateway does: the answer holds no assumptions" in error
    assert "--gateway URL" in error

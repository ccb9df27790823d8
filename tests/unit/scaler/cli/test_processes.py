"""`emberpool controller` and `emberpool gateway`: what is wrong with their options is said at once, with the mend."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from scaler.cli.app import main
from scaler.cli.urls import base_url
from scaler.errors import UserError

POLICIES = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares}
spec: {maxSeats: 2}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec: {fleets: [{name: spares, targetInFlight: 8}]}
"""
AGENTS = """\
apiVersion: emberpool.dev/v1alpha1
kind: AgentList
metadata: {name: lab}
spec:
  fleets:
    - name: spares
      seats: [{name: seat-0, agent: "http://127.0.0.1:9"}]
"""


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """A command sets logging up for its whole process, which here is that of all tests."""
    yield
    structlog.reset_defaults()


def controller(
    capsys: pytest.CaptureFixture[str], directory: Path, agents: str = AGENTS, *others: str
) -> tuple[int, str]:
    (directory / "policies.yaml").write_text(POLICIES, "utf-8")
    (directory / "agents.yaml").write_text(agents, "utf-8")
    files = ["--policy", str(directory / "policies.yaml"), "--agents", str(directory / "agents.yaml")]
    code = main(["controller", *files, *others])
    return code, capsys.readouterr().err


def test_a_controller_without_a_token_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EMBERPOOL_AGENT_TOKEN", raising=False)
    code, err = controller(capsys, tmp_path)
    assert code == 2
    assert "EMBERPOOL_AGENT_TOKEN is not set" in err


@pytest.mark.parametrize(
    ("agents", "message"),
    [
        pytest.param(
            AGENTS.replace("name: spares", "name: others"),
            "policies.yaml:3:18: metadata.name: fleet spares has no seat in the list of agents",
            id="a fleet without seats",
        ),
        pytest.param(AGENTS.replace("agent:", "agnet:"), "did you mean agent?", id="a key that nobody knows"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    agents: str,
    message: str,
) -> None:
    monkeypatch.setenv("EMBERPOOL_AGENT_TOKEN", "secret")
    code, err = controller(capsys, tmp_path, agents)
    assert code == 2
    assert message in err


@pytest.mark.parametrize("text", ["controller:9080", "ftp://controller", "http://", "http://x:port"])
def test_what_is_no_url_of_a_controller_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no URL of a controller"):
        base_url(text)


def test_a_url_loses_its_last_slash() -> None:
    assert base_url("http://controller:9080/") == "http://controller:9080"

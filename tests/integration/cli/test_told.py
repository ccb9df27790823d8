"""Signals and decisions of a cluster: what its controller tells, asked through the API server."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scaler.cli.app import main
from tests.integration.cli.cluster import FakeCluster, cluster, written
from tests.integration.cli.fake_controller import FakeController, serving

Ask = Callable[..., tuple[int, str, str]]
SIGNAL = {"policy": "chat", "name": "gateway", "type": "Pushed", "parts": []}
FLEET = {"serving": 1, "spare": 1, "held": 0, "total": 2, "reasons": []}
DECISION = {
    "number": 7,
    "at": 0.0,
    "causes": {"order": 1},
    "actions": ["Promote ordered by anna: launch"],
    "decision": {"policies": {}, "fleets": {"spares": FLEET}},
}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Ask:
    def ran(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran


@pytest.fixture
def there(tmp_path: Path) -> Iterator[tuple[FakeCluster, str]]:
    with serving(FakeController()) as controller, cluster(controller=controller) as made:
        made.create("Service", {"metadata": {"name": "emberpool-controller"}})
        controller.say("/v1/signals", {"items": [SIGNAL]})
        controller.say("/v1/decisions", {"items": [DECISION]})
        yield made, written(tmp_path / "config", made)


def test_signals_are_asked_of_the_clusters_controller(run: Ask, there: tuple[FakeCluster, str]) -> None:
    _, config = there
    code, out, err = run("signals", "get", "--kubeconfig", config)
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split()[:3] == ["chat", "gateway", "Pushed"]


def test_decisions_are_asked_of_the_clusters_controller(run: Ask, there: tuple[FakeCluster, str]) -> None:
    _, config = there
    code, out, err = run("decision", "list", "--kubeconfig", config, "-o", "wide")
    assert (code, err) == (0, "")
    assert "Promote ordered by anna: launch" in out
    code, out, err = run("decision", "explain", "--kubeconfig", config)
    assert (code, err) == (0, "")
    assert "Promote ordered by anna: launch" in out


def test_a_controller_that_answers_something_else_is_told(run: Ask, there: tuple[FakeCluster, str]) -> None:
    made, config = there
    assert made.controller is not None
    made.controller.say("/v1/signals", {"items": 3})
    code, out, err = run("signals", "get", "--kubeconfig", config)
    assert (code, out) == (1, "")
    assert err.startswith("error: the cluster's controller answers /v1/signals without items\n")

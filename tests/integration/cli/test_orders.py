"""Orders of people: what the controller is asked, by its own address and through the API server, and what is said to its answer."""

import getpass
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler.cli import sources
from scaler.cli.app import main
from scaler.runtime import api
from tests.integration.cli.cluster import FakeCluster, cluster, written
from tests.integration.cli.fake_controller import FakeController, serving
from tests.integration.cli.test_cluster import pod

Ask = Callable[..., tuple[int, str, str]]
ORDERS = "POST /v1/orders"
ACCEPTED = {"accepted": True, "dryRun": False, "sentence": "promoting chat"}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    monkeypatch.setenv("EMBERPOOL_AGENT_TOKEN", "secret")

    def ran(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran


@pytest.fixture
def there(tmp_path: Path) -> Iterator[tuple[FakeCluster, str]]:
    with serving(FakeController()) as controller, cluster(controller=controller) as made:
        made.create("Service", {"metadata": {"name": "emberpool-controller"}})
        made.create("Pod", pod("spares-0", "Serving", "chat"))
        made.create("Pod", pod("spares-1", "Spare"))
        controller.say("/v1/seats", {"items": []})
        controller.say("/v1/fleets", {"items": []})
        yield made, written(tmp_path / "config", made)


def order_of(controller: FakeController) -> dict[str, Any]:
    ((body, _),) = controller.ordered
    assert len(body.pop("id")) == 32
    uid = body.pop("uid", None)
    assert uid is None or len(uid) > 1
    assert body.pop("by") == getpass.getuser()
    return dict(body)


SEAT = {"seat": "spares-0", "namespace": "serving", "reason": "", "dryRun": False}
FROZEN = {"fleet": "spares", "namespace": "serving", "reason": "driver", "dryRun": False}


@pytest.mark.parametrize(
    ("arguments", "order"),
    [
        pytest.param(
            "seat promote spares-1 --policy chat --reason launch",
            SEAT | {"operation": "Promote", "seat": "spares-1", "policy": "chat", "reason": "launch"},
            id="promote",
        ),
        pytest.param("seat demote spares-0", SEAT | {"operation": "Demote", "policy": "chat"}, id="demote"),
        pytest.param(
            "seat switch spares-0 --policy code --dry-run",
            SEAT | {"operation": "Switch", "policy": "code", "leaving": "chat", "dryRun": True},
            id="switch",
        ),
        pytest.param("seat drain spares-0", SEAT | {"operation": "Drain"}, id="drain"),
        pytest.param(
            "fleet freeze spares --until 2099-01-01T01:00:00+01:00 --reason driver",
            FROZEN | {"operation": "Freeze", "until": "2099-01-01T00:00:00Z"},
            id="freeze",
        ),
        pytest.param("fleet freeze spares --end --reason driver", FROZEN | {"operation": "Thaw"}, id="thaw"),
    ],
)
def test_an_order_goes_to_the_controller_and_nothing_is_written_past_it(
    run: Ask, there: tuple[FakeCluster, str], arguments: str, order: dict[str, Any]
) -> None:
    made, config = there
    assert made.controller is not None
    made.controller.say(ORDERS, ACCEPTED)
    before = len(made.calls())
    assert run(*arguments.split(), "--kubeconfig", config)[0] == 0
    assert order_of(made.controller) == order
    ((_, headers),) = made.controller.ordered
    assert (headers["Emberpool-Token"], headers.get("Authorization")) == ("secret", None)
    writes = {call.verb for call in made.calls()[before:]} - {"get", "list"}
    assert writes == {"create"}, "the order itself, through the proxy"


def test_what_was_accepted_is_said(run: Ask, there: tuple[FakeCluster, str]) -> None:
    made, config = there
    assert made.controller is not None
    made.controller.say(ORDERS, ACCEPTED)
    promote = ["seat", "promote", "spares-1", "-p", "chat", "--kubeconfig", config]
    assert run(*promote) == (0, "seat/spares-1: promoting chat\n", "")
    assert run(*promote, "--dry-run") == (0, "seat/spares-1: promoting chat (dry run)\n", "")
    code, out, _ = run(*promote, "-o", "json")
    assert (code, json.loads(out)) == (0, ACCEPTED)


def test_what_stands_and_is_not_kept_yet_is_said_beside_the_answer(
    run: Ask, controller: FakeController
) -> None:
    controller.say(ORDERS, {**ACCEPTED, "notKept": "ConfigMaps can't be written"})
    code, out, err = run("seat", "drain", "shared-0", "--controller", controller.url)
    assert (code, out.startswith("seat/shared-0: ")) == (0, True)
    assert err.endswith("until it is kept: ConfigMaps can't be written\n")


def test_a_controller_by_its_address_is_shown_the_token_as_others_do(
    run: Ask, controller: FakeController
) -> None:
    controller.say(ORDERS, ACCEPTED)
    assert run("seat", "demote", "shared-0", "--controller", controller.url)[0] == 0
    ((body, headers),) = controller.ordered
    assert (body["seat"], body["policy"], headers["Authorization"]) == ("shared-0", "chat", "Bearer secret")


@pytest.mark.parametrize(
    ("status", "answer", "error"),
    [
        pytest.param(
            409,
            {"error": {"code": "Conflict", "message": "it is claimed for Promote of code", "hint": "wait"}},
            "error: seat/shared-0: it is claimed for Promote of code\n\nhint: wait\n\n",
            id="refused",
        ),
        pytest.param(
            401,
            {"error": {"code": "Unauthorized", "message": "missing or wrong token"}},
            "error: seat/shared-0: missing or wrong token\n\nhint: EMBERPOOL_AGENT_TOKEN in the environment is the token"
            " that is shown; it is the controller's\n\n",
            id="wrong-token",
        ),
        pytest.param(
            404,
            None,
            "error: this controller takes no orders: it answers /v1/orders with status 404\n\nhint: update it; until then"
            " policies say what shall serve, and `kubectl drain` empties a node\n\n",
            id="an-older-controller",
        ),
        pytest.param(
            200,
            {"accepted": False},
            "error: the controller answers /v1/orders with status 200, and doesn't accept the order\n\n",
            id="not-accepted",
        ),
    ],
)
def test_what_is_refused_ends_with_1_and_says_why(
    run: Ask, controller: FakeController, status: int, answer: Any, error: str
) -> None:
    controller.say(ORDERS, answer, status)
    assert run("seat", "drain", "shared-0", "--controller", controller.url) == (1, "", error)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["promote", "shared-0", "-p", "tail"], "seat shared-0 has no resident of tail"),
        (["demote", "shared-1"], "seat shared-1 serves nobody"),
        (["demote", "shared-0", "-p", "code"], "seat shared-0 doesn't serve code"),
        (["drain", "shared-9"], "there is no seat shared-9"),
    ],
)
def test_what_can_be_seen_to_be_wrong_is_not_even_asked(
    run: Ask, controller: FakeController, arguments: list[str], error: str
) -> None:
    code, _, err = run("seat", *arguments, "--controller", controller.url)
    assert (code, controller.ordered) == (1, [])
    assert err.startswith(f"error: {error}\n")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "give --minutes or --until"),
        (["--minutes", "5", "--until", "2099-01-01T00:00:00Z"], "give --minutes or --until"),
        (["--until", "tomorrow"], "--until 'tomorrow' is no time"),
        (["--until", "2099-01-01T00:00:00"], "--until '2099-01-01T00:00:00' has no zone"),
        (["--until", "2020-01-01T00:00:00Z"], "--until '2020-01-01T00:00:00Z' is over already"),
        (["--minutes", "5"], "--reason is missing"),
        (["--end", "--minutes", "5"], "--end takes no time"),
    ],
)
def test_a_freeze_has_to_say_when_it_ends_and_why(
    run: Ask, controller: FakeController, arguments: list[str], error: str
) -> None:
    code, _, err = run("fleet", "freeze", "shared", *arguments, "--controller", controller.url)
    assert (code, controller.ordered) == (2, [])
    assert err.startswith(f"error: {error}\n")


def test_an_order_goes_to_the_controller_of_the_seats_namespace(
    run: Ask, there: tuple[FakeCluster, str]
) -> None:
    made, config = there
    assert made.controller is not None
    made.create("Service", {"metadata": {"name": "emberpool-controller"}}, "team-b")
    made.create("Pod", pod("other-0", "Serving", "chat"), "team-b")
    made.controller.say(ORDERS, ACCEPTED)
    assert run("seat", "demote", "other-0", "-A", "--kubeconfig", config)[0] == 0
    asked = [call.namespace for call in made.calls() if (call.subresource, call.verb) == ("proxy", "create")]
    assert asked == ["team-b"]


def test_the_header_of_the_token_is_the_controllers() -> None:
    assert sources.TOKEN_HEADER == api.TOKEN_HEADER

"""`emberpool doctor` against an API server: what is read, what is said, and that its mends mend."""

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from scaler.cli.app import main
from scaler.doctor.rights import NEEDED
from tests.fakes.kube_api import Call, User
from tests.integration.cli.cluster import FakeCluster, cluster, written
from tests.integration.cli.fake_controller import FakeController, serving
from tests.unit.scaler.doctor import cluster as healthy

Ask = Callable[..., tuple[int, str, str]]
KUBECTL = shutil.which("kubectl")
CONTROLLER = "system:serviceaccount:emberpool:emberpool"
RIGHTS = {
    "pods": "get list watch patch delete",
    "pods/status": "patch",
    "nodes": "get list watch patch",
    "nodes/status": "patch",
    "services": "list watch",
    "configmaps": "get list create update",
    "deployments": "list watch",
    "deployments/scale": "get update",
    "leases": "get create update",
    "events": "create patch",
    "horizontalpodautoscalers": "list watch",
    "scaledobjects": "list watch",
    "inferencepools": "list watch",
    "resourceslices": "list",
    "devicetaintrules": "list create patch delete",
}
POLICIES = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares, namespace: serving}
spec: {maxSeats: 4, spare: {min: 1}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat, namespace: serving}
spec: {fleets: [{name: spares, targetInFlight: 8}], engine: {type: VLLM, port: 8001}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: code, namespace: serving}
spec: {fleets: [{name: spares, targetInFlight: 8}], engine: {type: VLLM, port: 8002}}
"""


def controllers_rights(call: Call) -> bool:
    name = f"{call.resource}/{call.subresource}" if call.subresource else call.resource
    return call.verb in RIGHTS.get(name, "").split()


def viewers_rights(call: Call) -> bool:
    return call.verb in {"get", "list", "watch"} or call.resource.startswith("selfsubject")


USERS = {
    "admin": User(name="admin"),
    "": User(name="admin"),  # kubectl shows no token where there is no TLS
    "viewer": User(name="viewer", may=viewers_rights),
    "controller": User(name=CONTROLLER, may=controllers_rights),
}


def made(users: Mapping[str, User], controller: FakeController) -> Iterator[FakeCluster]:
    with cluster(users, controller=controller) as there:
        for name in ("seats", "low"):  # what its pods name
            there.create("PriorityClass", {"metadata": {"name": name}, "value": 1})
        for bodies in healthy.objects().values():
            for body in bodies:
                metadata = body["metadata"]
                if body["kind"] == "Lease":
                    continue  # a kubelet renews it all the time
                there.create(body["kind"], body, metadata.get("namespace", ""))
        service = {
            "metadata": {"name": "emberpool-controller"},
            "spec": {"ports": [{"name": "http", "port": 80}]},
        }
        there.create("Service", service, "emberpool")
        controller.say("/v1/seats", {"items": []})
        controller.say(
            "/v1/fleets", {"items": [{"name": "spares", "policies": ["chat", "code"], "maxSeats": 4}]}
        )
        controller.say("/v1/policies", {"items": [{"name": "chat"}, {"name": "code"}]})
        yield there


@pytest.fixture
def there() -> Iterator[FakeCluster]:
    with serving(FakeController()) as controller:
        yield from made(USERS, controller)


@pytest.fixture
def ask(
    there: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Ask:
    monkeypatch.delenv("KUBECONFIG", raising=False)

    def asked(*arguments: str, token: str = "admin") -> tuple[int, str, str]:
        config = written(tmp_path / "config", there, token)
        code = main(["doctor", *arguments, "--kubeconfig", config])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return asked


def findings(asked: tuple[int, str, str]) -> list[dict[str, str]]:
    return list(json.loads(asked[1])["findings"])


def test_a_cluster_in_which_nothing_is_wrong(ask: Ask, there: FakeCluster) -> None:
    code, out, err = ask()
    assert (code, out) == (0, "1 fleet with 2 seats in all namespaces: 0 errors, 0 warnings, 0 notes\n")
    assert err.startswith(f"looking at {there.url}, as ")
    assert "reading pods …\n" in err
    assert "asking what the controller may do …\n" in err


def test_nothing_is_written(ask: Ask, there: FakeCluster) -> None:
    before = len(there.calls())
    ask()
    made_calls = there.calls()[before:]
    assert made_calls
    assert {call.verb for call in made_calls} <= {"get", "list"}


def test_findings_are_a_table_by_how_much_they_matter(ask: Ask, there: FakeCluster) -> None:
    there.patch("Service", "chat", {"spec": {"selector": {"serving.emberpool.dev/chat": None}}})
    there.patch("PodDisruptionBudget", "chat", {"spec": {"unhealthyPodEvictionPolicy": None}})
    code, out, _ = ask()
    assert code == 1
    assert (
        out
        == """\
Errors (1)
CODE                       OBJECT                 MESSAGE
PausedResidentsReachable   Service serving/chat   spec.ports[0] is port 8001 of residents of chat, and the selector takes those of Deployment serving/spares that don't serve as well
  at:   spec.selector
  mend: kubectl patch service chat --type=merge -p '{"spec":{"selector":{"serving.emberpool.dev/chat":"true"}}}' -n serving

Notes (1)
CODE                 OBJECT                             MESSAGE
BudgetKeepsUnready   PodDisruptionBudget serving/chat   seats that aren't ready, as those that start, are kept from eviction as well while too few others are ready
  at:   spec.unhealthyPodEvictionPolicy
  mend: kubectl patch poddisruptionbudget chat --type=merge -p '{"spec":{"unhealthyPodEvictionPolicy":"AlwaysAllow"}}' -n serving

1 fleet with 2 seats in all namespaces: 1 error, 0 warnings, 1 note
"""
    )


def test_notes_alone_are_no_failure(ask: Ask, there: FakeCluster) -> None:
    there.patch("PodDisruptionBudget", "chat", {"spec": {"unhealthyPodEvictionPolicy": None}})
    assert ask()[0] == 0


def test_json_and_yaml_say_the_same(ask: Ask, there: FakeCluster) -> None:
    there.patch("Service", "chat", {"spec": {"selector": {"serving.emberpool.dev/chat": None}}})
    code, out, _ = ask("-o", "json")
    data = json.loads(out)
    assert (code, data["summary"]) == (1, {"errors": 1, "warnings": 0, "notes": 0})
    assert data["fleets"] == ["serving/spares"]
    assert set(data["findings"][0]) == {"code", "severity", "object", "path", "message", "mend"}
    assert YAML(typ="safe").load(ask("-o", "yaml")[1]) == data


# ------------------------------------------------------------------ what it is held against


def test_policy_files_say_more_than_the_controller(ask: Ask, there: FakeCluster, tmp_path: Path) -> None:
    policies = tmp_path / "policies.yaml"
    policies.write_text(POLICIES)
    assert ask("--policy", str(policies))[0] == 0
    policies.write_text(POLICIES.replace("port: 8002", "port: 8003"))
    (found,) = findings(ask("--policy", str(policies), "-o", "json"))
    assert (found["code"], found["severity"]) == ("PortDiffers", "Error")
    assert f"emberpool fleet template spares -f {policies} -m -" in found["mend"]


def test_policy_files_that_cant_be_used_end_with_2(ask: Ask, there: FakeCluster, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("kind: Fleet\n")
    code, out, err = ask("--policy", str(tmp_path / "bad.yaml"))
    assert (code, out) == (2, "")
    assert "bad.yaml:1:1: " in err


def test_what_the_controller_says_of_itself(ask: Ask, there: FakeCluster) -> None:
    assert there.controller is not None
    drifted = {"fleet": "spares", "type": "SizeDrifted", "message": "somebody else wrote 4"}
    there.controller.say("/v1/policies/status", {"hash": "abc", "conditions": [drifted]})
    (found,) = findings(ask("-o", "json"))
    assert (found["code"], found["path"]) == ("Condition", "SizeDrifted")


# ------------------------------------------------------------------ rights


def test_the_controllers_account_is_what_is_asked_about(ask: Ask, there: FakeCluster) -> None:
    there.api.users["controller"] = User(
        name=CONTROLLER, may=lambda call: controllers_rights(call) and call.subresource != "scale"
    )
    (found,) = findings(ask("-o", "json"))
    assert found["object"] == "ServiceAccount emberpool/emberpool"
    assert found["path"] == "deployments.apps/scale"
    assert "may not get, update deployments.apps/scale in namespace serving" in found["message"]
    assert "--serviceaccount=emberpool:emberpool" in found["mend"]


def test_who_may_not_ask_about_others_is_asked_about(ask: Ask, there: FakeCluster) -> None:
    there.api.users["viewer"] = User(name="viewer", may=lambda call: call.verb in {"get", "list", "watch"})
    found = findings(ask("-o", "json", token="viewer"))
    assert {each["code"] for each in found} == {"RightMissing"}
    assert {each["severity"] for each in found} == {"Warning", "Note"}
    assert any(
        "whoever asks may not patch, delete pods in namespace serving" in each["message"] for each in found
    )


def test_each_installation_is_asked_about_in_its_own_namespace(ask: Ask, there: FakeCluster) -> None:
    second = healthy.controller()
    second["spec"]["template"]["spec"]["serviceAccountName"] = "two"
    seats = healthy.deployment()
    for body in (second, seats):
        there.create(
            "Deployment", {**body, "metadata": {**body["metadata"], "namespace": "team-b"}}, "team-b"
        )
    there.api.users["two"] = User(
        name="system:serviceaccount:team-b:two",
        may=lambda call: (
            controllers_rights(call) and (call.namespace in {"", "team-b"}) and call.verb != "delete"
        ),
    )
    found = findings(ask("-o", "json"))
    missing = [each for each in found if each["code"] == "RightMissing" and each["severity"] == "Error"]
    assert [(each["object"], each["message"]) for each in missing] == [
        (
            "ServiceAccount team-b/two",
            "the controller's account team-b/two may not delete pods in namespace team-b",
        )
    ]


# ------------------------------------------------------------------ what can't be looked at


def test_what_may_not_be_read_is_noted_and_the_rest_is_looked_at(ask: Ask, there: FakeCluster) -> None:
    hidden = {"horizontalpodautoscalers", "networkpolicies"}
    there.api.users["viewer"] = User(name="viewer", may=lambda call: call.resource not in hidden)
    there.patch("Service", "chat", {"spec": {"selector": {"serving.emberpool.dev/chat": None}}})
    found = findings(ask("-o", "json", token="viewer"))
    assert [each["code"] for each in found if each["severity"] == "Error"] == ["PausedResidentsReachable"]
    assert {each["path"] for each in found if each["code"] == "NotLookedAt"} == hidden


def test_kinds_that_the_server_lacks_are_nothing_to_look_at(ask: Ask, there: FakeCluster) -> None:
    """The tests' server doesn't serve the older inference pools: nothing is said of that."""
    assert findings(ask("-o", "json")) == []


def test_who_may_not_list_everything_gets_the_contexts_namespace(ask: Ask, there: FakeCluster) -> None:
    there.api.users["viewer"] = User(
        name="viewer", may=lambda call: call.namespace in {"serving", "emberpool"}
    )
    code, out, err = ask(token="viewer")
    assert "all namespaces may not be read, so this looks in serving …\n" in err
    assert out.splitlines()[-1].startswith("1 fleet with 2 seats in namespace serving: ")
    assert (code, "nodes couldn't be read" in out) == (1, True)
    code, _, err = ask("-A", token="viewer")
    assert code == 2
    assert "cannot list resource" in err


def test_without_a_controller_the_rest_is_looked_at(ask: Ask, there: FakeCluster) -> None:
    assert there.controller is not None
    there.controller.answers.clear()
    (found,) = findings(ask("-o", "json"))
    assert (found["code"], found["severity"]) == ("ControllerNotReached", "Warning")
    assert "/v1/seats answers with status 404" in found["message"]


def test_a_server_that_is_gone_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with cluster() as gone:
        config = written(tmp_path / "config", gone)
    assert main(["doctor", "--kubeconfig", config]) == 2
    assert f"error: the API server at {gone.url} can't be read: " in capsys.readouterr().err
    assert main(["doctor", "--kubeconfig", "/nowhere/config"]) == 2
    assert "error: /nowhere/config: no such kubeconfig" in capsys.readouterr().err


def test_an_empty_cluster_is_no_good_news(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with cluster(USERS) as empty:
        config = written(tmp_path / "config", empty)
        assert main(["doctor", "--kubeconfig", config, "-o", "json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [each["code"] for each in found] == ["NothingHere", "ControllerNotReached"]


# ------------------------------------------------------------------ mends


def sick(there: FakeCluster) -> None:
    """Make everything wrong that a command of kubectl's mends by itself."""
    there.patch("Service", "chat", {"spec": {"selector": {"serving.emberpool.dev/chat": None}}})
    selector = {"matchLabels": {"serving.emberpool.dev/code": None}}
    there.patch("InferencePool", "code", {"spec": {"selector": selector}})
    budget = {"spec": {"unhealthyPodEvictionPolicy": None, "minAvailable": "100%"}}
    there.patch("PodDisruptionBudget", "spares", budget)
    there.create("PodDisruptionBudget", healthy.budget("all", app="spares"))
    there.create("HorizontalPodAutoscaler", healthy.hpa("", "by-cpu"))
    there.patch("NetworkPolicy", "seats", {"spec": {"ingress": None}})
    pod = {"readinessGates": None, "terminationGracePeriodSeconds": 5}
    there.patch("Deployment", "spares", {"spec": {"template": {"spec": pod}}})
    there.patch("Pod", "spares-0", {"metadata": {"annotations": {"emberpool.dev/claim": "{"}}})


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
def test_its_mends_mend(ask: Ask, there: FakeCluster, tmp_path: Path) -> None:
    sick(there)
    found = findings(ask("-o", "json"))
    assert {each["code"] for each in found} == {
        "PausedResidentsReachable",
        "BudgetsOverlap",
        "BudgetBlocks",
        "BudgetKeepsUnready",
        "SecondWriter",
        "NetworkBlocks",
        "GateMissing",
        "GraceTooShort",
        "ClaimUnreadable",
    }
    config = written(tmp_path / "config", there)
    for each in found:
        words = shlex.split(each["mend"])
        assert words[0] == "kubectl"
        done = subprocess.run(
            [str(KUBECTL), "--kubeconfig", config, *words[1:]],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, (each["mend"], done.stderr)
    assert findings(ask("-o", "json")) == []


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
def test_the_commands_that_grant_rights_are_kubectls(ask: Ask, there: FakeCluster, tmp_path: Path) -> None:
    there.api.users["controller"] = User(name=CONTROLLER, may=lambda _: False)
    found = findings(ask("-o", "json"))
    assert len(found) == len(NEEDED)
    config = written(tmp_path / "config", there)
    for each in found:
        for command in each["mend"].split(" && "):
            words = [*shlex.split(command)[1:], "--dry-run=client", "-o", "yaml"]
            done = subprocess.run(
                [str(KUBECTL), "--kubeconfig", config, *words],
                check=False,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 0, (command, done.stderr)


def test_a_clock_that_differs(ask: Ask, there: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    there.date = lambda: formatdate(2_000_000_000.0, usegmt=True)
    (found,) = findings(ask("-o", "json"))
    assert found["code"] == "ClockDiffers"
    assert "behind the API server's" in found["message"]


def in_lease(there: FakeCluster, renewed: str) -> Any:
    return there.create("Lease", healthy.lease(renewed=renewed), "kube-node-lease")


def test_a_nodes_clock_that_differs(ask: Ask, there: FakeCluster) -> None:
    in_lease(there, "2099-01-01T00:00:00.000000Z")
    (found,) = findings(ask("-o", "json"))
    assert (found["code"], found["object"]) == ("NodeClockDiffers", "Node gpu-a")

"""What people see of a cluster: pods and nodes from its API server, the rest from the controller behind it."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from scaler.cli.app import main
from tests.fakes.kube_api import Call, User
from tests.fakes.kube_api.kinds import POD
from tests.integration.cli.cluster import FakeCluster, cluster, written
from tests.integration.cli.conftest import MIB
from tests.integration.cli.fake_controller import FakeController, serving
from warmpool.seats import CLAIM_ANNOTATION, Claim, Operation, Resident, Seat
from warmpool.states import ResidentState
from warmpool.wire import claim_to_json, seat_to_json

Ask = Callable[..., tuple[int, str, str]]

RESIDENTS = json.dumps([{"policy": "chat", "port": 8001}, {"policy": "code", "port": 8002}])
CLAIM = Claim(
    id="c-1", policy="code", operation=Operation.PROMOTE, holder="ctl", epoch=3, since=1.0, deadline=2.0
)


def pod(name: str, value: str = "", serving: str = "", **more: Any) -> dict[str, Any]:
    labels = {"emberpool.dev/fleet": more.get("fleet", "spares")}
    labels |= {"emberpool.dev/seat": value} if value else {}
    labels |= {f"serving.emberpool.dev/{serving}": "true"} if serving else {}
    annotations = {"emberpool.dev/residents": RESIDENTS, **more.get("annotations", {})}
    return {
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {"nodeName": more.get("node", "gpu-a"), "containers": [{"name": "engines", "image": "x"}]},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.9",
            "podIPs": [{"ip": "10.0.0.9"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def node(name: str, capacity: str = "8", allocatable: str = "8", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "NVIDIA-H200"}},
        "spec": spec,
        "status": {
            "capacity": {"cpu": "64", "nvidia.com/gpu": capacity},
            "allocatable": {"cpu": "64", "nvidia.com/gpu": allocatable},
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting"}
            ],
        },
    }


DEPLOYMENT = {
    "metadata": {"name": "spares"},
    "spec": {
        "replicas": 4,
        "selector": {"matchLabels": {"app": "spares"}},
        "template": {
            "metadata": {"labels": {"app": "spares", "emberpool.dev/fleet": "spares"}},
            "spec": {"containers": [{"name": "engines", "image": "x"}]},
        },
    },
}


@pytest.fixture
def there() -> Iterator[FakeCluster]:
    """Three seats of a fleet in one namespace and one in another, and a node without GPUs."""
    with serving(FakeController()) as controller, cluster(controller=controller) as made:
        made.create("Pod", pod("spares-0", "Serving", "chat"))
        made.create("Pod", pod("spares-1", "Spare"))
        claim = json.dumps(claim_to_json(CLAIM))
        made.create("Pod", pod("spares-2", "Promoting", annotations={CLAIM_ANNOTATION: claim}))
        made.create("Pod", pod("other-0", "Spare", fleet="other", node="gpu-b"), "team-b")
        made.create("Deployment", DEPLOYMENT)
        made.create("Node", node("gpu-a"))
        made.create("Node", node("gpu-b", allocatable="7", unschedulable=True))
        made.create("Node", node("cpu-0", "0", "0"))
        yield made


@pytest.fixture
def ask(
    there: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Ask:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    config = written(tmp_path / "config", there)

    def asked(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--kubeconfig", config])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return asked


def with_controller(there: FakeCluster, namespace: str = "serving") -> FakeController:
    there.create("Service", {"metadata": {"name": "emberpool-controller"}}, namespace)
    assert there.controller is not None
    return there.controller


def reported(there: FakeCluster, name: str) -> dict[str, Any]:
    """A seat as the controller tells it, its pod's claim and rotation aside."""
    uid = there.do(lambda: there.api.store.get(POD, ("serving", name))).body["metadata"]["uid"]
    residents = (
        Resident(policy="chat", state=ResidentState.SERVING, since=1.0, in_flight=3, memory_bytes=700 * MIB),
        Resident(policy="code", state=ResidentState.PAUSED, since=1.0, memory_bytes=300 * MIB),
    )
    seat = Seat(name=name, uid=uid, version="1", fleet="spares", gpus=("GPU-1",), residents=residents)
    return seat_to_json(seat)


ALONE = {
    "seat get": """\
NAME       FLEET    VALUE       SERVING   RESIDENTS   IN-FLIGHT   AGE
spares-0   spares   Serving     chat      ?/2         -           60m
spares-1   spares   Spare       -         ?/2         -           60m
spares-2   spares   Promoting   -         ?/2         -           60m
""",
    "seat get spares-2 -o wide": """\
NAME       FLEET    VALUE       SERVING   RESIDENTS   IN-FLIGHT   TIERS   CLAIM          VERDICT   NODE    GPUS   MEMORY   FREE   AGE
spares-2   spares   Promoting   -         ?/2         -           -       Promote:code   -         gpu-a   -      -        -      60m
""",
    "fleet get": """\
NAME     MODE   SERVING   SPARE   STARTING   TOTAL   MAX   AGE
spares   -      2         1/-     0          -       -     60m
""",
    "fleet get -o wide": """\
NAME     MODE   SERVING   SPARE   STARTING   TOTAL   MAX   DRAINING   HELD   REPLICAS   POLICIES    AGE
spares   -      2         1/-     0          -       -     0          0      4          chat,code   60m
""",
    "policy get": """\
NAME   MODE   DEMAND   NEEDED   CAPACITY   SERVING   QUEUED   IN-FLIGHT   OLDEST
chat   -      -        -        -          1/-       -        -           -
code   -      -        -        -          0/-       -        -           -
""",
}


@pytest.mark.parametrize("command", ALONE)
def test_without_a_controller_pods_tell_what_they_know(ask: Ask, command: str) -> None:
    code, out, err = ask(*command.split())
    assert (code, out) == (0, ALONE[command])
    assert err.startswith("the controller isn't reached, so this is what pods tell alone: ")


def test_nothing_is_said_twice_of_a_controller_that_is_not_reached(ask: Ask) -> None:
    code, out, err = ask("fleet", "describe", "spares")
    assert (code, err.count("isn't reached")) == (0, 1)
    assert "Workload:   Deployment/spares\n" in out
    assert "Replicas:   4 asked for at present\n" in out
    assert "Seats:      1 Spare, 1 Promoting, 1 Serving\n" in out


def test_a_seat_says_what_only_its_agent_would_know(ask: Ask) -> None:
    code, out, _ = ask("seat", "describe", "spares-2")
    assert code == 0
    assert "Health:     pod Running, ready, not admitted\n" in out
    assert "Claim:      Promote code, by ctl (epoch 3) since " in out
    assert out.endswith(
        "Residents:\n  chat: unknown, its agent is not heard here\n  code: unknown, its agent is not heard here\n"
    )


@pytest.mark.parametrize("namespace", ["serving", "emberpool"])
def test_the_controller_tells_the_rest_through_the_api_server(
    ask: Ask, there: FakeCluster, namespace: str
) -> None:
    controller = with_controller(there, namespace)
    controller.say("/v1/seats", {"items": [reported(there, "spares-0")]})
    controller.say(
        "/v1/fleets",
        {"items": [{"name": "spares", "mode": "Enforce", "total": 4, "maxSeats": 9, "spareTarget": 2}]},
    )
    assert ask("seat", "get")[1:] == (
        """\
NAME       FLEET    VALUE       SERVING   RESIDENTS   IN-FLIGHT   AGE
spares-0   spares   Serving     chat      2/2         3           60m
spares-1   spares   Spare       -         ?/2         -           60m
spares-2   spares   Promoting   -         ?/2         -           60m
""",
        "",
    )
    assert ask("fleet", "get")[1:] == (
        """\
NAME     MODE      SERVING   SPARE   STARTING   TOTAL   MAX   AGE
spares   Enforce   2         1/2     0          4       9     60m
""",
        "",
    )
    assert "Authorization" not in {key for _, headers in controller.ordered for key in headers}


def test_rotation_is_the_pods_and_never_the_controllers(ask: Ask, there: FakeCluster) -> None:
    seat = reported(there, "spares-0") | {"serving": ["code"], "value": "Spare"}
    with_controller(there).say("/v1/seats", {"items": [seat]})
    code, out, _ = ask("seat", "get", "spares-0", "-o", "json")
    found = json.loads(out)
    assert (code, found["serving"], found["value"], found["reported"]) == (0, ["chat"], "Serving", True)


def test_policies_show_both_what_is_decided_and_what_is_in_rotation(ask: Ask, there: FakeCluster) -> None:
    chat = {"name": "chat", "mode": "Burst", "wanted": {"spares": 2}, "serving": {"spares": 2}}
    with_controller(there).say("/v1/policies", {"items": [chat]})
    code, out, _ = ask("policy", "describe", "chat")
    assert code == 0
    assert (
        """\
Fleets:
  FLEET    SERVING   WANTED   IN-ROTATION
  spares   2         2        1
"""
        in out
    )


def test_what_the_controller_tells_of_other_namespaces_is_left_out(ask: Ask, there: FakeCluster) -> None:
    controller = with_controller(there)
    fleets = [
        {"name": "spares", "namespace": "serving"},
        {"name": "far", "namespace": "team-b"},
        {"name": "any"},
    ]
    controller.say("/v1/fleets", {"items": fleets})
    controller.say("/v1/seats", {"items": []})
    assert ask("fleet", "get", "-o", "name")[1].split() == ["fleet/spares", "fleet/any"]
    assert ask("fleet", "get", "-A", "-o", "name")[1].split() == [
        "fleet/spares",
        "fleet/other",
        "fleet/far",
        "fleet/any",
    ]


def test_each_namespace_has_its_own_controller(ask: Ask, there: FakeCluster) -> None:
    controller = with_controller(there)
    there.create("Service", {"metadata": {"name": "emberpool-controller"}}, "team-b")
    controller.say("/v1/seats", {"items": []})
    controller.say("/v1/fleets", {"items": [{"name": "other", "total": 7}]})
    before = len(there.calls())
    found = json.loads(ask("fleet", "get", "-A", "-o", "json")[1])["items"]
    assert {(each["namespace"], each["name"]): each.get("total") for each in found} == {
        ("serving", "spares"): None,
        ("team-b", "other"): 7,
        ("serving", "other"): 7,
    }
    asked = {call.namespace for call in there.calls()[before:] if call.subresource == "proxy"}
    assert asked == {"serving", "team-b"}


def test_what_is_said_of_a_fleet_says_its_own_namespaces_controller(ask: Ask, there: FakeCluster) -> None:
    controller = with_controller(there)
    there.create("Service", {"metadata": {"name": "emberpool-controller"}}, "team-b")
    condition = {"fleet": "other", "type": "SizeDrifted", "message": "9 found"}
    status = {"hash": "x", "conditions": [condition]}
    controller.say("/v1/policies/status", status)
    before = len(there.calls())
    code, out, _ = ask("fleet", "describe", "other", "-A")
    assert (code, "9 found" in out) == (0, True)
    asked = [call for call in there.calls()[before:] if call.subresource == "proxy"]
    assert asked[-1].namespace == "team-b"


def test_all_namespaces_have_a_column_of_their_own(ask: Ask) -> None:
    _, out, _ = ask("seat", "get", "-A")
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["NAMESPACE", "NAME"],
        ["serving", "spares-0"],
        ["serving", "spares-1"],
        ["serving", "spares-2"],
        ["team-b", "other-0"],
    ]
    assert ask("seat", "get", "-n", "team-b", "-o", "name")[1] == "seat/other-0\n"


def test_nodes_with_gpus_and_what_stands_on_them(ask: Ask, there: FakeCluster) -> None:
    taint = {"key": "emberpool.dev/gpu-unhealthy", "value": "Xid79", "effect": "NoSchedule"}
    there.patch("Node", "gpu-b", {"spec": {"taints": [taint]}}, namespace="")
    assert ask("node", "get")[:2] == (
        0,
        """\
NAME    STATUS                     GPUS   HEALTH   SEATS   SERVING   SPARE   AGE
gpu-a   Ready                      8/8    -        3       2         1       60m
gpu-b   Ready,SchedulingDisabled   7/8    Xid79    1       0         1       60m
""",
    )
    assert ask("node", "get", "-A")[1] == ask("node", "get")[1]  # nodes are in no namespace
    code, out, err = ask("node", "describe", "gpu-a")
    assert (code, err) == (0, "")
    assert "GPUs:     8 offered of 8 found\n" in out
    assert "  Ready   True     KubeletReady   kubelet is posting\n" in out
    assert "  serving     spares-0   spares   Serving     chat\n" in out


def test_what_is_said_of_a_nodes_gpus_is_shown_with_what_clears_it(ask: Ask, there: FakeCluster) -> None:
    reason = {"text": "12 uncorrected memory errors", "since": "2026-01-01T00:00:00Z", "clears": "a reset"}
    gpu = {"uuid": "GPU-a", "verdict": "Bad", "since": "2026-01-01T00:00:00Z", "reasons": [reason]}
    well = {"uuid": "GPU-b", "verdict": "Ok", "since": "2025-12-31T00:00:00Z", "reasons": []}
    items = [{"name": "gpu-a", "gpus": [gpu, well]}, {"name": "gpu-b", "gpus": [gpu]}]
    with_controller(there).say("/v1/nodes", {"items": items})
    code, out, err = ask("node", "describe", "gpu-a")
    assert (code, err) == (0, "")
    rows = [re.split(" {2,}", line.strip()) for line in out.splitlines() if "GPU-" in line]
    assert rows == [
        ["GPU-a", "Bad", "2026-01-01T00:00:00Z", "-", "12 uncorrected memory errors", "a reset", "-"],
        ["GPU-b", "Ok", "2025-12-31T00:00:00Z", "-", "-", "-", "-"],
    ]


@pytest.mark.parametrize(
    ("mark", "told"),
    [
        (
            {"excluded": True, "since": "2026-01-01T00:00:00Z", "reason": "GPU-a is Bad: Xid 79"},
            "Excluded:  since 2026-01-01T00:00:00Z, for what is said of its GPUs: GPU-a is Bad: Xid 79",
        ),
        (
            {
                "excluded": False,
                "since": "2026-01-01T00:00:00Z",
                "reason": "the table was wrong",
                "actor": "ada",
                "until": "2026-01-02T00:00:00Z",
            },
            "Readmitted:  since 2026-01-01T00:00:00Z, by ada, until 2026-01-02T00:00:00Z: the table was wrong",
        ),
    ],
    ids=["ours", "a person's"],
)
def test_why_a_node_is_out_since_when_by_whom_and_until_when_is_shown(
    ask: Ask, there: FakeCluster, mark: dict[str, object], told: str
) -> None:
    with_controller(there).say("/v1/nodes", {"items": [{"name": "gpu-a", "gpus": [], "mark": mark}]})
    code, out, err = ask("node", "describe", "gpu-a")
    assert (code, err) == (0, "")
    assert f"{told}\n" in out


@pytest.mark.parametrize(
    ("standing", "told"),
    [
        ("Excluded", "excluded by itself"),
        ("Waiting", "waits for the breaker"),
        ("Nameless", "unknown to DRA"),
        ("Later", "-"),
    ],
)
def test_how_a_gpu_stands_that_is_to_be_excluded_by_itself_is_shown(
    ask: Ask, there: FakeCluster, standing: str, told: str
) -> None:
    item = {
        "name": "gpu-a",
        "gpus": [{"uuid": "GPU-a", "verdict": "Bad"}],
        "gpuMarks": {"GPU-a": standing},
    }
    breaker = {"tripped": standing == "Waiting", "used": 2, "allowed": 2}
    with_controller(there).say("/v1/nodes", {"items": [item], "breaker": None, "gpuBreaker": breaker})
    code, out, err = ask("node", "describe", "gpu-a")
    assert (code, err) == (0, "")
    (row,) = (re.split(" {2,}", line.strip()) for line in out.splitlines() if "GPU-a" in line)
    assert row[-1] == told
    held = "the breaker holds GPUs back: 2 of 2 exclusions were within its window"
    assert (held in out) is (standing == "Waiting")


@pytest.mark.parametrize(("verb", "done"), [("exclude", "excluded"), ("readmit", "readmitted")])
def test_a_person_orders_something_of_a_node(ask: Ask, there: FakeCluster, verb: str, done: str) -> None:
    with_controller(there).say(f"POST /v1/nodes/gpu-a/{verb}", {"name": "gpu-a"})
    assert ask("node", verb, "gpu-a", "--reason", "row 3") == (0, f"node/gpu-a: {done}\n", "")


def test_a_refused_order_on_a_node_says_why(ask: Ask, there: FakeCluster) -> None:
    error = {"error": {"code": "NotFound", "message": "there is no node gpu-9"}}
    with_controller(there).say("POST /v1/nodes/gpu-9/exclude", error, 404)
    code, out, err = ask("node", "exclude", "gpu-9", "--reason", "row 3")
    assert (code, out) == (1, "")
    assert "there is no node gpu-9" in err


def test_a_name_goes_as_one_step_of_a_path(ask: Ask, there: FakeCluster) -> None:
    controller = with_controller(there)
    code, _, err = ask("node", "exclude", "gpu?x=1", "--reason", "row 3")
    assert code == 1
    assert controller.asked, err
    assert controller.asked[-1] == "/v1/nodes/gpu%3Fx%3D1/exclude"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--reason", " "), "--reason is empty"),
        (("--reason", "x", "--until", "noon"), "is no time"),
        (("--reason", "x", "--until", "2036-01-01T00:00:00"), "has no zone"),
        (("--reason", "x", "--until", "2020-01-01T00:00:00Z"), "is over already"),
    ],
)
def test_an_order_on_a_node_that_makes_no_sense_is_not_given(
    ask: Ask, arguments: tuple[str, ...], why: str
) -> None:
    code, _, err = ask("node", "exclude", "gpu-a", *arguments)
    assert code == 2
    assert why in err


@pytest.mark.parametrize("verb", ["exclude", "readmit"])
def test_a_clusters_controller_takes_orders_on_nodes_at_its_own_address(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setenv("EMBERPOOL_AGENT_TOKEN", "secret")
    with serving(FakeController()) as controller:
        controller.say(f"POST /v1/nodes/gpu-a/{verb}", {"name": "gpu-a"})
        assert main(["node", verb, "gpu-a", "--reason", "row 3", "--controller", controller.url]) == 0
    ((body, headers),) = controller.ordered
    assert (body["reason"], headers["Authorization"]) == ("row 3", "Bearer secret")
    assert capsys.readouterr().err == ""


def test_a_controller_that_has_no_nodes_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeController()) as controller:
        code = main(["node", "exclude", "gpu-a", "--reason", "row 3", "--controller", controller.url])
    assert code == 1
    told = capsys.readouterr().err
    assert "marks no nodes: it answers /v1/nodes/gpu-a/exclude with status 404" in told
    assert "`emberpool local` has none" in told


def test_an_order_on_a_node_goes_to_a_cluster_unless_a_controller_is_named(
    ask: Ask, there: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBERPOOL_CONTROLLER", "http://127.0.0.1:9")
    with_controller(there).say("POST /v1/nodes/gpu-a/exclude", {"name": "gpu-a"})
    assert ask("node", "exclude", "gpu-a", "--reason", "row 3")[0] == 0
    code, _, err = ask("node", "exclude", "gpu-a", "--reason", "x", "--controller", "http://127.0.0.1:9")
    assert (code, "names one controller, and kubectl's flags a cluster" in err) == (2, True)


def test_nodes_are_a_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node", "get", "--controller", "http://127.0.0.1:9080"]) == 2
    assert "no such option: --controller" in capsys.readouterr().err


def test_yaml_says_the_same_as_json(ask: Ask) -> None:
    assert YAML(typ="safe").load(ask("seat", "get", "-o", "yaml")[1]) == json.loads(
        ask("seat", "get", "-o", "json")[1]
    )


# ------------------------------------------------------------------ which cluster


def test_a_context_and_its_namespace_are_kubectls(
    there: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", written(tmp_path / "config", there, namespace="team-b"))
    assert main(["seat", "get", "-o", "name"]) == 0
    assert main(["seat", "get", "-o", "name", "--context", "fake"]) == 0
    assert capsys.readouterr().out == "seat/other-0\nseat/other-0\n"
    assert main(["seat", "get", "--context", "nowhere"]) == 2
    assert "not a kubeconfig that can be used" in capsys.readouterr().err


def test_what_may_not_be_read_is_said_with_who_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = {"viewer": User(name="viewer", may=lambda call: call.resource != "pods")}
    with cluster(users) as made:
        config = written(tmp_path / "config", made, token="viewer")
        assert main(["seat", "get", "--kubeconfig", config]) == 1
    err = capsys.readouterr().err
    assert 'pods is forbidden: User "viewer" cannot list resource "pods"' in err
    assert f"hint: asked with {config} (current context)" in err


def test_workloads_that_may_not_be_read_leave_what_pods_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def may(call: Call) -> bool:
        return call.group != "apps"

    with cluster({"viewer": User(name="viewer", may=may)}) as made:
        made.create("Pod", pod("spares-0", "Spare"))
        config = written(tmp_path / "config", made, token="viewer")
        assert main(["fleet", "get", "-o", "json", "--kubeconfig", config]) == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert (item["seats"], item.get("replicas")) == ({"Spare": 1}, None)


def test_an_api_server_that_is_gone_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with cluster() as gone:
        config = written(tmp_path / "config", gone)
    assert main(["fleet", "get", "--kubeconfig", config]) == 1
    err = capsys.readouterr().err
    assert f"error: the API server at {gone.url} can't be read: GET /api/v1/namespaces/serving/pods: " in err


def test_a_name_in_several_namespaces_is_asked_for_again(ask: Ask, there: FakeCluster) -> None:
    there.create("Pod", pod("spares-0", "Spare"), "team-b")
    code, _, err = ask("seat", "describe", "spares-0", "-A")
    assert code == 1
    assert "error: 2 seats are called spares-0\n\nhint: say which with --namespace: serving, team-b" in err


def test_the_status_of_policies_comes_through_the_api_server(ask: Ask, there: FakeCluster) -> None:
    assert ask("policy", "status")[0] == 2
    with_controller(there).say("/v1/policies/status", {"hash": "abc", "fleets": 1, "policies": 2})
    code, out, _ = ask("policy", "status")
    assert code == 0
    assert "Holds:           1 fleet, 2 policies\n" in out

"""What a replica tells others of itself, and what it makes of policies and records on Kubernetes."""

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from scaler.cluster.kube.events import Event, Subject
from scaler.cluster.kube.fleets import KubeFleet
from scaler.cluster.kube.resources import DEPLOYMENT
from scaler.cluster.kube.scale import Target
from scaler.errors import UserError
from scaler.runtime.controller import PolicyTable
from scaler.runtime.controller_options import KubernetesOptions
from scaler.runtime.kube_controller import advertised
from scaler.runtime.kube_events import KubeEvents
from scaler.runtime.kube_policies import KubePolicies
from scaler.runtime.sockets import listen
from tests.unit.scaler.runtime.policy_sets import compiled, fleet, policy, reading
from warmpool.seats import FleetName


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen("0.0.0.0", 0, "--port") as found:
        yield found


def test_the_address_that_is_listened_on_is_told() -> None:
    with listen("127.0.0.1", 0, "--port") as found:
        port = found.getsockname()[1]
        assert advertised(KubernetesOptions(), found, {}) == f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("environ", "host"), [({"POD_IP": "10.0.0.9"}, "10.0.0.9"), ({"POD_IP": "fd00::9"}, "[fd00::9]")]
)
def test_a_pod_tells_its_address(listener: socket.socket, environ: Mapping[str, str], host: str) -> None:
    found = advertised(KubernetesOptions(), listener, environ)
    assert found == f"http://{host}:{listener.getsockname()[1]}"


def test_what_was_named_counts(listener: socket.socket) -> None:
    named = KubernetesOptions(advertise="https://controller-0:9080/")
    assert advertised(named, listener, {"POD_IP": "10.0.0.9"}) == "https://controller-0:9080"


def test_who_listens_everywhere_and_knows_no_address_is_told_what_to_do(listener: socket.socket) -> None:
    with pytest.raises(UserError, match="can't be told where this one is") as caught:
        advertised(KubernetesOptions(), listener, {})
    assert "status.podIP" in caught.value.hint


# ---------------------------------------------------------------- policies


def policies(adopted: list[PolicyTable], fleets: list[list[str]]) -> KubePolicies:
    begun = KubeFleet(
        name=FleetName("spares"), target=Target(kind=DEPLOYMENT, namespace="default", name="spares")
    )
    return KubePolicies(
        None,  # type: ignore[arg-type] # nobody has to be asked for a Deployment
        "default",
        [begun],
        lambda found: fleets.append([each.name for each in found]),
        adopted.append,
    )


async def test_a_set_is_put_in_force_with_its_workloads(tmp_path: Path) -> None:
    adopted, fleets = list[PolicyTable](), list[list[str]]()
    force = policies(adopted, fleets)
    assert await force.refuse(reading(tmp_path, fleet(), fleet("own"), policy("chat"))) == []
    assert force.adopt(compiled(fleet(), fleet("own"), policy("chat"))) == []
    assert fleets == [["spares", "own"]]
    assert [each.name for each in adopted[0].fleets] == ["spares", "own"]


async def test_a_fleet_of_another_namespace_is_refused_at_its_place(tmp_path: Path) -> None:
    adopted, fleets = list[PolicyTable](), list[list[str]]()
    force = policies(adopted, fleets)
    elsewhere = fleet("own").replace("{name: own}", "{name: own, namespace: other}")
    (fault,) = await force.refuse(reading(tmp_path, fleet(), elsewhere, policy("chat")))
    assert "is in namespace other" in fault.message
    assert fault.line > 1


async def test_a_fleet_that_goes_is_said(tmp_path: Path) -> None:
    force = policies([], [])
    only = policy("chat").replace("name: spares", "name: own")
    assert await force.refuse(reading(tmp_path, fleet("own"), only)) == []
    assert force.adopt(compiled(fleet("own"), only)) == [
        "fleet spares is in no policy file: its seats are left as they are"
    ]


# ---------------------------------------------------------------- Events


def told(**record: Any) -> list[Event]:
    found: list[Event] = []
    events = KubeEvents(
        found.append,
        "serving",
        "lease",
        lambda name: "uid-1" if name == "pod-1" else "",
        lambda name: Subject.of(DEPLOYMENT, "serving", name) if name == "spares" else None,
    )
    events.take({"at": 1.0, **record})
    return found


@pytest.mark.parametrize(
    ("record", "reason", "subject", "note"),
    [
        (
            {
                "kind": "healing",
                "seat": "pod-1",
                "fleet": "spares",
                "outcome": "HeldBack",
                "why": "3 starts were bad",
                "heldBack": "nothing has started since",
            },
            "BadStartsHeldBack",
            ("Pod", "pod-1", "uid-1"),
            "3 starts were bad; not replaced: nothing has started since",
        ),
        (
            {
                "kind": "healing",
                "seat": "pod-1",
                "fleet": "spares",
                "outcome": "Replaced",
                "cause": "CrashLoop",
                "why": "container agent is in CrashLoopBackOff",
                "heldBack": "",
            },
            "CrashLoopReplaced",
            ("Pod", "pod-1", "uid-1"),
            "container agent is in CrashLoopBackOff",
        ),
        (
            {
                "kind": "promotion",
                "seat": "pod-1",
                "policy": "chat",
                "error": "",
                "decision": 1.0,
                "rotation": 1.25,
            },
            "Promoted",
            ("Pod", "pod-1", "uid-1"),
            "chat serves after 250 ms",
        ),
        (
            {
                "kind": "promotion",
                "seat": "pod-2",
                "policy": "chat",
                "error": "no room",
                "decision": 1.0,
                "rotation": 0.0,
            },
            "PromotionFailed",
            ("Pod", "pod-2", ""),
            "chat: no room",
        ),
        (
            {"kind": "demotion", "seat": "pod-1", "policy": "chat", "outcome": "Demoted"},
            "Demoted",
            ("Pod", "pod-1", "uid-1"),
            "chat is paused",
        ),
        (
            {"kind": "resize", "fleet": "spares", "from": 2, "to": 4},
            "Resized",
            ("Deployment", "spares", ""),
            "2 to 4 seats: as decided",
        ),
        (
            {"kind": "policies", "outcome": "Failed", "problem": "no such file", "faults": []},
            "PoliciesRefused",
            ("Lease", "lease", ""),
            "the last good policies stay in force: no such file",
        ),
        (
            {
                "kind": "policies",
                "outcome": "Rejected",
                "problem": "",
                "faults": [{"file": "p.yaml", "line": n, "message": "wrong"} for n in range(5)],
                "moreFaults": 2,
            },
            "PoliciesRefused",
            ("Lease", "lease", ""),
            "the last good policies stay in force: p.yaml:0: wrong; p.yaml:1: wrong; p.yaml:2: wrong; and 4 more",
        ),
    ],
)
def test_records_become_events(
    record: dict[str, Any], reason: str, subject: tuple[str, str, str], note: str
) -> None:
    (event,) = told(**record)
    assert (event.reason, event.note) == (reason, note)
    assert (event.subject.kind, event.subject.name, event.subject.uid) == subject


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "demotion", "seat": "pod-1", "policy": "chat", "outcome": "Recalled"},
        {"kind": "resize", "fleet": "spares", "from": 4, "to": 4},
        {"kind": "resize", "fleet": "gone", "from": 2, "to": 4},
        {"kind": "policies", "outcome": "Loaded"},
        {"kind": "seat", "seat": "pod-1", "value": "Spare"},
    ],
)
def test_what_says_nothing_to_people_becomes_none(record: dict[str, Any]) -> None:
    assert told(**record) == []

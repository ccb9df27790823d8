"""A server with many warm seats on one fleet, and what their agents tell: `python -m tests.fakes.kube_crowd PODS`."""

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

from tests.fakes.kube_api import KubeApi, rules, serving
from tests.fakes.kube_api.api import Target
from tests.fakes.kube_api.kinds import BY_PATH, NODE, POD
from tests.fakes.kube_api.kinds import NAMESPACE as NAMESPACES

NAMESPACE, FLEET, MOST = "pool", "spares", 10_000
POLICIES = ("chat", "code")
NODES = 50


def name(number: int) -> str:
    return f"{FLEET}-{number:05}"


def address(number: int) -> str:
    return f"10.{number // 62500}.{number // 250 % 250}.{number % 250 + 1}"


def pod(number: int) -> dict[str, Any]:
    """A pod as a GPU seat's is: some four kilobytes of JSON."""
    environment = [{"name": f"VARIABLE_{i}", "value": "x" * 40} for i in range(20)]
    container = {"name": "seat", "image": "emberpool.invalid/seat", "env": environment}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name(number),
            "namespace": NAMESPACE,
            "uid": f"uid-{number}",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "app": FLEET,
                "pod-template-hash": "abc",
                "emberpool.dev/fleet": FLEET,
                "emberpool.dev/seat": "Spare",
            },
            "annotations": {"controller.kubernetes.io/pod-deletion-cost": "0"},
        },
        "spec": {
            "nodeName": f"node-{number % NODES}",
            "terminationGracePeriodSeconds": 30,
            "readinessGates": [{"conditionType": "emberpool.dev/admitted"}],
            "containers": [container, {**container, "name": "agent"}],
        },
        "status": {
            "phase": "Running",
            "podIP": address(number),
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
                for kind in ("Ready", "emberpool.dev/admitted", "PodScheduled", "ContainersReady")
            ],
        },
    }


def report(number: int) -> dict[str, Any]:
    """What the agent of a seat tells: its residents are paused and proven."""
    residents = [
        {
            "policy": policy,
            "state": "Paused",
            "since": 1.0,
            "provenAt": 1.0,
            "address": f"http://0.0.0.0:{8001 + place}",
            "kvReleased": True,
            "phases": {"load": 1.5, "warm": 2.5, "prove": 0.5},
            "wakeSeconds": {"KvReleased": 0.1},
        }
        for place, policy in enumerate(POLICIES)
    ]
    return {
        "seat": name(number),
        "fleet": FLEET,
        "uid": f"uid-{number}",
        "agent": "http://0.0.0.0:9081",
        "pid": 1,
        "epoch": 0,
        "seq": 1,
        "at": 1.0,
        "gpus": [f"GPU-{number}"],
        "residents": residents,
    }


def reports(count: int) -> Mapping[str, Mapping[str, Any]]:
    """Agents' URLs, with what is told there."""
    return {f"http://{address(number)}:9081": report(number) for number in range(count)}


def filled(count: int) -> KubeApi:
    api = KubeApi()
    api.create(Target(kind=NAMESPACES, namespace=""), {"metadata": {"name": NAMESPACE}}, {})
    deployment = {
        "metadata": {"name": FLEET},
        "spec": {
            "replicas": count,
            "selector": {"matchLabels": {"app": FLEET}},
            "template": {"metadata": {"labels": {"app": FLEET}}, "spec": {"containers": []}},
        },
    }
    api.create(Target(kind=BY_PATH["apps", "v1", "deployments"], namespace=NAMESPACE), deployment, {})
    for number in range(NODES):
        api.create(Target(kind=NODE, namespace=""), {"metadata": {"name": f"node-{number}"}}, {})
    for number in range(count):
        api.store.put(POD, (NAMESPACE, name(number)), rules.with_defaults(POD, pod(number)))
    return api


async def main(count: int) -> None:
    async with serving(filled(count)) as url:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))

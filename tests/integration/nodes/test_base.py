"""deploy/base as it stands, on the stand-ins: controllers that lead, gateways that pass requests on, and seats that become ready.

Each account may do what its Role says and nothing else. Engines are a vLLM without a model.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from scaler.cluster.kube.resources import POD, Kind
from tests.deploy.test_base import BASE, rendered, rules
from tests.fakes.kube_api import Call, User
from tests.fakes.kube_api.kinds import KINDS
from tests.fakes.kube_calls import ENDPOINT_SLICE, SECRET, Calls
from tests.fakes.kubelet import HOST, Image, Images, NodeOptions
from tests.fakes.whole_cluster import Wanted
from tests.integration.kube.conftest import allowed
from tests.integration.nodes.conftest import World, ready, world_of
from warmpool.agent.config import ResidentConfig
from warmpool.nodehealth.preflight.command import SWITCH as PREFLIGHT

ROOT = Path(__file__).resolve().parents[3]
SERVING = "serving"
LABELS = {"fleet": "emberpool.dev/fleet", "component": "app.kubernetes.io/component"}
Body = dict[str, Any]
POLICIES = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: chat, namespace: serving}
spec: {maxSeats: 2, seat: {kvWhenPaused: Keep}}
---
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares, namespace: serving}
spec: {maxSeats: 2, seat: {kvWhenPaused: Release}, spare: {min: 2}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat, namespace: serving}
spec:
  fleets: [{name: chat, targetInFlight: 4}, {name: spares, targetInFlight: 4}]
  engine: {type: VLLM, port: 8001, proof: {source: Agreement}}
  serving: {min: 1, max: 3}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: code, namespace: serving}
spec:
  fleets: [{name: spares, targetInFlight: 4}]
  engine: {type: VLLM, port: 8002, proof: {source: Agreement}}
  serving: {min: 0, max: 2}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: draft, namespace: serving}
spec:
  fleets: [{name: spares, targetInFlight: 4}]
  engine: {type: VLLM, port: 8003, proof: {source: Agreement}}
  serving: {min: 0, max: 2}
"""
PROGRAMS = ROOT / "tests" / "fakes" / "bin"
"""With a `vllm` that has no model."""


def overlay(folder: Path) -> list[Body]:
    """Render the base with policies of one's own, as README.md says."""
    up = Path(*[".."] * len(folder.resolve().relative_to("/").parts))
    (folder / "policies.yaml").write_text(POLICIES)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": SERVING,
        "resources": [str(up / BASE.relative_to("/"))],
        "configMapGenerator": [
            {
                "name": "emberpool-policies",
                "behavior": "replace",
                "files": ["policies.yaml"],
                "options": {"disableNameSuffixHash": True},
            }
        ],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    return rendered(folder)


def may(objects: list[Body], account: str, call: Call) -> bool:
    """What the Roles of the manifests allow: their own namespace, and for a ClusterRole everything."""
    own = frozenset(rules(objects, "Role", account))
    whole = frozenset(rules(objects, "ClusterRole", account))
    discovery = call.resource.startswith("/")
    return discovery or allowed(whole, call) or (call.namespace == SERVING and allowed(own, call))


async def create_all(calls: Calls, objects: list[Body]) -> None:
    known = {(kind.api_version, kind.kind): kind for kind in KINDS}
    for body in objects:
        served = known[body["apiVersion"], body["kind"]]
        kind = Kind(
            group=served.group,
            version=served.version,
            plural=served.plural,
            name=served.kind,
            namespaced=served.namespaced,
        )
        await calls.create(kind, body["metadata"].get("namespace", ""), body)


@pytest.fixture
async def base(tmp_path: Path) -> AsyncIterator[World]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl renders the base")
    folder = tmp_path / "overlay"
    folder.mkdir()
    objects = await asyncio.to_thread(overlay, folder)
    accounts = ("emberpool-controller", "emberpool-gateway")
    wanted = Wanted(
        nodes=[NodeOptions(name="gpu-0", gpus=4, cpu="64")],
        namespace=SERVING,
        images=Images({**Images().known, "engine": engine_image()}),
        claims={"models": tmp_path},
        accounts={name: User(name=name, may=partial(may, objects, name)) for name in accounts},
    )
    async with world_of(tmp_path, wanted) as world:
        tokens = {"agent": "agents-own", "signal": "gateways-own"}
        secret = {"metadata": {"name": "emberpool-tokens"}, "stringData": tokens}
        await world.calls.create(SECRET, SERVING, secret)
        await create_all(world.calls, objects)
        yield world


def engine_image() -> Image:
    """An image with a program `vllm`."""
    own = {
        "PATH": f"{PROGRAMS}:{HOST.environment['PATH']}",
        PREFLIGHT: "Off",
    }  # a stand-in's GPU has no driver
    return Image(environment={**HOST.environment, **own})


async def of(world: World, **labels: str) -> list[Body]:
    selector = ",".join(f"{LABELS[key]}={value}" for key, value in labels.items())
    return await world.calls.list(POD, SERVING, labelSelector=selector)


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_the_base_comes_up_and_answers_requests(base: World) -> None:
    async def all_ready() -> bool:
        pods = await base.calls.list(POD, SERVING)
        fleets = [pod["metadata"]["labels"].get("emberpool.dev/fleet") for pod in pods]
        wanted = fleets.count("chat") == 1 and fleets.count("spares") == 2 and fleets.count(None) == 4
        return wanted and all(map(ready, pods))

    await base.until("controllers, gateways and seats", all_ready, seconds=300)
    (chat,) = await of(base, fleet="chat")
    assert chat["metadata"]["labels"]["serving.emberpool.dev/chat"] == "true"

    async def all_spare() -> bool:
        spares = await of(base, fleet="spares")
        return {pod["metadata"]["labels"]["emberpool.dev/seat"] for pod in spares} == {"Spare"}

    await base.until("spare seats", all_spare)
    slices = await base.calls.list(ENDPOINT_SLICE, SERVING, labelSelector="kubernetes.io/service-name=chat")
    (endpoint,) = (each for one in slices for each in one["endpoints"])
    assert endpoint["addresses"] == [chat["status"]["podIP"]]
    if "port" not in ResidentConfig.model_fields:
        pytest.skip(
            "agents choose residents' ports themselves as yet; gateways and Services aim at the policies'"
        )
    gateways = await of(base, component="gateway")
    for gateway in gateways:
        for policy in ("chat", "code"):
            assert await asked(gateway["status"]["podIP"], policy) == 200


async def asked(address: str, policy: str) -> int:
    body = {"model": policy, "prompt": "one fish", "max_tokens": 4}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{address}:8000/v1/completions", json=body) as response,
    ):
        await response.read()
        return response.status

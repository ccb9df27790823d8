"""The variant of deploy/base with a container for each resident: read as its agent does, and run on the stand-in of a node."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from ruamel.yaml import YAML

from scaler.cli.app import main
from scaler.cluster.kube.resources import DEPLOYMENT, POD
from tests.deploy.test_base import BASE, CLAIMS, POLICIES, containers, of, one, rendered, seat
from tests.fakes.kube_calls import SECRET
from tests.fakes.kubelet import Images, NodeOptions
from tests.fakes.kubelet.devices import Devices, devices_wanted
from tests.fakes.kubelet.environment import Unmakeable
from tests.fakes.whole_cluster import Wanted
from tests.fakes.workloads import AGENT_PORT, TOKEN
from tests.integration.nodes.conftest import World, agent_state, is_running, world_of
from tests.integration.nodes.test_base import SERVING, create_all, engine_image
from warmpool.agent.config import AgentConfig, load_config

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl renders the base")
RESIDENTS = ("chat", "code", "draft")
Body = dict[str, Any]


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> list[Body]:
    folder = tmp_path_factory.mktemp("variant")
    base = Path(*[".."] * len(folder.relative_to("/").parts)) / BASE.relative_to("/")
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": SERVING,
        "resources": [str(base / "fleets" / "three-residents")],
        "components": [str(base / CLAIMS)],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    return rendered(folder)


@pytest.fixture
def config(variant: list[Body], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AgentConfig:
    template = seat(variant, "spares")
    (name,) = (each["configMap"]["name"] for each in template["spec"]["volumes"] if each["name"] == "config")
    (tmp_path / "agent.json").write_text(one(variant, "ConfigMap", name)["data"]["agent.json"])
    lines = [f"{key}={json.dumps(value)}" for key, value in template["metadata"]["annotations"].items()]
    (tmp_path / "annotations").write_text("\n".join(lines))
    monkeypatch.setenv("EMBERPOOL_SEAT", "seat-0")
    monkeypatch.setenv("EMBERPOOL_POD_UID", "uid-0")
    return load_config(tmp_path / "agent.json", tmp_path / "annotations")


def launcher_of(container: Body) -> tuple[list[str], list[str]]:
    """What a container runs: the launcher's options, and what is behind them."""
    words = [*container["command"], *container["args"]]
    place = words.index("--")
    return words[:place], words[place + 1 :]


def test_each_residents_launcher_listens_where_the_agent_expects_it_and_its_engine_is_told_its_port(
    variant: list[Body], config: AgentConfig
) -> None:
    by_name = {each["name"]: each for each in seat(variant, "spares")["spec"]["containers"]}
    assert [each.policy for each in config.residents] == list(RESIDENTS)
    for each in config.residents:
        options, command = launcher_of(by_name[each.container])
        assert options[options.index("--socket") + 1] == str(config.socket_of(each))
        assert each.command == ()
        assert all(any(placeholder in word for word in command) for placeholder in each.placeholders)


def test_lint_finds_nothing_wrong_with_what_its_containers_run(
    variant: list[Body], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "spares.yaml"
    with manifest.open("w") as file:
        YAML().dump(one(variant, "Deployment", "spares"), file)
    assert main(["policy", "lint", "--strict", str(POLICIES), "--template", str(manifest)]) == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().out


def test_containers_share_no_folder_but_the_launchers_file_and_the_models(variant: list[Body]) -> None:
    """Who reached another's socket could speak to its launcher as an agent does."""
    spec = seat(variant, "spares")["spec"]
    mounted = [
        (mount["name"], mount.get("subPath", ""), mount.get("readOnly", False))
        for each in spec["containers"]
        for mount in each["volumeMounts"]
    ]
    shared = {each[0] for each in mounted if mounted.count(each) > 1}
    assert shared == {"launcher", "models"}
    assert all(read_only for name, _, read_only in mounted if name in shared)
    images = [each["image"] for each in spec["containers"]]
    assert len(set(images)) == len(images)


def test_a_pod_has_time_for_each_of_its_launchers_and_no_probe(variant: list[Body]) -> None:
    template = seat(variant, "spares")
    for each in template["spec"]["containers"]:
        options, _ = launcher_of(each)
        seconds = [int(options[options.index(f"--{kind}-seconds") + 1]) for kind in ("drain", "grace")]
        assert template["spec"]["terminationGracePeriodSeconds"] > sum(seconds)
    probes = {"readinessProbe", "livenessProbe", "startupProbe"}
    assert not any(probes & each.keys() for each in containers(template))


def test_containers_that_name_one_claim_have_the_same_gpu_and_no_other_pod_has_it(
    variant: list[Body],
) -> None:
    (template,) = of(variant, "ResourceClaimTemplate")
    wanted = {"gpus": devices_wanted(template)}
    spec = seat(variant, "spares")["spec"]
    first, second, third = ({"metadata": {"uid": f"uid-{number}"}, "spec": spec} for number in range(3))
    devices = Devices(["GPU-0", "GPU-1"])
    given = devices.take(first, wanted)
    assert {given[name] for name in RESIDENTS} == {("GPU-0",)}
    assert given["agent"] == ()
    assert set(devices.take(second, wanted).values()) == {("GPU-1",), ()}
    with pytest.raises(Unmakeable):
        devices.take(third, wanted)
    devices.give_back("uid-0")
    assert devices.take(third, wanted) == given


# -------------------------------------------------------------------- on the stand-in of a node


@pytest.fixture
async def world(variant: list[Body], tmp_path: Path) -> AsyncIterator[World]:
    engine = engine_image()
    wanted = Wanted(
        nodes=[NodeOptions(name="gpu-0", gpus=1, cpu="64")],
        namespace=SERVING,
        images=Images({**Images().known, **{f"engine-{each}": engine for each in RESIDENTS}}),
        claims={"models": tmp_path},
    )
    async with world_of(tmp_path, wanted) as made:
        secret = {"metadata": {"name": "emberpool-tokens"}, "stringData": {"agent": TOKEN, "signal": "s"}}
        await made.calls.create(SECRET, SERVING, secret)
        classes = YAML(typ="safe").load_all((BASE / "system" / "priority.yaml").read_text())
        await create_all(made.calls, [*classes, *variant])
        yield made


class Agent:
    """A caller of one pod's agent."""

    def __init__(self, pod: Body, session: aiohttp.ClientSession) -> None:
        self._base = f"http://{pod['status']['podIP']}:{AGENT_PORT}"
        self._session = session

    async def call(self, method: str, path: str, body: Body | None = None) -> Body:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with self._session.request(
            method, f"{self._base}{path}", json=body, headers=headers
        ) as response:
            answer: Body = await response.json()
            assert response.status == 200, answer
            return answer

    async def order(self, kind: str, policy: str) -> None:
        order = {"policy": policy, "claim": f"{kind}-{policy}", "epoch": 1, "deadlineSeconds": 20}
        await self.call("POST", f"/v1/{kind}", order)

    async def bear_witness(self, policy: str) -> None:
        """Agree with what a resident answers: the model is known to nobody beforehand."""
        statement = (await self.call("GET", f"/v1/proof/{policy}"))["statement"]
        if statement is not None:
            told = {key: statement[key] for key in ("ownership", "answers")}
            body = {**told, "epoch": 1, "witnesses": [statement["uid"], "another"]}
            await self.call("PUT", f"/v1/proof/{policy}", body)


def residents_of(state: Body | None) -> dict[str, Body]:
    return {each["policy"]: each for each in (state or {}).get("residents", ())}


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_the_variant_runs_and_a_container_that_is_killed_comes_back_alone(world: World) -> None:
    async def running_pod() -> Body | None:
        pods = await world.calls.list(POD, SERVING)
        return pods[0] if len(pods) == 1 and is_running(pods[0]) else None

    pod = await world.until("a running pod", running_pod, seconds=120)

    async with aiohttp.ClientSession() as session:
        agent = Agent(pod, session)

        async def all_in(*wanted: str) -> dict[str, Body] | None:
            found = residents_of(await agent_state(pod))
            for policy, resident in found.items():
                if "NeedsWitness" in resident["waiting"]:
                    await agent.bear_witness(policy)
            return found if tuple(each["state"] for each in found.values()) == wanted else None

        paused = ("Paused",) * 3
        before = await world.until("paused residents", lambda: all_in(*paused), seconds=240)
        parents = {policy: _launcher_above(each["pid"]) for policy, each in before.items()}
        assert len(set(parents.values())) == 3
        for policy, launcher in parents.items():
            assert f"/{policy}/launcher.sock" in " ".join(psutil.Process(launcher).cmdline())
            assert psutil.Process(launcher).environ()["NVIDIA_VISIBLE_DEVICES"] == "GPU-gpu-0-0"
        await agent.order("resume", "code")
        os.kill(parents["chat"], signal.SIGKILL)  # as the kernel does, for lack of memory in its container
        await world.until("a failed neighbour", lambda: all_in("Failed", "Serving", "Paused"))
        assert await _asked(session, pod, 8002, "code") == 200
        await agent.order("drain", "code")
        await agent.order("pause", "code")
        after = await world.until("everybody paused again", lambda: all_in(*paused), seconds=120)
        assert [after[each]["restarts"] for each in RESIDENTS] == [1, 0, 0]
        assert [after[each]["pid"] == before[each]["pid"] for each in RESIDENTS] == [False, True, True]
        name = pod["metadata"]["name"]
        told = (await world.calls.get(POD, SERVING, name))["status"]["containerStatuses"]
        assert {each["name"]: each["restartCount"] for each in told} == {"chat": 1, "code": 0, "draft": 0}

        await world.calls.merge(DEPLOYMENT, SERVING, "spares", {"spec": {"replicas": 0}})
        await world.until("an end in order", lambda: _gone(world, name), seconds=60)
    folder = world.logs / f"{SERVING}_{name}_{pod['metadata']['uid']}"
    for each in RESIDENTS:
        last = max((folder / each).iterdir())
        assert "draining, for 300 s at most" in await asyncio.to_thread(last.read_text)


def _launcher_above(pid: int) -> int:
    """The launcher: the parent of an engine's keeper."""
    launcher: int = psutil.Process(pid).parents()[1].pid
    return launcher


async def _gone(world: World, name: str) -> bool:
    return await world.calls.find(POD, SERVING, name) is None


async def _asked(session: aiohttp.ClientSession, pod: Body, port: int, model: str) -> int:
    body = {"model": model, "prompt": "one fish", "max_tokens": 4}
    url = f"http://{pod['status']['podIP']}:{port}/v1/completions"
    async with session.post(url, json=body) as response:
        await response.read()
        return response.status

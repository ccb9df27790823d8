"""Fleets as manifests that the stand-ins of nodes can run: the form of deploy/base, with engines that need no GPU.

A seat is a pod with one container for all engines, the launcher as its process 1, and the agent as a native sidecar. Engines are the
scripted one, which computes nothing, or the reference engine with a tiny model.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaler.cluster.kube.resources import CONFIG_MAP, DEPLOYMENT, Kind
from tests.fakes.kube_calls import SECRET, SERVICE, Calls
from tests.fakes.scripted_engine import expected_tokens
from warmpool.seats import FLEET_LABEL, SERVING_LABEL_PREFIX

TOKEN = "secret"
AGENT_PORT = 9081
GATE = "emberpool.dev/admitted"
_ROOT = Path(__file__).resolve().parents[2]
_PROMPTS = ("one fish", "two fish", "red fish", "blue fish", "black fish")
Body = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SeatResident:
    """One engine of a seat.

    Attributes:
        policy: whose.
        port: at which its guard is to be reached, as the policy says.
        config: what the agent's configuration says of it.
    """

    policy: str
    port: int
    config: Mapping[str, Any]


def scripted(
    policy: str, port: int, *, seed: int = 1, script: Mapping[str, Any] | None = None
) -> SeatResident:
    """Make a resident that computes nothing and answers with tokens of its seed."""
    command = [sys.executable, str(_ROOT / "tests/fakes/scripted_engine.py"), "--model", policy]
    command += ["--host", "{host}", "--port", "{port}", "--control-port", "{controlPort}"]
    command += ["--seed", str(seed), "--script", json.dumps(script or {})]
    proof = {"prompts": [{"prompt": p, "tokens": expected_tokens(seed, p, 3)} for p in _PROMPTS]}
    config = {
        "policy": policy,
        "model": policy,
        "type": "Reference",
        "command": command,
        "proof": proof,
        "warmup": {"prompts": ["warm"], "maxTokens": 2},
        "memoryMiB": 64,
    }
    return SeatResident(policy=policy, port=port, config=config)


def reference(
    policy: str, port: int, checkpoint: Path, proof: Mapping[str, Any], *options: str
) -> SeatResident:
    """Make a resident of the reference engine on the CPU; `python -m warmpool.reference expect` prints its proof."""
    command = [sys.executable, "-m", "warmpool.reference", "serve", "--model", policy]
    command += ["--checkpoint", str(checkpoint), "--host", "{host}", "--port", "{port}"]
    command += ["--control-host", "127.0.0.1", "--control-port", "{controlPort}"]
    command += ["--guard", "closed", "--threads", "1", *options]
    config = {
        "policy": policy,
        "model": policy,
        "type": "Reference",
        "command": command,
        "proof": dict(proof),
        "warmup": {"prompts": ["fish"], "maxTokens": 2},
    }
    return SeatResident(policy=policy, port=port, config=config)


@dataclass(frozen=True, kw_only=True)
class SeatFleet:
    """A fleet and its pods.

    Attributes:
        name: the fleet's and its Deployment's.
        residents: of every seat, in the order in which they start.
        namespace: where.
        replicas: how many seats there are at first.
        gpus: GPUs of a seat.
        grace, drain: seconds that a pod has to end, and that the launcher gives the agent of them.
        template: what is to be laid over the pod's spec.
        settings: what is to be laid over the agent's configuration.
    """

    name: str
    residents: Sequence[SeatResident]
    namespace: str = "default"
    replicas: int = 1
    gpus: int = 1
    grace: int = 20
    drain: float = 10.0
    template: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def objects(self) -> list[tuple[Kind, Body]]:
        """Return everything that the fleet needs, in the order in which it is created."""
        return [
            (SECRET, {"metadata": {"name": self._tokens}, "stringData": {"agent": TOKEN}}),
            (
                CONFIG_MAP,
                {
                    "metadata": {"name": self._config},
                    "data": {"agent.json": json.dumps(self.agent(), indent=1)},
                },
            ),
            *((SERVICE, self.service(each)) for each in self.residents),
            (DEPLOYMENT, self.deployment()),
        ]

    async def create(self, calls: Calls) -> None:
        for kind, body in self.objects():
            await calls.create(kind, self.namespace, body)

    @property
    def _tokens(self) -> str:
        return f"{self.name}-tokens"

    @property
    def _config(self) -> str:
        return f"{self.name}-agent"

    def agent(self) -> Body:
        """The agent's configuration, which all seats share."""
        return {
            "fleet": self.name,
            "host": "0.0.0.0",
            "port": AGENT_PORT,
            "launcher": "/run/emberpool/launcher.sock",
            "residents": [dict(each.config) for each in self.residents],
            **self.settings,
        }

    def service(self, resident: SeatResident) -> Body:
        """The model's Service: the resident's port on the pods where it serves."""
        selector = {f"{SERVING_LABEL_PREFIX}{resident.policy}": "true", FLEET_LABEL: self.name}
        port = {"name": "http", "port": 80, "targetPort": resident.port}
        name = f"{self.name}-{resident.policy}"
        return {"metadata": {"name": name}, "spec": {"selector": selector, "ports": [port]}}

    def deployment(self) -> Body:
        rolling = {"maxSurge": 1, "maxUnavailable": 0}
        return {
            "metadata": {"name": self.name, "labels": {"app": self.name}},
            "spec": {
                "replicas": self.replicas,
                "selector": {"matchLabels": {"app": self.name}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
                "template": self.pod(),
            },
        }

    def pod(self) -> Body:
        """The pod template."""
        listed = [
            {"policy": each.policy, "command": list(each.config["command"]), "port": each.port}
            for each in self.residents
        ]
        labels = {"app": self.name, FLEET_LABEL: self.name}
        annotations = {"emberpool.dev/residents": json.dumps(listed)}
        return {
            "metadata": {"labels": labels, "annotations": annotations},
            "spec": {
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": self.grace,
                "readinessGates": [{"conditionType": GATE}],
                "initContainers": [self._launcher_file(), self._agent()],
                "containers": [self._engines()],
                "volumes": [
                    {"name": "run", "emptyDir": {}},
                    {"name": "launcher", "emptyDir": {}},
                    {"name": "config", "configMap": {"name": self._config}},
                    {"name": "pod", "downwardAPI": {"items": [_ANNOTATIONS]}},
                ],
                **self.template,
            },
        }

    @staticmethod
    def _launcher_file() -> Body:
        """Brings the launcher along, of the agent's own version."""
        copy = "import shutil, warmpool.launcher as it; shutil.copy(it.__file__, '/launcher/launcher.py')"
        return {
            "name": "launcher-file",
            "image": "emberpool",
            "command": ["python3", "-c", copy],
            "volumeMounts": [{"name": "launcher", "mountPath": "/launcher"}],
        }

    def _agent(self) -> Body:
        arguments = [
            "agent",
            "--config",
            "/etc/emberpool/agent.json",
            "--annotations",
            "/etc/pod/annotations",
        ]
        return {
            "name": "agent",
            "image": "emberpool",
            "restartPolicy": "Always",
            "args": arguments,
            "ports": [{"name": "agent", "containerPort": AGENT_PORT}],
            "env": [
                _from_field("EMBERPOOL_SEAT", "metadata.name"),
                _from_field("EMBERPOOL_POD_UID", "metadata.uid"),
                {
                    "name": "EMBERPOOL_AGENT_TOKEN",
                    "valueFrom": {"secretKeyRef": {"name": self._tokens, "key": "agent"}},
                },
            ],
            "volumeMounts": [
                {"name": "run", "mountPath": "/run/emberpool"},
                {"name": "config", "mountPath": "/etc/emberpool"},
                {"name": "pod", "mountPath": "/etc/pod"},
            ],
        }

    def _engines(self) -> Body:
        words = ["python3", "/opt/launcher/launcher.py", "--socket", "/run/emberpool/launcher.sock"]
        limits = {"nvidia.com/gpu": self.gpus} if self.gpus else {}
        return {
            "name": "engines",
            "image": "engine",
            "command": [*words, "--drain-seconds", f"{self.drain:g}", "--grace-seconds", "3"],
            "resources": {"limits": limits},
            "env": [{"name": "PYTHONPATH", "value": str(_ROOT)}],
            "volumeMounts": [
                {"name": "run", "mountPath": "/run/emberpool"},
                {"name": "launcher", "mountPath": "/opt/launcher"},
            ],
        }


_ANNOTATIONS: Body = {"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}


def _from_field(name: str, path: str) -> Body:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}

"""The manifests that are shipped, in a cluster: the doctor finds nothing wrong with them, and what they grant is what it asks for."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from scaler.cli.app import main
from tests.fakes.kube_api import Call, User
from tests.fakes.kube_api.kinds import KINDS
from tests.integration.cli.cluster import FakeCluster, cluster, written
from tests.integration.cli.fake_controller import FakeController, serving
from tests.unit.scaler.doctor.cluster import node

DEPLOY = Path(__file__).parents[3] / "deploy"
KUBECTL = shutil.which("kubectl")
ACCOUNT = "emberpool-controller"


def manifests() -> list[dict[str, Any]]:
    assert KUBECTL is not None
    built = subprocess.run(
        [KUBECTL, "kustomize", str(DEPLOY / "overlays" / "serving")],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return list(YAML(typ="safe").load_all(built.stdout))


def granted(objects: list[dict[str, Any]]) -> Callable[[Call], bool]:
    """Return what the roles of the controller's account allow."""
    rules = [
        rule
        for each in objects
        if each["kind"] in {"Role", "ClusterRole"} and each["metadata"]["name"] == ACCOUNT
        for rule in each["rules"]
    ]

    def may(call: Call) -> bool:
        resource = f"{call.resource}/{call.subresource}" if call.subresource else call.resource
        return any(
            call.group in rule["apiGroups"] and resource in rule["resources"] and call.verb in rule["verbs"]
            for rule in rules
        )

    return may


def fill(there: FakeCluster, objects: list[dict[str, Any]]) -> None:
    known = {kind.kind for kind in KINDS} - {"Namespace"}
    for each in objects:
        if each["kind"] in known:
            there.create(each["kind"], each, each["metadata"].get("namespace", ""))
    there.create("Node", node(gpus=16))


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
def test_nothing_is_wrong_with_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = manifests()
    account = User(name=f"system:serviceaccount:serving:{ACCOUNT}", may=granted(objects))
    users = {"admin": User(name="admin"), "controller": account}
    with serving(FakeController()) as controller, cluster(users, controller) as there:
        fill(there, objects)
        controller.say("/v1/seats", {"items": []})
        policies = DEPLOY / "base" / "policies" / "policies.yaml"
        config = written(tmp_path / "config", there)
        code = main(["doctor", "--policy", str(policies), "--kubeconfig", config])
    out = capsys.readouterr().out
    assert (code, out) == (0, "2 fleets with 0 seats in all namespaces: 0 errors, 0 warnings, 0 notes\n")

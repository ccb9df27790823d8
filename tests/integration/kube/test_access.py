"""Reaching a server: kubeconfig contexts, plug-ins, service accounts whose token is replaced, TLS."""

import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from scaler.cluster.kube.access import (
    Access,
    AccessOptions,
    KubeconfigCredentials,
    TokenFile,
    find_access,
    in_cluster,
)
from scaler.cluster.kube.client import KubeClient, Request
from scaler.cluster.kube.errors import Forbidden, Rejected
from scaler.errors import Unreachable, UserError
from tests.fakes.kube_api import KubeApi, User, kubeconfig, serving
from tests.integration.kube.conftest import written

PODS = Request(path="/api/v1/pods")


@pytest.fixture(autouse=True)
def _own_server(api: KubeApi) -> None:
    """These tests are about our side; a real server adds nothing."""


async def lists(access: Access) -> Any:
    async with KubeClient(access) as client:
        return await client.call(PODS, seconds=5)


async def test_the_current_context_is_used_unless_another_is_named(api: KubeApi, tmp_path: Path) -> None:
    async with serving(api) as url:
        config = kubeconfig(url, namespace="team-a")
        config["contexts"].append(
            {"name": "other", "context": {"cluster": "fake", "user": "nobody", "namespace": "team-b"}}
        )
        config["users"].append({"name": "nobody", "user": {"token": "wrong"}})
        path = written(tmp_path / "config", config)
        current = await find_access(AccessOptions(), {"KUBECONFIG": path})
        assert current.namespace == "team-a"
        assert (await lists(current))["kind"] == "PodList"
        other = await find_access(AccessOptions(context="other"), {"KUBECONFIG": path})
        assert other.namespace == "team-b"
        with pytest.raises(Forbidden):
            await lists(other)
        named = await find_access(AccessOptions(kubeconfig=path, namespace="team-c"), {})
        assert named.namespace == "team-c"


async def test_a_kubeconfig_that_is_not_there_is_the_users_to_mend(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such kubeconfig"):
        await find_access(AccessOptions(kubeconfig=str(tmp_path / "none")), {})


@pytest.mark.parametrize("content", ["", "[1]", "clusters: 5", "current-context: none", "{"])
async def test_a_kubeconfig_that_is_none_is_the_users_to_mend(tmp_path: Path, content: str) -> None:
    (tmp_path / "config").write_text(content)
    with pytest.raises(UserError):
        await find_access(AccessOptions(kubeconfig=str(tmp_path / "config")), {})


async def test_a_context_that_is_not_there_is_the_users_to_mend(tmp_path: Path) -> None:
    path = written(tmp_path / "config", kubeconfig("http://127.0.0.1:1"))
    with pytest.raises(UserError, match="elsewhere"):
        await find_access(AccessOptions(kubeconfig=path, context="elsewhere"), {})


def plug_in(token: Path, url: str) -> dict[str, Any]:
    """A kubeconfig whose user's token comes from a program that reads it from a file."""
    script = (
        "import json, pathlib; print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', "
        f"'kind': 'ExecCredential', 'status': {{'token': pathlib.Path({str(token)!r}).read_text()}}}}))"
    )
    config = kubeconfig(url)
    program = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", script],
    }
    config["users"] = [{"name": "fake", "user": {"exec": {**program, "interactiveMode": "Never"}}}]
    return config


async def test_a_plug_ins_token_is_asked_for_anew_when_the_server_refuses_it(
    api: KubeApi, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    api.users = {"first": User(name="first")}
    async with serving(api) as url:
        path = written(tmp_path / "config", plug_in(token, url))
        async with KubeClient(await find_access(AccessOptions(kubeconfig=path), {})) as client:
            await client.call(PODS, seconds=10)
            token.write_text("second")
            api.users = {"second": User(name="second")}
            await client.call(PODS, seconds=10)


async def test_a_plug_in_that_fails_when_it_is_needed_is_a_refusal(api: KubeApi, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    async with serving(api) as url:
        path = written(tmp_path / "config", plug_in(token, url))
        async with KubeClient(await find_access(AccessOptions(kubeconfig=path), {})) as client:
            token.unlink()
            with pytest.raises(Forbidden, match="no others"):
                await client.call(PODS, seconds=10)


async def test_a_plug_in_that_fails_meanwhile_leaves_its_last_token_in_use(tmp_path: Path) -> None:
    now, token = [0.0], tmp_path / "token"
    token.write_text("first")
    path = written(tmp_path / "config", plug_in(token, "http://127.0.0.1:1"))
    credentials = KubeconfigCredentials(path, None, lambda: now[0])
    await credentials.load()
    token.write_text("second")
    now[0] = 60.0
    assert await credentials.authorization() == "Bearer second"
    token.unlink()
    now[0] = 120.0
    assert await credentials.authorization() == "Bearer second"


def service_account(directory: Path, authority: str) -> Mapping[str, str]:
    (directory / "token").write_text("first\n")
    (directory / "namespace").write_text("team-a")
    shutil.copy(authority, directory / "ca.crt")
    return {"KUBERNETES_SERVICE_HOST": "127.0.0.1"}


IN_A_POD = """
import sys
from pathlib import Path
sys.modules["kubernetes_asyncio"] = None
from scaler.cluster.kube.access import AccessOptions, in_cluster
from scaler.cluster.kube.client import KubeClient
environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
print(KubeClient(in_cluster(AccessOptions(), environ, Path(sys.argv[1]))))
"""


def test_a_pod_with_a_service_account_goes_without_the_library_for_kubeconfigs(
    tmp_path: Path, certificate: tuple[str, str]
) -> None:
    service_account(tmp_path, certificate[0])
    done = subprocess.run(
        [sys.executable, "-c", IN_A_POD, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@asynccontextmanager
async def encrypted(api: KubeApi, certificate: tuple[str, str]) -> AsyncIterator[str]:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*certificate)
    async with serving(api, tls=tls) as url:
        yield url


async def test_a_service_accounts_token_is_read_again_when_it_is_refused(
    api: KubeApi, tmp_path: Path, certificate: tuple[str, str]
) -> None:
    api.users = {"first": User(name="first")}
    environ = service_account(tmp_path, certificate[0])
    async with encrypted(api, certificate) as url:
        port = {"KUBERNETES_SERVICE_PORT": url.rpartition(":")[2]}
        access = in_cluster(AccessOptions(), {**environ, **port}, tmp_path)
        assert access.namespace == "team-a"
        async with KubeClient(access) as client:
            await client.call(PODS, seconds=5)
            (tmp_path / "token").write_text("second\n")
            api.users = {"second": User(name="second")}
            await client.call(PODS, seconds=5)


async def test_a_token_file_is_read_again_each_minute(tmp_path: Path) -> None:
    now, path = [0.0], tmp_path / "token"
    path.write_text("first\n")
    token = TokenFile(path, lambda: now[0])
    path.write_text("second\n")
    assert await token.authorization() == "Bearer first"
    now[0] = 60.0
    assert await token.authorization() == "Bearer second"
    path.unlink()
    now[0] = 120.0
    assert await token.authorization() == "Bearer second"


async def test_a_pod_without_a_service_account_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no service account"):
        in_cluster(AccessOptions(), {}, tmp_path)


async def test_a_server_of_another_authority_is_not_believed(
    api: KubeApi, tmp_path: Path, certificate: tuple[str, str]
) -> None:
    async with encrypted(api, certificate) as url:
        known = written(tmp_path / "known", kubeconfig(url, authority=certificate[0]))
        assert (await lists(await find_access(AccessOptions(kubeconfig=known), {})))["kind"] == "PodList"
        unknown = written(tmp_path / "unknown", kubeconfig(url))
        with pytest.raises(Unreachable, match="certificate"):
            await lists(await find_access(AccessOptions(kubeconfig=unknown), {}))


async def test_an_address_without_a_server_is_unreachable(tmp_path: Path) -> None:
    path = written(tmp_path / "config", kubeconfig("http://127.0.0.1:1"))
    with pytest.raises(Unreachable):
        await lists(await find_access(AccessOptions(kubeconfig=path), {}))


async def test_a_server_that_does_not_answer_is_unreachable_after_the_deadline(
    api: KubeApi, tmp_path: Path
) -> None:
    api.faults.delay(30, lambda _: True)
    async with serving(api) as url:
        path = written(tmp_path / "config", kubeconfig(url))
        async with KubeClient(await find_access(AccessOptions(kubeconfig=path), {})) as client:
            with pytest.raises(Unreachable, match="no answer within"):
                await client.call(PODS, seconds=0.1)


async def test_a_server_below_a_path_is_asked_there(api: KubeApi, tmp_path: Path) -> None:
    async with serving(api) as url:
        path = written(tmp_path / "config", kubeconfig(f"{url}/k8s/clusters/c-1/"))
        with pytest.raises(Rejected, match="doesn't serve"):
            await lists(await find_access(AccessOptions(kubeconfig=path), {}))
    assert api.calls[-1].resource == "/k8s/clusters/c-1/api/v1/pods"

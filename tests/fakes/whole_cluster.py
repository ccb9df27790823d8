"""A cluster on this machine in one piece: API server, controllers, Services, and nodes that run pods as processes."""

import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.control_plane import controlling, everything
from tests.fakes.control_plane.loops import Caches
from tests.fakes.kube_api import KubeApi, User, kubeconfig, serving
from tests.fakes.kube_calls import NAMESPACE, Calls, calling
from tests.fakes.kubelet import (
    Images,
    Network,
    NodeOptions,
    Nodes,
    Pace,
    Setting,
    loopback,
    proxying,
    running,
)

QUICK = Pace(backoff=0.2, longest=1.0, retry=0.2, heartbeat=0.2, refresh=1.0)
"""As a kubelet, with the pauses of a test."""
_ADMIN = "admin"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What it is to be like.

    Attributes:
        nodes: the nodes.
        namespace: one that is there, beside those of the system.
        images: what containers' images stand for.
        claims: folders that stand for PersistentVolumeClaims.
        accounts: service account → what it may do. Pods of others may do everything.
        pace: how long nodes let things take.
        node_grace: seconds without a heartbeat after which a node counts as unreachable.
        network: gives pods their addresses.
    """

    nodes: Sequence[NodeOptions]
    namespace: str = "default"
    images: Images = field(default_factory=Images)
    claims: Mapping[str, Path] = field(default_factory=dict)
    accounts: Mapping[str, User] = field(default_factory=dict)
    pace: Pace = QUICK
    node_grace: float = 50.0
    network: Callable[[], contextlib.AbstractAsyncContextManager[Network]] = loopback


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The cluster while it is there.

    Attributes:
        api: the server, to make it misbehave.
        calls: calls of an administrator.
        nodes: the nodes, to lose them.
        caches: what the controllers read.
        kubeconfig: the administrator's.
        logs: where containers' logs are: `NAMESPACE_POD_UID/CONTAINER/RESTARTS.log`.
    """

    api: KubeApi
    calls: Calls
    nodes: Nodes
    caches: Caches
    kubeconfig: Path
    logs: Path


@contextlib.asynccontextmanager
async def whole_cluster(directory: Path, wanted: Wanted) -> AsyncIterator[Cluster]:
    """Run a cluster until the context is left; its kubeconfigs and logs are in a directory."""
    api = KubeApi({_ADMIN: User(name=_ADMIN), "": User(name=_ADMIN), **wanted.accounts})
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(api))
        configs = {name: directory / f"{name}.kubeconfig" for name in (_ADMIN, *wanted.accounts)}
        for name, path in configs.items():
            path.write_text(json.dumps(kubeconfig(url, name, wanted.namespace)))
        calls = await stack.enter_async_context(calling(str(configs[_ADMIN])))
        await calls.create(NAMESPACE, "", {"metadata": {"name": wanted.namespace}})
        setting = Setting(
            calls=calls,
            network=await stack.enter_async_context(wanted.network()),
            root=Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pods-"))),
            logs=directory / "logs",
            images=wanted.images,
            pace=wanted.pace,
            claims=wanted.claims,
            kubeconfig=configs[_ADMIN],
            accounts={name: configs[name] for name in wanted.accounts},
        )
        nodes = await stack.enter_async_context(running(wanted.nodes, setting))
        controllers = everything(wanted.node_grace)
        caches = await stack.enter_async_context(controlling(calls, controllers))
        await stack.enter_async_context(proxying(calls, setting.network))
        yield Cluster(
            api=api,
            calls=calls,
            nodes=nodes,
            caches=caches,
            kubeconfig=configs[_ADMIN],
            logs=setting.logs,
        )

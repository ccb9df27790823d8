"""Where the drill's pods run: a cluster of stand-ins on this machine, or nodes of stand-ins under somebody's own control plane."""

import contextlib
import tempfile
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scaler.cluster.kube.resources import LEASE, NODE
from scaler.errors import NotFound
from tests.fakes.kube_api import User
from tests.fakes.kube_calls import NAMESPACE, Calls, calling
from tests.fakes.kubelet import Network, NodeOptions, Setting, loopback, namespaces, running
from tests.fakes.kubelet.nodes import LEASES
from tests.fakes.whole_cluster import Wanted, whole_cluster
from tests.integration.kube.conftest import allowed, documented_role

OWNER = "emberpool.dev/drill"
"""Label and taint of the drill's nodes: no other pods come there, and the drill's come nowhere else."""
_GPUS = 8
_GATEWAY_ROLE = frozenset({("pods", verb) for verb in ("get", "list", "watch")})


@dataclass(frozen=True, kw_only=True)
class Ground:
    """The cluster while it is there.

    Attributes:
        calls: calls of an administrator.
        namespace: the drill's own.
        nodes: names of its nodes.
        network: gives pods their addresses, and others.
        controller, gateway: kubeconfigs of these two.
        logs: folder of containers' logs.
    """

    calls: Calls
    namespace: str
    nodes: Sequence[str]
    network: Network
    controller: Path
    gateway: Path
    logs: Path


def _nodes(owner: str) -> list[NodeOptions]:
    taint = {"key": OWNER, "value": owner, "effect": "NoSchedule"}
    return [
        NodeOptions(name=f"{owner}-{number}", gpus=_GPUS, labels={OWNER: owner}, taints=[taint], cpu="64")
        for number in range(2)
    ]


@contextlib.asynccontextmanager
async def stand_in(directory: Path) -> AsyncIterator[Ground]:
    """Run a whole cluster of stand-ins. Controllers and gateways may do there what the documentation says, and no more."""
    owner = "emberpool-drill"
    nodes = _nodes(owner)
    wanted = Wanted(
        nodes=nodes,
        namespace=owner,
        accounts={
            "controller": User(name="controller", may=partial(allowed, documented_role())),
            "gateway": User(name="gateway", may=partial(allowed, _GATEWAY_ROLE)),
        },
    )
    async with whole_cluster(directory, wanted) as made:
        yield Ground(
            calls=made.calls,
            namespace=owner,
            nodes=[each.name for each in nodes],
            network=made.nodes.setting.network,
            controller=directory / "controller.kubeconfig",
            gateway=directory / "gateway.kubeconfig",
            logs=made.logs,
        )


@contextlib.asynccontextmanager
async def under_control_plane(directory: Path, kubeconfig: Path, kind: str) -> AsyncIterator[Ground]:
    """Put nodes of stand-ins under a control plane, in a namespace that is made and removed.

    Args:
        directory: for logs.
        kubeconfig: of an administrator.
        kind: of the pods' network, `namespaces` or `loopback`. EndpointSlices of real servers refuse addresses of the latter.
    """
    owner = f"emberpool-drill-{uuid.uuid4().hex[:8]}"
    nodes = _nodes(owner)
    async with contextlib.AsyncExitStack() as stack:
        calls = await stack.enter_async_context(calling(str(kubeconfig)))
        await calls.create(NAMESPACE, "", {"metadata": {"name": owner}})
        stack.push_async_callback(_remove, calls, owner, [each.name for each in nodes])
        network = await stack.enter_async_context(namespaces() if kind == "namespaces" else loopback())
        setting = Setting(
            calls=calls,
            network=network,
            root=Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pods-"))),
            logs=directory / "logs",
            kubeconfig=kubeconfig,
        )
        await stack.enter_async_context(running(nodes, setting))
        yield Ground(
            calls=calls,
            namespace=owner,
            nodes=[each.name for each in nodes],
            network=network,
            controller=kubeconfig,
            gateway=kubeconfig,
            logs=setting.logs,
        )


async def _remove(calls: Calls, namespace: str, nodes: Sequence[str]) -> None:
    """Remove what was made; pods whose nodes go are removed with them."""
    for kind, where, name in (
        (NAMESPACE, "", namespace),
        *((NODE, "", name) for name in nodes),
        *((LEASE, LEASES, name) for name in nodes),
    ):
        with contextlib.suppress(NotFound):
            await calls.delete(kind, where, name)

"""What a gateway that watches pods runs for it: the watch, its policy files, and what its page says of both."""

import os
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from scaler.cluster.kube.access import AccessOptions, find_access
from scaler.cluster.kube.client import KubeClient
from scaler.errors import PolicyFault
from scaler.policy.compile import PolicySet
from scaler.policy.reading import PolicyFiles, Reading
from scaler.runtime.clock import SystemClock
from scaler.runtime.followed_routes import FollowedRoutes
from scaler.runtime.gateway_metrics import PodMetrics
from scaler.runtime.gateway_options import PodOptions
from scaler.runtime.metrics.reloads import GATEWAY, ReloadMetrics
from scaler.runtime.pod_follower import Peers, PodFollower, pods_in
from scaler.runtime.policy_process import PolicyReader
from scaler.runtime.reload import Cause, Reloader, Told
from scaler.runtime.route_follower import RouteFollower

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GatewayPods:
    """What runs.

    Attributes:
        namespace: whose pods are watched.
        follower: watches them.
        reloader: keeps to the policy files.
    """

    namespace: str
    follower: PodFollower
    reloader: Reloader

    def parts(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Return what has to run beside each other."""
        return self.follower.run(), self.reloader.run()

    def read_again(self) -> None:
        """Have the policy files read now, whatever they look like."""
        self.reloader.request(Cause.SIGNAL)

    def state(self) -> dict[str, Any]:
        """Return what people want to see, as JSON has it."""
        pods = {"namespace": self.namespace, **self.follower.state()}
        return {"pods": pods, "policyFiles": self.reloader.status()}


class _Followed:
    """Puts policies in force for who follows pods, which can do with whatever is right by itself."""

    def __init__(self, follower: PodFollower) -> None:
        self._follower = follower

    async def refuse(self, _reading: Reading) -> Sequence[PolicyFault]:
        """See `Force.refuse`."""
        return ()

    def adopt(self, policies: PolicySet) -> Sequence[str]:
        """See `Force.adopt`."""
        self._follower.adopt(policies)
        return ()


async def open_pods(
    stack: AsyncExitStack,
    options: PodOptions,
    followed: FollowedRoutes,
    controllers: RouteFollower,
    registry: CollectorRegistry,
) -> GatewayPods:
    """Open what follows pods, until the stack is left. Whether the API server answers isn't asked.

    Args:
        stack: what it ends with.
        options: whose pods.
        followed: gets their routes.
        controllers: those whose routes are followed as well.
        registry: gets the metrics of pods and policies.

    Raises:
        UserError: policies or credentials can't be used.
    """
    policies = PolicyFiles(options.policies).read().set
    wanted = AccessOptions(
        kubeconfig=options.kubeconfig, context=options.context, namespace=options.namespace
    )
    access = await find_access(wanted, os.environ)
    client = await stack.enter_async_context(KubeClient(access))
    peers = None
    if options.peers:
        own = (
            access if not options.namespace else await find_access(replace(wanted, namespace=""), os.environ)
        )
        peers = Peers(client, own.namespace, options.peers)
    follower = PodFollower(pods_in(client, access.namespace), policies, followed, controllers, peers)
    registry.register(PodMetrics(follower))
    reader = PolicyReader(options.policies)
    stack.push_async_callback(reader.close)
    log.info("watches pods", namespace=access.namespace, server=access.server, source=access.source)
    clock, metrics = SystemClock(), ReloadMetrics(registry, GATEWAY)
    metrics.loaded(clock.wall())
    told = Told(metrics=metrics, clock=clock)
    return GatewayPods(access.namespace, follower, Reloader(reader, _Followed(follower), policies, told))

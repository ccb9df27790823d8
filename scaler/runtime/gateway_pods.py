"""What a gateway that watches pods runs for it: the watch, and its policy files."""

import os
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import structlog

from scaler.cluster.kube.access import AccessOptions, find_access
from scaler.cluster.kube.client import KubeClient
from scaler.policy.reading import PolicyFiles
from scaler.runtime.followed_routes import FollowedRoutes
from scaler.runtime.gateway_options import PodOptions
from scaler.runtime.gateway_policies import GatewayPolicies
from scaler.runtime.pod_follower import Peers, PodFollower, pods_in
from scaler.runtime.policy_process import PolicyReader
from scaler.runtime.route_follower import RouteFollower

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GatewayPods:
    """What runs.

    Attributes:
        namespace: whose pods are watched.
        follower: watches them.
        policies: keeps to the policy files.
    """

    namespace: str
    follower: PodFollower
    policies: GatewayPolicies

    def parts(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Return what has to run beside each other."""
        return self.follower.run(), self.policies.run()

    def state(self) -> dict[str, Any]:
        """Return what people want to see, as JSON has it."""
        pods = {"namespace": self.namespace, **self.follower.state()}
        return {"pods": pods, "policyFiles": self.policies.state()}


async def open_pods(
    stack: AsyncExitStack, options: PodOptions, followed: FollowedRoutes, controllers: RouteFollower
) -> GatewayPods:
    """Open what follows pods, until the stack is left. Whether the API server answers isn't asked.

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
    reader = PolicyReader(options.policies)
    stack.push_async_callback(reader.close)
    log.info("watches pods", namespace=access.namespace, server=access.server, source=access.source)
    return GatewayPods(access.namespace, follower, GatewayPolicies(reader, policies, follower.adopt))

"""A stand-in for a cluster's scheduler and controllers, for the tests' API server; a real cluster has its own.

Each controller is a function of what its caches hold, run again whenever that changes. What each does follows what Kubernetes
documents. `python -m tests.fakes.control_plane` runs all of them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from scaler.cluster.kube.resources import Kind
from tests.fakes.control_plane.deployments import Deployments
from tests.fakes.control_plane.disruptions import Disruptions
from tests.fakes.control_plane.endpoint_slices import EndpointSlices
from tests.fakes.control_plane.garbage import Garbage
from tests.fakes.control_plane.loops import Caches, Controller, Loop
from tests.fakes.control_plane.nodes import NodeLife
from tests.fakes.control_plane.replica_sets import ReplicaSets
from tests.fakes.control_plane.scheduler import Scheduler
from tests.fakes.control_plane.stateful_sets import StatefulSets
from tests.fakes.kube_calls import Calls, reflected

__all__ = ["controlling", "everything"]


def everything(node_grace: float = 50.0) -> list[Controller]:
    """Return all controllers.

    Args:
        node_grace: seconds without a heartbeat after which a node counts as unreachable.
    """
    return [
        Scheduler(),
        Deployments(),
        ReplicaSets(),
        StatefulSets(),
        EndpointSlices(),
        Disruptions(),
        NodeLife(node_grace),
        Garbage(),
    ]


@asynccontextmanager
async def controlling(calls: Calls, controllers: Sequence[Controller] | None = None) -> AsyncIterator[Caches]:
    """Run controllers, all of them unless some are named, until the context is left; yields what they read."""
    loops = [Loop(each, calls) for each in (everything() if controllers is None else controllers)]

    def waking(kind: Kind) -> Callable[[], None]:
        readers = [loop for loop in loops if kind in loop.controller.reads]

        def wake() -> None:
            for loop in readers:
                loop.wake()

        return wake

    kinds = {kind: waking(kind) for loop in loops for kind in loop.controller.reads}
    async with reflected(calls, kinds) as held, asyncio.TaskGroup() as tasks:
        caches = Caches(held)
        running = [tasks.create_task(loop.run(caches)) for loop in loops]
        try:
            yield caches
        finally:
            for task in running:
                task.cancel()

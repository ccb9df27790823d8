"""A kubelet's pod-resources socket: a real gRPC server that says what a test has written down."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from warmpool.nodehealth import pod_resources_messages as messages


@dataclass
class Kubelet:
    """What it says.

    Attributes:
        pods: by `namespace/name`, device ids of `nvidia.com/gpu`.
        claims: by `namespace/name`, device names of NVIDIA's DRA driver.
        asked: how often it was asked.
        refusal: the error that it answers with, if it does.
    """

    pods: dict[str, Sequence[str]] = field(default_factory=dict)
    claims: dict[str, Sequence[str]] = field(default_factory=dict)
    asked: int = 0
    refusal: grpc.StatusCode | None = None

    async def list_pods(self, _request: object, context: Any) -> Any:
        self.asked += 1
        if self.refusal is not None:
            await context.abort(self.refusal, "said no")
        answer = messages.message("ListPodResourcesResponse")()
        for name in sorted({*self.pods, *self.claims}):
            namespace, _, pod = name.partition("/")
            container = answer.pod_resources.add(name=pod, namespace=namespace).containers.add(name="engines")
            container.devices.add(resource_name="nvidia.com/gpu", device_ids=self.pods.get(name, ()))
            claim = container.dynamic_resources.add(claim_name="gpus", claim_namespace=namespace)
            for device in self.claims.get(name, ()):
                claim.claim_resources.add(
                    driver_name="gpu.nvidia.com", pool_name="node-1", device_name=device
                )
        return answer

    @asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Serve at a path until the context is left."""
        server = grpc.aio.server()
        handlers = {
            "List": grpc.unary_unary_rpc_method_handler(
                self.list_pods,
                request_deserializer=messages.message("ListPodResourcesRequest").FromString,
                response_serializer=messages.message("ListPodResourcesResponse").SerializeToString,
            )
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers),)
        )
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(grace=0)


def log_folder(root: Path, pods: Mapping[str, str]) -> Path:
    """Make the folder of pods' logs, for pods `namespace/name` with their UIDs."""
    for name, uid in pods.items():
        (root / f"{name.replace('/', '_')}_{uid}").mkdir(parents=True, exist_ok=True)
    root.mkdir(exist_ok=True)
    return root

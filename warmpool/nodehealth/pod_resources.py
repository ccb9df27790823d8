"""Asking the kubelet which pods it gave which devices, over its pod-resources socket. The only importer of grpc in this package.

Each call makes a connection of its own: a kubelet that restarts makes a new socket at the same path, and a call every ten
seconds is worth no cleverness about that. The socket's folder has to be mounted, not the socket, for the same reason.
"""

from pathlib import Path

from warmpool.errors import WarmpoolError
from warmpool.nodehealth.allocations import Allocation, GivenDevice, PodName

_ANSWER_BYTES = 16 * 2**20
"""The longest answer that a kubelet sends (k8s.io/kubelet, `defaultPodResourcesMaxSize`); grpc alone would take 4 MiB."""


class KubeletUnreachable(WarmpoolError):
    """The kubelet doesn't tell which pods have which GPUs; the message says why."""


async def list_allocations(socket: Path, *, seconds: float) -> tuple[Allocation, ...]:
    """Ask the kubelet for the devices of all pods.

    Args:
        socket: its pod-resources socket.
        seconds: how long it may take.

    Raises:
        KubeletUnreachable: there is no such socket, nobody answers there, or the answer is no answer.
    """
    try:
        import grpc  # noqa: PLC0415 - an agent that shares an engine's environment may lack it
        import grpc.aio  # noqa: PLC0415

        from warmpool.nodehealth import pod_resources_messages as messages  # noqa: PLC0415
    except ImportError as error:
        raise KubeletUnreachable(f"{error.name} is not installed") from error
    options = (("grpc.max_receive_message_length", _ANSWER_BYTES),)
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        call = channel.unary_unary(
            messages.LIST,
            request_serializer=messages.message("ListPodResourcesRequest").SerializeToString,
            response_deserializer=messages.message("ListPodResourcesResponse").FromString,
        )
        try:
            answer = await call(messages.message("ListPodResourcesRequest")(), timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise KubeletUnreachable(f"{socket}: {error.code().name}: {error.details()}") from error
    return tuple(_allocation(pod) for pod in answer.pod_resources)


def _allocation(pod: object) -> Allocation:
    """Read one pod of the answer."""
    given = []
    for container in pod.containers:  # type: ignore[attr-defined] # protobuf has no types
        for devices in container.devices:
            given += [GivenDevice(devices.resource_name, device) for device in devices.device_ids]
        for claim in container.dynamic_resources:
            given += [GivenDevice(each.driver_name, each.device_name) for each in claim.claim_resources]
    return Allocation(PodName(pod.namespace, pod.name), tuple(given))  # type: ignore[attr-defined]

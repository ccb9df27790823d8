"""The kubelet's messages, byte by byte: numbers of fields are what two ends agree on."""

from warmpool.nodehealth import pod_resources_messages as messages


def field(number: int, value: bytes) -> bytes:
    """One length-delimited field of the wire format."""
    assert len(value) < 128
    return bytes([number << 3 | 2, len(value)]) + value


def varint(number: int, value: int) -> bytes:
    return bytes([number << 3, value])


DEVICES = (
    field(1, b"nvidia.com/gpu") + field(2, b"GPU-1") + field(2, b"GPU-2") + field(3, field(1, varint(1, 0)))
)
CLAIM = field(2, b"gpu.nvidia.com") + field(3, b"node-7") + field(4, b"gpu-0")
DYNAMIC = field(2, b"claim") + field(3, b"serving") + field(4, field(1, field(1, b"cdi/gpu=0")) + CLAIM)
CONTAINER = (
    field(1, b"engines") + field(2, DEVICES) + varint(3, 5) + field(4, field(1, b"memory") + varint(2, 9))
)
CLAIMING = field(1, b"one") + field(5, DYNAMIC)
POD = field(1, b"pod-1") + field(2, b"serving") + field(3, CLAIMING)


def test_an_answer_of_a_kubelet_is_read_and_what_is_not_needed_is_skipped() -> None:
    answer = messages.message("ListPodResourcesResponse").FromString(
        field(1, field(1, b"pod-0") + field(2, b"serving") + field(3, CONTAINER))
        + field(1, POD)
        + varint(9, 1)
    )
    first, second = answer.pod_resources
    assert (first.name, first.namespace) == ("pod-0", "serving")
    (container,) = first.containers
    assert container.name == "engines"
    (devices,) = container.devices
    assert (devices.resource_name, list(devices.device_ids)) == ("nvidia.com/gpu", ["GPU-1", "GPU-2"])
    (dynamic,) = second.containers[0].dynamic_resources
    assert (dynamic.claim_name, dynamic.claim_namespace) == ("claim", "serving")
    (claim,) = dynamic.claim_resources
    assert (claim.driver_name, claim.pool_name, claim.device_name) == ("gpu.nvidia.com", "node-7", "gpu-0")


def test_the_question_has_no_fields() -> None:
    assert messages.message("ListPodResourcesRequest")().SerializeToString() == b""


def test_the_call_is_the_kubelets() -> None:
    assert messages.LIST == "/v1.PodResourcesLister/List"

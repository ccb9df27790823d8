"""The messages of the kubelet's pod-resources API, version v1, as far as they are read here.

Names and numbers of fields are those of `k8s.io/kubelet/pkg/apis/podresources/v1`; fields that aren't named are skipped over,
as the wire format has it, so a kubelet may say more. The messages are made from the table below when the module is imported.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "v1"
LIST = f"/{PACKAGE}.PodResourcesLister/List"
"""The one call that is made."""

_Fields = Mapping[str, tuple[int, str]]

_MESSAGES: Mapping[str, _Fields] = {
    "ListPodResourcesRequest": {},
    "ListPodResourcesResponse": {"pod_resources": (1, "repeated PodResources")},
    "PodResources": {
        "name": (1, "string"),
        "namespace": (2, "string"),
        "containers": (3, "repeated ContainerResources"),
    },
    "ContainerResources": {
        "name": (1, "string"),
        "devices": (2, "repeated ContainerDevices"),
        "dynamic_resources": (5, "repeated DynamicResource"),
    },
    "ContainerDevices": {"resource_name": (1, "string"), "device_ids": (2, "repeated string")},
    "DynamicResource": {
        "claim_name": (2, "string"),
        "claim_namespace": (3, "string"),
        "claim_resources": (4, "repeated ClaimResource"),
    },
    "ClaimResource": {
        "driver_name": (2, "string"),
        "pool_name": (3, "string"),
        "device_name": (4, "string"),
    },
}
"""Fields of each message: number and type."""


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="emberpool/pod_resources.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, type_of) in fields.items():
            _fill(message.field.add(name=field, number=number), type_of)
    return file


def _fill(field: Any, type_of: str) -> None:  # noqa: ANN401 - protobuf has no types
    repeated, type_name = type_of.startswith("repeated "), type_of.removeprefix("repeated ")
    field.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    if type_name == "string":
        field.type = FieldDescriptorProto.TYPE_STRING
    else:
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{type_name}"


_POOL = (
    DescriptorPool()
)  # one of its own: the default one is everybody's, and `v1` may be another's name there
_POOL.Add(_file())


def message(name: str) -> Any:  # noqa: ANN401 - protobuf has no types
    """Return the class of a message of this package."""
    return GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))

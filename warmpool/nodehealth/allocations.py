"""Which GPUs which pods were given, from what a kubelet says. PURE.

A kubelet names pods by namespace and name, and a process's cgroup names them by UID; the folders of pods' logs,
`<namespace>_<name>_<uid>`, join the two. Device plugins name devices as they like:

| id | whose |
|---|---|
| `GPU-…`, `MIG-…` | NVIDIA's device plugin |
| `GPU-…::3` | its replicas, under time slicing and MPS |
| `0`, `0:1` | it, told to name devices by index: a GPU, a GPU's MIG device |
| `nvidia0`, `nvidia0/vgpu2`, `nvidia0/gi1` | GKE's: device file, a share of it, a MIG device of it |
| `gpu-0`, `gpu-0-mig-9-0-1` | NVIDIA's DRA driver: device file, a MIG device of it |

A MIG device that is named by its place on a GPU is not resolved to one UUID here: its GPU stands for it.

More than one pod may have a GPU: under time slicing, and because kubelets go on listing pods for a while after they have ended.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from warmpool.nodehealth.nvml import Device

NVIDIA_RESOURCES = "nvidia.com/"
NVIDIA_DRA_DRIVER = "gpu.nvidia.com"

_BY_FILE = re.compile(r"(?:nvidia|gpu-)(\d+)(?:[/-](?:gi|mig|vgpu).*)?")
_BY_INDEX = re.compile(r"(\d+)(?::\d+)?")
_REPLICA = "::"
_LOG_FOLDER_PARTS = 3


@dataclass(frozen=True, slots=True)
class PodName:
    """How a kubelet names a pod."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class GivenDevice:
    """A device that a container was given.

    Attributes:
        source: the resource's name, or the DRA driver's.
        device: the device's id, or its name under DRA.
    """

    source: str
    device: str


@dataclass(frozen=True, slots=True)
class Allocation:
    """The devices of one pod.

    Attributes:
        pod: which one.
        devices: what its containers were given, by device plugins and through resource claims.
    """

    pod: PodName
    devices: tuple[GivenDevice, ...]


def gpus_of_pods(
    allocations: Sequence[Allocation], uids: Mapping[PodName, frozenset[str]], devices: Sequence[Device]
) -> Mapping[str, frozenset[str]]:
    """Return, by pods' UIDs, the UUIDs of the devices that they were given; only pods with a GPU.

    Args:
        allocations: what a kubelet says.
        uids: the UIDs of pods; a name that was used again has several.
        devices: the node's devices.
    """
    found: dict[str, frozenset[str]] = {}
    for allocation in allocations:
        given = frozenset(uuid for each in allocation.devices if (uuid := resolve(each, devices)) is not None)
        for uid in uids.get(allocation.pod, ()) if given else ():
            found[uid] = found.get(uid, frozenset()) | given
    return found


def resolve(given: GivenDevice, devices: Sequence[Device]) -> str | None:
    """Return the UUID of a device that was given; None if it is none of these."""
    name = given.device.partition(_REPLICA)[0]
    for device in devices:
        if device.uuid.casefold() == name.casefold():
            return device.uuid
    if given.source != NVIDIA_DRA_DRIVER and not given.source.startswith(NVIDIA_RESOURCES):
        return None
    if found := _BY_FILE.fullmatch(name):
        return _only(device for device in devices if not device.parent and device.minor == int(found[1]))
    if found := _BY_INDEX.fullmatch(name):
        return _only(device for device in devices if not device.parent and device.index == int(found[1]))
    return None


def _only(devices: Iterable[Device]) -> str | None:
    return next((device.uuid for device in devices), None)


def pod_uids(log_folders: Iterable[str]) -> Mapping[PodName, frozenset[str]]:
    """Return pods' UIDs from the names of their log folders. A namespace or a name has no underscore, so they part in one way."""
    uids: dict[PodName, frozenset[str]] = {}
    for folder in log_folders:
        parts = folder.split("_")
        if len(parts) == _LOG_FOLDER_PARTS and all(parts):
            pod = PodName(parts[0], parts[1])
            uids[pod] = uids.get(pod, frozenset()) | {parts[2]}
    return uids

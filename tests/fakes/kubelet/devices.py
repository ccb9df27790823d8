"""A node's GPUs: which pod has which. PURE."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.fakes.kubelet.environment import Unmakeable

Object = Mapping[str, Any]
GPU = "nvidia.com/gpu"


def gpus_of(container: Object) -> int:
    """How many GPUs a container is limited to."""
    return int(((container.get("resources") or {}).get("limits") or {}).get(GPU, 0))


class Devices:
    """Hands out GPUs, the same one to nobody else until it is given back."""

    def __init__(self, gpus: Sequence[str]) -> None:
        self._all = tuple(gpus)
        self._given: dict[str, tuple[str, ...]] = {}

    def take(self, pod: Object) -> Mapping[str, tuple[str, ...]]:
        """Return each container's GPUs.

        Raises:
            Unmakeable: not enough are free.
        """
        spec, uid = pod["spec"], pod["metadata"]["uid"]
        taken = {gpu for given in self._given.values() for gpu in given}
        free = [gpu for gpu in self._all if gpu not in taken]
        found: dict[str, tuple[str, ...]] = {}
        for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
            count = gpus_of(container)
            if count > len(free):
                message = (
                    f"Allocate failed due to requested number of devices unavailable for {GPU}. "
                    f"Requested: {count}, Available: {len(free)}, which is unexpected"
                )
                raise Unmakeable("UnexpectedAdmissionError", message)
            found[container["name"]], free = tuple(free[:count]), free[count:]
        self._given[uid] = tuple(gpu for gpus in found.values() for gpu in gpus)
        return found

    def give_back(self, uid: str) -> None:
        self._given.pop(uid, None)

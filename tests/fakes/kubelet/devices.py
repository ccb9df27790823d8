"""A node's GPUs: which pod has which. PURE.

A container has GPUs of its own by a limit, as a device plugin gives them, or those of a claim of its pod, which whoever names that
claim has as well. In a cluster a controller makes claims from their templates, and the scheduler chooses the devices; here the node
does both, so that only as many pods may be bound to it as it has GPUs for.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.fakes.kubelet.environment import Unmakeable

Object = Mapping[str, Any]
GPU = "nvidia.com/gpu"


def gpus_of(container: Object) -> int:
    """How many GPUs a container is limited to."""
    return int(((container.get("resources") or {}).get("limits") or {}).get(GPU, 0))


def devices_wanted(template: Object) -> int:
    """How many devices a claim of a ResourceClaimTemplate asks for."""
    requests = template["spec"]["spec"]["devices"]["requests"]
    return sum(int((each.get("exactly") or each).get("count", 1)) for each in requests)


def claims_of(container: Object) -> list[str]:
    """Which of its pod's claims a container names."""
    return [each["name"] for each in (container.get("resources") or {}).get("claims") or ()]


class Devices:
    """Hands out GPUs, the same one to nobody else until it is given back."""

    def __init__(self, gpus: Sequence[str]) -> None:
        self._all = tuple(gpus)
        self._given: dict[str, tuple[str, ...]] = {}

    def take(self, pod: Object, claimed: Mapping[str, int]) -> Mapping[str, tuple[str, ...]]:
        """Return each container's GPUs.

        Args:
            pod: the pod.
            claimed: how many each of its claims wants.

        Raises:
            Unmakeable: not enough are free.
        """
        spec, uid = pod["spec"], pod["metadata"]["uid"]
        taken = {gpu for given in self._given.values() for gpu in given}
        free = [gpu for gpu in self._all if gpu not in taken]

        def cut(count: int) -> tuple[str, ...]:
            if count > len(free):
                message = (
                    f"Allocate failed due to requested number of devices unavailable for {GPU}. "
                    f"Requested: {count}, Available: {len(free)}, which is unexpected"
                )
                raise Unmakeable("UnexpectedAdmissionError", message)
            given = tuple(free[:count])
            del free[:count]
            return given

        shared = {claim: cut(count) for claim, count in claimed.items()}
        found: dict[str, tuple[str, ...]] = {}
        for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
            by_claim = (gpu for claim in claims_of(container) for gpu in shared[claim])
            found[container["name"]] = (*cut(gpus_of(container)), *by_claim)
        self._given[uid] = tuple(dict.fromkeys(gpu for gpus in found.values() for gpu in gpus))
        return found

    def give_back(self, uid: str) -> None:
        self._given.pop(uid, None)

"""The node's pods and their GPUs, as the kubelet last told.

It is asked every ten seconds, and soon when somebody asks for a pod that is new. Without a kubelet nothing of this is known,
and the answers say so; what processes hold is known all the same.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from warmpool.nodehealth.allocations import Allocation, PodName, gpus_of_pods, pod_uids
from warmpool.nodehealth.nvml import Device
from warmpool.nodehealth.pod_resources import KubeletUnreachable, list_allocations

_LOG = logging.getLogger(__name__)

REFRESH_SECONDS = 10.0
_SOONEST_SECONDS = 1.0  # kubelets refuse who asks too often
_ANSWER_SECONDS = 2.0


class Pods:
    """Who has which GPUs.

    Args:
        socket: the kubelet's pod-resources socket; None: this machine has no kubelet.
        log_folders: the folder with pods' log folders, from whose names their UIDs are read.
        devices: the node's devices.
    """

    def __init__(
        self, socket: Path | None, log_folders: Path, devices: Callable[[], Sequence[Device]]
    ) -> None:
        self._socket = socket
        self._log_folders = log_folders
        self._devices = devices
        self._gpus: Mapping[str, frozenset[str]] = MappingProxyType({})
        self._soon = asyncio.Event()
        self.reason = "" if socket is None else "the kubelet was not asked yet"

    @property
    def known(self) -> bool:
        """Whether the kubelet answered when it was last asked."""
        return self._socket is not None and not self.reason

    def gpus_of(self, pod: str) -> frozenset[str] | None:
        """Return the devices that a pod was given; None if the kubelet hasn't told of it (yet).

        Args:
            pod: its UID.
        """
        if pod not in self._gpus:
            self._soon.set()
        return self._gpus.get(pod)

    def spans(self, uuid: str) -> bool | None:
        """Whether a pod has a GPU together with others; None where the kubelet hasn't told.

        Args:
            uuid: the GPU's, or a MIG device's.
        """
        if not self.known:
            return None
        return any(len(gpus) > 1 and uuid in gpus for gpus in self._gpus.values())

    async def run(self) -> None:
        """Keep asking, until cancelled."""
        if self._socket is None:
            return
        while True:
            self._soon.clear()
            await self._refresh(self._socket)
            await asyncio.sleep(_SOONEST_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS - _SOONEST_SECONDS):
                    await self._soon.wait()

    async def _refresh(self, socket: Path) -> None:
        try:
            allocations = await list_allocations(socket, seconds=_ANSWER_SECONDS)
            uids = pod_uids(await asyncio.to_thread(os.listdir, self._log_folders))
        except (KubeletUnreachable, OSError) as error:
            reason = f"which pods have which GPUs is unknown: {error}"
            if reason != self.reason:
                _LOG.warning("%s", reason)
            self.reason = reason
            return
        if self.reason:
            _LOG.info("the kubelet tells of %d pods with devices", _with_devices(allocations))
        self._gpus = gpus_of_pods(allocations, uids, self._devices())
        self.reason = _unresolved(allocations, uids)


def _with_devices(allocations: Sequence[Allocation]) -> int:
    return sum(1 for each in allocations if each.devices)


def _unresolved(allocations: Sequence[Allocation], uids: Mapping[PodName, frozenset[str]]) -> str:
    """Say it where there are pods and none of them has a log folder: then the folder is the wrong one."""
    pods = [each.pod for each in allocations if each.devices]
    if not pods or any(pod in uids for pod in pods):
        return ""
    return "which pods have which GPUs is unknown: no pod has a log folder, from whose name its UID could be read"

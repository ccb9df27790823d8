"""Reading all GPUs' health, each in a lane of its own: one that hangs is silent, and the others are read.

These lanes aren't those of the questions after memory, because a look at a GPU's health takes some 30 ms, and those are answered
in 50.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

from warmpool.nodehealth.lanes import Lane, LaneBusy
from warmpool.nodehealth.nvml import Device, Nvml, NvmlError
from warmpool.nodehealth.nvml_health import LOST, RESET_REQUIRED
from warmpool.nodehealth.reader import DriverState, Reader, TooSlow
from warmpool.nodehealth.readings import Contact, GpuReading, NodeReading

_LOG = logging.getLogger(__name__)

_GPU_SECONDS: Final = 5.0
"""How long a look at one GPU may take: on an H200 with driver 580 its calls take some 20 ms together."""
_LIST_SECONDS: Final = 2.0


class HealthProbe:
    """Reads the node's GPUs.

    Args:
        nvml: where they are.
        reader: keeps the driver open, and knows which GPUs there are.
        spans: whether a pod has a GPU together with others; None where nobody knows.
        boot: id of the kernel's boot; empty if unknown.
    """

    def __init__(self, nvml: Nvml, reader: Reader, spans: Callable[[str], bool | None], boot: str) -> None:
        self._nvml = nvml
        self._reader = reader
        self._spans = spans
        self._boot = boot
        self._lanes: dict[str, Lane] = {}

    async def read(self, at: float) -> NodeReading:
        """Read everything.

        Args:
            at: the time of the reading, in Unix seconds.
        """
        with suppress(TooSlow):  # it has devices listed anew, and finds out that the driver was reloaded
            await self._reader.read(max_age_seconds=0.0, seconds=_LIST_SECONDS)
        reader = self._reader
        gpus = [device for device in reader.listing.devices if not device.parent]
        if reader.state is not DriverState.OPEN:
            silent = {gpu.uuid: _silent(gpu, reader.reason) for gpu in gpus}
            return NodeReading(
                at=at, boot=self._boot, listed=False, gpus=MappingProxyType(silent), reason=reader.reason
            )
        self._drop_unlisted({gpu.uuid for gpu in gpus})
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(self._gpu(gpu)) for gpu in gpus]
        found = {task.result().uuid: task.result() for task in asked}
        return NodeReading(at=at, boot=self._boot, gpus=MappingProxyType(found), silent=reader.listing.silent)

    async def _gpu(self, gpu: Device) -> GpuReading:
        lane = self._lanes.get(gpu.uuid)
        if lane is None:
            lane = self._lanes[gpu.uuid] = self._reader.lane(f"health of {gpu.uuid}")
        try:
            found = await lane.call(partial(self._look, gpu), seconds=_GPU_SECONDS)
        except LaneBusy as busy:
            return _silent(gpu, str(busy))
        return replace(found, shared=self._spans(gpu.uuid))

    def _look(self, gpu: Device) -> GpuReading:
        """Read one GPU, in its lane."""
        try:
            return self._nvml.health(gpu.uuid)
        except NvmlError as error:
            return GpuReading(
                uuid=gpu.uuid,
                bus_id=gpu.bus_id,
                contact=_CONTACTS.get(error.code or 0, Contact.SILENT),
                reason=str(error),
            )

    def _drop_unlisted(self, listed: set[str]) -> None:
        for uuid in [uuid for uuid, lane in self._lanes.items() if uuid not in listed and not lane.busy]:
            self._reader.drop(self._lanes.pop(uuid))


_CONTACTS: Final = MappingProxyType({LOST: Contact.LOST, RESET_REQUIRED: Contact.RESET_REQUIRED})


def _silent(gpu: Device, reason: str) -> GpuReading:
    return GpuReading(uuid=gpu.uuid, bus_id=gpu.bus_id, contact=Contact.SILENT, reason=reason)

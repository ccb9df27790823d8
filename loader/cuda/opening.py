"""Opens devices, with all that using them will need, and measures what that costs of their memory."""

from dataclasses import dataclass

import torch

from loader.cuda.driver import Driver, device_uuids
from loader.cuda.nvml import ContextCost, cost_between, usage_of
from loader.cuda.port import Device
from loader.digest import digest_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A device that this process has a context on.

    Attributes:
        device: the device.
        ordinal: its number among those that this process sees.
        context: what the context takes of its memory, for as long as this process lives.
    """

    device: Device
    ordinal: int
    context: ContextCost


def open_devices() -> list[Opened]:
    """Make a context on every device that this process sees.

    Raises:
        DeviceUnavailable: there is no driver, or a device can't be used.
        OutOfMemory: one has no room for a context.
    """
    return [_open(ordinal, uuid) for ordinal, uuid in enumerate(device_uuids())]


def _open(ordinal: int, uuid: str) -> Opened:
    before = usage_of(uuid)
    device = Driver(ordinal)
    device.enter()
    # Kernels are loaded when they first run, and take memory then: those of digests run now.
    digest_tensors({"": torch.zeros(2**20 + 1, dtype=torch.uint8, device=torch.device("cuda", ordinal))})
    device.trim()
    return Opened(device=device, ordinal=ordinal, context=cost_between(before, usage_of(uuid)))

"""A drop-in for `safetensors.torch.load_file`."""

import os

import torch

from loader.copiers import choice as _choice  # noqa: F401 - with torch, so that no first load waits for it
from loader.copiers import host, mapped
from loader.copiers.destinations import target_device
from loader.loading import load
from loader.sources.files import open_checkpoint


def load_file(
    filename: str | os.PathLike[str], device: str | int | torch.device = "cpu"
) -> dict[str, torch.Tensor]:
    """Load all tensors of one safetensors file, or of a directory that holds a checkpoint.

    On the CPU the tensors are the file's own pages, mapped privately and already read in: writing to one changes
    neither the file nor other processes, and nobody may cut the file short while they are in use. `loader.load` fills
    memory of its own instead.

    Args:
        filename: the file or directory.
        device: where the tensors shall be; an int is a CUDA device.

    Raises:
        CheckpointError: the file is not valid; the subclass says why.
        LoadError: reading failed, the file changed meanwhile, or the device can't be used.
    """
    checkpoint = open_checkpoint(filename)
    target = target_device(device, None)
    if target.type == "cpu":
        return mapped.map_tensors(checkpoint, threads=host.default_threads())
    return dict(load(checkpoint, device=target).tensors)

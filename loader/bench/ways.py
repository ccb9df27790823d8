"""Ways to get a checkpoint's tensors: this loader's, and its peers' by their documented calls."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import loader
from loader.copiers.destinations import allocate
from loader.torch import load_file

Tensors = Mapping[str, torch.Tensor]
Way = Callable[[Path, str, Tensors], Tensors]
"""Loads what is at a path to a device, or into parameters that are there already."""

_LARGE_BOUNCE_KIB = 64 * 1024


def available(device: str) -> list[str]:
    """Names of the ways that this machine has for a device, in the order in which they are shown."""
    kind = "cpu" if device == "cpu" else "cuda"
    return [name for name, (needs, devices, _) in _WAYS.items() if kind in devices and find_spec(needs)]


def way(name: str) -> Way:
    """What a name stands for."""
    return _WAYS[name][2]


def wants_parameters(name: str) -> bool:
    """Whether a way loads into tensors that are there already."""
    return name.endswith("into parameters")


def parameters(path: Path, device: str) -> Tensors:
    """Such tensors, their memory taken."""
    tensors = allocate(loader.open_checkpoint(path), torch.device(device))
    for tensor in tensors.values():
        tensor.view(torch.uint8).zero_()
    return tensors


def files_of(path: Path) -> list[str]:
    """The shards at a path."""
    checkpoint = loader.open_checkpoint(path)
    return [f"{checkpoint.root}/{file}" for file in checkpoint.shards]


def _reference(path: Path, device: str, _: Tensors) -> Tensors:
    load: Any = import_module("safetensors.torch").load_file
    return {name: tensor for file in files_of(path) for name, tensor in load(file, device=device).items()}


def _reference_into(path: Path, device: str, into: Tensors) -> Tensors:
    for name, tensor in _reference(path, device, into).items():
        into[name].copy_(tensor)
    return into


def _load_file(path: Path, device: str, _: Tensors) -> Tensors:
    return load_file(path, device=device)


def _load(path: Path, device: str, _: Tensors) -> Tensors:
    return loader.load(loader.open_checkpoint(path), device=device).tensors


def _load_into(path: Path, _: str, into: Tensors) -> Tensors:
    return loader.load(loader.open_checkpoint(path), into=into).tensors


def _fastsafetensors(path: Path, device: str, bounce_kib: int | None) -> Tensors:
    module: Any = import_module("fastsafetensors")
    settings = {"bbuf_size_kb": bounce_kib} if bounce_kib else {}
    reader = module.SafeTensorsFileLoader(None, device, nogds=True, **settings)
    reader.add_filenames({0: files_of(path)})
    buffer = reader.copy_files_to_device()
    return {name: buffer.get_tensor(name) for name in buffer.key_to_rank_lidx}


def _fast_defaults(path: Path, device: str, _: Tensors) -> Tensors:
    return _fastsafetensors(path, device, None)


def _fast_large(path: Path, device: str, _: Tensors) -> Tensors:
    return _fastsafetensors(path, device, _LARGE_BOUNCE_KIB)


def _instanttensor(path: Path, device: str, _: Tensors) -> Tensors:
    module: Any = import_module("instanttensor")
    with module.safe_open(files_of(path), framework="pt", device=device) as opened:
        tensors: Iterable[tuple[str, torch.Tensor]] = opened.tensors()
        return dict(tensors)


def _runai(path: Path, device: str, _: Tensors) -> Tensors:
    module: Any = import_module("runai_model_streamer")
    with module.SafetensorsStreamer() as streamer:
        streamer.stream_files(files_of(path), device=device)
        tensors: Iterable[tuple[str, torch.Tensor]] = streamer.get_tensors()
        return dict(tensors)


_WAYS: Mapping[str, tuple[str, tuple[str, ...], Way]] = {
    "safetensors load_file": ("safetensors", ("cpu", "cuda"), _reference),
    "fastsafetensors": ("fastsafetensors", ("cuda",), _fast_defaults),
    "fastsafetensors, 64 MiB buffers": ("fastsafetensors", ("cuda",), _fast_large),
    "InstantTensor": ("instanttensor", ("cuda",), _instanttensor),
    "Run:ai Model Streamer": ("runai_model_streamer", ("cpu", "cuda"), _runai),
    "loader.torch.load_file": ("torch", ("cpu", "cuda"), _load_file),
    "loader.load": ("torch", ("cpu", "cuda"), _load),
    "safetensors, copied into parameters": ("safetensors", ("cpu", "cuda"), _reference_into),
    "loader.load into parameters": ("torch", ("cpu", "cuda"), _load_into),
}
"""By name: the package that it needs, the devices that it can fill, and the call."""

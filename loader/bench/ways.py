"""Ways to get a checkpoint's tensors: this loader's, and its peers' by their documented calls."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import loader
from loader.bench.names import INTO, LOAD_FILE, OURS, TRIED
from loader.copiers.destinations import allocate
from loader.torch import load_file

Tensors = Mapping[str, torch.Tensor]

PEERS = ("safetensors", "fastsafetensors", "instanttensor", "runai_model_streamer")
"""The packages whose ways are measured beside ours, where they are installed."""
_LARGE_BOUNCE_KIB = 64 * 1024


@dataclass(slots=True)
class Task:
    """One load that is asked for.

    Attributes:
        path: the checkpoint.
        device: ``cpu`` or ``cuda:N``.
        files: its shards.
        into: parameters that are there already, for ways that want them.
        closing: closed once the tensors have been used.
        facts: what the way tells of itself beside its tensors.
    """

    path: Path
    device: str
    files: list[str]
    into: Tensors = field(default_factory=dict)
    closing: ExitStack = field(default_factory=ExitStack)
    facts: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to load.

    Attributes:
        package: what must be installed.
        devices: the kinds of device that it can fill.
        load: the timed call.
        into: whether it loads into tensors that are there already.
    """

    package: str
    devices: tuple[str, ...]
    load: Callable[[Task], Tensors]
    into: bool = False


def available(device: str) -> list[str]:
    """Names of the ways that this machine has for a device, in the order in which they are shown."""
    kind = device.partition(":")[0]
    return [name for name, way in _WAYS.items() if kind in way.devices and find_spec(way.package)]


def way(name: str) -> Way:
    """What a name stands for; ours into parameters may say how it reads, as in ``…, 24 threads of 2 MiB``."""
    tried = TRIED.fullmatch(name)
    if tried is None:
        return _WAYS[name]
    run = loader.Run(threads=int(tried[1]), read_bytes=int(tried[2]) << 20)
    return Way(package=OURS, devices=_BOTH, load=partial(_load_into, run=run), into=True)


def parameters(path: Path, device: str) -> Tensors:
    """Tensors to load into, their memory taken."""
    tensors = allocate(loader.open_checkpoint(path), torch.device(device))
    for tensor in tensors.values():
        tensor.view(torch.uint8).zero_()
    return tensors


def files_of(path: Path) -> list[str]:
    """The shards at a path."""
    checkpoint = loader.open_checkpoint(path)
    return [f"{checkpoint.root}/{file}" for file in checkpoint.shards]


def _reference(task: Task) -> Tensors:
    load: Any = import_module("safetensors.torch").load_file
    return {name: tensor for file in task.files for name, tensor in load(file, device=task.device).items()}


def _reference_into(task: Task) -> Tensors:
    for name, tensor in _reference(task).items():
        task.into[name].copy_(tensor)
    return task.into


def _load_file(task: Task) -> Tensors:
    return load_file(task.path, device=task.device)


def _told(task: Task, result: loader.LoadResult) -> Tensors:
    task.facts.update(
        tier=result.tier,
        cachedShare=result.cached_share,
        fallbacks=sorted(result.fallbacks),
        stagingBytes=result.staging_bytes,
        secondsByStep=dict(result.seconds_by_step),
        openedSeconds=result.seconds,
    )
    return result.tensors


def _load(task: Task) -> Tensors:
    return _told(task, loader.load(loader.open_checkpoint(task.path), device=task.device))


def _load_into(task: Task, run: loader.Run | None = None) -> Tensors:
    return _told(task, loader.load(loader.open_checkpoint(task.path), into=task.into, run=run))


def _fastsafetensors(task: Task, bounce_kib: int | None = None) -> Tensors:
    module: Any = import_module("fastsafetensors")
    settings = {"bbuf_size_kb": bounce_kib} if bounce_kib else {}
    reader = module.SafeTensorsFileLoader(None, task.device, nogds=True, **settings)
    task.closing.callback(reader.close)
    reader.add_filenames({0: task.files})
    buffer = reader.copy_files_to_device()
    task.closing.callback(buffer.close)
    return {name: buffer.get_tensor(name) for name in buffer.key_to_rank_lidx}


def _instanttensor(task: Task, **settings: object) -> Tensors:
    module: Any = import_module("instanttensor")
    opened = task.closing.enter_context(
        module.safe_open(list(task.files), framework="pt", device=task.device, **settings)
    )
    tensors: Iterable[tuple[str, torch.Tensor]] = opened.tensors()
    return dict(tensors)


def _instanttensor_views(task: Task) -> Tensors:
    """Its buffer as large as the checkpoint, so that tensors needn't be copied out of it."""
    nbytes = sum(Path(file).stat().st_size for file in task.files)
    return _instanttensor(task, copy=False, buffer_size=nbytes + 2**28)


def _runai(task: Task) -> Tensors:
    module: Any = import_module("runai_model_streamer")
    streamer = task.closing.enter_context(module.SafetensorsStreamer())
    streamer.stream_files(task.files, device=task.device)
    tensors: Iterable[tuple[str, torch.Tensor]] = streamer.get_tensors()
    return dict(tensors)


_BOTH = ("cpu", "cuda")
_CUDA = ("cuda",)
_WAYS: Mapping[str, Way] = {
    "safetensors load_file": Way(package="safetensors", devices=_BOTH, load=_reference),
    "fastsafetensors": Way(package="fastsafetensors", devices=_CUDA, load=_fastsafetensors),
    "fastsafetensors, 64 MiB buffers": Way(
        package="fastsafetensors",
        devices=_CUDA,
        load=partial(_fastsafetensors, bounce_kib=_LARGE_BOUNCE_KIB),
    ),
    "InstantTensor": Way(package="instanttensor", devices=_CUDA, load=_instanttensor),
    "InstantTensor, views": Way(package="instanttensor", devices=_CUDA, load=_instanttensor_views),
    "Run:ai Model Streamer": Way(package="runai_model_streamer", devices=_BOTH, load=_runai),
    LOAD_FILE: Way(package="torch", devices=_BOTH, load=_load_file),
    "loader.load": Way(package="torch", devices=_BOTH, load=_load),
    "safetensors, copied into parameters": Way(
        package="safetensors", devices=_BOTH, load=_reference_into, into=True
    ),
    INTO: Way(package="torch", devices=_BOTH, load=_load_into, into=True),
}
"""By name, in the order in which they are shown."""

"""One measurement, for a process of its own: a limit, or a way to load and what it left on the device."""

import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch

from loader.bench import limits, names, ways
from loader.bench.fresh import Facts


def measure(name: str, path: Path, device: str) -> Facts:
    """Seconds until loaded, seconds until every byte was used once, the sum of the bytes, and what the way tells.

    Reading before summing doesn't count as done: a mapped file costs nothing until it is touched. Packages are imported,
    and the context made, before the time starts.
    """
    if names.is_limit(name):
        nbytes, seconds = limits.measure(name, path, device)
        return {"load": seconds, "all": seconds, "bytes": nbytes}
    way = ways.way(name)
    task = ways.Task(path, device, ways.files_of(path), ways.parameters(path, device) if way.into else {})
    _import(way.package)
    _warm_up(device)
    free = _free(device)
    begun = time.perf_counter()
    with task.closing:
        tensors = way.load(task)
        _wait(device)
        loaded = time.perf_counter()
        nbytes = sum(tensor.nbytes for tensor in tensors.values())
        memory = _memory(device, free, 0 if way.into else nbytes)
        begun_using = time.perf_counter()
        total = sum(_use(tensor) for tensor in tensors.values())
        used = time.perf_counter()
    return {
        "load": loaded - begun,
        "all": loaded - begun + used - begun_using,
        "sum": total,
        "bytes": nbytes,
        **memory,
        **task.facts,
    }


def _import(package: str) -> None:
    for module in (package, f"{package}.torch"):
        if find_spec(module):
            import_module(module)


def _warm_up(device: str) -> None:
    if device != "cpu":
        torch.cuda.set_device(device)
    # Starts torch's threads, or the context, and loads the kernels that are used below.
    _use(torch.ones(2**20, dtype=torch.int64, device=device))
    torch.ones(2**20, dtype=torch.uint8, device=device).zero_()
    _wait(device)
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _free(device: str) -> int:
    return torch.cuda.mem_get_info()[0] if device != "cpu" else 0


def _memory(device: str, free: int, tensor_bytes: int) -> dict[str, object]:
    """Device memory that a load holds beyond the tensors, and what torch had at the most beyond what it has now."""
    if device == "cpu":
        return {}
    return {
        "heldBytes": free - torch.cuda.mem_get_info()[0] - tensor_bytes,
        "peakExtraBytes": torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated(),
    }


def _use(tensor: torch.Tensor) -> int:
    """Read every byte once, as 64-bit words, which torch adds at about the speed of memory."""
    data = tensor.reshape(-1).view(torch.uint8)
    words = data.numel() // 8 * 8
    head = data[:words]
    if data.storage_offset() % 8 or data.data_ptr() % 8:
        head = head.clone()
    return int(head.view(torch.int64).sum()) + int(data[words:].sum())

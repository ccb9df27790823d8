"""One measurement in a process of its own: `python -m loader.bench.child NAME PATH DEVICE` prints it as JSON."""

import json
import sys
import time
from pathlib import Path

import torch

from loader.bench import limits, ways


def measure(name: str, path: Path, device: str) -> dict[str, float]:
    """Seconds until loaded, seconds until every byte was used once, and the sum of the bytes.

    Reading before summing doesn't count as done: a mapped file costs nothing until it is touched.
    """
    if limits.is_limit(name):
        nbytes, seconds = limits.measure(name, path, device)
        return {"load": seconds, "all": seconds, "bytes": nbytes}
    into = ways.parameters(path, device) if ways.wants_parameters(name) else {}
    _warm_up(device)
    begun = time.perf_counter()
    tensors = ways.way(name)(path, device, into)
    _wait(device)
    loaded = time.perf_counter()
    total = sum(_use(tensor) for tensor in tensors.values())
    used = time.perf_counter()
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    return {"load": loaded - begun, "all": used - begun, "sum": total, "bytes": nbytes}


def _warm_up(device: str) -> None:
    torch.ones(2**20, dtype=torch.int64, device=device).sum()  # starts torch's threads, or the context
    _wait(device)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _use(tensor: torch.Tensor) -> int:
    """Read every byte once, as 64-bit words, which torch adds at about the speed of memory."""
    data = tensor.reshape(-1).view(torch.uint8)
    words = data.numel() // 8 * 8
    head = data[:words]
    if data.storage_offset() % 8:
        head = head.clone()
    return int(head.view(torch.int64).sum()) + int(data[words:].sum())


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]), sys.argv[3])))  # noqa: T201 - read by the parent

"""What the hardware allows, measured beside what the engine reaches: how fast a device's memory can be read, copied and filled."""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

_BUFFER_BYTES = 8 << 30
_PINNED_BYTES = 1 << 30
_REPEATS = 9


def copied_per_second(device: torch.device, nbytes: int = _BUFFER_BYTES) -> float:
    """Bytes per second of a copy inside the device's memory, counting what is read and what is written."""
    both = torch.empty(2 * nbytes, dtype=torch.uint8, device=device)
    return copied_in(both)


def copied_in(memory: Tensor) -> float:
    """Bytes per second at which the first half of some memory is copied to the second, counting both."""
    source, target = memory.chunk(2)
    source.random_()
    return memory.nbytes / _seconds(lambda: target.copy_(source))


def read_per_second(device: torch.device, nbytes: int = _BUFFER_BYTES) -> float:
    """Bytes per second of a sum over the device's memory, which only reads."""
    source = torch.ones(nbytes // 4, dtype=torch.float32, device=device)
    return nbytes / _seconds(source.sum)


def pinned_copy_per_second(nbytes: int = _PINNED_BYTES) -> float:
    """Bytes per second of a copy from page-locked host memory to the first CUDA device."""
    source = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).random_()
    target = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    return nbytes / _seconds(lambda: target.copy_(source, non_blocking=True))


def _seconds(work: Callable[[], Tensor]) -> float:
    work()
    torch.cuda.synchronize()
    taken = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)

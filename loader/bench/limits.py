"""What the hardware can do with the same bytes: reading alone, past the page cache, and copying alone."""

import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from loader.bench.ways import files_of
from loader.plan import PAGE_BYTES

_CHUNK_BYTES = 16 * 2**20
_COPIED_BYTES = 4 * 2**30
_READS = {f"preadv alone, {threads} threads": threads for threads in (1, 4, 8, 16)}
_DIRECT = "O_DIRECT alone, 16 threads"
_COPY = "copy from page-locked memory alone"


def available(device: str) -> list[str]:
    """Names of the limits that apply to a device."""
    return [*_READS, _DIRECT, *([_COPY] if device != "cpu" else [])]


def is_limit(name: str) -> bool:
    """Whether this names a limit."""
    return name in _READS or name in {_DIRECT, _COPY}


def measure(name: str, path: Path, device: str) -> tuple[int, float]:
    """Bytes moved and seconds taken; the memory for it is taken before."""
    if name == _COPY:
        return _copy(device)
    direct = name == _DIRECT
    return _read(files_of(path), 16 if direct else _READS[name], os.O_DIRECT if direct else 0)


def _read(files: list[str], threads: int, flags: int) -> tuple[int, float]:
    chunks = [
        (file, offset)
        for file in files
        for offset in range(0, os.path.getsize(file), _CHUNK_BYTES)  # noqa: PTH202 - of a path as text
    ]
    largest = max(os.path.getsize(file) for file in files)  # noqa: PTH202 - as above
    size = min(_CHUNK_BYTES, -(-largest // PAGE_BYTES) * PAGE_BYTES)
    buffers = [mmap.mmap(-1, size) for _ in range(threads)]
    for buffer in buffers:
        buffer.write(bytes(size))
    opened = {file: os.open(file, os.O_RDONLY | flags) for file in files}

    def work(number: int) -> int:
        return sum(
            os.preadv(opened[file], [buffers[number]], offset) for file, offset in chunks[number::threads]
        )

    try:
        begun = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            nbytes = sum(pool.map(work, range(threads)))
        return nbytes, time.perf_counter() - begun
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


def _copy(device: str) -> tuple[int, float]:
    host = torch.frombuffer(mmap.mmap(-1, 2**28), dtype=torch.uint8)
    cudart: Any = torch.cuda.cudart  # its functions have no types
    status = int(cudart().cudaHostRegister(host.data_ptr(), host.numel(), 0))
    if status:
        raise RuntimeError(f"page-locking failed: cudaError {status}")
    target = torch.empty_like(host, device=device)
    copy: Callable[[], object] = lambda: target.copy_(host, non_blocking=True)  # noqa: E731 - the timed body
    copy()
    torch.cuda.synchronize()
    rounds = _COPIED_BYTES // host.numel()
    begun = time.perf_counter()
    for _ in range(rounds):
        copy()
    torch.cuda.synchronize()
    return rounds * host.numel(), time.perf_counter() - begun

"""What the hardware can do with the same bytes: reading alone, past the page cache, and copying alone."""

import mmap
import os
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from loader.bench.names import COPY, DIRECT, READ, THREADED
from loader.bench.ways import files_of
from loader.plan import PAGE_BYTES

_CHUNK_BYTES = 16 * 2**20
_COPIED_BYTES = 8 * 2**30
_BUFFER_BYTES = 2**28


def reads(threads: tuple[int, ...]) -> list[str]:
    """Names of the limits of reading through the page cache, or from tmpfs, with so many threads."""
    return [f"{READ}, {count} threads" for count in threads]


def direct_reads(threads: tuple[int, ...]) -> list[str]:
    """Names of the limits of reading past the page cache."""
    return [f"{DIRECT}, {count} threads" for count in threads]


def available(device: str) -> list[str]:
    """Names of the limits that apply to a device."""
    return [*reads((1, 4, 8, 16)), *direct_reads((16,)), *([COPY] if device != "cpu" else [])]


def measure(name: str, path: Path, device: str) -> tuple[int, float]:
    """Bytes moved and seconds taken; the memory for it is taken before."""
    threaded = THREADED.fullmatch(name)
    if threaded is None:
        return _copy(device)
    flags = os.O_DIRECT if threaded[1] == DIRECT else 0
    return _read(files_of(path), int(threaded[2]), flags)


def _read(files: list[str], threads: int, flags: int) -> tuple[int, float]:
    sizes = {file: Path(file).stat().st_size for file in files}
    # Whoever is done takes the next, as in a load.
    waiting = deque((file, offset) for file in files for offset in range(0, sizes[file], _CHUNK_BYTES))
    size = min(_CHUNK_BYTES, -(-max(sizes.values()) // PAGE_BYTES) * PAGE_BYTES)
    buffers = [mmap.mmap(-1, size) for _ in range(threads)]
    for buffer in buffers:
        buffer.write(bytes(size))
    opened = {file: os.open(file, os.O_RDONLY | flags) for file in files}

    def work(buffer: mmap.mmap) -> int:
        nbytes = 0
        while True:
            try:
                file, offset = waiting.popleft()
            except IndexError:
                return nbytes
            nbytes += os.preadv(opened[file], [buffer], offset)

    try:
        with ThreadPoolExecutor(threads) as pool:
            begun = time.perf_counter()
            nbytes = sum(pool.map(work, buffers))
            return nbytes, time.perf_counter() - begun
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


def _copy(device: str) -> tuple[int, float]:
    host = torch.frombuffer(mmap.mmap(-1, _BUFFER_BYTES), dtype=torch.uint8)
    torch.ones(1, device=device)  # the context
    cudart: Any = torch.cuda.cudart  # its functions have no types
    status = int(cudart().cudaHostRegister(host.data_ptr(), host.numel(), 0))
    if status:
        raise RuntimeError(f"page-locking failed: cudaError {status}")
    target = torch.empty_like(host, device=device)

    def copy(times: int) -> float:
        begun = time.perf_counter()
        for _ in range(times):
            target.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        return time.perf_counter() - begun

    copy(2)
    times = _COPIED_BYTES // host.numel()
    return times * host.numel(), copy(times)

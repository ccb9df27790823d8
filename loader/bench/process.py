"""What shows only inside one process: a first load's page-locking, device memory beside the tensors, and digests."""

import time
from collections.abc import Callable
from pathlib import Path

import torch

import loader
from loader.bench import ways
from loader.bench.fresh import Facts
from loader.copiers import numa, pinned, windows
from loader.cuda.copying import AddressCopies
from loader.digest import digest_tensors
from loader.siblings import Link
from loader.sources.sibling import link

_ROUNDS = 5
_PIECES = (64 * 2**10, 2 * 2**20, 16 * 2**20)
_STREAMS = (1, 16)
_COPIES = 200


def start_up(path: Path, device: str) -> Facts:
    """What a process's first load takes longer than its later ones: page-locking, streams, and whatever else is done once."""
    checkpoint = loader.open_checkpoint(path)
    into = ways.parameters(path, device)
    seconds = [_timed(device, lambda: loader.load(checkpoint, into=into)) for _ in range(_ROUNDS)]
    return {"seconds": seconds, "startUpSeconds": seconds[0] - sorted(seconds[1:])[(_ROUNDS - 1) // 2]}


def page_locking(_: Path, device: str) -> Facts:
    """Taking and page-locking all slots of a load on one thread, before anything is read: more than a load waits for."""
    where = torch.device(device)
    torch.ones(1, device=where)
    count = pinned.DEFAULT_THREADS // windows.TEAM_READERS * windows.TEAM_SLOTS
    pool = pinned.PinnedPool()

    def lock() -> None:
        with pool.lend(count, windows.BLOCK_BYTES, numa.node_of(where)) as slots:
            for slot in slots:
                slot.lock_pages()

    return {"lockSeconds": _timed(device, lock), "lockedBytes": count * windows.BLOCK_BYTES}


def queueing(_: Path, device: str) -> Facts:
    """What a copy of a piece takes beside its time on the link: the call, and until the device has done all, over one stream or many."""
    where = torch.device(device)
    torch.ones(1, device=where)
    copies = AddressCopies(where.index or 0)
    copies.enter()
    pool = pinned.PinnedPool()
    target = torch.empty(max(_PIECES), dtype=torch.uint8, device=where)
    found: dict[str, object] = {}
    with pool.lend(1, max(_PIECES), None) as (slot,):
        slot.lock_pages()
        for nbytes in _PIECES:
            for count in _STREAMS:
                streams = [torch.cuda.Stream(where) for _ in range(count)]  # type: ignore[no-untyped-call]
                numbers = [stream.cuda_stream for stream in streams]
                torch.cuda.synchronize()
                begun = time.perf_counter()
                for number in range(_COPIES):
                    copies.queue(target.data_ptr(), slot.address, nbytes, numbers[number % count])
                called = time.perf_counter()
                torch.cuda.synchronize()
                done = time.perf_counter()
                found[f"{nbytes >> 10} KiB, {count} streams"] = {
                    "callMicroseconds": (called - begun) / _COPIES * 1e6,
                    "copyMicroseconds": (done - begun) / _COPIES * 1e6,
                }
    return found


def digests(path: Path, device: str) -> Facts:
    """Digests of everything that a load brought, and what the load had of the device beside it."""
    checkpoint = loader.open_checkpoint(path)
    if device != "cpu":
        torch.ones(1, device=device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    loaded = loader.load(checkpoint, device=device)
    # What torch had at the most during the load beyond what it has now: the tensors.
    extra = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated() if device != "cpu" else 0
    seconds = [_timed(device, lambda: digest_tensors(loaded.tensors)) for _ in range(_ROUNDS)]
    return {
        "bytes": loaded.nbytes,
        "extraDeviceBytes": extra,
        "stagingBytes": loaded.staging_bytes,
        "seconds": seconds,
        "digestSeconds": sorted(seconds[1:])[(_ROUNDS - 1) // 2],
    }


def sibling(path: Path, device: str) -> Facts:
    """A copy from the device itself or, where there is another one with a direct link, from there."""
    others = [f"cuda:{number}" for number in range(torch.cuda.device_count()) if f"cuda:{number}" != device]
    holder = next((other for other in others if link(device, other) is Link.PEER), device)
    checkpoint = loader.open_checkpoint(path)
    held = loader.load(checkpoint, device=holder).tensors
    into = ways.parameters(path, device)
    source = loader.SiblingSource([loader.Resident(checkpoint, held)], device=device)
    results = [loader.load(checkpoint, into=into, run=loader.Run(source=source)) for _ in range(_ROUNDS)]
    seconds = sorted(result.seconds_by_step[loader.Step.COPY] for result in results)
    return {
        "bytes": checkpoint.total_bytes,
        "link": link(device, holder).name,
        "tier": results[0].tier,
        "seconds": seconds,
        "gigabytesPerSecond": checkpoint.total_bytes / seconds[_ROUNDS // 2] / 1e9,
    }


def _timed(device: str, work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - begun

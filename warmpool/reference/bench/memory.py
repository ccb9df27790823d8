"""How long a CUDA device's KV memory takes to be taken and given back: mapped in chunks, and allocated as the peer.

`python -m warmpool.reference.bench.memory OUT --gigabytes 40`
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer

from warmpool.reference.arena import MappedArena
from warmpool.reference.bench.device import used_bytes
from warmpool.reference.bench.limits import copied_in
from warmpool.reference.driver import CudaDriver
from warmpool.reference.vmm import CudaMapper, FixedRange, ignore_growth

_MEBIBYTE = 1 << 20
_COPIED_BYTES = 16 << 30
_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Taking:
    """Milliseconds of one way to take memory and give it back, as medians, and what the device said afterwards.

    Attributes:
        way: `mapped` with the chunk's size, or `allocated`.
        first: until the first of it can be used: one chunk of mapped memory, all of allocated memory.
        whole: until all of it can.
        back: until all of it is given back.
        worst_back: the slowest giving back.
        seen_taken: growth of the device's used memory, as a share of what was taken.
        left: growth of the device's used memory after giving back, in MiB.
    """

    way: str
    first: float
    whole: float
    back: float
    worst_back: float
    seen_taken: float
    left: float


@dataclass(slots=True)
class _Clock:
    """Collects the milliseconds of named steps."""

    steps: dict[str, list[float]]

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.steps.setdefault(name, []).append((time.perf_counter() - began) * 1e3)

    def median(self, name: str) -> float:
        return statistics.median(self.steps[name])


@dataclass(frozen=True, slots=True)
class Rounds:
    """How often to measure, and how long to rest before each time: a device cleans memory after it was given back."""

    repeats: int
    rest_seconds: float


def measure_mapped(nbytes: int, chunk_bytes: int, rounds: Rounds) -> Taking:
    """Map and unmap."""
    device = torch.device("cuda", torch.cuda.current_device())
    memory = FixedRange(CudaMapper(CudaDriver(device.index or 0)), nbytes, chunk_bytes=chunk_bytes)
    clock = _Clock({})

    def take() -> None:
        with clock.step("whole"):
            with clock.step("first"):
                memory.take()
            if not memory.wait_complete(_WAIT_SECONDS):
                raise TimeoutError(f"{memory.taken_bytes} of {memory.nbytes} bytes were taken")

    way = f"mapped {chunk_bytes // _MEBIBYTE} MiB"
    taking = _measure(way, nbytes, clock, (take, memory.give_back), rounds)
    memory.close()
    return taking


def measure_allocated(nbytes: int, rounds: Rounds) -> Taking:
    """Allocate and free, past torch's cache."""
    held: list[torch.Tensor] = []
    clock = _Clock({})

    def take() -> None:
        with clock.step("whole"), clock.step("first"):
            held.append(torch.empty(nbytes, dtype=torch.uint8, device="cuda"))
            torch.cuda.synchronize()

    def give_back() -> None:
        held.clear()
        torch.cuda.empty_cache()

    return _measure("allocated", nbytes, clock, (take, give_back), rounds)


def _measure(
    way: str, nbytes: int, clock: _Clock, ways: tuple[Callable[[], None], Callable[[], None]], rounds: Rounds
) -> Taking:
    take, give_back = ways
    before = used_bytes()
    taken = 0
    for _ in range(rounds.repeats):
        time.sleep(rounds.rest_seconds)
        take()
        taken = used_bytes() - before
        with clock.step("back"):
            give_back()
    return Taking(
        way=way,
        first=clock.median("first"),
        whole=clock.median("whole"),
        back=clock.median("back"),
        worst_back=max(clock.steps["back"]),
        seen_taken=taken / nbytes,
        left=(used_bytes() - before) / _MEBIBYTE,
    )


def _copied() -> tuple[float, float]:
    """Bytes per second of copies in mapped memory and in an ordinary allocation."""
    device = torch.device("cuda", torch.cuda.current_device())
    arena = MappedArena(_COPIED_BYTES, device)
    mapped = arena.take(ignore_growth)
    arena.wait_taken(_WAIT_SECONDS)
    speed = copied_in(mapped)
    arena.give_back()
    return speed, copied_in(torch.empty(_COPIED_BYTES, dtype=torch.uint8, device=device))


def main(
    out: Annotated[Path, typer.Argument(help="Directory for memory.json; created.")],
    *,
    gigabytes: Annotated[float, typer.Option(help="Memory to take, in 10^9 bytes.")] = 40.0,
    chunks: Annotated[str, typer.Option(help="Sizes of chunks in MiB, with commas.")] = "64,128,256,1024",
    repeats: Annotated[int, typer.Option(min=1, help="Rounds for each.")] = 7,
    rest: Annotated[float, typer.Option(min=0, help="Seconds before each round.")] = 0.3,
) -> None:
    """Print milliseconds to take and to give back, for each way."""
    nbytes = int(gigabytes * 1e9)
    torch.empty(1, device="cuda")  # makes the context, which takes memory of its own
    rounds = Rounds(repeats, rest)
    takings = [measure_mapped(nbytes, int(size) * _MEBIBYTE, rounds) for size in chunks.split(",")]
    takings.append(measure_allocated(nbytes, rounds))
    out.mkdir(parents=True, exist_ok=True)
    (out / "memory.json").write_text(json.dumps([asdict(taking) for taking in takings], indent=1) + "\n")
    typer.echo(
        "way                first ms   whole ms  ms per GB    back ms  ms per GB  worst back   seen  left MiB"
    )
    for taking in takings:
        typer.echo(
            f"{taking.way:16s} {taking.first:10.2f} {taking.whole:10.2f} {taking.whole / gigabytes:10.3f}"
            f" {taking.back:10.2f} {taking.back / gigabytes:10.3f} {taking.worst_back:11.2f}"
            f" {taking.seen_taken:6.3f} {taking.left:9.1f}"
        )
    mapped, allocated = _copied()
    typer.echo(f"copies: {mapped / 1e12:.2f} TB/s in mapped memory, {allocated / 1e12:.2f} TB/s in allocated")


if __name__ == "__main__":
    typer.run(main)

"""Switches between models that share one device: the one gives its KV memory back, the other takes as much and answers.

`python -m warmpool.reference.bench.switch OUT --shape llama-8b --engines 5 --gigabytes 40 --switches 200`

Each engine is a process of its own and has its weights on the device all the time. A switch is timed from the order to the first
token of a prompt sent to the new engine's public port; nothing else runs. Every answer is compared with what the same weights
compute without serving, batching and KV memory (`expect.py`); each engine has prompts of its own, so that one's leftovers in
memory are no other's right answer.
"""

import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from warmpool.engines.deadline import Deadline
from warmpool.reference.bench.device import card, used_mebibytes
from warmpool.reference.bench.figures import nearest_rank
from warmpool.reference.bench.fleet import ORDER_SECONDS, Resident, fleet
from warmpool.reference.bench.questions import SEQUENCES, Question, length_for, questions
from warmpool.reference.checkpoints import make_checkpoint
from warmpool.reference.options import ModelOptions

TARGET_MILLISECONDS = 100.0
_GROWTH_MEBIBYTES = 64
"""More growth of used memory than this from the first to the last switch counts as a leak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """The milliseconds of one switch, its steps first.

    Attributes:
        drain: closing the old engine's guard and seeing that nothing is in flight.
        release: pausing it and giving its KV memory back.
        take: resuming the new engine, its KV memory taken as far as it answers before.
        first: opening its guard and sending the prompt, until the first token.
        total: from the order to the first token.
        whole: from the order until the new engine's whole KV memory is there.
        right: whether all tokens were right.
        device_mebibytes: used memory of the device afterwards, None without a device.
    """

    drain: float
    release: float
    take: float
    first: float
    total: float
    whole: float
    right: bool
    device_mebibytes: float | None


async def switch(old: Resident, new: Resident, question: Question) -> Switch:
    """Carry out one switch."""
    times = [time.perf_counter()]
    deadline = Deadline.after(ORDER_SECONDS)
    state = await old.engine.close_guard(deadline=deadline)
    if state.in_flight:
        raise RuntimeError(f"{old.name} has {state.in_flight} requests in flight")
    times.append(time.perf_counter())
    await old.pause()
    times.append(time.perf_counter())
    await new.resume()
    times.append(time.perf_counter())
    await new.engine.open_guard(deadline=deadline)
    answer = await new.answer(question.prompt, len(question.answer))
    times.append(answer.first_at)
    await new.until_whole()
    whole = time.perf_counter()
    drain, release, take, first = ((after - before) * 1e3 for before, after in pairwise(times))
    return Switch(
        drain=drain,
        release=release,
        take=take,
        first=first,
        total=(times[-1] - times[0]) * 1e3,
        whole=(whole - times[0]) * 1e3,
        right=answer.tokens == question.answer,
        device_mebibytes=used_mebibytes(),
    )


async def run(
    options: ModelOptions, asked: Sequence[Sequence[Question]], count: int, seed: int, logs: Path
) -> "Outcome":
    """Start the engines and switch between them at random."""
    choose = random.Random(seed)
    names = [f"model-{number}" for number in range(len(asked))]
    async with fleet(names, options, logs) as residents:
        paused = _Memory.of(residents)
        current = 0
        await residents[current].resume()
        await residents[current].engine.open_guard(deadline=Deadline.after(ORDER_SECONDS))
        await residents[current].until_whole()
        switches = []
        for _ in range(count):
            following = choose.choice([number for number in range(len(residents)) if number != current])
            question = choose.choice(asked[following])
            switches.append(await switch(residents[current], residents[following], question))
            current = following
        await residents[current].engine.close_guard(deadline=Deadline.after(ORDER_SECONDS))
        await residents[current].pause()
        return Outcome(switches, paused, _Memory.of(residents))


@dataclass(frozen=True, slots=True)
class _Memory:
    """Memory in MiB while all engines are paused: the device's, and each process's own (resident set)."""

    device: float | None
    processes: list[float]

    @classmethod
    def of(cls, residents: Sequence[Resident]) -> "_Memory":
        return cls(used_mebibytes(), [entry.process.memory_info().rss / 2**20 for entry in residents])


@dataclass(frozen=True, slots=True)
class Outcome:
    """All switches, and the memory before the first and after the last one."""

    switches: list[Switch]
    before: _Memory
    after: _Memory

    @property
    def wrong(self) -> int:
        """Switches with a wrong token."""
        return sum(not entry.right for entry in self.switches)

    @property
    def growth(self) -> float:
        """MiB by which the device's used memory grew, or without a device the largest process."""
        if self.before.device is not None and self.after.device is not None:
            return self.after.device - self.before.device
        return max(
            after - before for before, after in zip(self.before.processes, self.after.processes, strict=True)
        )


def _show(outcome: Outcome) -> None:
    typer.echo("milliseconds       p50      p99      max  p99/p50")
    for name in ("drain", "release", "take", "first", "total", "whole"):
        values = [getattr(entry, name) for entry in outcome.switches]
        middle, high = statistics.median(values), nearest_rank(values, 0.99)
        typer.echo(f"{name:12s} {middle:9.1f} {high:8.1f} {max(values):8.1f} {high / middle:8.2f}")
    high = nearest_rank([entry.total for entry in outcome.switches], 0.99)
    met = "met" if high <= TARGET_MILLISECONDS else "missed"
    typer.echo(f"order to first token, p99 at most {TARGET_MILLISECONDS:.0f} ms: {met} with {high:.1f} ms")
    typer.echo(f"switches with a wrong token: {outcome.wrong} of {len(outcome.switches)}")
    device = [entry.device_mebibytes for entry in outcome.switches if entry.device_mebibytes is not None]
    if device:
        typer.echo(
            f"device memory while one serves, MiB: first {device[0]:.0f}, last {device[-1]:.0f}, most {max(device):.0f}"
        )
    typer.echo(
        f"device memory while all are paused, MiB: {outcome.before.device} then {outcome.after.device}"
    )
    processes = zip(outcome.before.processes, outcome.after.processes, strict=True)
    grown = ", ".join(f"{before:.0f} then {after:.0f}" for before, after in processes)
    typer.echo(f"processes' own memory, MiB: {grown}")


def main(  # noqa: PLR0913 (one parameter per command-line option)
    out: Annotated[Path, typer.Argument(help="Directory for switch.json and the engines' logs; created.")],
    *,
    shape: Annotated[str, typer.Option(help="tiny, small, llama-1b or llama-8b.")] = "llama-8b",
    engines: Annotated[int, typer.Option(min=2, help="Models that share the device.")] = 5,
    gigabytes: Annotated[float, typer.Option(help="KV memory of the one that serves, in 10^9 bytes.")] = 40.0,
    switches: Annotated[int, typer.Option(min=1, help="Switches, each to a model chosen at random.")] = 200,
    prompt_tokens: Annotated[int, typer.Option(min=2, help="Tokens of a prompt.")] = 128,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    kv_memory: Annotated[str, typer.Option(help="auto, mapped or allocated.")] = "auto",
    checkpoint: Annotated[Path | None, typer.Option(help="An existing one instead of a new one.")] = None,
    seed: Annotated[int, typer.Option(help="Prompts and the order of switches follow from it.")] = 1,
) -> None:
    """Print the steps' times, whether all tokens were right, and memory before and after."""
    length, kv_bytes = length_for(shape, gigabytes, device)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        directory = checkpoint or make_checkpoint(Path(scratch) / shape, shape, seed=1, shards=8)
        options = ModelOptions(
            checkpoint=directory, device=device, max_num_seqs=SEQUENCES, max_model_len=length
        )
        asked = questions(replace(options, max_model_len=2), engines, prompt_tokens, seed)
        typer.echo(
            f"{engines} engines, {SEQUENCES} sequences of {length} tokens: {kv_bytes / 1e9:.2f} GB of KV memory each"
        )
        outcome = asyncio.run(run(replace(options, kv_memory=kv_memory), asked, switches, seed, out))
    described = {"machine": card() if device != "cpu" else {}, **asdict(outcome)}
    (out / "switch.json").write_text(json.dumps(described, indent=1) + "\n")
    _show(outcome)
    if outcome.wrong or outcome.growth > _GROWTH_MEBIBYTES:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

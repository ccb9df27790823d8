"""Tokens per second by number of sequences that run together, through the real engine thread.

`python -m warmpool.reference.bench.throughput --shape small --seqs 1,2,4,8`

On CUDA the limit is measured in the same run: a step reads all weights once, so it can't be shorter than that takes at the speed
at which the device's memory can be read.
"""

import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, cast

import typer

from warmpool.reference.checkpoints import make_checkpoint
from warmpool.reference.engine import Engine
from warmpool.reference.opening import open_model
from warmpool.reference.options import ModelOptions
from warmpool.reference.runner import TorchRunner, build
from warmpool.reference.scheduler import Limits, Scheduler
from warmpool.reference.sequence import Load, Output, Sampling, Sequence
from warmpool.reference.startup import Startup
from warmpool.reference.tokenizer import TextStream

PROMPT_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Rate:
    """What was measured for one number of sequences.

    Attributes:
        sequences: that ran together.
        tokens_per_second: of all together, their prompts included.
        step_seconds: median time between two tokens of a sequence.
    """

    sequences: int
    tokens_per_second: float
    step_seconds: float


class _Harness:
    """An engine without servers, and the moment at which all its sequences have ended."""

    def __init__(self, options: ModelOptions) -> None:
        limits = Limits(max_num_seqs=options.max_num_seqs)
        self.engine = Engine(
            lambda: build(open_model(options), options, Startup()), Scheduler(limits=limits), self._report
        )
        self._open = 0
        self._all_ended = threading.Event()
        self._key = 0
        self._at: list[float] = []
        self.engine.start()
        self.engine.ready.result()

    def _report(self, outputs: list[Output], _load: Load) -> None:
        self._at.append(time.perf_counter())
        self._open -= sum(output.finish is not None for output in outputs)
        if self._open == 0:
            self._all_ended.set()

    def _sequence(self, tokens: int, prompt_tokens: int) -> Sequence:
        self._key += 1
        prompt = [256, *(33 + (self._key * 7 + step * 13) % 90 for step in range(prompt_tokens - 1))]
        sampling = Sampling(max_tokens=tokens, temperature=0, ignore_eos=True)
        text = TextStream(self.engine.runner.tokenizer.decoder())
        return Sequence(key=self._key, prompt=prompt, sampling=sampling, text=text, arrived=time.monotonic())

    def seconds(self, sequences: int, tokens: int, prompt_tokens: int = PROMPT_TOKENS) -> float:
        """How long `sequences` take for `tokens` each, all submitted at once, prompts included."""
        self._all_ended.clear()
        batch = [self._sequence(tokens, prompt_tokens) for _ in range(sequences)]
        self._at.clear()

        def submit() -> None:
            self._open = sequences
            for sequence in batch:
                self.engine.submit(sequence)

        began = time.perf_counter()
        self.engine.order(submit).result()
        self._all_ended.wait()
        return time.perf_counter() - began

    def step_seconds(self, tokens: int) -> float:
        """The median time between the reports of the last round's steps; its prompts came before."""
        steps = self._at[-tokens + 1 :]
        return statistics.median(after - before for before, after in pairwise(steps))

    def close(self) -> None:
        self.engine.stop()
        self.engine.join(10)


def measure(options: ModelOptions, counts: list[int], *, tokens: int, repeats: int = 3) -> list[Rate]:
    """Measure generated tokens per second, all sequences together.

    The rounds alternate between the counts and the best round of each counts, so that a neighbour's load on the machine falls on all alike.

    Args:
        options: the model; `max_num_seqs` bounds the counts.
        counts: numbers of sequences.
        tokens: tokens per sequence.
        repeats: rounds.
    """
    harness = _Harness(options)
    try:
        return _rates(harness, counts, tokens, repeats)
    finally:
        harness.close()


def _rates(harness: _Harness, counts: list[int], tokens: int, repeats: int) -> list[Rate]:
    harness.seconds(max(counts), 4)
    best = {count: Rate(count, 0.0, 0.0) for count in counts}
    for _ in range(repeats):
        for count in counts:
            rate = count * tokens / harness.seconds(count, tokens)
            if rate > best[count].tokens_per_second:
                best[count] = Rate(count, rate, harness.step_seconds(tokens))
    return list(best.values())


def _first_token(harness: _Harness, prompt_tokens: int, repeats: int = 20) -> float:
    return statistics.median(harness.seconds(1, 1, prompt_tokens) for _ in range(repeats))


def _show_limits(harness: _Harness, rates: list[Rate]) -> None:
    runner = cast("TorchRunner", harness.engine.runner)
    if runner.device.type != "cuda":
        return
    from warmpool.reference.bench.limits import copied_per_second, read_per_second  # noqa: PLC0415

    copied, read = copied_per_second(runner.device), read_per_second(runner.device)
    floor = runner.step_bytes / read
    typer.echo(f"how: {runner.facts}")
    typer.echo(
        f"device memory: {copied / 1e12:.2f} TB/s copied (read + written), {read / 1e12:.2f} TB/s read"
    )
    typer.echo(f"a step reads {runner.step_bytes / 1e9:.2f} GB of weights: at least {floor * 1e3:.2f} ms")
    for rate in rates:
        typer.echo(
            f"{rate.sequences:9d} sequences: {rate.step_seconds * 1e3:.2f} ms a step,"
            f" {100 * floor / rate.step_seconds:.0f} % of the limit"
        )


def main(  # noqa: PLR0913 (one parameter per command-line option)
    *,
    shape: Annotated[str, typer.Option(help="tiny, small, llama-1b or llama-8b.")] = "small",
    seqs: Annotated[str, typer.Option(help="Numbers of sequences, with commas.")] = "1,2,4,8",
    tokens: Annotated[int, typer.Option(help="Tokens per sequence.")] = 64,
    threads: Annotated[int, typer.Option(help="CPU threads per operation.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    checkpoint: Annotated[
        Path | None, typer.Option(help="An existing checkpoint instead of a new one.")
    ] = None,
    eager: Annotated[bool, typer.Option("--eager", help="Without CUDA graphs.")] = False,
    kernels: Annotated[str, typer.Option(help="auto, fused or gathered.")] = "auto",
) -> None:
    """Print tokens per second for each number of sequences, and the gain over the first."""
    counts = [int(count) for count in seqs.split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        directory = checkpoint or make_checkpoint(Path(scratch) / shape, shape, seed=1)
        options = ModelOptions(checkpoint=directory, device=device, threads=threads, max_num_seqs=max(counts))
        harness = _Harness(replace(options, enforce_eager=eager, kernels=kernels))
    try:
        rates = _rates(harness, counts, tokens, 3)
        typer.echo("sequences  tokens/s  gain")
        for rate in rates:
            gain = rate.tokens_per_second / rates[0].tokens_per_second
            typer.echo(f"{rate.sequences:9d} {rate.tokens_per_second:9.1f} {gain:5.2f}")
        typer.echo(f"first token of a prompt of 128: {_first_token(harness, 128) * 1e3:.1f} ms")
        _show_limits(harness, rates)
    finally:
        harness.close()


if __name__ == "__main__":
    typer.run(main)

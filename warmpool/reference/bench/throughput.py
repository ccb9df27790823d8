"""Tokens per second by number of sequences that run together, through the real engine thread.

`python -m warmpool.reference.bench.throughput --shape small --seqs 1,2,4,8`
"""

import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from warmpool.reference.checkpoints import make_checkpoint
from warmpool.reference.engine import Engine
from warmpool.reference.opening import open_model
from warmpool.reference.options import ModelOptions
from warmpool.reference.runner import build
from warmpool.reference.scheduler import Limits, Scheduler
from warmpool.reference.sequence import Load, Output, Sampling, Sequence
from warmpool.reference.startup import Startup
from warmpool.reference.tokenizer import TextStream

PROMPT_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Rate:
    """What was measured for one number of sequences."""

    sequences: int
    tokens_per_second: float


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
        self.engine.start()
        self.engine.ready.result()

    def _report(self, outputs: list[Output], _load: Load) -> None:
        self._open -= sum(output.finish is not None for output in outputs)
        if self._open == 0:
            self._all_ended.set()

    def _sequence(self, tokens: int) -> Sequence:
        self._key += 1
        prompt = [256, *(33 + (self._key * 7 + step * 13) % 90 for step in range(PROMPT_TOKENS - 1))]
        sampling = Sampling(max_tokens=tokens, temperature=0, ignore_eos=True)
        text = TextStream(self.engine.runner.tokenizer.decoder())
        return Sequence(key=self._key, prompt=prompt, sampling=sampling, text=text, arrived=time.monotonic())

    def seconds(self, sequences: int, tokens: int) -> float:
        """How long `sequences` take for `tokens` each, all submitted at once, prompts included."""
        self._all_ended.clear()
        batch = [self._sequence(tokens) for _ in range(sequences)]

        def submit() -> None:
            self._open = sequences
            for sequence in batch:
                self.engine.submit(sequence)

        began = time.perf_counter()
        self.engine.order(submit).result()
        self._all_ended.wait()
        return time.perf_counter() - began

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
        harness.seconds(max(counts), 4)
        best = dict.fromkeys(counts, float("inf"))
        for _ in range(repeats):
            for count in counts:
                best[count] = min(best[count], harness.seconds(count, tokens))
    finally:
        harness.close()
    return [Rate(count, count * tokens / seconds) for count, seconds in best.items()]


def main(
    *,
    shape: Annotated[str, typer.Option(help="tiny, small, llama-1b or llama-8b.")] = "small",
    seqs: Annotated[str, typer.Option(help="Numbers of sequences, with commas.")] = "1,2,4,8",
    tokens: Annotated[int, typer.Option(help="Tokens per sequence.")] = 64,
    threads: Annotated[int, typer.Option(help="CPU threads per operation.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    checkpoint: Annotated[
        Path | None, typer.Option(help="An existing checkpoint instead of a new one.")
    ] = None,
) -> None:
    """Print tokens per second for each number of sequences, and the gain over the first."""
    counts = [int(count) for count in seqs.split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        directory = checkpoint or make_checkpoint(Path(scratch) / shape, shape, seed=1)
        options = ModelOptions(checkpoint=directory, device=device, threads=threads, max_num_seqs=max(counts))
        rates = measure(options, counts, tokens=tokens)
    typer.echo("sequences  tokens/s  gain")
    for rate in rates:
        gain = rate.tokens_per_second / rates[0].tokens_per_second
        typer.echo(f"{rate.sequences:9d} {rate.tokens_per_second:9.1f} {gain:5.2f}")


if __name__ == "__main__":
    typer.run(main)

"""The command line: `python -m warmpool.reference serve` and `make-checkpoint`."""

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from warmpool.reference.errors import CannotStart
from warmpool.reference.options import ModelOptions, ServerOptions
from warmpool.reference.pacing import Pacer
from warmpool.reference.scheduler import Limits

app = typer.Typer(
    help="Emberpool's reference engine: an OpenAI-style server in torch.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)


class GuardState(StrEnum):
    """How the guard is born."""

    OPEN = "open"
    CLOSED = "closed"


class Dtype(StrEnum):
    """What is computed in."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class KvMemoryKind(StrEnum):
    """Where a CUDA device's KV memory comes from."""

    AUTO = "auto"
    MAPPED = "mapped"
    ALLOCATED = "allocated"


class Kernels(StrEnum):
    """What computes attention on a CUDA device."""

    AUTO = "auto"
    FUSED = "fused"
    GATHERED = "gathered"


@app.command()
def serve(  # noqa: PLR0913 (one parameter per command-line option)
    *,
    model: Annotated[
        list[str], typer.Option(help="Name that clients use; repeatable, the first names it in metrics.")
    ],
    checkpoint: Annotated[Path, typer.Option(help="Directory with config.json and .safetensors files.")],
    host: Annotated[str, typer.Option(help="Address of the public listener.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Its port; 0 lets the system choose.")] = 8000,
    control_host: Annotated[str, typer.Option(help="Address of the control listener.")] = "127.0.0.1",
    control_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Its port; 0 lets the system choose.")
    ] = 8001,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[Dtype, typer.Option(help="auto: float32 on CPU, bfloat16 on CUDA.")] = Dtype.AUTO,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads per operation.")] = 1,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Sequences that run at once.")] = 8,
    max_model_len: Annotated[int, typer.Option(min=2, help="Tokens per sequence, prompt and answer.")] = 512,
    kv_memory: Annotated[
        KvMemoryKind,
        typer.Option(
            help="KV memory on CUDA: mapped at a fixed address (fast to give back and take), or torch's."
        ),
    ] = KvMemoryKind.AUTO,
    kernels: Annotated[
        Kernels, typer.Option(help="Attention on CUDA: fused (needs Triton) or gathered.")
    ] = Kernels.AUTO,
    enforce_eager: Annotated[
        bool, typer.Option("--enforce-eager", help="Capture no CUDA graphs; decode steps are slower.")
    ] = False,
    max_num_queued_reqs: Annotated[
        int, typer.Option(min=1, help="Requests that wait; further ones get 503.")
    ] = 1024,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Prompt tokens per step.")] = 2048,
    max_tokens_per_second: Annotated[
        float, typer.Option(min=0, help="Cap on each stream's rate; 0 for none.")
    ] = 0,
    guard: Annotated[
        GuardState, typer.Option(help="Whether the public listener starts open.")
    ] = GuardState.OPEN,
    shutdown_seconds: Annotated[
        float, typer.Option(min=0, help="How long requests may go on after SIGTERM.")
    ] = 60,
    ready_fd: Annotated[
        int | None, typer.Option(help="Gets a line of JSON when ready, and is closed.")
    ] = None,
    die_with_parent: Annotated[
        bool, typer.Option("--die-with-parent", help="End when the parent ends.")
    ] = False,
) -> None:
    """Serve a checkpoint until SIGTERM."""
    parent = os.getppid()
    from warmpool.reference import serve as process  # noqa: PLC0415 (make-checkpoint needs no server)

    if die_with_parent:
        process.die_with_parent(parent)
    model_options = ModelOptions(
        checkpoint=checkpoint,
        device=device,
        dtype=str(dtype),
        threads=threads,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        kv_memory=str(kv_memory),
        kernels=str(kernels),
        enforce_eager=enforce_eager,
    )
    server_options = ServerOptions(
        models=tuple(model),
        host=host,
        port=port,
        control_host=control_host,
        control_port=control_port,
        guard_open=guard is GuardState.OPEN,
        ready_fd=ready_fd,
        shutdown_seconds=shutdown_seconds,
        limits=Limits(
            max_num_seqs=max_num_seqs,
            max_queued=max_num_queued_reqs,
            max_prefill_tokens=max_num_batched_tokens,
        ),
        pacer=Pacer(max_tokens_per_second),
    )
    raise typer.Exit(process.run(server_options, model_options))


@app.command("make-checkpoint")
def make_checkpoint(
    directory: Annotated[Path, typer.Argument(help="Where the files go; created.")],
    *,
    shape: Annotated[str, typer.Option(help="tiny, small, llama-1b or llama-8b.")],
    seed: Annotated[int, typer.Option(help="The weights follow from it.")] = 1,
    shards: Annotated[int, typer.Option(min=1, help="Files that the weights are spread over.")] = 2,
) -> None:
    """Write a checkpoint with random weights of a real shape."""
    from warmpool.reference import checkpoints  # noqa: PLC0415 (imports torch)

    if shape not in checkpoints.SHAPES:
        raise typer.BadParameter(
            f"{shape!r} is none of {', '.join(checkpoints.SHAPES)}", param_hint="--shape"
        )
    try:
        made = checkpoints.make_checkpoint(directory, shape, seed=seed, shards=shards)
    except OSError as error:
        raise CannotStart(str(error), hint="choose another directory, or free space on this disk") from error
    typer.echo(made)


@app.command()
def expect(
    *,
    checkpoint: Annotated[Path, typer.Option(help="Directory with config.json and .safetensors files.")],
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Print what a sound engine answers, as JSON: the record that proofs and canaries are held against."""
    from warmpool.reference.expect import expectations  # noqa: PLC0415 (imports torch)

    options = ModelOptions(
        checkpoint=checkpoint, device=device, dtype="auto", threads=1, max_num_seqs=1, max_model_len=2
    )
    typer.echo(json.dumps({"prompts": expectations(options)}))


def main() -> None:
    """Run the command line; an error that a person can mend is two lines on stderr and exit code 2."""
    try:
        app()
    except CannotStart as error:
        typer.echo(f"error: {' '.join(str(error).split())}\nhint: {error.hint}", err=True)
        sys.exit(2)

"""The command line: `python -m warmpool.reference serve` and `make-checkpoint`."""

import json
import os
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from warmpool.expectations import PROMPTS
from warmpool.reference.errors import CannotStart
from warmpool.reference.options import ModelOptions, ServerOptions
from warmpool.reference.pacing import Pacer
from warmpool.reference.scheduler import Limits
from warmpool.reference.startup import Origin
from warmpool.wire import answer_to_json, ownership_to_json

WARNING: Final = "warning: "
"""What a line on stderr begins with that warns of a record."""

_GIGABYTE: Final = 1e9

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


_DieWithParent = Annotated[bool, typer.Option("--die-with-parent", help="End when the parent ends.")]
_Zygote = Annotated[
    Path | None,
    typer.Option(
        metavar="SOCKET",
        readable=False,  # one that can't be had is passed over, and told
        help="Have the zygote at this socket fork; where there is none, start without it.",
    ),
]


_Ranks = Annotated[
    int,
    typer.Option(
        "--tensor-parallel-size", min=1, help="Processes, and on CUDA devices, that share each layer."
    ),
]


@app.command()
def serve(  # noqa: PLR0913 (one parameter per command-line option)
    context: typer.Context,
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
            help="KV memory and weights on CUDA: mapped at a fixed address (fast to give back and take), or torch's."
        ),
    ] = KvMemoryKind.AUTO,
    kernels: Annotated[
        Kernels, typer.Option(help="Attention on CUDA: fused (needs Triton) or gathered.")
    ] = Kernels.AUTO,
    enforce_eager: Annotated[
        bool, typer.Option("--enforce-eager", help="Capture no CUDA graphs; decode steps are slower.")
    ] = False,
    defer_capture: Annotated[
        bool,
        typer.Option(
            "--defer-capture",
            envvar="EMBERPOOL_DEFER_CAPTURE",
            help="Be ready before CUDA graphs are captured: POST /emberpool/capture does that later.",
        ),
    ] = False,
    stage: Annotated[
        str,
        typer.Option(
            metavar="unix:///PATH",
            envvar="EMBERPOOL_STAGE",
            help="The node's stage daemon, which may have the weights in memory already.",
        ),
    ] = "",
    load_gigabytes_per_second: Annotated[
        float,
        typer.Option(
            min=0,
            envvar="EMBERPOOL_LOAD_GIGABYTES_PER_SECOND",
            help="Cap on reading weights, so that a neighbour that serves isn't slowed down; 0 for none.",
        ),
    ] = 0,
    max_num_queued_reqs: Annotated[
        int, typer.Option(min=1, help="Requests that wait; further ones get 503.")
    ] = 1024,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Prompt tokens per step.")] = 2048,
    max_tokens_per_second: Annotated[
        float, typer.Option(min=0, help="Cap on each stream's rate; 0 for none.")
    ] = 0,
    tensor_parallel_size: _Ranks = 1,
    guard: Annotated[
        GuardState, typer.Option(help="Whether the public listener starts open.")
    ] = GuardState.OPEN,
    shutdown_seconds: Annotated[
        float, typer.Option(min=0, help="How long requests may go on after SIGTERM.")
    ] = 60,
    ready_fd: Annotated[
        int | None, typer.Option(help="Gets a line of JSON when ready, and is closed.")
    ] = None,
    die_with_parent: _DieWithParent = False,
    zygote: _Zygote = None,
) -> None:
    """Serve a checkpoint until SIGTERM."""
    parent = os.getppid()
    from warmpool.reference import serve as process  # noqa: PLC0415 (make-checkpoint needs no server)

    origin = _origin(context, zygote)
    if die_with_parent and origin.fork is None:  # a fork dies with its stand-in, which has a parent
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
        defer_capture=defer_capture,
        stage=_socket(stage),
        load_bytes_per_second=load_gigabytes_per_second * _GIGABYTE or None,
        tensor_parallel_size=tensor_parallel_size,
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
        pacer=Pacer(max_tokens_per_second, origin=time.monotonic()),
    )
    raise typer.Exit(process.run(server_options, model_options, origin))


@app.command("make-checkpoint")
def make_checkpoint(
    directory: Annotated[Path, typer.Argument(help="Where the files go; created.")],
    *,
    shape: Annotated[str, typer.Option(help="tiny, small, llama-1b, llama-8b or llama-70b.")],
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


def _origin(context: typer.Context, zygote: Path | None) -> Origin:
    """Return how this process came to be. `--zygote` itself is acted on before this module is imported (`__main__`)."""
    found = context.obj if isinstance(context.obj, Origin) else Origin()
    if zygote is not None and found.fork is None and not found.without_zygote:
        return Origin(without_zygote="only `python -m warmpool.reference` asks a zygote")
    return found


def _socket(address: str) -> Path | None:
    """Return the stage daemon's socket; None where none is named."""
    if address and not address.startswith("unix:///"):
        raise CannotStart(f"--stage {address}: no socket of this machine", hint="use --stage unix:///PATH")
    return Path(address.removeprefix("unix://")) if address else None


@app.command()
def expect(
    *,
    checkpoint: Annotated[Path, typer.Option(help="Directory with config.json and .safetensors files.")],
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[Dtype, typer.Option(help="auto: float32 on CPU, bfloat16 on CUDA.")] = Dtype.AUTO,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What is asked: a JSON list of texts.")
    ] = None,
    tensor_parallel_size: _Ranks = 1,
    zygote: _Zygote = None,  # noqa: ARG001 (acted on before this module is imported)
) -> None:
    """Print what a sound engine answers, and what that belongs to, as the `proof` of an agent's config."""
    from warmpool.reference.expect import record  # noqa: PLC0415 (imports torch)

    asked = PROMPTS if prompts is None else _prompts(prompts)
    options = ModelOptions(
        checkpoint=checkpoint,
        device=device,
        dtype=str(dtype),
        threads=1,
        max_num_seqs=1,
        max_model_len=2,
        tensor_parallel_size=tensor_parallel_size,
    )
    made = record(options, asked)
    if made.doubt:
        typer.echo(f"{WARNING}{made.doubt}", err=True)
    answers = [answer_to_json(answer) for answer in made.answers]
    typer.echo(json.dumps({"prompts": answers, "ownership": ownership_to_json(made.ownership)}))


def _prompts(path: Path) -> Sequence[str]:
    """Read what is asked.

    Raises:
        CannotStart: the file can't be read, or isn't a list of texts.
    """
    hint = 'write a JSON list such as ["The quick brown fox", "In the beginning"]'
    try:
        told = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CannotStart(f"{path}: can't be read as JSON: {error}", hint=hint) from error
    if not isinstance(told, list) or not told or not all(isinstance(each, str) and each for each in told):
        raise CannotStart(f"{path}: not a list of texts, each with at least one character", hint=hint)
    return [str(each) for each in told]


@app.command("rank", hidden=True)
def rank(
    *,
    orders: Annotated[int, typer.Option(help="Descriptor of the socket on which rank 0 gives orders.")],
    die_with_parent: _DieWithParent = False,
    context: typer.Context,
    zygote: _Zygote = None,
) -> None:
    """Be one of the other ranks of an engine that has several; rank 0 starts them."""
    parent = os.getppid()
    from warmpool.reference import rank_process  # noqa: PLC0415 (torch)
    from warmpool.reference import serve as process  # noqa: PLC0415

    if die_with_parent and _origin(context, zygote).fork is None:  # as `serve` has it
        process.die_with_parent(parent)
    raise typer.Exit(rank_process.run(orders))


@app.command("zygote")
def zygote(
    *,
    socket: Annotated[Path, typer.Option(help="Where `--zygote` of the other commands finds it.")],
    die_with_parent: _DieWithParent = False,
) -> None:
    """Import everything once, and fork for each command that is started with --zygote, until SIGTERM."""
    parent = os.getppid()
    from warmpool.reference import serve as process  # noqa: PLC0415 (aiohttp)
    from warmpool.reference import zygote as forking  # noqa: PLC0415

    if die_with_parent:
        process.die_with_parent(parent)
    asked = forking.serve(socket)
    if asked is not None:
        sys.argv[1:] = asked.arguments
        main(asked.origin)


@app.command("zygote-memory")
def zygote_memory(
    *,
    socket: Annotated[Path, typer.Option(help="The zygote's socket.")],
) -> None:
    """Print what a zygote and its forks take, as JSON: `pssBytes` add up to all of it."""
    from warmpool.reference.zygote import ask_for_memory  # noqa: PLC0415

    typer.echo(json.dumps(ask_for_memory(socket)))


def main(origin: Origin | None = None) -> None:
    """Run the command line; an error that a person can mend is two lines on stderr and exit code 2.

    Args:
        origin: how this process came to be; None for a process of its own.
    """
    try:
        app(obj=origin)
    except CannotStart as error:
        typer.echo(f"error: {' '.join(str(error).split())}\nhint: {error.hint}", err=True)
        sys.exit(2)

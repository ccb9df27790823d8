"""`emberpool local`: everything on one machine."""

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from scaler.cli.gateway import door_files, settings_of
from scaler.cli.keda_options import KedaFlags, KedaHost, KedaPort, KedaStreamsSpecs, KedaTls, keda_doors
from scaler.cli.options import Device, examples
from scaler.cli.signal_options import (
    AGENT_TOKEN,
    DEFAULT_CHANNEL,
    Prometheus,
    PushTokens,
    Redis,
    RedisPasswordFile,
    SignalChannel,
    signal_options,
)
from scaler.errors import UserError
from scaler.runtime.local_options import LocalOptions
from scaler.runtime.sockets import Door, check_apart

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_LARGEST_PORT = 65_535


@app.command(
    epilog=examples(
        "emberpool local --checkpoint ./llama-8b",
        "emberpool local --checkpoint chat=./llama-8b --checkpoint code=./qwen-7b --seats 2",
        "emberpool local --policy policies/local-cpu.yaml --checkpoint chat=./a --checkpoint code=./b",
        "emberpool local --checkpoint chat=./llama-8b --gateway queue-seconds=30 --gateway comment-seconds=5",
        "emberpool local --checkpoint chat=./llama-8b --dry-run",
        "",
        "Then, in another terminal:",
        "curl localhost:8000/v1/completions -H 'Content-Type: application/json' \\",
        '     -d \'{"model": "chat", "prompt": "Once upon a time"}\'',
        "emberpool seat get --watch",
    )
)
def local(  # noqa: PLR0917 - typer hands every option over by name
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            "--checkpoint",
            "-c",
            metavar="[NAME=]DIR",
            help="A directory of .safetensors files, and the policy or model that it belongs to (default: the"
            " directory's own name). Give it once for each model.",
        ),
    ] = None,
    policy: Annotated[
        list[Path] | None,
        typer.Option(
            "--policy",
            "-f",
            metavar="PATH",
            help="Policy file or directory; repeatable. It is followed: what changes takes effect while it runs, as far"
            " as its engines can follow. Without one, a fleet and a policy per checkpoint are made up.",
        ),
    ] = None,
    seats: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, help="Seats of the made-up fleet (default: one per GPU, or one without GPUs)."
        ),
    ] = None,
    seats_per_gpu: Annotated[int, typer.Option(min=1, max=64, help="Seats that share one GPU.")] = 1,
    seat_budget: Annotated[
        int | None,
        typer.Option(min=1, help="Seats that all fleets together may have (default: no such limit)."),
    ] = None,
    device: Annotated[
        Device, typer.Option(help="Where engines run; auto takes GPUs if there are any.")
    ] = Device.AUTO,
    max_num_seqs: Annotated[
        int | None,
        typer.Option(
            min=1, max=4096, help="Sequences that one engine computes at once (default: targetInFlight)."
        ),
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(min=16, help="Tokens of prompt and answer together (default: 512)."),
    ] = None,
    gateway_host: Annotated[
        str, typer.Option(help="Address of the OpenAI-compatible endpoint.")
    ] = "127.0.0.1",
    gateway_port: Annotated[
        int, typer.Option(min=0, max=_LARGEST_PORT, help="Its port; 0 takes a free one.")
    ] = 8000,
    gateway_keys_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Let in only who shows a bearer key of this file, one a line. SIGHUP reads it again.",
            show_default=False,
        ),
    ] = None,
    gateway_tls_certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Serve TLS there with this certificate (PEM, then those that vouch for it). SIGHUP reads it again.",
            show_default=False,
        ),
    ] = None,
    gateway_tls_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Its private key, where it isn't in the same file.", show_default=False
        ),
    ] = None,
    gateway: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A setting of the gateway, as `emberpool gateway --help` has them (queue-seconds=30); repeatable."
            " EMBERPOOL_GATEWAY_… set them too.",
            show_default=False,
        ),
    ] = None,
    controller_port: Annotated[
        int, typer.Option(min=0, max=_LARGEST_PORT, help="Port of the controller's API; 0 takes a free one.")
    ] = 9080,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where decisions, events and logs are kept (default: nowhere, once it has ended).",
        ),
    ] = None,
    prometheus: Prometheus = None,
    redis: Redis = None,
    redis_password_file: RedisPasswordFile = None,
    signal_channel: SignalChannel = DEFAULT_CHANNEL,
    push_tokens: PushTokens = None,
    keda_port: KedaPort = None,
    keda_host: KedaHost = None,
    keda_tls: KedaTls = None,
    keda_streams_specs: KedaStreamsSpecs = False,
    zygote: Annotated[
        bool,
        typer.Option(
            "--zygote/--no-zygote",
            help="Fork engines from a process that has imported what they need, or let each import it itself.",
        ),
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run, and start nothing.")
    ] = False,
) -> int:
    """Serve models on this machine: one process with controller and gateway, and one agent with engines per seat.

    Every model is resident on every seat of its fleets, paused, proven, and serves within milliseconds when requests
    come. Ctrl-C finishes what is in flight and stops everything. Whoever else pushes samples of a policy's load shows the
    token in the environment variable EMBERPOOL_SIGNAL_TOKEN; where that is not set nobody else can. With a token in
    EMBERPOOL_AGENT_TOKEN, whoever shows it may have policies read at once (POST /-/reload), as SIGHUP does.

    Engines are the reference engine: policies that want another one are refused, with --dry-run, too.
    """
    began = time.monotonic()
    options = LocalOptions(
        checkpoints=parse_checkpoints(checkpoint or ()),
        policies=tuple(policy or ()),
        seats=seats,
        seats_per_gpu=seats_per_gpu,
        device=device,
        gateway_host=gateway_host,
        gateway_port=gateway_port,
        gateway_files=door_files(
            gateway_keys_file, gateway_tls_certificate, gateway_tls_key, prefix="gateway-"
        ),
        gateway=settings_of(gateway or ()),
        controller_port=controller_port,
        state_dir=state_dir,
        seat_budget=seat_budget,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        zygote=zygote,
        dry_run=dry_run,
        token=os.environ.get(AGENT_TOKEN, ""),
        signals=signal_options(prometheus, redis, redis_password_file, signal_channel, push_tokens),
        keda=KedaFlags(keda_port, keda_host, keda_tls, keda_streams_specs).settings(),
    )
    check_apart(
        [
            Door("127.0.0.1", options.controller_port, "--controller-port"),
            Door(options.gateway_host, options.gateway_port, "--gateway-port"),
            *keda_doors(options.keda),
        ]
    )
    if options.seats is not None and options.policies:
        raise UserError("--seats has no meaning beside --policy", hint="set maxSeats in the Fleet document")
    if not options.checkpoints:
        raise UserError("no checkpoint was given", hint="name one: emberpool local --checkpoint NAME=DIR")
    from scaler.runtime.local import run  # noqa: PLC0415 - aiohttp and all else, which help doesn't need

    return run(options, began)


def parse_checkpoints(given: Sequence[str]) -> dict[str, Path]:
    """Read `[NAME=]DIR` arguments; without a name the directory's own becomes one.

    Raises:
        UserError: a directory isn't there, no name can be made, or two are equal.
    """
    checkpoints: dict[str, Path] = {}
    for text in given:
        name, equals, rest = text.partition("=")
        named = bool(equals) and os.sep not in name
        directory = Path(rest if named else text)
        if not directory.is_dir():
            hint = "--checkpoint takes [NAME=]DIR, a directory of .safetensors files"
            raise UserError(f"there is no directory {directory}", hint=hint)
        chosen = name if named else name_of(directory)
        if not chosen:
            raise UserError(f"no name can be made from {text!r}", hint="write --checkpoint NAME=DIR")
        if chosen in checkpoints:
            hint = "give each its own name: --checkpoint NAME=DIR"
            raise UserError(f"two checkpoints are called {chosen}", hint=hint)
        checkpoints[chosen] = directory
    return checkpoints


def name_of(directory: Path) -> str:
    """Make a policy's name from a directory's (`Llama-3.1-8B` becomes `llama-3-1-8b`); empty if nothing is left."""
    return re.sub(r"[^a-z0-9]+", "-", directory.resolve().name.lower()).strip("-")[:63].strip("-")

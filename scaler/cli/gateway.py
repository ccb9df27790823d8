"""`emberpool gateway`: the process that requests go through."""

import os
from typing import Annotated

import typer

from scaler.cli.options import examples
from scaler.cli.signal_options import AGENT_TOKEN, SIGNAL_TOKEN
from scaler.cli.urls import base_url
from scaler.errors import UserError
from scaler.runtime.gateway_options import GatewayOptions

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_LARGEST_PORT = 65_535


@app.command(
    epilog=examples(
        "EMBERPOOL_SIGNAL_TOKEN=… emberpool gateway --controller http://127.0.0.1:9080",
        "emberpool gateway --controller http://controller:9080 --host 0.0.0.0",
    )
)
def gateway(
    controller: Annotated[
        list[str],
        typer.Option(
            "--controller",
            "-s",
            metavar="URL",
            envvar="EMBERPOOL_SERVER",
            help="Base URL of a controller; repeatable: name all of them.",
            show_default=False,
        ),
    ],
    host: Annotated[str, typer.Option(help="Address of the OpenAI-compatible endpoint.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=_LARGEST_PORT, help="Its port; 0 takes a free one.")] = 8000,
    metrics_port: Annotated[
        int,
        typer.Option(
            min=0, max=_LARGEST_PORT, help="Port of /metrics, /livez and /readyz; 0 takes a free one."
        ),
    ] = 9082,
    instance: Annotated[
        str,
        typer.Option(help="Its id, unique among the gateways (default: host name and process id)."),
    ] = "",
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="How long requests in flight may take after SIGTERM.")
    ] = 30.0,
) -> int:
    """Queue requests and pass them to the residents in rotation.

    It follows the routes that controllers publish and pushes its load to all of them; while none answers it goes on with
    the last routes. SIGTERM finishes what it has accepted and takes no more; a second one ends it at once. The token that
    controllers want of those who push is read from the environment variable EMBERPOOL_SIGNAL_TOKEN, or where that is not
    set from EMBERPOOL_AGENT_TOKEN.
    """
    token = os.environ.get(SIGNAL_TOKEN) or os.environ.get(AGENT_TOKEN)
    if not token:
        raise UserError(
            f"{SIGNAL_TOKEN} is not set", hint="give it the token that the controllers want of those who push"
        )
    options = GatewayOptions(
        controllers=tuple(base_url(each) for each in controller),
        token=token,
        instance=instance,
        host=host,
        port=port,
        metrics_port=metrics_port,
        drain_seconds=drain_seconds,
    )
    from scaler.runtime.gateway_process import run  # noqa: PLC0415 - aiohttp and all else, which help doesn't need

    return run(options)

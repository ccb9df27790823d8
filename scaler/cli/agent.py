"""`emberpool agent`: the process beside each seat's engines."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from scaler.cli.options import examples
from scaler.errors import UserError
from warmpool.errors import StartFailed

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    epilog=examples(
        "EMBERPOOL_AGENT_TOKEN=… emberpool agent --config seat.json",
        "emberpool agent --config /etc/emberpool/agent.json --annotations /etc/pod/annotations",
    )
)
def agent(
    config: Annotated[
        Path,
        typer.Option(
            "--config", metavar="FILE", help="The seat's configuration, as JSON.", show_default=False
        ),
    ],
    annotations: Annotated[
        Path | None,
        typer.Option(
            "--annotations",
            metavar="FILE",
            help="The pod's annotations, as the downward API writes them.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Run the agent of one seat: it starts the residents, warms and proves them, and lets one serve at a time.

    `emberpool local` starts one for each of its seats. The bearer token that orders must carry is read from the
    environment variable EMBERPOOL_AGENT_TOKEN. In a pod, what the template's annotations say of residents and memory is
    laid over the configuration, which all pods of a fleet share. On SIGTERM the agent drains what serves, stops the engines, and ends.
    """
    from warmpool.agent.app import run  # noqa: PLC0415 - aiohttp, which help doesn't need
    from warmpool.agent.config import load_config  # noqa: PLC0415

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    try:
        return run(load_config(config, annotations))
    except StartFailed as error:
        raise UserError(
            str(error), hint=f"mend {config}, or the environment that the agent starts in"
        ) from error

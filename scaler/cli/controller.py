"""`emberpool controller`: the process that decides."""

import os
from pathlib import Path
from typing import Annotated

import typer

from scaler.cli.keda_options import KedaFlags, KedaHost, KedaPort, KedaStreamsSpecs, KedaTls
from scaler.cli.options import examples
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
from scaler.runtime.controller_options import ControllerOptions

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_LARGEST_PORT = 65_535


@app.command(
    epilog=examples(
        "EMBERPOOL_AGENT_TOKEN=… emberpool controller --policy policies/ --agents agents.yaml",
        "emberpool controller --policy policies/ --agents agents.yaml --host 0.0.0.0 --state-dir /var/lib/emberpool",
        "",
        "The list of agents:",
        "apiVersion: emberpool.dev/v1alpha1",
        "kind: AgentList",
        "metadata: {name: lab}",
        "spec:",
        "  fleets:",
        "    - name: spares",
        "      seats:",
        "        - {name: seat-0, agent: 'http://10.0.0.10:9081', node: gpu-a}",
    )
)
def controller(  # noqa: PLR0917 - typer hands every option over by name
    policy: Annotated[
        list[Path],
        typer.Option(
            "--policy",
            "-f",
            metavar="PATH",
            help="Policy file or directory; repeatable. It is followed: what changes takes effect while it runs.",
            show_default=False,
        ),
    ],
    agents: Annotated[
        Path,
        typer.Option(metavar="FILE", help="The file that lists the agents of all seats.", show_default=False),
    ],
    host: Annotated[str, typer.Option(help="Address of its API.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=_LARGEST_PORT, help="Its port; 0 takes a free one.")] = 9080,
    state_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where decisions and events are kept (default: nowhere)."),
    ] = None,
    prometheus: Prometheus = None,
    redis: Redis = None,
    redis_password_file: RedisPasswordFile = None,
    signal_channel: SignalChannel = DEFAULT_CHANNEL,
    push_tokens: PushTokens = None,
    keda_port: KedaPort = None,
    keda_host: KedaHost = "127.0.0.1",
    keda_tls: KedaTls = None,
    keda_streams_specs: KedaStreamsSpecs = False,
) -> int:
    """Decide for the seats of a list of agents, on VMs, under Slurm, in containers; Kubernetes comes later.

    One controller works with a list at a time. It starts and ends no seat: what the list has is what there is. Agents
    report to it, and gateways follow its routes. Its end leaves residents as they are; the next one finds out from the
    agents what serves. SIGHUP, and POST /-/reload with the token, have policies read at once; `emberpool policy status`
    tells which are in force. The token that agents want is read from the environment variable EMBERPOOL_AGENT_TOKEN.
    Gateways and others who push samples show that one, too, or the one in EMBERPOOL_SIGNAL_TOKEN, which is good for
    nothing else.
    """
    token = os.environ.get(AGENT_TOKEN, "")
    if not token:
        raise UserError(
            f"{AGENT_TOKEN} is not set",
            hint="give it the token that the agents were started with; they refuse others",
        )
    options = ControllerOptions(
        policies=tuple(policy),
        agents=agents,
        token=token,
        host=host,
        port=port,
        state_dir=state_dir,
        signals=signal_options(prometheus, redis, redis_password_file, signal_channel, push_tokens),
        keda=KedaFlags(keda_port, keda_host, keda_tls, keda_streams_specs).settings(),
    )
    from scaler.runtime.controller_process import run  # noqa: PLC0415 - aiohttp and all else, which help doesn't need

    return run(options)

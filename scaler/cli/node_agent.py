"""`emberpool node-agent`: the process that knows who holds which GPU's memory on its node."""

import grp
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaler.cli.failures import Failed
from scaler.cli.options import examples, path_of
from scaler.errors import UserError
from warmpool.errors import StartFailed

if TYPE_CHECKING:
    from warmpool.nodehealth.app import NodeAgentOptions

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_LARGEST_PORT = 65_535


@app.command(
    epilog=examples(
        "emberpool node-agent                              # on a Kubernetes node, as a DaemonSet with hostPID",
        "emberpool node-agent --pod-resources none         # on a machine without a kubelet",
        "EMBERPOOL_NODE_TOKEN=… emberpool node-agent --port 9082",
        "curl --unix-socket /run/emberpool/node.sock http://node/v1/memory",
    )
)
def node_agent(  # noqa: PLR0917 - typer hands every option over by name
    socket: Annotated[Path, typer.Option(metavar="PATH", help="Its Unix socket.", parser=path_of)] = Path(
        "/run/emberpool/node.sock"
    ),
    socket_group: Annotated[
        str,
        typer.Option(
            metavar="GROUP", help="Group, by name or id, that may use the socket (default: its owner alone)."
        ),
    ] = "",
    host: Annotated[str, typer.Option(help="Address to listen on with --port.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=_LARGEST_PORT, help="Listen on TCP too; 0 takes a free port (default: not at all)."
        ),
    ] = None,
    pod_resources: Annotated[
        str,
        typer.Option(metavar="PATH", help="The kubelet's pod-resources socket, or `none` without a kubelet."),
    ] = "/var/lib/kubelet/pod-resources/kubelet.sock",
    pod_logs: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder with pods' log folders, whose names have pods' UIDs.")
    ] = Path("/var/log/pods"),
    answer_milliseconds: Annotated[
        int,
        typer.Option(
            min=10,
            max=5_000,
            help="By when a question is answered; what isn't known by then is told as unknown.",
        ),
    ] = 50,
    allow_none: Annotated[
        bool, typer.Option("--allow-none", help="Where there is no GPU, end with exit code 0 instead of 1.")
    ] = False,
) -> int:
    """Tell agents what their engines hold of the GPUs' memory, which a container can't find out by itself.

    It needs the host's PID namespace (hostPID), because the driver names processes by its ids; the GPUs of the node (for
    containers NVIDIA_VISIBLE_DEVICES=all); the folder of the kubelet's pod-resources socket; and emberpool[node]. What is
    missing makes answers unverified, each with the reason, and never wrong. A caller learns about its own pod alone. Who
    connects over TCP sends the bearer token in the environment variable EMBERPOOL_NODE_TOKEN and is believed which pod it is.
    It holds the driver open, so it has to be stopped before the driver can be unloaded.
    """
    from warmpool.nodehealth.app import NodeAgentOptions, NoGpu, run  # noqa: PLC0415 - aiohttp, which help doesn't need
    from warmpool.nodehealth.client import TOKEN_VARIABLE  # noqa: PLC0415
    from warmpool.nodehealth.nvml import NvmlAbsent, driver  # noqa: PLC0415
    from warmpool.nodehealth.reader import Limits  # noqa: PLC0415

    options = NodeAgentOptions(
        socket=socket,
        group=_group(socket_group),
        host=host,
        port=port,
        token=os.environ.get(TOKEN_VARIABLE, ""),
        kubelet=None if pod_resources == "none" else Path(pod_resources),
        pod_logs=pod_logs,
        limits=Limits(answer_seconds=answer_milliseconds / 1000),
    )
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    _check(options, TOKEN_VARIABLE)
    try:
        run(options, driver())
    except (NoGpu, NvmlAbsent) as error:
        if not allow_none:
            raise Failed(
                f"this machine has no GPU that could be asked about: {error}",
                hint="--allow-none makes that a success, for nodes of a DaemonSet that have none",
            ) from error
        sys.stderr.write(f"no GPU here, so there is nothing to tell: {error}\n")
    except StartFailed as error:
        raise UserError(
            str(error), hint="see `emberpool node-agent --help` for --socket and --port"
        ) from error
    return 0


def _check(options: "NodeAgentOptions", token_variable: str) -> None:
    if options.port is not None and not options.token:
        raise UserError(
            f"--port: {token_variable} is not set, and without a token anyone who reaches the port could ask for any pod",
            hint=f"set {token_variable}, and give agents the same; or leave --port out and share the Unix socket",
        )


def _group(name: str) -> int | None:
    """Return the id of a group."""
    if not name:
        return None
    if name.isascii() and name.isdigit():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise UserError(
            f"--socket-group: there is no group {name!r}", hint="`getent group` lists them"
        ) from None

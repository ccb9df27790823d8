"""`emberpool node-agent`: the process that knows who holds which GPU's memory on its node, and how its GPUs are."""

import grp
import logging
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from scaler.cli.failures import Failed
from scaler.cli.options import examples, path_of
from scaler.errors import PolicyError, UserError
from warmpool.errors import StartFailed

if TYPE_CHECKING:
    from warmpool.nodehealth.app import NodeAgentOptions
    from warmpool.nodehealth.telling import Telling
    from warmpool.nodehealth.xids import XidTable

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_LARGEST_PORT = 65_535
_MOST_GPUS = 1024
_CONTROLLERS_TOKEN = "EMBERPOOL_AGENT_TOKEN"  # noqa: S105 - a variable's name


@app.command(
    epilog=examples(
        "emberpool node-agent                              # on a Kubernetes node, as a DaemonSet with hostPID",
        "emberpool node-agent --pod-resources none         # on a machine without a kubelet",
        "EMBERPOOL_NODE_TOKEN=… emberpool node-agent --port 9082",
        "curl --unix-socket /run/emberpool/node.sock http://node/v1/memory",
        "curl --unix-socket /run/emberpool/node.sock http://node/v1/health",
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
    latches: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Where what was found of GPUs outlives this process; a disk of the node. `none`: nowhere.",
        ),
    ] = "/var/lib/emberpool/gpu-health.json",
    gpus: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=_MOST_GPUS,
            metavar="N",
            help="GPUs that the node should have (default: as many as it ever had).",
        ),
    ] = None,
    xid_table: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="File or folder with a document of kind XidTable, for what errors say of GPUs (default: a built-in one).",
            parser=path_of,
        ),
    ] = None,
    kernel_log: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="The kernel's log, as a second source of errors; `none`: it isn't read."
        ),
    ] = "/dev/kmsg",
    controllers: Annotated[
        str,
        typer.Option(
            metavar="URL,…",
            help="Controllers that are told of the GPUs' health, all replicas; wants EMBERPOOL_AGENT_TOKEN.",
        ),
    ] = "",
    node_name: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The node's name in its cluster, for --controllers.",
            envvar="NODE_NAME",
            show_envvar=True,
        ),
    ] = "",
    keep_devices: Annotated[
        bool,
        typer.Option(
            "--keep-devices/--no-keep-devices",
            help="Hold the GPUs' device files open, so that they stay initialised where persistence mode isn't set.",
        ),
    ] = True,
    allow_none: Annotated[
        bool, typer.Option("--allow-none", help="Where there is no GPU, end with exit code 0 instead of 1.")
    ] = False,
) -> int:
    """Tell agents what their engines hold of the GPUs' memory, and how those GPUs are, which containers can't find out.

    It needs the host's PID namespace (hostPID), because the driver names processes by its ids; the GPUs of the node (for
    containers NVIDIA_VISIBLE_DEVICES=all); the folder of the kubelet's pod-resources socket; and emberpool[node]. What is
    missing makes answers unverified, each with the reason, and never wrong. A caller learns about its own pod alone. Who
    connects over TCP sends the bearer token in the environment variable EMBERPOOL_NODE_TOKEN and is believed which pod it is.
    It holds the driver and the GPUs open, so it has to be stopped before the driver can be unloaded or a GPU be reset.
    """
    from warmpool.nodehealth.app import NodeAgentOptions, NoGpu, run  # noqa: PLC0415 - aiohttp, which help doesn't need
    from warmpool.nodehealth.client import TOKEN_VARIABLE  # noqa: PLC0415
    from warmpool.nodehealth.nvml import NvmlAbsent, driver  # noqa: PLC0415
    from warmpool.nodehealth.reader import Limits  # noqa: PLC0415
    from warmpool.nodehealth.records import Rules  # noqa: PLC0415

    options = NodeAgentOptions(
        socket=socket,
        group=_group(socket_group),
        host=host,
        port=port,
        token=os.environ.get(TOKEN_VARIABLE, ""),
        kubelet=None if pod_resources == "none" else Path(pod_resources),
        pod_logs=pod_logs,
        limits=Limits(answer_seconds=answer_milliseconds / 1000),
        rules=Rules(table=_table(xid_table), expected=gpus),
        latches=None if latches == "none" else Path(latches),
        kmsg=None if kernel_log == "none" else Path(kernel_log),
        telling=_telling(controllers, node_name),
        keep_devices=keep_devices,
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


def _telling(controllers: str, node_name: str) -> "Telling | None":
    """Return which controllers are told.

    Raises:
        UserError: an address is none, or there is no token.
    """
    from warmpool.nodehealth.telling import Telling  # noqa: PLC0415 - aiohttp, which help doesn't need

    urls = [url.strip().rstrip("/") for url in controllers.split(",") if url.strip()]
    if not urls:
        return None
    for url in urls:
        if not _is_address(url):
            raise UserError(
                f"--controllers: {url!r} is no address of a controller",
                hint="name each replica as http://HOST:PORT, parted by commas",
            )
    token = os.environ.get(_CONTROLLERS_TOKEN, "")
    if not token:
        raise UserError(
            f"--controllers: {_CONTROLLERS_TOKEN} is not set, and controllers believe nobody without it",
            hint=f"set {_CONTROLLERS_TOKEN} to what the controllers have",
        )
    return Telling(node=node_name or platform.node(), controllers=tuple(urls), token=token)


def _is_address(url: str) -> bool:
    """Whether it names a scheme, a host and no port that can't be."""
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _table(path: Path | None) -> "XidTable":
    """Return the table of errors that files have; the built-in one without files.

    Raises:
        PolicyError: a document is wrong.
        UserError: there is no table, or there are several.
    """
    from scaler.policy.compile import judge_file  # noqa: PLC0415 - pydantic's models, which help doesn't need
    from scaler.policy.document import load_contents  # noqa: PLC0415
    from scaler.policy.xid_table import XidTable as Document  # noqa: PLC0415
    from warmpool.nodehealth.xids import DEFAULT_TABLE, table_of  # noqa: PLC0415

    if path is None:
        return DEFAULT_TABLE
    files = [judge_file(contents) for contents in load_contents([path])]
    faults = [fault for file in files for fault in file.faults]
    documents = [
        judged for file in files for judged in file.judged if judged.document.data.get("kind") == "XidTable"
    ]
    faults += (fault for judged in documents for fault in judged.faults)
    if faults:
        raise PolicyError(tuple(faults))
    found = [judged.item for judged in documents if isinstance(judged.item, Document)]
    if len(found) != 1:
        raise UserError(
            f"--xid-table {path}: there are {len(found)} documents of kind XidTable, and one is needed",
            hint="policies/xid-table.yaml is one to begin with",
        )
    return table_of(found[0].spec.model_dump(mode="json", by_alias=True))


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

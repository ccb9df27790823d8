"""`stage`: run the stage daemon, ask it what it has, and have it hold checkpoints in device memory."""

import signal
import time
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal
from rich.table import Table
from typer.core import TyperGroup

from loader.cli.output import (
    FollowLinks,
    Output,
    OutputOption,
    console,
    counted,
    failing,
    opened,
    print_json,
)
from loader.errors import LoaderError
from loader.stage.connection import DeviceUse, StageClient
from loader.stage.wire import DEFAULT_SOCKET

if TYPE_CHECKING:
    from loader.stage.daemon import Daemon
    from loader.stage.pool import Pool

_GIGABYTE = 1e9
_OWN = 0
"""The daemon's own lease, while it stages what it was started with."""


class _RunByDefault(TyperGroup):
    """`stage PATH…` is `stage run PATH…`; a directory that is named as a command is written with a slash."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - a type that typer keeps private
        """Put `run` in front where no command stands."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)


stage = typer.Typer(
    cls=_RunByDefault,
    no_args_is_help=True,
    help="Run the stage daemon (`stage PATH…`), ask it what it has, have it hold checkpoints in device memory.",
)

SocketOption = Annotated[
    Path,
    typer.Option(
        "--socket", envvar="EMBERPOOL_STAGE_SOCKET", readable=False, help="The daemon's Unix socket."
    ),
]
HeldPath = Annotated[
    Path, typer.Argument(metavar="PATH", help="A checkpoint's directory, or one .safetensors file.")
]
DeviceOption = Annotated[
    str, typer.Option("--device", help="The device's UUID, or its number as the daemon counts.")
]


class _Stop(Exception):
    """The process was asked to end."""


@stage.command()
def run(  # noqa: PLR0913 - one parameter per command-line option
    paths: Annotated[
        list[Path] | None,
        typer.Argument(exists=True, metavar="[PATH]…", help="Checkpoints to stage at once."),
    ] = None,
    *,
    budget: Annotated[float, typer.Option(min=0.001, help="The most host memory that is taken, in GB.")],
    root: Annotated[
        list[Path] | None,
        typer.Option(exists=True, help="Serve checkpoints below this directory; may be repeated."),
    ] = None,
    socket: SocketOption = DEFAULT_SOCKET,
    lock: Annotated[
        bool, typer.Option("--lock", help="Lock the memory, so that it is never paged out.")
    ] = False,
    cuda: Annotated[
        bool,
        typer.Option(
            "--cuda",
            help="Copy into device memory, too; costs a CUDA context on each device that the daemon sees.",
        ),
    ] = False,
    hold_budget: Annotated[
        float,
        typer.Option(min=0, help="The most memory of each device that held copies take, in GB; with --cuda."),
    ] = 0,
    allow_user: Annotated[
        list[int] | None, typer.Option(metavar="UID", help="Let this user connect, too; may be repeated.")
    ] = None,
) -> None:
    """Have checkpoints in host memory and hand them to engines of this node, until SIGTERM."""
    from loader.cuda.opening import open_devices  # noqa: PLC0415 - the rest works without torch
    from loader.stage.daemon import Daemon  # noqa: PLC0415 - as above
    from loader.stage.device import Devices  # noqa: PLC0415 - as above
    from loader.stage.holder import Holder  # noqa: PLC0415 - as above
    from loader.stage.pool import Pool  # noqa: PLC0415 - as above

    roots = tuple(str(each) for each in [*(root or []), *(paths or [])])
    if not roots:
        raise typer.BadParameter("name checkpoints to stage, or directories to serve with --root")
    if hold_budget and not cuda:
        raise typer.BadParameter("--hold-budget wants --cuda")
    with failing():
        devices = Devices(open_devices() if cuda else [])
        pool = Pool(int(budget * _GIGABYTE), roots, lock=lock, ready=devices.lock)
        holder = Holder(pool, devices, int(hold_budget * _GIGABYTE)) if cuda else None
        daemon = Daemon(pool, socket, frozenset(allow_user or []), holder)
    _serve(daemon, pool, paths or [])


@stage.command("list")
def list_command(*, socket: SocketOption = DEFAULT_SOCKET, output: OutputOption = Output.TABLE) -> None:
    """List what the daemon has in host memory, what it holds in device memory and for whom, and its devices."""
    with failing(output), StageClient(socket) as client:
        staged, held, devices = client.statuses(), client.held(), client.devices()
    if output is Output.JSON:
        rows = {"staged": staged, "held": held, "devices": [asdict(device) for device in devices]}
        print_json({what: [_camel(row) for row in found] for what, found in rows.items()})
        return
    for table in (_staged_table(staged), _held_table(held), _devices_table(devices)):
        if table.row_count:
            console().print(table)


@stage.command()
def hold(
    path: HeldPath,
    *,
    device: DeviceOption,
    socket: SocketOption = DEFAULT_SOCKET,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have a checkpoint copied into device memory of the daemon's own, so that engines attach instead of loading."""
    with failing(output), StageClient(socket) as client:
        row = client.hold(str(path.absolute()), device)
    proven = "its manifest's digests" if row["proven"] else "the digests of what was read"
    _tell(output, _camel(row), f"{_bytes(row['nbytes'])} held on {row['device']}, with {proven}")


@stage.command()
def release(
    path: HeldPath,
    *,
    device: DeviceOption,
    socket: SocketOption = DEFAULT_SOCKET,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give the memory of a held copy back to the device; refused while engines are attached."""
    with failing(output), StageClient(socket) as client:
        nbytes = client.release(str(path.absolute()), device)
    _tell(output, {"bytes": nbytes}, f"{_bytes(nbytes)} given back")


@stage.command()
def verify(
    path: HeldPath,
    *,
    device: DeviceOption,
    socket: SocketOption = DEFAULT_SOCKET,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have a held copy digested once more where it lies."""
    with failing(output), StageClient(socket) as client:
        seconds = client.verify(str(path.absolute()), device)
    _tell(output, {"seconds": seconds}, f"every tensor has its digest, found in {seconds * 1000:.0f} ms")


@stage.command()
def attach(
    path: HeldPath,
    *,
    device: Annotated[int, typer.Option(min=0, help="The device's number as this process counts.")] = 0,
    socket: SocketOption = DEFAULT_SOCKET,
    output: OutputOption = Output.TABLE,
    follow_links: FollowLinks = False,
) -> None:
    """Try it: map a held copy in this process as an engine would, say how long that takes, and let go of it."""
    from loader.cuda.driver import Driver  # noqa: PLC0415 - the rest works without torch
    from loader.stage.client import HeldCopy  # noqa: PLC0415 - as above

    checkpoint = opened(path, follow_links=follow_links, output=output)
    with failing(output):
        driver = Driver(device)
        begun = time.perf_counter()
        copy = HeldCopy(checkpoint, driver, StageClient(socket))
        attached = time.perf_counter()
        tensors = len(copy.tensors())
        seconds = {"attachSeconds": attached - begun, "tensorSeconds": time.perf_counter() - attached}
    _tell(
        output,
        {"bytes": copy.nbytes, "tensors": tensors} | seconds,
        f"{_bytes(copy.nbytes)} attached in {seconds['attachSeconds'] * 1000:.2f} ms, {counted(tensors, 'tensor')} made "
        f"in {seconds['tensorSeconds'] * 1000:.2f} ms",
    )


def _tell(output: Output, found: dict[str, Any], sentence: str) -> None:
    """Say that it is done: as a document with what was found, or as a sentence."""
    if output is Output.JSON:
        print_json({"ok": True, **found})
    else:
        typer.echo(f"ok: {sentence}")


def _staged_table(rows: list[dict[str, object]]) -> Table:
    table = Table("STAGED", "STATE", "DONE", "SIZE", "LEASES", "PROVEN", "PAGES", box=None, header_style="")
    for row in rows:
        table.add_row(
            str(row["path"]),
            str(row["state"]),
            _bytes(row["done_bytes"]),
            _bytes(row["total_bytes"]),
            str(row["leases"]),
            str(row["proven"]),
            f"{int(str(row['page_bytes'])) // 1024} KiB" if row["page_bytes"] else "-",
        )
    return table


def _held_table(rows: list[dict[str, object]]) -> Table:
    table = Table("HELD", "DEVICE", "STATE", "SIZE", "PROVEN", "ATTACHED", box=None, header_style="")
    for row in rows:
        peers = row["attached"]
        processes = [str(peer["process"]) for peer in peers] if isinstance(peers, list) else []
        table.add_row(
            str(row["path"]),
            str(row["device"]),
            str(row["state"]),
            _bytes(row["nbytes"]),
            str(row["proven"]),
            ",".join(processes) or "-",
        )
    return table


def _devices_table(devices: list[DeviceUse]) -> Table:
    table = Table("DEVICE", "NUMBER", "CONTEXT", "HELD", "BUDGET", box=None, header_style="")
    for each in devices:
        table.add_row(
            each.device,
            str(each.ordinal),
            "unknown" if each.context_bytes is None else _bytes(each.context_bytes),
            _bytes(each.held_bytes),
            _bytes(each.budget_bytes),
        )
    return table


def _bytes(value: object) -> str:
    return decimal(int(str(value)))


def _camel(row: dict[str, object]) -> dict[str, object]:
    """The same with keys as JSON has them elsewhere."""
    renamed: dict[str, object] = {}
    for key, value in row.items():
        first, *rest = key.split("_")
        inner = [_camel(each) for each in value] if isinstance(value, list) else value
        renamed[first + "".join(map(str.capitalize, rest))] = inner
    return renamed


def _serve(daemon: "Daemon", pool: "Pool", paths: list[Path]) -> None:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _Stop

    signal.signal(signal.SIGTERM, stop)
    ahead = Thread(target=_stage_all, args=(pool, paths), name="loader-stage-ahead")
    try:
        ahead.start()
        daemon.serve()
    except (_Stop, KeyboardInterrupt):
        # A second signal while memory is given back would leave the socket behind.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    finally:
        daemon.close()
        ahead.join()


def _stage_all(pool: "Pool", paths: list[Path]) -> None:
    for path in paths:
        try:
            pool.take(str(path), _OWN).close()
        except LoaderError as error:
            typer.echo(str(error), err=True)
    pool.release(_OWN)
    typer.echo(f"ready: {len(pool.statuses())} staged", err=True)

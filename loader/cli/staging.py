"""`stage` and `staged`: run the stage daemon, and ask it what it holds."""

import signal
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal
from rich.table import Table

from loader.cli.output import Output, OutputOption, console, failing, print_json
from loader.errors import LoaderError
from loader.stage.wire import DEFAULT_SOCKET

if TYPE_CHECKING:
    from loader.stage.daemon import Daemon
    from loader.stage.pool import Pool

_GIGABYTE = 1e9
_OWN = 0
"""The daemon's own lease, while it stages what it was started with."""

SocketOption = Annotated[
    Path, typer.Option("--socket", envvar="EMBERPOOL_STAGE_SOCKET", help="The daemon's Unix socket.")
]


class _Stop(Exception):
    """The process was asked to end."""


def stage(  # noqa: PLR0913 - one parameter per command-line option
    paths: Annotated[
        list[Path] | None,
        typer.Argument(exists=True, metavar="[PATH]…", help="Checkpoints to stage at once."),
    ] = None,
    *,
    budget: Annotated[float, typer.Option(min=0.001, help="The most memory that is held, in GB.")],
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
            "--cuda", help="Copy into device memory of clients, too; costs a CUDA context per device."
        ),
    ] = False,
    allow_user: Annotated[
        list[int] | None, typer.Option(metavar="UID", help="Let this user connect, too; may be repeated.")
    ] = None,
) -> None:
    """Hold checkpoints in host memory and hand them to engines of this node, until SIGTERM."""
    from loader.stage.daemon import Daemon  # noqa: PLC0415 - the rest works without torch
    from loader.stage.device import DeviceCopier  # noqa: PLC0415 - as above
    from loader.stage.pool import Pool  # noqa: PLC0415 - as above

    roots = tuple(str(each) for each in [*(root or []), *(paths or [])])
    if not roots:
        raise typer.BadParameter("name checkpoints to stage, or directories to serve with --root")
    with failing():
        pool = Pool(int(budget * _GIGABYTE), roots, lock=lock)
        daemon = Daemon(pool, socket, frozenset(allow_user or []), DeviceCopier() if cuda else None)
    _serve(daemon, pool, paths or [])


def staged(*, socket: SocketOption = DEFAULT_SOCKET, output: OutputOption = Output.TABLE) -> None:
    """List what the stage daemon holds or is reading."""
    from loader.stage.client import StageClient  # noqa: PLC0415 - the rest works without torch

    with failing(output), StageClient(socket) as client:
        found = client.statuses()
    if output is Output.JSON:
        print_json(found)
        return
    table = Table("PATH", "STATE", "DONE", "SIZE", "LEASES", "PROVEN", box=None, header_style="")
    for status in found:
        done, total = (decimal(int(str(status[key]))) for key in ("done_bytes", "total_bytes"))
        table.add_row(
            str(status["path"]),
            str(status["state"]),
            done,
            total,
            str(status["leases"]),
            str(status["proven"]),
        )
    console().print(table)


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

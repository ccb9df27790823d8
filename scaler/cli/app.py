"""The `emberpool` command: its sub-commands, loaded when they are called, and the one place where errors end."""

import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import typer
import typer.core
import typer.main
from typer.exceptions import TyperException

from scaler.cli.failures import FAILED, UNUSABLE, complain, report
from scaler.cli.kube_options import PLUGIN
from scaler.cli.options import bare, examples
from scaler.errors import ScalerError
from scaler.version import VERSION

_PLUGIN_FILE: Final = "kubectl-emberpool"
"""What the program's file is called where `kubectl emberpool` runs it."""

COMMANDS: Final = {
    "local": "Run everything on this machine: controller, gateway, seats.",
    "policy": "Check policies, and see what they get.",
    "fleet": "See the fleets: the seats that there are.",
    "seat": "See the seats, and the residents on them.",
    "engine": "See what an engine must be started with.",
    "coldstart": "See how fast an engine starts on this machine.",
    "signals": "See what policies' signals say, and how old that is.",
    "decision": "See what was decided, and why.",
    "keda": "Ask the external scaler as KEDA does.",
    "node": "See a cluster's GPU nodes, and the seats on them.",
    "doctor": "Find what is wrong in a cluster, and what mends it.",
    "drill": "Rehearse a burst, with a verdict.",
    "controller": "Run the controller over a list of agents.",
    "gateway": "Run a gateway: queue requests, and pass them on.",
    "agent": "Run the agent of one seat.",
    "node-agent": "Run the node agent: who holds which GPU memory.",
}
"""Sub-commands with what help says of them; each is `scaler.cli.<name>`, imported when it is called (`_` for `-`)."""


class LazyGroup(typer.core.TyperGroup):
    """Lists its commands without importing them; the one that is called is imported then."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - typer's own settings, passed on
        super().__init__(**settings)
        self.commands = {
            name: typer.core.TyperCommand(name, help=summary) for name, summary in COMMANDS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - types that typer keeps private
        """Find the called command and import it."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is None or command is None:
            return name, command, rest
        loaded = typer.main.get_command(import_module(f"scaler.cli.{name.replace('-', '_')}").app)
        loaded.name = name
        return name, loaded, rest


app = typer.Typer(
    name="emberpool",
    cls=LazyGroup,
    help="Burst autoscaler for LLM inference: engines wait paused on shared GPUs and serve within milliseconds.",
    epilog=examples(
        "emberpool local --checkpoint chat=./llama-8b     # serve a model on this machine",
        "emberpool policy get --watch                     # look at load and decisions",
        "emberpool doctor                                 # what is wrong in the cluster of kubectl's context",
        "emberpool drill run policies/drills/default.yaml   # rehearse a burst",
        "",
        "Exit codes: 0 ok, 1 a failed check, 2 wrong usage or unusable input.",
    ),
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"emberpool {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Print the help when nothing was asked for."""
    del show_version
    bare(context)


def main(arguments: Sequence[str] | None = None, program: str | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: without the program's name; None takes this process's.
        program: the file's name, by which kubectl finds its plug-ins; None takes this process's.
    """
    name = Path(program or sys.argv[0]).stem
    _replace_what_cannot_be_written()
    try:
        code = _run(arguments, PLUGIN if name == _PLUGIN_FILE else "emberpool")
        if sys.stdout is not None:  # it is where somebody has closed it
            sys.stdout.flush()
    except OSError as error:
        if not _is_unwritable(sys.stdout):
            raise
        _give_up(sys.stdout)
        code = FAILED
        if error.errno != errno.EPIPE:  # whoever closed a pipe has read enough
            complain(f"stdout can't be written: {error.strerror or error}", "print to a disk with room")
    return code


def _replace_what_cannot_be_written() -> None:
    """Let stdout and stderr write a `?` for a character that their encoding lacks, in place of failing.

    For locales without Unicode (`LC_ALL=C` with `PYTHONUTF8=0`), and for names of files that are no text.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _is_unwritable(stream: TextIO) -> bool:
    """Whether nothing can be printed; where something can, an empty line more does no harm."""
    try:
        stream.write("\n")
        stream.flush()
    except OSError:
        return True
    return False


def _give_up(stream: TextIO) -> None:
    """Drop what can't be written, so that the interpreter doesn't try again when it ends."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, stream.fileno())
    finally:
        os.close(nothing)


def _run(arguments: Sequence[str] | None, name: str) -> int:
    try:
        result = typer.main.get_command(app).main(
            args=None if arguments is None else list(arguments), prog_name=name, standalone_mode=False
        )
    except TyperException as error:
        return _usage(error)
    except ScalerError as error:
        return report(error)
    except typer.Abort:
        return FAILED
    return result if isinstance(result, int) else 0


def _usage(error: TyperException) -> int:
    """Report wrong usage as every other error is reported."""
    context = getattr(error, "ctx", None)
    hint = f"see {context.command_path} --help" if context is not None else ""
    message = error.format_message().rstrip(".").replace("Value error, ", "")
    if "\t" in message:  # choices come one a line, after a tab
        message = " ".join(message.split())
    complain(message[:1].lower() + message[1:], hint)
    return UNUSABLE


if __name__ == "__main__":
    sys.exit(main())

"""The commands, put together."""

import typer

from loader.bench.command import bench
from loader.cli.looking import inspect, verify
from loader.cli.moving import digest, load_command
from loader.cli.staging import stage

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Look at safetensors checkpoints, prove them, load them, and measure how fast that is.",
)
app.command()(inspect)
app.command()(verify)
app.command()(digest)
app.command("load")(load_command)
app.command()(bench)
app.add_typer(stage, name="stage")

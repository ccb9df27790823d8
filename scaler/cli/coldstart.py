"""`emberpool coldstart`: how fast an engine starts on this machine, step by step."""

import asyncio
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from scaler.cli.failures import FAILED, OK, Failed
from scaler.cli.human import NOTHING, duration, plural, size
from scaler.cli.options import Device, examples, group
from scaler.cli.output import emit, note, table
from scaler.cli.renderings import Rendering, RenderingOption, as_data
from scaler.errors import UserError
from warmpool.coldstart.measure import Measured, Setup, measure
from warmpool.coldstart.steps import Judged, Step, judge, parse_target, passed, targets_for
from warmpool.errors import WarmpoolError

app = group("Cold starts: how fast an engine starts on this machine.")

_MAKE_SECONDS: Final = 300.0
_SHAPE: Final = "tiny"


@app.command(
    "verify",
    epilog=examples(
        "emberpool coldstart verify --checkpoint ./llama-8b",
        "emberpool coldstart verify --checkpoint ./llama-8b --no-zygote -o json",
        "emberpool coldstart verify --device cpu --target total=10 --target import=0.1",
    ),
)
def verify(
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            "-c",
            metavar="DIR",
            help="A directory of .safetensors files in Hugging Face's layout; without one a tiny one is made.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        Device, typer.Option("--device", help="Where it computes; auto takes a GPU if there is one.")
    ] = Device.AUTO,
    zygote: Annotated[
        bool,
        typer.Option("--zygote/--no-zygote", help="Fork it from a process that has imported everything."),
    ] = True,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="STEP=SECONDS",
            help="What a step may take; repeatable. On a GPU each has a target already.",
            show_default=False,
        ),
    ] = None,
    output: RenderingOption = Rendering.TEXT,
) -> int:
    """Start an engine once, from nothing to its first token, and hold each step against its target.

    It is the reference engine, on this machine, with the weights of a checkpoint; it ends again. `device` is measured apart, in a
    process that initialises the driver and nothing else: where that takes long, nobody keeps the driver initialised. Where the
    weights came from is said, for nothing is thrown out of the page cache first. Exit code 1: a step took longer than it may.
    """
    wanted = _targets(target or [])
    with tempfile.TemporaryDirectory(prefix="emberpool-coldstart-") as directory:
        measured = asyncio.run(_measured(checkpoint, device, Path(directory), zygote=zygote))
    targets = {**targets_for(gpu=measured.gpu, weights_bytes=measured.weights_bytes), **wanted}
    judged = judge(measured.seconds, targets, measured.notes)
    if output is Rendering.TEXT:
        _draw(judged, measured)
    else:
        emit(as_data(_as_json(judged, measured, zygote=zygote), output))
    return OK if passed(judged) else FAILED


def _targets(written: list[str]) -> dict[Step, float]:
    """Read `--target`.

    Raises:
        UserError: one of them is none.
    """
    try:
        return dict(parse_target(each) for each in written)
    except ValueError as error:
        raise UserError(f"--target {error}", hint="for example --target total=2.5") from error


async def _measured(checkpoint: Path | None, device: Device, directory: Path, *, zygote: bool) -> Measured:
    """Make a cold start.

    Raises:
        UserError: there is no such checkpoint.
        Failed: the engine doesn't start, or doesn't answer.
    """
    if checkpoint is None:
        note(f"no --checkpoint: random weights of the shape {_SHAPE} are started")
        checkpoint = await _made(directory / "checkpoint")
    elif not (checkpoint / "config.json").is_file():
        raise UserError(
            f"--checkpoint: {checkpoint} holds no config.json",
            hint="name a checkpoint's directory, the one with config.json and *.safetensors",
        )
    setup = Setup(checkpoint=checkpoint.resolve(), device=str(device), zygote=zygote, directory=directory)
    try:
        return await measure(setup)
    except WarmpoolError as error:
        raise Failed(f"the engine doesn't start: {error}") from error


async def _made(directory: Path) -> Path:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "warmpool.reference", "make-checkpoint", str(directory), "--shape", _SHAPE),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_MAKE_SECONDS):
            _, said = await process.communicate()
    except TimeoutError as error:
        raise Failed(
            f"no checkpoint is there after {_MAKE_SECONDS:.0f} s", hint="name one with --checkpoint"
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise Failed(f"no checkpoint can be made: {last}", hint="name one with --checkpoint")
    return directory


# ------------------------------------------------------------------ what is printed


def _draw(judged: tuple[Judged, ...], measured: Measured) -> None:
    rows = [
        [
            str(each.step),
            NOTHING if each.seconds is None else duration(each.seconds),
            NOTHING if each.target is None else duration(each.target),
            _verdict(each.met),
            each.note or NOTHING,
        ]
        for each in judged
    ]
    emit(table(("STEP", "TOOK", "TARGET", "MET", "NOTE"), rows))
    where = "a GPU" if measured.gpu else "CPU"
    missed = sum(each.met is False for each in judged)
    told = sum(each.met is not None for each in judged)
    verdict = f"{missed} of {plural(told, 'target')} missed" if told else "no targets"
    note(f"{size(measured.weights_bytes)} of weights on {where}: {verdict}")


def _verdict(met: bool | None) -> str:
    return NOTHING if met is None else "yes" if met else "no"


def _as_json(judged: tuple[Judged, ...], measured: Measured, *, zygote: bool) -> Mapping[str, Any]:
    load = measured.load
    return {
        "passed": passed(judged),
        "gpu": measured.gpu,
        "zygote": zygote,
        "weightsBytes": measured.weights_bytes,
        "weightsTier": "" if load is None else load.tier,
        "steps": [
            {
                "step": str(each.step),
                "seconds": None if each.seconds is None else round(each.seconds, 4),
                "targetSeconds": each.target,
                "met": each.met,
                "note": each.note,
            }
            for each in judged
        ],
    }

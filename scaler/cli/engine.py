"""`emberpool engine`: what engines must be started with to live on a seat."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer

from scaler.cli.failures import OK
from scaler.cli.options import examples, group
from scaler.cli.output import as_json, as_yaml, emit
from scaler.errors import UserError
from warmpool.engines.arguments import Need, Setting, Settings, misfit, settings_for
from warmpool.engines.kinds import EngineKind

app = group("Engines: what they must be started with.")

_MOST_MIB = 16_777_216


class Form(StrEnum):
    """What `-o` takes here."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


@app.command(
    "args",
    epilog=examples(
        "emberpool engine args --engine VLLM --kv-mib 40960",
        "emberpool engine args --engine SGLang --kv-mib 40960 --weights-mib 15360 --gpu-mib 143771",
        "emberpool engine args --engine VLLM --alone -o json",
        "emberpool engine args --engine VLLM --kv-mib 40960 --weights-mib 64000 --parked",
    ),
)
def args(  # noqa: PLR0917 - typer hands every option over by name
    engine: Annotated[
        EngineKind, typer.Option("--engine", help="Kind of engine, as policies name it.", show_default=False)
    ],
    kv_mib: Annotated[
        int | None,
        typer.Option(
            "--kv-mib", min=1, max=_MOST_MIB, metavar="N", help="KV memory on one device.", show_default=False
        ),
    ] = None,
    weights_mib: Annotated[
        int | None,
        typer.Option(
            "--weights-mib",
            min=1,
            max=_MOST_MIB,
            metavar="N",
            help="Weights on one device.",
            show_default=False,
        ),
    ] = None,
    gpu_mib: Annotated[
        int | None,
        typer.Option(
            "--gpu-mib", min=1, max=_MOST_MIB, metavar="N", help="Memory of one device.", show_default=False
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65_535,
            metavar="PORT",
            help="Its own port; by default the agent chooses one.",
        ),
    ] = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="It has its seat for itself and keeps its KV memory.")
    ] = False,
    parked: Annotated[
        bool, typer.Option("--parked", help="Its weights may go to the node's host memory.")
    ] = False,
    version: Annotated[
        str, typer.Option("--engine-version", metavar="VERSION", help="Which version of it you run.")
    ] = "",
    output: Annotated[
        Form, typer.Option("--output", "-o", help="How to print: text, json or yaml.")
    ] = Form.TEXT,
) -> int:
    """Print the variables and arguments that an engine needs to live on a seat, each with its reason.

    They are added to what starts the engine anyway. `{host}`, `{port}` and `{controlPort}` are filled in by the agent.
    What is printed rests on one known version of each engine, which is named; another may differ.
    """
    need = Need(
        kind=engine,
        shared=not alone,
        parked=parked,
        port=port,
        kv_mib=kv_mib,
        weights_mib=weights_mib,
        gpu_mib=gpu_mib,
        version=version.strip(),
    )
    wrong = misfit(need)
    if wrong:
        raise UserError(
            wrong,
            hint="lower --kv-mib, or split the weights over more devices: --weights-mib, --kv-mib and --gpu-mib are of one device",
        )
    settings = settings_for(need)
    match output:
        case Form.TEXT:
            emit("\n".join(_text(settings)))
        case Form.JSON:
            emit(as_json(_data(settings)))
        case Form.YAML:
            emit(as_yaml(_data(settings)))
    return OK


def _text(settings: Settings) -> Iterator[str]:
    yield f"# {settings.facts}"
    for note in settings.notes:
        yield f"# {note}"
    for title, entries in (("environment", settings.environment), ("arguments", settings.arguments)):
        if not entries:
            continue
        yield ""
        yield f"# {title}"
        for entry in entries:
            yield f"# {entry.why}"
            yield f"{entry.name}={entry.value}" if title == "environment" else " ".join(entry.words())


def _data(settings: Settings) -> dict[str, Any]:
    return {
        "engine": str(settings.kind),
        "facts": settings.facts,
        "environment": [_entry(each) for each in settings.environment],
        "arguments": [_entry(each) for each in settings.arguments],
        "args": [word for each in settings.arguments for word in each.words()],
        "notes": list(settings.notes),
    }


def _entry(setting: Setting) -> dict[str, str]:
    return {"name": setting.name, "value": setting.value, "why": setting.why}

"""`emberpool drill`: rehearsing a burst."""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from scaler.cli.failures import FAILED, OK
from scaler.cli.human import plural
from scaler.cli.local import parse_checkpoints
from scaler.cli.options import examples, group
from scaler.cli.output import data, emit, note
from scaler.cli.renderings import Rendering, RenderingOption, as_data, faults_as
from scaler.cli.urls import base_url
from scaler.errors import UserError

if TYPE_CHECKING:
    from scaler.drill import Endpoints

app = group("Burst drills: a rehearsed burst with figures and a verdict.")

_LARGEST_PORT = 65_535


class Arms(StrEnum):
    """What `--arm` takes."""

    WARM = "warm"
    COLD = "cold"
    COLD_ZYGOTE = "cold-zygote"
    BOTH = "both"


class Shape(StrEnum):
    """What `--shape` takes: the scenario's own shapes, whose module is too slow to import for a help text."""

    TINY = "tiny"
    SMALL = "small"
    LLAMA_1B = "llama-1b"
    LLAMA_8B = "llama-8b"


class DrillOutput(StrEnum):
    """What `-o` takes."""

    TABLE = "table"
    JSON = "json"


Scenario = Annotated[Path, typer.Argument(metavar="FILE", help="The scenario.", show_default=False)]


@app.command(
    "run",
    epilog=examples(
        "emberpool drill run policies/drills/default.yaml",
        "emberpool drill run policies/drills/default.yaml --arm warm --out ./report",
        "emberpool drill run policies/drills/default.yaml --arm warm --arm cold --arm cold-zygote",
        "emberpool drill run FILE --checkpoint chat=./llama-8b -o json | jq .passed",
        "emberpool drill run FILE --gateway http://gateway:8000 --controller http://controller:9080",
        "emberpool drill run FILE --metrics-port 0 --targets-file /etc/prometheus/targets/drill.json",
    ),
)
def run(  # noqa: PLR0917 - typer hands every option over by name
    scenario: Scenario,
    arm: Annotated[
        list[Arms] | None,
        typer.Option(
            help="warm: as the policies say; cold: without spares, for comparison; cold-zygote: as cold, with forked"
            " processes. They run one after the other, in this order; repeatable; both: warm and cold.",
            show_default="both; of a cluster warm",
        ),
    ] = None,
    gateway: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Drill a cluster that is up, instead of this machine: its gateway, which gets the load. Nothing else is changed there.",
            show_default=False,
        ),
    ] = "",
    controller: Annotated[
        str,
        typer.Option(
            "--controller",
            "--server",
            "-s",
            metavar="URL",
            help="With --gateway: a controller of that cluster, which is read.",
            show_default=False,
        ),
    ] = "",
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            "--checkpoint",
            "-c",
            metavar="POLICY=DIR",
            help="Serve this checkpoint for a policy, instead of one with random weights; repeatable.",
        ),
    ] = None,
    shape: Annotated[
        Shape | None,
        typer.Option(
            help="Make all checkpoints with random weights in this shape (default: the scenario's).",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the report (default: .emberpool/drills/NAME-TIME)."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of arrivals and prompts (default: the scenario's).")
    ] = None,
    fit: Annotated[
        bool,
        typer.Option(
            "--fit/--no-fit",
            help="Where the scenario says spec.fit: measure what a request costs on this machine, and shorten answers so that the"
            " load leaves it air; or play them as long as they are written.",
        ),
    ] = True,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the state directories: logs, events, decisions.")
    ] = False,
    grafana_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="EMBERPOOL_GRAFANA_URL",
            help="Post stages, faults and the verdict as annotations to this Grafana; its token is read from the "
            "environment variable EMBERPOOL_GRAFANA_TOKEN.",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=_LARGEST_PORT,
            help="Show the drill's own figures on http://127.0.0.1:N/metrics while it runs; 0 takes a free port "
            "(default: off).",
        ),
    ] = None,
    controller_port: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=_LARGEST_PORT,
            help="Port of the controller of each arm, for `emberpool seat get` and the like while it runs; 0 takes a "
            "free one.",
        ),
    ] = 0,
    targets_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Tell Prometheus what to scrape while it runs: a file for file_sd_configs, rewritten as arms start and "
            "emptied at the end (default: none).",
        ),
    ] = None,
    output: Annotated[
        DrillOutput, typer.Option("--output", "-o", help="What stdout gets.")
    ] = DrillOutput.TABLE,
) -> int:
    """Start `emberpool local`, or take a cluster, play the scenario's load against it, and judge what happened.

    With --gateway and --controller the load goes to a cluster, whose policies the scenario names. It is drilled as it is: the
    scenario's machine, engine and checkpoints are for `emberpool local` alone.

    Progress goes to stderr, the result to stdout; the report's folder holds all figures and pictures.

    Exit code 0: every check passed; 1: one failed, or the drill could not be carried out; 2: the scenario or an option
    can't be used.
    """
    from scaler.drill import COMPARED, ArmName, DrillOptions, run_drill  # noqa: PLC0415 - aiohttp, which help doesn't need
    from scaler.drill.annotations import TOKEN_VARIABLE, grafana  # noqa: PLC0415
    from scaler.drill.summary import print_summary, verdict  # noqa: PLC0415

    cluster = _cluster(gateway, controller)
    wanted = {str(each) for each in arm or ((Arms.BOTH,) if cluster is None else (Arms.WARM,))}
    both = Arms.BOTH in wanted
    result = run_drill(
        DrillOptions(
            scenario=scenario,
            arms=tuple(name for name in ArmName if name in wanted or (both and name in COMPARED)),
            local_command=(sys.executable, "-m", "scaler", "local"),
            output=out,
            checkpoints=parse_checkpoints(checkpoint or ()),
            shape=None if shape is None else shape.value,
            seed=seed,
            fit=fit,
            keep=keep,
            grafana=grafana(grafana_url, os.environ.get(TOKEN_VARIABLE, "")) if grafana_url else None,
            metrics_port=metrics_port,
            controller_port=controller_port,
            targets_file=targets_file,
            cluster=cluster,
        )
    )
    if output is DrillOutput.JSON:
        note(f"{verdict(result.report).plain}\nreport: {result.written.html}")
        emit(result.report.model_dump_json(indent=2))
    else:
        print_summary(result.report, result.written, _tables())
    return OK if result.passed else FAILED


def _cluster(gateway: str, controller: str) -> "Endpoints | None":
    """Return where the cluster answers that is drilled; None for this machine.

    Raises:
        UserError: only one of the two was named.
    """
    from scaler.drill import Endpoints  # noqa: PLC0415 - as above

    if not gateway and not controller:
        return None
    if not gateway or not controller:
        raise UserError(
            "a cluster is drilled by its gateway and its controller, and one of them wasn't named",
            hint="name both: --gateway URL --controller URL",
        )
    return Endpoints(gateway=base_url(gateway, "a gateway"), controller=base_url(controller))


@app.command(
    "validate",
    epilog=examples(
        "emberpool drill validate policies/drills/default.yaml",
        "emberpool drill validate FILE -o json | jq '.faults[].message'",
    ),
)
def validate(scenario: Scenario, output: RenderingOption = Rendering.TEXT) -> int:
    """Check a scenario, and the policies that it names or holds; - reads the scenario from stdin.

    Every fault of all of them is printed in one run, with its file, line and column. What only follows from another fault
    isn't.

    Exit code 0: it can be run; 2: it can't. What this version accepts and doesn't act on yet is printed as a warning.
    """
    from scaler.cli.policy_files import STDIN, read_piped  # noqa: PLC0415 - as above
    from scaler.drill.loading import load_piped, load_scenario  # noqa: PLC0415
    from scaler.policy.unbuilt import not_acted_on  # noqa: PLC0415

    with faults_as(output):
        loaded = load_piped(read_piped()) if scenario == STDIN else load_scenario(scenario)
    warnings = [
        document.fault(found.path, found.message)
        for document in loaded.documents
        for found in not_acted_on(document.data)
    ]
    spec, hash_ = loaded.scenario.spec, loaded.policies.short_hash
    if output is not Rendering.TEXT:
        told = {"valid": True, "faults": [], "warnings": [warning.as_json() for warning in warnings]}
        names = {
            "models": [model.policy for model in spec.models],
            "stages": [each.name for each in spec.stages],
        }
        fit = None if spec.fit is None else spec.fit.model_dump(mode="json", by_alias=True)
        emit(as_data({**told, "hash": hash_, **names, "seconds": spec.seconds, "fit": fit}, output))
        return OK
    if warnings:
        note("\n".join(f"warning: {warning}" for warning in warnings))
    models, stages = plural(len(spec.models), "model"), plural(len(spec.stages), "stage")
    fitted = "" if spec.fit is None else f", fitted to {spec.fit.cpu_percent} % of the machine"
    emit(f"ok: {models}, {stages}, {spec.seconds} s of load{fitted} (policy hash {hash_})")
    return OK


@app.command("report", epilog=examples("emberpool drill report .emberpool/drills/default-20260102-030405"))
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a report.", show_default=False)],
) -> int:
    """Show a drill's figures again, and write its pages anew from its report.json."""
    from pydantic import ValidationError  # noqa: PLC0415 - as above

    from scaler.drill.report import read_report, write_report  # noqa: PLC0415
    from scaler.drill.summary import print_summary  # noqa: PLC0415

    file = folder / "report.json"
    hint = "name the folder that `emberpool drill run` wrote"
    try:
        found = read_report(file)
    except OSError as error:
        raise UserError(f"{file} can't be read: {error.strerror or error}", hint=hint) from error
    except ValidationError as error:
        raise UserError(f"{file} is not a report of this version", hint=hint) from error
    print_summary(found, write_report(found, folder), _tables())
    return OK


def _tables() -> Console:
    """Return the console for the tables on stdout; a file has no width to fold them to."""
    console = data()
    if not console.is_terminal:
        console.width = 160
    return console

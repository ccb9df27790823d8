"""`emberpool decision`: the ledger, where every decision stands with its reasons."""

import shlex
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperCommand
from typer.exceptions import TyperException

from scaler.cli import answers, decision_replay, show
from scaler.cli.answers import DecisionRecord, FleetDecided, PolicyDecided
from scaler.cli.client import Controller
from scaler.cli.failures import OK, Failed
from scaler.cli.human import NOTHING, listed, number, plural
from scaler.cli.ledgers import LEDGER, lines_of
from scaler.cli.options import DEFAULT_SERVER, Format, Output, Server, examples, group
from scaler.cli.output import emit, note, pairs
from scaler.cli.renderings import Rendering, RenderingOption, as_data
from scaler.cli.show import Column, Kind
from scaler.errors import UserError

app = group("Decisions: what was decided, and why.")

StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        envvar="EMBERPOOL_STATE_DIR",
        metavar="DIR",
        help="State directory of `emberpool local`.",
        show_default=False,
    ),
]
File = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="The ledger itself, wherever it lies.", show_default=False),
]


class _WithLedger(TyperCommand):
    """A command whose ledger is named by an option: whoever names it bare is told which one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - a type that typer keeps private
        """Read the arguments.

        Raises:
            UserError: a path stands among them that belongs to an option.
        """
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except TyperException as error:
            for each in given if {"--state-dir", "--file"}.isdisjoint(given) else ():
                kind, option = (
                    ("state directory", "--state-dir") if Path(each).is_dir() else ("ledger", "--file")
                )
                if Path(each).exists():
                    hint = f"a {kind} is given with its option: {option} {shlex.quote(each)}"
                    raise UserError(f"no path can stand here, and {each} does", hint=hint) from error
            raise


def _time(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().isoformat(sep=" ", timespec="milliseconds")


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S.%f")[:-3]


def _causes(record: DecisionRecord) -> list[str]:
    return [cause if count == 1 else f"{cause}×{count}" for cause, count in record.causes.items()]


def _policies(record: DecisionRecord) -> str:
    cells = []
    for name, policy in record.decision.policies.items():
        mode = "" if policy.mode == "Stable" else f"({policy.mode})"
        cells.append(f"{name}={sum(policy.serving.values())}{mode}")
    return " ".join(cells) or NOTHING


def _fleets(record: DecisionRecord) -> str:
    return " ".join(f"{name}={fleet.total}" for name, fleet in record.decision.fleets.items()) or NOTHING


DECISIONS: Kind[DecisionRecord] = Kind(
    noun="decision",
    plural="decisions",
    read=answers.decision,
    source="the ledger",
    columns=(
        Column("NUMBER", lambda record, _: str(record.number)),
        Column("TIME", lambda record, _: _clock(record.at)),
        Column("CAUSE", lambda record, _: ",".join(_causes(record)) or NOTHING),
        Column("SERVING", lambda record, _: _policies(record)),
        Column("SEATS", lambda record, _: _fleets(record)),
        Column("POLICY-HASH", lambda record, _: record.policy_hash[:12] or NOTHING, wide=True),
        Column("ACTIONS", lambda record, _: "; ".join(record.actions) or NOTHING, wide=True),
    ),
)


@app.command(
    "list",
    cls=_WithLedger,
    epilog=examples(
        "emberpool decision list",
        "emberpool decision list --state-dir ./state",
        "emberpool decision list --file decisions-warm.jsonl --last 100 -o wide",
        "emberpool decision list --state-dir ./state -o json | jq '.items[].causes'",
    ),
)
def list_(
    server: Server = DEFAULT_SERVER,
    state_dir: StateDir = None,
    file: File = None,
    last: Annotated[int, typer.Option(min=1, help="How many, counted from the end.")] = 20,
    output: Format = Output.TABLE,
) -> int:
    """List the last decisions, of a running controller or from a ledger: what woke the loop, how many residents serve per policy, how many seats per fleet.

    A policy's mode is shown where it isn't Stable.
    """
    _, found = _find(server, state_dir, file)
    records = deque(found, maxlen=last)
    items = [{**record, "name": record.get("number")} for record in records]
    if output in {Output.JSON, Output.YAML}:
        emit(show.rendered(DECISIONS, list(records), output, single=False))
    elif items:
        emit(show.rendered(DECISIONS, items, output, single=False))
    else:
        note("No decisions found.")
    return OK


@app.command(
    "explain",
    cls=_WithLedger,
    epilog=examples(
        "emberpool decision explain",
        "emberpool decision explain 42 --state-dir ./state",
        "emberpool decision explain --file decisions.jsonl",
        "emberpool decision explain -o json | jq '.decision.policies[].reasons[0].sentence'",
    ),
)
def explain(
    which: Annotated[
        int | None,
        typer.Argument(metavar="[NUMBER]", help="Which one (default: the last).", show_default=False),
    ] = None,
    server: Server = DEFAULT_SERVER,
    state_dir: StateDir = None,
    file: File = None,
    output: RenderingOption = Rendering.TEXT,
) -> int:
    """Say why a decision is as it is: every policy and every fleet, with its reasons as sentences, the ruling one first.

    -o json and -o yaml give the decision as the ledger has it, with a sentence for each reason.
    """
    item = _pick(*_find(server, state_dir, file), which)
    record = answers.parse(answers.decision, item, "the decision")
    if output is not Rendering.TEXT:
        emit(as_data(item, output))
        return OK
    emit(
        pairs(
            [
                ("Decision", str(record.number)),
                ("Time", _time(record.at)),
                ("Causes", listed(_causes(record))),
                ("Policy hash", record.policy_hash[:12] or NOTHING),
                ("Actions", listed(record.actions)),
            ]
        )
    )
    for name, policy in record.decision.policies.items():
        emit(_policy_text(name, policy))
    for name, fleet in record.decision.fleets.items():
        emit(_fleet_text(name, fleet))
    return OK


def _policy_text(name: str, policy: PolicyDecided) -> Text:
    where = ", ".join(f"{count} on {fleet}" for fleet, count in policy.serving.items()) or "none"
    wanted = sum(policy.wanted.values())
    head = (
        f"Policy {name}: {policy.mode}, demand {number(policy.demand)}, needed {number(policy.needed)},"
        f" capacity {number(policy.capacity)}; to serve: {where} ({wanted} wanted)"
    )
    return Text("\n".join([head, *(f"  - {reason.text}" for reason in policy.reasons)]))


def _fleet_text(name: str, fleet: FleetDecided) -> Text:
    head = f"Fleet {name}: {plural(fleet.total, 'seat')} ({fleet.serving} serving, {fleet.spare} spare, {fleet.held} held)"
    return Text("\n".join([head, *(f"  - {reason.text}" for reason in fleet.reasons)]))


# ------------------------------------------------------------------ the ledger


def _find(server: str, state_dir: Path | None, file: Path | None) -> tuple[str, Iterable[Mapping[str, Any]]]:
    """Return where decisions come from, in words, and the decisions: a ledger that is named, else the running controller."""
    if file is None and state_dir is None:
        return f"the controller at {server}", Controller(server).items("decisions")
    ledger = file or (state_dir or Path()) / LEDGER
    return str(ledger), (_record(line) for line in lines_of(ledger) if "changes" not in line)


def _record(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave out what only a replay needs."""
    return {key: value for key, value in line.items() if key != "start"}


def _pick(source: str, found: Iterable[Mapping[str, Any]], which: int | None) -> Mapping[str, Any]:
    """Find a decision by its number: the last one, if several runs have written to the same ledger."""
    records = list(found)
    matching = [record for record in records if which is None or record.get("number") == which]
    if matching:
        return matching[-1]
    if not records:
        raise Failed(f"{source} holds no decision", hint="has the controller ticked yet?")
    first, last = records[0].get("number"), records[-1].get("number")
    hint = f"it holds {len(records)}, from {first} to {last}; decisions that change nothing are written once a second"
    raise Failed(f"{source} holds no decision {which}", hint=hint)


decision_replay.register(app)

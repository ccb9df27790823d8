"""`emberpool decision`: the ledger, where every decision stands with its reasons."""

import shlex
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text
from typer.core import TyperCommand
from typer.exceptions import TyperException

from scaler.cli import answers, decision_replay, show
from scaler.cli.answers import Decided, DecisionRecord, FleetDecided, Names, PolicyDecided
from scaler.cli.failures import OK, Failed
from scaler.cli.human import NOTHING, listed, number, plural
from scaler.cli.kube_options import Target, whom
from scaler.cli.ledgers import LEDGER, LedgerFile
from scaler.cli.options import Format, Output, examples, group
from scaler.cli.output import emit, note, pairs
from scaler.cli.renderings import Rendering, RenderingOption, as_data
from scaler.cli.show import Column, Kind
from scaler.cli.stretches import Record, answers_of, is_part, names_in, put_together, stretches
from scaler.cli.told import asked_alone, called
from scaler.errors import UserError
from scaler.policy.wording import did_you_mean

app = group("Decisions: what was decided, and why.")

_NOUNS: Final = {"policies": "policy", "fleets": "fleet"}

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
        "emberpool decision list --policy chat --last 5",
        "emberpool decision list -n serving --context prod",
        "emberpool decision list --state-dir ./state --fleet spares",
        "emberpool decision list --file decisions-warm.jsonl --last 100 -o wide",
        "emberpool decision list --state-dir ./state -o json | jq '.items[].causes'",
    ),
)
@whom
def list_(
    *,
    state_dir: StateDir = None,
    file: File = None,
    policy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only decisions that looked at this policy.", show_default=False),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only decisions that looked at this fleet.", show_default=False),
    ] = None,
    last: Annotated[int, typer.Option(min=1, help="How many, counted from the end.")] = 20,
    output: Format = Output.TABLE,
    target: Target,
) -> int:
    """List the last decisions, of a running controller or from a ledger: what woke the loop, how many residents serve per policy, how many seats per fleet.

    A decision looks at policies and fleets that share seats, and not always at all of them: only those are shown. A policy's
    mode is shown where it isn't Stable.
    """
    source, found = _find(target, state_dir, file)
    records = _about(source, found, {"policies": policy, "fleets": fleet}, last)
    items = [{**record, "name": record.get("number")} for record in records]
    if output in {Output.JSON, Output.YAML}:
        emit(show.rendered(DECISIONS, list(records), output, single=False))
    elif items:
        emit(show.rendered(DECISIONS, items, output, single=False))
    else:
        note("No decisions found.")
    return OK


def _about(
    source: str, found: Iterable[Record], wanted: Mapping[str, str | None], last: int
) -> Sequence[Record]:
    """Return the last records that looked at what is wanted.

    Raises:
        Failed: none did.
    """
    asked = {kind: name for kind, name in wanted.items() if name is not None}
    known: dict[str, dict[str, None]] = {kind: {} for kind in asked}
    records = deque[Record](maxlen=last)
    for record in found:
        for kind in asked:
            known[kind].update(dict.fromkeys(answers_of(record, kind)))
        if all(name in answers_of(record, kind) for kind, name in asked.items()):
            records.append(record)
    for kind, name in asked.items() if not records else ():
        if name not in known[kind]:
            there = ", ".join(known[kind])
            hint = did_you_mean(name, known[kind]) or (f"they looked at: {there}" if there else "")
            raise Failed(f"no decision in {source} looked at {_NOUNS[kind]} {name}", hint=hint)
    return records


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
@whom
def explain(
    which: Annotated[
        int | None,
        typer.Argument(
            metavar="[NUMBER]",
            help="Which one (default: the last, with the newest answers of what it didn't look at).",
            show_default=False,
        ),
    ] = None,
    state_dir: StateDir = None,
    file: File = None,
    output: RenderingOption = Rendering.TEXT,
    *,
    target: Target,
) -> int:
    """Say why a decision is as it is: every policy and every fleet, with its reasons as sentences, the ruling one first.

    A decision looks at policies and fleets that share seats, and not always at all of them. Without a number the newest answer
    of each is told, with the number and time of the decision that it comes from where that isn't the last one. With a
    number, it is said of which part that decision is.

    -o json and -o yaml give the decision as the ledger has it, with a sentence for each reason. Without a number, each
    policy and fleet has the number and time of its decision; with a number, `of` has the names of all where it tells of a part.
    """
    source, found = _find(target, state_dir, file)
    item = _newest(source, found) if which is None else _pick(source, found, which)
    record = answers.parse(answers.decision, item, "the decision")
    if output is not Rendering.TEXT:
        emit(as_data(item, output))
        return OK
    rows = [
        ("Decision", str(record.number)),
        ("Time", _time(record.at)),
        ("Causes", listed(_causes(record))),
        ("Policy hash", record.policy_hash[:12] or NOTHING),
        ("Actions", listed(record.actions)),
    ]
    if record.looked is not None:
        rows.insert(2, ("Looked at", _looked_at(record.looked, record.of)))
    emit(pairs(rows))
    for name, policy in record.decision.policies.items():
        emit(_policy_text(f"Policy {name}{_source_of(policy, record)}", policy))
    for name, fleet in record.decision.fleets.items():
        emit(_fleet_text(f"Fleet {name}{_source_of(fleet, record)}", fleet))
    return OK


def _looked_at(looked: Names, of: Names | None) -> str:
    """Say which part of all it is."""
    part = [*(f"policy {name}" for name in looked.policies), *(f"fleet {name}" for name in looked.fleets)]
    text = listed(part)
    if of is None:
        return f"{text}; of the others, what was decided last"
    policies, fleets = plural(len(of.policies), "policy"), plural(len(of.fleets), "fleet")
    return f"{text}; a part of {policies} and {fleets}"


def _source_of(answer: Decided, record: DecisionRecord) -> str:
    """Name the decision that an answer comes from, where it is an earlier one."""
    if answer.number is None or answer.at is None or answer.number == record.number:
        return ""
    return f" (decision {answer.number}, {_clock(answer.at)})"


def _policy_text(title: str, policy: PolicyDecided) -> Text:
    where = ", ".join(f"{count} on {fleet}" for fleet, count in policy.serving.items()) or "none"
    wanted = sum(policy.wanted.values())
    head = (
        f"{title}: {policy.mode}, demand {number(policy.demand)}, needed {number(policy.needed)},"
        f" capacity {number(policy.capacity)}; to serve: {where} ({wanted} wanted)"
    )
    return Text("\n".join([head, *(f"  - {reason.text}" for reason in policy.reasons)]))


def _fleet_text(title: str, fleet: FleetDecided) -> Text:
    head = f"{title}: {plural(fleet.total, 'seat')} ({fleet.serving} serving, {fleet.spare} spare, {fleet.held} held)"
    return Text("\n".join([head, *(f"  - {reason.text}" for reason in fleet.reasons)]))


# ------------------------------------------------------------------ the ledger


def _find(target: Target, state_dir: Path | None, file: Path | None) -> tuple[str, Iterable[Record]]:
    """Return where decisions come from, in words, and the decisions: a ledger that is named, else the running controller."""
    if file is None and state_dir is None:
        return called(target), asked_alone(target).items("decisions")
    if file is not None and file.is_dir():
        hint = f"a state directory is given with its option: --state-dir {shlex.quote(str(file))}"
        raise UserError(f"{file} is a directory", hint=hint)
    ledger = file or (state_dir or Path()) / LEDGER
    return str(ledger), (_record(line) for line in LedgerFile(ledger).lines() if "changes" not in line)


def _record(line: Record) -> Record:
    """Leave out what only a replay needs."""
    return {key: value for key, value in line.items() if key != "start"}


def _newest(source: str, found: Iterable[Record]) -> Record:
    """Return the last decision, with the newest answers of what it didn't look at."""
    stretch = deque(stretches(found), maxlen=1)
    if not stretch:
        raise _nothing(source)
    return put_together(stretch[0])


def _pick(source: str, found: Iterable[Record], which: int) -> Record:
    """Find a decision by its number: the last one, if several runs have written to the same ledger."""
    parts = list(stretches(found))
    for stretch in reversed(parts):
        for record in reversed(stretch):
            if record.get("number") == which:
                return {**record, "of": names_in(stretch)} if is_part(record) else record
    if not parts:
        raise _nothing(source)
    first, last, count = parts[0][0].get("number"), parts[-1][-1].get("number"), sum(map(len, parts))
    hint = (
        f"it holds {count}, from {first} to {last}; decisions that change nothing are written once a second"
    )
    raise Failed(f"{source} holds no decision {which}", hint=hint)


def _nothing(source: str) -> Failed:
    return Failed(f"{source} holds no decision", hint="has the controller ticked yet?")


decision_replay.register(app)

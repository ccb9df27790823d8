"""`emberpool decision replay`: the law run again over a ledger, under the same policies or under others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from scaler.cli.failures import FAILED, Failed
from scaler.cli.human import number, plural
from scaler.cli.ledgers import LEDGER, LedgerFile
from scaler.cli.options import examples
from scaler.cli.output import emit, note
from scaler.cli.renderings import Rendering, RenderingOption, as_data
from scaler.core.comparison import Difference, Effect, Effects, Verdict, verify, what_if
from scaler.core.decide import LAW_VERSION
from scaler.core.encoding import encode
from scaler.core.ledger import BadLine, Reader, Recorded, Step
from scaler.core.model import Snapshot
from scaler.policy.facts import as_yaml

_MEMORY: Final = "memory"
"""What `Difference.field` says where what the law remembered differs."""
_LONGEST_SHOWN: Final = 120
"""Characters of a value that a sentence shows; -o json has all of it."""


def register(app: typer.Typer) -> None:
    """Add the command to the commands about decisions."""
    app.command(
        "replay",
        epilog=examples(
            "emberpool decision replay ./state",
            "emberpool decision replay decisions.jsonl --policy policies/",
            "emberpool decision replay decisions.jsonl --policy chat.yaml -o json",
        ),
    )(replay)


def replay(
    ledger: Annotated[
        Path,
        typer.Argument(
            metavar="LEDGER", help="A ledger, or the state directory that holds it.", show_default=False
        ),
    ],
    policy: Annotated[
        list[Path] | None,
        typer.Option(
            "--policy",
            "-p",
            metavar="PATH",
            help="Files or directories with other policies; may be repeated.",
            show_default=False,
        ),
    ] = None,
    output: RenderingOption = Rendering.TEXT,
) -> int:
    """Run the law again over the inputs of a ledger, and compare its answers.

    Without --policy the policies are the recorded ones, and the first difference is named: then the ledger was changed, or
    the law was. With --policy it is told what other policies would have answered at each moment, to the same load and with
    the seats that there were.

    Exit code 0: no difference, or --policy was given; 1: a difference, ticks that are missing in between, a line that is no
    record and isn't the last, or nothing that can be replayed.
    """
    file = LedgerFile(ledger / LEDGER if ledger.is_dir() else ledger)
    reader = Reader()
    try:
        return _what_if(file, reader, policy, output) if policy else _verify(file, reader, output)
    except BadLine as error:
        hint = "was it edited, or written by another version?"
        raise Failed(f"{file.path}: {error}", hint=hint) from error


def _steps(file: LedgerFile, reader: Reader) -> Iterator[Step]:
    return reader.steps(file.lines())


def _check_any(file: LedgerFile, ticks: int) -> None:
    if ticks == 0:
        hint = "a replay begins at a decision with `start`, which a controller writes first and then once a minute"
        raise Failed(f"{file.path} holds nothing that can be replayed", hint=hint)


def _note_lines(file: LedgerFile) -> None:
    for each in file.passed_over:
        note(each)


def _note_gaps(file: LedgerFile, reader: Reader) -> None:
    _note_lines(file)
    if reader.missing:
        verb = "is" if reader.missing == 1 else "are"
        note(f"{plural(reader.missing, 'tick')} {verb} missing from the ledger")
    if reader.skipped:
        note(
            f"{plural(reader.skipped, 'tick')} not replayed: what the law remembered before them is not in the ledger"
        )


# ------------------------------------------------------------------ the same policies


def _verify(file: LedgerFile, reader: Reader, output: Rendering) -> int:
    verdict = _at_the_leaf(verify(_steps(file, reader)))
    if verdict.difference is None:
        _check_any(file, verdict.ticks)
    if output is Rendering.TEXT:
        emit(_verdict_text(verdict))
        _note_gaps(file, reader)
    else:
        tree = {
            "ticks": verdict.ticks,
            "compared": verdict.compared,
            "difference": None if verdict.difference is None else _difference_tree(verdict.difference),
        }
        emit(as_data({**tree, **_gaps_tree(reader)}, output))
        _note_lines(file)
    return file.verdict if verdict.difference is None and not reader.missing else FAILED


def _at_the_leaf(verdict: Verdict) -> Verdict:
    """Point at the first value of a memory that differs, with the names that the ledger has for its fields."""
    found = verdict.difference
    if found is None or found.field != _MEMORY:
        return verdict
    sides = [
        None if side is None else encode(side) if is_dataclass(side) else side
        for side in (found.recorded, found.replayed)
    ]
    path, (recorded, replayed) = _first_difference(sides[0], sides[1])
    field = ".".join((_MEMORY, *path))
    return replace(verdict, difference=replace(found, field=field, recorded=recorded, replayed=replayed))


def _first_difference(one: object, other: object) -> tuple[tuple[str, ...], tuple[object, object]]:
    """Return where two values that differ first do so, and what either has there."""
    match one, other:
        case Mapping(), Mapping():
            pairs = [(str(key), one.get(key), other.get(key)) for key in dict.fromkeys((*one, *other))]
        case list(), list() if len(one) == len(other):
            pairs = [(str(index), *both) for index, both in enumerate(zip(one, other, strict=True))]
        case _:
            pairs = []
    for key, here, there in pairs:
        if here != there:
            path, values = _first_difference(here, there)
            return (key, *path), values
    return (), (one, other)


def _verdict_text(verdict: Verdict) -> str:
    difference = verdict.difference
    if difference is None:
        return f"{verdict.compared:,} decisions replayed, all equal ({verdict.ticks:,} ticks)"
    text = (
        f"decision {difference.number} ({_time(difference.at)}) differs: {difference.subject}, {difference.field}: "
        f"the ledger says {_shown(difference.recorded)}, the replay {_shown(difference.replayed)}"
    )
    if difference.field == "law":
        text += "; only the version that wrote it gives the same decisions"
    return f"{text}\n{verdict.ticks:,} ticks before it were replayed, and {verdict.compared:,} decisions compared"


def _shown(value: object) -> str:
    plain = isinstance(value, Mapping | list | str | int | float | None)
    text = as_yaml(value) if plain else str(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().isoformat(sep=" ", timespec="milliseconds")


def _difference_tree(difference: Difference) -> dict[str, Any]:
    plain = (Mapping, list, str, int, float, type(None))
    return {
        "number": difference.number,
        "at": difference.at,
        "subject": difference.subject,
        "field": difference.field,
        "recorded": difference.recorded
        if isinstance(difference.recorded, plain)
        else str(difference.recorded),
        "replayed": difference.replayed
        if isinstance(difference.replayed, plain)
        else str(difference.replayed),
    }


def _gaps_tree(reader: Reader) -> dict[str, int]:
    return {"skipped": reader.skipped, "missing": reader.missing}


# ------------------------------------------------------------------ other policies


def _what_if(file: LedgerFile, reader: Reader, paths: Sequence[Path], output: Rendering) -> int:
    from scaler.policy.compile import load_policies  # noqa: PLC0415 - slow to import, and no other decision needs it
    from scaler.policy.whatif import seen_under  # noqa: PLC0415 - as above

    other = load_policies(paths)

    def inputs(step: Step) -> Snapshot:
        return seen_under(other, step.known, step.at, step.now)

    rules = Recorded(
        policies=tuple(other.policy_specs.values()),
        fleets=tuple(other.fleet_specs.values()),
        hash=other.short_hash,
        law=LAW_VERSION,
    )
    effects = what_if(_steps(file, reader), rules, inputs)
    _check_any(file, effects.ticks)
    if output is Rendering.TEXT:
        emit(_effects_text(effects))
        note(
            "seats and queues are those that the recorded policies led to: this is what would have been decided at each "
            "moment, and not how things would have gone on"
        )
        if effects.laws - {LAW_VERSION}:
            note("another version of the law wrote the ledger; here both sets are read by this one")
        _note_gaps(file, reader)
    else:
        emit(
            as_data({**_effects_tree(effects), "policyHash": other.short_hash, **_gaps_tree(reader)}, output)
        )
        _note_lines(file)
    return file.verdict


def _effects_text(effects: Effects) -> str:
    lines = [_effect_text(f"policy {name}", "resident", effect) for name, effect in effects.policies.items()]
    lines += [_effect_text(f"fleet {name}", "seat", effect) for name, effect in effects.fleets.items()]
    lines += [
        f"{name}: not in the ledger, which therefore says nothing of it" for name in sorted(effects.unknown)
    ]
    lines += [f"{name}: not in the other policies" for name in sorted(effects.gone)]
    return "\n".join(lines)


def _effect_text(subject: str, unit: str, effect: Effect) -> str:
    if effect.first is None:
        return f"{subject}: all {effect.decisions:,} decisions would have been the same"
    lasting = f"{number(effect.different_seconds)} of {number(effect.seconds)} s"
    facts = [
        f"{effect.different:,} of {effect.decisions:,} decisions would have been different, for {lasting}"
    ]
    if effect.most_more:
        facts.append(f"up to {plural(effect.most_more, unit)} more")
    if effect.most_fewer:
        facts.append(f"up to {plural(effect.most_fewer, unit)} fewer")
    facts += _more_or_fewer(effect.extra_seconds, f"{unit}-seconds")
    facts += _more_or_fewer(effect.burst_seconds, "s in burst")
    first = effect.first
    change = f"{first.field} {_shown(first.recorded)} → {_shown(first.replayed)}"
    return f"{subject}: {'; '.join(facts)}\n  first in decision {first.number} ({_time(first.at)}): {change}"


def _more_or_fewer(seconds: float, unit: str) -> list[str]:
    amount = number(abs(seconds))
    return [] if amount == "0" else [f"{amount} {unit} {'more' if seconds > 0 else 'fewer'} in all"]


def _effects_tree(effects: Effects) -> dict[str, Any]:
    return {
        "ticks": effects.ticks,
        "policies": {name: _effect_tree(effect, "resident") for name, effect in effects.policies.items()},
        "fleets": {name: _effect_tree(effect, "seat") for name, effect in effects.fleets.items()},
        "notInLedger": sorted(effects.unknown),
        "notInPolicies": sorted(effects.gone),
    }


def _effect_tree(effect: Effect, unit: str) -> dict[str, Any]:
    tree = {
        "decisions": effect.decisions,
        "different": effect.different,
        "seconds": effect.seconds,
        "differentSeconds": effect.different_seconds,
        "mostMore": effect.most_more,
        "mostFewer": effect.most_fewer,
        f"{unit}SecondsMore": effect.extra_seconds,
        "first": None if effect.first is None else _difference_tree(effect.first),
    }
    return {**tree, "burstSecondsMore": effect.burst_seconds} if unit == "resident" else tree

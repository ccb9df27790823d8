"""A lint report as people read it: a block for each fleet and policy, then the findings with their places."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from shutil import get_terminal_size
from textwrap import wrap
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from scaler.cli.human import NOTHING, listed, plural
from scaler.cli.output import table
from scaler.cli.show import indented
from scaler.policy.document import dotted
from scaler.policy.fleet import Fleet
from scaler.policy.lint import (
    Figure,
    Finding,
    FleetReport,
    Operator,
    PolicyReport,
    Report,
    Severity,
    Stage,
    Term,
)
from scaler.policy.lint.findings import SECONDS
from scaler.policy.lint.memory import Room, SeatMemory
from scaler.policy.lint.times import ON_THE_REFERENCE_ENGINE

Placed = tuple[Finding, tuple[str, int, int]]
"""A finding with file, line and column."""

_STYLES: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
_GAP: Final = 3
"""Columns between those of a table."""
_INDENT: Final = 2
"""Columns before a table."""
_NARROWEST: Final = 16
"""Characters that a wrapped column has at least, however narrow the terminal is."""
_USUAL_WIDTH: Final = 120
_ASSUMED: Final = "assumption "
_WIDE_STAGES: Final = frozenset({"body", "stall", "gateway ends"})
"""Stages of a request's path that only `-o wide` shows."""
_STEPS: Final = ((0.1, "ms", 1000, 1), (10.0, "s", 1, 2), (120.0, "s", 1, 1))
"""Up to how many seconds a time is written in which unit, units of it in a second, and digits behind the point."""


def page(report: Report, findings: Sequence[Placed], *, wide: bool) -> Text:
    """Lay out a report.

    Args:
        report: what was found out.
        findings: its findings in the order in which to show them.
        wide: say of each term where it comes from.
    """
    blocks = [_fleet(each, wide=wide) for each in report.fleets]
    blocks += [_policy(each, wide=wide) for each in report.policies]
    blocks += [_finding(each) for each in findings]
    assumed = _assumptions(report)
    if assumed:
        blocks.append(assumed)
    blocks.append(_summary(report))
    return Text("\n\n").join(blocks)


def _fleet(report: FleetReport, *, wide: bool) -> Text:
    blocks = [
        Text(
            f"Fleet {report.fleet.metadata.name}: {_shape(report.fleet)}; residents {listed(report.policies)}"
        )
    ]
    if report.times:
        blocks.append(_figures(("TIME", "AT MOST"), report.times, wide=wide))
    if report.costs:
        blocks.append(_figures(("COST", "A DAY"), report.costs, wide=wide))
    if report.memory is not None and report.memory.needed.total:
        blocks.append(_memory(report.memory, wide=wide))
    return Text("\n").join(blocks)


def _shape(fleet: Fleet) -> str:
    spec = fleet.spec
    gpus = f"of {plural(spec.seat.gpus, 'GPU')}" if spec.seat.gpus else "without GPU"
    return f"at most {plural(spec.max_seats, 'seat')} {gpus}, {spec.spare.min} spare"


def _policy(report: PolicyReport, *, wide: bool) -> Text:
    spec = report.policy.spec
    fleets = listed([share.name for share in spec.fleets])
    heading = Text(f"Policy {report.policy.metadata.name}: on {fleets}")
    times = _figures(("TIME", "AT MOST"), report.times, wide=wide)
    return Text("\n").join([heading, times, _path(report.path, wide=wide)])


def _path(stages: Sequence[Stage], *, wide: bool) -> Text:
    """Lay out a request's path: its times side by side, or a line for each with what happens then and where it is from."""
    if not wide:
        shown = [stage for stage in stages if stage.name not in _WIDE_STAGES]
        cells = [(stage.name.upper().replace(" ", "-"), _total(stage.figure)) for stage in shown]
        return Text("\n").join(_side_by_side(cells))
    rows = []
    for stage in stages:
        terms = stage.figure.terms
        source = terms[0].origin if len(terms) == 1 else _made_of(stage.figure)
        rows.append([stage.name, _total(stage.figure, bound=True), stage.then, source])
    return _fitted(["PATH", "AFTER", "THEN", "FROM"], rows, wrapped=2)


def _side_by_side(cells: Sequence[tuple[str, str]]) -> Iterator[Text]:
    """Yield tables of one row with as many columns as fit in a line each."""
    start = 0
    while start < len(cells):
        end, used = start, _INDENT + len("after")
        while end < len(cells) and (end == start or used + _GAP + max(map(cell_len, cells[end])) <= _width()):
            used += _GAP + max(map(cell_len, cells[end]))
            end += 1
        names, values = zip(*cells[start:end], strict=True)
        yield indented(table(["PATH", *names], [["after", *values]]))
        start = end


# ------------------------------------------------------------------ figures


def _figures(titles: tuple[str, str], figures: Sequence[Figure], *, wide: bool) -> Text:
    """Lay out figures, each with what it is made of: in a line, or a line for each term with its origin."""
    if not wide:
        rows = [[figure.name, _total(figure), _made_of(figure)] for figure in figures]
        return _fitted([*titles, "MADE OF"], rows)
    rows = []
    for figure in figures:
        rows.append([figure.name, _total(figure, bound=True), figure.never, ""])
        rows += [["", _value(term), term.name, term.origin] for term in figure.terms if not figure.never]
    return _fitted([*titles, "MADE OF", "FROM"], rows, wrapped=2)


def _fitted(header: Sequence[str], rows: Sequence[Sequence[str]], *, wrapped: int = 1) -> Text:
    """Lay out a table in the width that there is: its last columns are wrapped, and their lines stand below each other.

    Args:
        header: the titles.
        rows: the cells.
        wrapped: how many columns may be wrapped: one or two.
    """
    natural = [max(map(cell_len, column)) for column in zip(header, *rows, strict=True)]
    kept = len(header) - wrapped
    left = _width() - _INDENT - _GAP * (len(header) - 1) - sum(natural[:kept])
    widths = [*natural[:kept], *_shared_out(left, natural[kept:])]
    lines: list[list[str]] = []
    for row in rows:
        cells = [
            wrap(cell, width, break_long_words=False, break_on_hyphens=False) if index >= kept else [cell]
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines += map(list, zip_longest(*cells, fillvalue=""))
    return indented(table(header, lines))


def _shared_out(left: int, natural: Sequence[int]) -> list[int]:
    """Give columns what they need where there is room, and else a fair share; never less than what can be read."""
    widths: list[int] = []
    for index, need in enumerate(natural):
        after = natural[index + 1 :]
        fair = left // (1 + len(after))
        widths.append(max(_NARROWEST, min(need, max(fair, left - sum(after)))))
        left -= widths[-1]
    return widths


def _width() -> int:
    """Return the characters of a line: those of the terminal or of COLUMNS, and many but not all where there is neither."""
    return get_terminal_size((_USUAL_WIDTH, 1)).columns


def _total(figure: Figure, *, bound: bool = False) -> str:
    """Write a total so that it stays a bound: up where it is the most.

    Args:
        figure: the figure.
        bound: of a time that isn't known, write what is known of it as a bound below it, rounded down.
    """
    if figure.never:
        return "never"
    if figure.total is None or (figure.unknown and figure.unit == SECONDS and not bound):
        return "unknown"
    if figure.unit == SECONDS:
        return f"> {_span(figure.total, math.floor)}" if figure.unknown else _span(figure.total, math.ceil)
    return ("> " if figure.unknown else "") + _number(figure.total, figure.unit)


def _made_of(figure: Figure) -> str:
    if figure.never:
        return figure.never
    if figure.operator is Operator.PRODUCT:
        return " × ".join(f"{_number(term.value or 0.0, '')} {term.name}" for term in figure.terms)
    return " + ".join(f"{term.name} {_value(term)}" for term in figure.terms)


def _value(term: Term) -> str:
    return "unknown" if term.value is None else _number(term.value, term.unit)


def _span(seconds: float, rounded: Callable[[float], int] = round) -> str:
    """Write a time with as many digits as matter (`4ms`, `0.82s`, `13.1s`, `10m57s`), to the second however long it is."""
    for below, unit, per_second, digits in _STEPS:
        steps = rounded(round(seconds * per_second * 10**digits, 6))
        if steps < below * per_second * 10**digits:
            text = f"{steps / 10**digits:.{digits}f}"
            return (text.removesuffix(".0") if unit == "ms" else text) + unit
    minutes, left = divmod(rounded(round(seconds, 6)), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (left, "s"))
    return "".join(f"{value}{unit}" for value, unit in parts if value)


def _number(value: float, unit: str) -> str:
    if unit == SECONDS:
        return _span(value)
    return f"{value:,.2f}".removesuffix(".00") + (f" {unit}" if unit else "")


# ------------------------------------------------------------------ memory


def _memory(memory: SeatMemory, *, wide: bool) -> Text:
    """Lay out a seat's memory: the sum, and a line for each resident; its tier where some may be parked."""
    total = "unknown" if memory.memory is None else f"{memory.memory:,} MiB"
    needed = _figures(("GPU MEMORY", f"OF {total}"), [memory.needed], wide=wide)
    header = ["IN MIB", "PAUSED", "KV", "ALONE", "SHARED", "SHARE", "IN-FLIGHT"]
    rows = [_room(room) for room in memory.rooms]
    if memory.tiers:
        alone = (
            [] if wide else [header.index("ALONE")]
        )  # a narrow terminal shows what a tier makes of it instead
        header = [*_without(header, alone), "TIER"]
        tiers = (str(memory.tiers[room.footprint.name]) for room in memory.rooms)
        rows = [[*_without(row, alone), tier] for row, tier in zip(rows, tiers, strict=True)]
    return Text("\n").join([needed, indented(table(header, rows))])


def _without(cells: Sequence[str], places: Sequence[int]) -> list[str]:
    return [cell for place, cell in enumerate(cells) if place not in places]


def _room(room: Room) -> list[str]:
    footprint = room.footprint
    sizes = (footprint.paused, footprint.kv, room.alone, room.shared)
    share = NOTHING if room.share is None else f"{room.share:.0%}"
    held = NOTHING if room.in_flight is None else f"{room.in_flight}/{footprint.target}"
    return [footprint.name, *(NOTHING if size is None else f"{size:,}" for size in sizes), share, held]


# ------------------------------------------------------------------ findings


def _finding(placed: Placed) -> Text:
    finding, (file, line, column) = placed
    text = Text()
    text.append(f"{finding.severity.value.lower()}: ", style=_STYLES[finding.severity])
    text.append(f"{file}:{line}:{column}: {dotted(finding.place.path)}: {finding.message} [{finding.code}]")
    if finding.hint:
        text.append("\n\n")
        text.append("hint: ", style="cyan")
        text.append(finding.hint)
    return text


def _assumptions(report: Report) -> Text | None:
    """Name the assumptions that some figure or finding above rests on."""
    used = {term.origin.partition(_ASSUMED)[2] for term in _all_terms(report) if _ASSUMED in term.origin}
    values = report.subject.assumptions.model_dump(by_alias=True)
    names = [name for name in values if any(origin.startswith(name) for origin in used)]
    if not names:
        return None
    listed_values = ", ".join(f"{name}={values[name]}" for name in names)
    text = f"Assumed: {listed_values} (--assume NAME=VALUE)"
    if any(ON_THE_REFERENCE_ENGINE in origin for origin in used):
        time = f"{report.subject.assumptions.promotion_milliseconds} ms of a promotion"
        text += (
            f"\nThe {time} were {ON_THE_REFERENCE_ENGINE}: measure those of other engines, and assume them"
        )
    return Text(text)


def _all_terms(report: Report) -> Iterator[Term]:
    for fleet in report.fleets:
        for figure in (*fleet.times, *fleet.costs):
            yield from figure.terms
    for policy in report.policies:
        for figure in (*policy.times, *(stage.figure for stage in policy.path)):
            yield from figure.terms
    for finding in report.findings:
        yield from finding.terms


def _summary(report: Report) -> Text:
    counted = [
        plural(sum(finding.severity is severity for finding in report.findings), word)
        for severity, word in (
            (Severity.ERROR, "error"),
            (Severity.WARNING, "warning"),
            (Severity.INFO, "note"),
        )
    ]
    fleets, policies = plural(len(report.fleets), "fleet"), plural(len(report.policies), "policy")
    return Text(f"{fleets} and {policies}: {', '.join(counted)}")

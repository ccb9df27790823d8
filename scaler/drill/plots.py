"""The report's pictures, drawn from a `Report` alone. The only module that imports matplotlib (extra [drill]).

All arms stand side by side on common axes. Models differ by colour and by marker, so that neither colour blindness nor a
grey printer hides anything; text and grid take the page's own colours in the SVG, so that it reads on dark and on light.
"""

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from scaler.drill.figures import ArmFigures, LoadPoint, Report, SeatSpan, StageFigures
from scaler.drill.tables import milliseconds

_COLOURS: Final = ("#2f86c9", "#e07b1a", "#169b76", "#b565a7", "#8f8a1e")
"""Distinct for the common forms of colour blindness (after Okabe and Ito), readable on white and on dark grey."""
_MARKERS: Final = ("o", "^", "s", "D", "v")
_NEUTRAL: Final = "#8d949c"
_ALARM: Final = "#d1344b"
_INK: Final = "#010203"
"""Stands for the page's text colour: replaced by `currentColor` in the SVG."""
_FAINT: Final = "#040506"
"""Stands for the page's grid colour: replaced by `var(--line)` in the SVG."""
_BURST_TINT: Final = "#e0a21a"
_MARKS: Final[Mapping[str, tuple[str, str]]] = {
    "Promote": ("^", "promotion"),
    "Switch": ("D", "switch"),
    "Recall": ("<", "recall"),
}
_VALUES: Final[Mapping[str, tuple[str, str, float]]] = {
    # value: colour, hatch, opacity of the fill; the hatch is opaque. Serving and Draining take the model's colour.
    "Spare": (_NEUTRAL, "", 0.55),
    "Lent": (_NEUTRAL, "...", 0.30),
    "Starting": (_NEUTRAL, "//", 0.0),
    "Promoting": ("#b565a7", "", 0.9),
    "Held": (_ALARM, "xx", 0.25),
    "Doomed": (_NEUTRAL, "xxxx", 0.0),
}
_ARM_TITLES: Final = {
    "warm": "warm arm: paused spares",
    "cold": "cold arm: new processes",
    "cold-zygote": "cold-zygote arm: forked processes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """Colours that depend on where a picture is shown.

    Attributes:
        ink: text and frames.
        faint: grid lines.
        paper: background; "none" lets the page show through.
    """

    ink: str
    faint: str
    paper: str


_PAGE: Final = Palette(ink=_INK, faint=_FAINT, paper="none")
_PICTURE: Final = Palette(ink="#24292f", faint="#e3e6ea", paper="#ffffff")


def timeline_svg(report: Report) -> str:
    """Draw everything over time: TTFT, queue, age, in flight against capacity, failures where there are any, seats."""
    with _style(_PAGE, "timeline"):
        rows = [_draw_ttft, _draw_queue, _draw_age, _draw_in_flight]
        heights = [3.0, 1.5, 1.2, 1.8]
        if _failed(report):
            rows.append(_draw_failures)
            heights.append(1.2)
        return _svg(_grid(report, [*rows, _draw_seats], [*heights, _seats_height(report)]))


def percentiles_svg(report: Report) -> str:
    """Draw TTFT p50, p90, p99 and max per stage and model, all arms beside each other."""
    with _style(_PAGE, "percentiles"):
        figure = _figure(len(report.arms), 4.2)
        first: Axes | None = None
        for number, arm in enumerate(report.arms):
            axes = figure.add_subplot(1, len(report.arms), number + 1, sharey=first)
            first = first or axes
            _draw_percentiles(axes, report, arm)
            _title(axes, arm)
            if number == 0:
                axes.set_ylabel("TTFT")
        _percentile_legend(figure, report)
        return _svg(figure)


def promotions_svg(report: Report) -> str | None:
    """Draw each promotion of the warm arm as a bar of its steps; None when there was none."""
    arm = report.arm("warm")
    if arm is None or not arm.promotions:
        return None
    with _style(_PAGE, "promotions"):
        figure = Figure(figsize=(11, 1.2 + 0.36 * len(arm.promotions)), layout="constrained")
        _draw_promotions(figure.add_subplot(), arm)
        return _svg(figure)


def summary_png(report: Report) -> bytes:
    """Draw one picture for a README: TTFT over time and seats, all arms."""
    with _style(_PICTURE, "summary"):
        figure = _grid(report, [_draw_ttft, _draw_seats], [3.2, _seats_height(report)])
        figure.suptitle(_headline(report), fontsize=12, fontweight="bold", x=0.01, ha="left")
        data = io.BytesIO()
        figure.savefig(data, format="png", dpi=140, metadata={"Software": "emberpool"})
        return data.getvalue()


# ------------------------------------------------------------------ frame


@contextmanager
def _style(palette: Palette, salt: str) -> Iterator[None]:
    settings: Any = {  # matplotlib types the keys as one literal each
        "font.family": "sans-serif",
        "font.size": 9,
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "figure.facecolor": palette.paper,
        "savefig.facecolor": palette.paper,
        "axes.facecolor": "none",
        "text.color": palette.ink,
        "axes.labelcolor": palette.ink,
        "axes.titlecolor": palette.ink,
        "axes.edgecolor": palette.faint,
        "xtick.color": palette.ink,
        "ytick.color": palette.ink,
        "grid.color": palette.faint,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "hatch.linewidth": 1.0,
    }
    with mpl.rc_context(settings):
        yield


def _figure(columns: int, height: float) -> Figure:
    return Figure(figsize=(6.0 + 5.4 * (columns - 1), height), layout="constrained")


Draw = Callable[[Axes, Report, ArmFigures], None]


def _grid(report: Report, rows: Sequence[Draw], heights: Sequence[float]) -> Figure:
    """One column per arm, one row per drawing; x is shared by all, y along each row."""
    columns = len(report.arms)
    figure = _figure(columns, sum(heights) + 1.0)
    cells = figure.add_gridspec(len(rows), columns, height_ratios=list(heights))
    end = max(report.scenario.seconds, *(arm.load_seconds for arm in report.arms))
    for row, draw in enumerate(rows):
        # seats differ from arm to arm: their rows have no common y
        common = draw is not _draw_seats
        first: Axes | None = None
        for column, arm in enumerate(report.arms):
            axes = figure.add_subplot(cells[row, column], sharey=first if common else None)
            first = first or axes
            draw(axes, report, arm)
            _bursts(axes, report, labelled=row == 0)
            axes.set_xlim(0, end)
            if row == 0:
                _title(axes, arm)
            _label_outside(axes, left=column == 0 or not common, bottom=row == len(rows) - 1)
        if first is not None and common and first.get_yscale() == "linear":
            first.set_ylim(bottom=0)  # only now: the top is to fit all arms
    _legend(figure, report)
    return figure


def _label_outside(axes: Axes, *, left: bool, bottom: bool) -> None:
    """Keep labels only where the grid of plots ends."""
    if bottom:
        axes.set_xlabel("seconds")
    axes.tick_params(labelbottom=bottom, labelleft=left)
    if not left:
        axes.set_ylabel("")


def _latency_axis(axes: Axes) -> None:
    """A logarithmic axis of milliseconds that is labelled at 1 and 3 of each decade."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: milliseconds(value)))
    axes.yaxis.set_minor_locator(NullLocator())


def _title(axes: Axes, arm: ArmFigures) -> None:
    axes.set_title(_ARM_TITLES.get(arm.arm, arm.arm), fontsize=10, fontweight="bold", loc="left", pad=16)


def _bursts(axes: Axes, report: Report, *, labelled: bool) -> None:
    """Tint the bursts, and name them over the top row."""
    for policy, start, end in _burst_spans(report):
        axes.axvspan(start, end, color=_BURST_TINT, alpha=0.10, lw=0, zorder=0)
        if labelled:
            axes.annotate(
                f"{policy} bursts",
                ((start + end) / 2, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )


def _burst_spans(report: Report) -> Iterator[tuple[str, float, float]]:
    spans: list[tuple[str, float, float]] = []
    for stage in report.scenario.stages:
        name = " and ".join(stage.bursting)
        if name and spans and spans[-1][0] == name and spans[-1][2] == stage.start and stage.kind == "Hold":
            spans[-1] = (name, spans[-1][1], stage.end)
        elif name:
            spans.append((name, stage.start, stage.end))
    yield from spans


def _legend(figure: Figure, report: Report) -> None:
    handles: list[Any] = [
        Line2D([], [], color=colour, marker=marker, ls="-", ms=5, label=policy)
        for policy, (colour, marker) in _looks(report).items()
    ]
    handles += [Line2D([], [], color=_NEUTRAL, ls=(0, (4, 3)), label="objective")]
    values = {span.value for arm in report.arms for band in arm.seats for span in band.spans}
    handles += [
        Patch(facecolor=(colour, alpha), hatch=hatch, edgecolor=_NEUTRAL, label=value.lower())
        for value, (colour, hatch, alpha) in _VALUES.items()
        if value in values and value != "Promoting"
    ]
    operations = {promotion.operation for arm in report.arms for promotion in arm.promotions}
    handles += [
        Line2D([], [], color=mpl.rcParams["text.color"], marker=marker, ls="", ms=5, label=label)
        for operation, (marker, label) in _MARKS.items()
        if operation in operations
    ]
    if any(arm.faults for arm in report.arms):
        handles.append(Line2D([], [], color=_ALARM, marker="X", ls="", ms=7, label="engine killed"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 9), fontsize=8.5)


def _looks(report: Report) -> dict[str, tuple[str, str]]:
    """Colour and marker of each policy."""
    return {
        policy.name: (_COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)])
        for number, policy in enumerate(report.policies)
    }


def _headline(report: Report) -> str:
    parts = [f"Burst drill “{report.scenario.name}”"]
    parts += [
        f"{arm.arm}: TTFT p99 in bursts {milliseconds(arm.burst_ttft.p99)}"
        for arm in report.arms
        if arm.burst_ttft is not None
    ]
    return "   ·   ".join(parts)


# ------------------------------------------------------------------ drawings over time


def _draw_ttft(axes: Axes, report: Report, arm: ArmFigures) -> None:
    _latency_axis(axes)
    for policy, (colour, marker) in _looks(report).items():
        mine = [one for one in arm.requests if one.policy == policy]
        seen = [one for one in mine if one.ttft is not None]
        axes.plot(
            [one.at for one in seen],
            [max(one.ttft or 0.0, 1.0) for one in seen],
            ls="",
            marker=marker,
            ms=3.6,
            color=colour,
            alpha=0.75,
            mew=0,
        )
        failed = [one for one in mine if one.outcome != "Ok"]
        axes.plot(
            [one.at for one in failed],
            [0.97] * len(failed),
            ls="",
            marker="x",
            ms=5,
            color=_ALARM,
            transform=axes.get_xaxis_transform(),
        )
    for objective in sorted({policy.objective_milliseconds for policy in report.policies}):
        axes.axhline(objective, color=_NEUTRAL, ls=(0, (4, 3)), lw=1)
    axes.set_ylabel("TTFT per request")


def _draw_queue(axes: Axes, report: Report, arm: ArmFigures) -> None:
    _steps(axes, report, arm, lambda point: point.queued)
    axes.set_ylabel("queued")
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))


def _draw_age(axes: Axes, report: Report, arm: ArmFigures) -> None:
    _steps(axes, report, arm, lambda point: point.oldest_wait_seconds)
    axes.set_ylabel("oldest wait, s")
    axes.yaxis.set_major_locator(MaxNLocator(3))


def _draw_in_flight(axes: Axes, report: Report, arm: ArmFigures) -> None:
    _steps(axes, report, arm, lambda point: point.in_flight)
    for policy, (colour, _) in _looks(report).items():
        known = [point for point in arm.load.get(policy, ()) if point.capacity is not None]
        axes.step(
            [point.at for point in known],
            [point.capacity or 0.0 for point in known],
            where="post",
            color=colour,
            lw=3.5,
            alpha=0.4,
        )
    axes.set_ylabel("in flight, capacity")
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))


def _steps(axes: Axes, report: Report, arm: ArmFigures, value: Callable[[LoadPoint], float]) -> None:
    for policy, (colour, _) in _looks(report).items():
        points = arm.load.get(policy, [])
        axes.step(
            [point.at for point in points],
            [value(point) for point in points],
            where="post",
            color=colour,
            lw=1.2,
            clip_on=False,  # a line at 0 would lose half its width, and look like no data
        )


def _failed(report: Report) -> bool:
    return any(one.outcome != "Ok" for arm in report.arms for one in arm.requests)


def _draw_failures(axes: Axes, report: Report, arm: ArmFigures) -> None:
    """Failures per second, stacked by policy."""
    seconds = math.ceil(max(report.scenario.seconds, arm.load_seconds))
    bottom = [0] * (seconds + 1)
    for policy, (colour, _) in _looks(report).items():
        counts = [0] * (seconds + 1)
        for one in arm.requests:
            if one.policy == policy and one.outcome != "Ok":
                counts[min(seconds, int(one.at))] += 1
        axes.bar(range(seconds + 1), counts, 1.0, bottom=bottom, align="edge", color=colour)
        bottom = [below + count for below, count in zip(bottom, counts, strict=True)]
    axes.set_ylabel("failed, 1/s")
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))


def _seats_height(report: Report) -> float:
    return 0.5 + 0.42 * max((len(arm.seats) for arm in report.arms), default=1)


def _draw_seats(axes: Axes, report: Report, arm: ArmFigures) -> None:
    looks = _looks(report)
    rows = {band.seat: row for row, band in enumerate(arm.seats)}
    for band in arm.seats:
        for span in band.spans:
            _draw_span(axes, rows[band.seat], span, looks)
    for promotion in arm.promotions:
        marker, _ = _MARKS.get(promotion.operation, ("^", ""))
        if promotion.seat in rows and promotion.outcome == "Promoted" and "rotation" in promotion.steps:
            at = promotion.sample + promotion.steps["rotation"] / 1000
            axes.plot(
                at,
                rows[promotion.seat] - 0.42,
                marker=marker,
                ms=5,
                color=mpl.rcParams["text.color"],
                clip_on=False,
            )
    for fault in arm.faults:
        if fault.seat in rows:
            axes.plot(
                fault.at, rows[fault.seat], marker="X", ms=9, color=_ALARM, mec="white", mew=0.8, zorder=5
            )
    axes.set_ylim(len(rows) - 0.4, -0.7)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _draw_span(axes: Axes, row: int, span: SeatSpan, looks: Mapping[str, tuple[str, str]]) -> None:
    width = span.end - span.start
    own = looks.get(span.serves or "", (_NEUTRAL, ""))[0]
    colour, hatch, alpha = _VALUES.get(span.value, (own, "", 0.85))
    if span.value == "Draining":
        colour, hatch, alpha = own, "////", 0.35
    axes.barh(
        row,
        width,
        left=span.start,
        height=0.62,
        facecolor=(colour, alpha),
        hatch=hatch,
        edgecolor=_NEUTRAL,
        lw=0.4,
    )
    text = span.serves if span.value == "Serving" else span.value.lower()
    if text and width > 3.0 + 0.5 * len(text):
        light = span.value == "Serving"
        axes.text(
            span.start + width / 2,
            row,
            text,
            ha="center",
            va="center",
            fontsize=7.5,
            color="white" if light else mpl.rcParams["text.color"],
            fontweight="bold" if light else "normal",
        )


# ------------------------------------------------------------------ percentiles and promotions


def _draw_percentiles(axes: Axes, report: Report, arm: ArmFigures) -> None:
    stages = report.scenario.stages
    looks = _looks(report)
    width = 0.6 / max(1, len(looks))
    _latency_axis(axes)
    for number, (policy, (colour, marker)) in enumerate(looks.items()):
        rows = {row.stage: row for row in arm.stages if row.policy == policy}
        for index, stage in enumerate(stages):
            at = index + (number - (len(looks) - 1) / 2) * width
            _draw_whisker(axes, at, rows.get(stage.name), colour, marker)
    for index, stage in enumerate(stages):
        if stage.bursting:
            axes.axvspan(index - 0.5, index + 0.5, color=_BURST_TINT, alpha=0.10, lw=0)
    for objective in sorted({policy.objective_milliseconds for policy in report.policies}):
        axes.axhline(objective, color=_NEUTRAL, ls=(0, (4, 3)), lw=1)
    axes.set_xticks(
        range(len(stages)), [stage.name for stage in stages], rotation=35, ha="right", rotation_mode="anchor"
    )
    axes.set_xlim(-0.5, len(stages) - 0.5)
    axes.grid(visible=False, axis="x")


def _draw_whisker(axes: Axes, at: float, row: StageFigures | None, colour: str, marker: str) -> None:
    """p50 as the model's marker, a bar to p90, a line to p99, a small dash at max."""
    if row is None or row.ttft is None:
        return
    ttft = row.ttft
    axes.plot([at, at], [ttft.p50, ttft.p99], color=colour, lw=1.4, solid_capstyle="butt")
    axes.plot([at, at], [ttft.p50, ttft.p90], color=colour, lw=5, alpha=0.45, solid_capstyle="butt")
    axes.plot(at, ttft.p50, marker=marker, ms=6, color=colour, mec="white", mew=0.6)
    axes.plot(at, ttft.max, marker="_", ms=8, color=colour)


def _percentile_legend(figure: Figure, report: Report) -> None:
    handles = [
        Line2D([], [], color=colour, marker=marker, ls="", ms=6, label=f"{policy} p50")
        for policy, (colour, marker) in _looks(report).items()
    ]
    handles += [
        Line2D([], [], color=_NEUTRAL, lw=5, alpha=0.45, label="to p90"),
        Line2D([], [], color=_NEUTRAL, lw=1.4, label="to p99"),
        Line2D([], [], color=_NEUTRAL, marker="_", ms=8, ls="", label="max"),
        Line2D([], [], color=_NEUTRAL, ls=(0, (4, 3)), label="objective"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8.5)


_STEP_COLOURS: Final = ("#8d949c", "#8f8a1e", "#b565a7", "#2f86c9", "#169b76", "#e07b1a")


def _draw_promotions(axes: Axes, arm: ArmFigures) -> None:
    names = ("decision", "claimed", "resumed", "canary", "rotation", "firstToken")
    for row, promotion in enumerate(arm.promotions):
        known = [(name, promotion.steps[name]) for name in names if name in promotion.steps]
        for (_, start), (name, end) in pairwise([("sample", 0.0), *known]):
            colour = _STEP_COLOURS[names.index(name)]
            axes.barh(row, max(0.0, end - start), left=start, height=0.62, color=colour, alpha=0.9)
        if known:
            note = {"Composed": " (composed)", "None": " (no request came)"}.get(promotion.basis, "")
            axes.annotate(
                f"{milliseconds(known[-1][1])}{note}",
                (known[-1][1], row),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
            )
    labels = [f"{one.operation} {one.policy} on {one.seat}, {one.sample:.1f} s" for one in arm.promotions]
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.margins(x=0.15)
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("milliseconds after the sample")
    handles = [
        Patch(color=colour, label=f"to {_words(name)}")
        for name, colour in zip(names, _STEP_COLOURS, strict=True)
    ]
    assert axes.figure is not None
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8.5)


def _words(name: str) -> str:
    return re.sub(r"([A-Z])", r" \1", name).lower()


# ------------------------------------------------------------------ output


def _svg(figure: Figure) -> str:
    """The figure as an `<svg>` element that can stand inside a page: no prolog, no metadata, no foreign addresses."""
    text = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(text, format="svg", metadata=nothing)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" role="img">', svg, count=1)
    return svg.replace(_INK, "currentColor").replace(_FAINT, "var(--line)").strip()

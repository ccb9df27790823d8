"""The frontiers as a picture: late requests against GPU-hours, one panel a scenario, one line an arm."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from scaler.runtime.bench.law import verdicts
from scaler.runtime.bench.law.arms import ARMS
from scaler.runtime.bench.law.sweep import Point, Points

_STYLES: Final = {
    # colour (after Okabe and Ito), marker, dash: arms differ by all three
    "hpa": ("#8d949c", "s", ":"),
    "kpa": ("#8f8a1e", "v", ":"),
    "serving": ("#2f86c9", "^", "--"),
    "paused": ("#56b4e9", "D", "--"),
    "shared": ("#d1344b", "o", "-"),
    "bridge": ("#169b76", "P", "-"),
    "lending": ("#e07b1a", "X", "-"),
}
_COLUMNS: Final = 3
_LINEAR_UP_TO: Final = 0.1
"""Percent up to which the scale of the late requests is linear, so that none at all can be shown."""


def draw(found: Points, path: Path) -> None:
    """Draw all scenarios into one PNG.

    Args:
        found: the points per scenario.
        path: the file.
    """
    mpl.use("Agg")
    rows = -(-len(found) // _COLUMNS)
    figure = Figure(figsize=(5.2 * min(_COLUMNS, len(found)), 3.8 * rows), layout="constrained", dpi=110)
    panels = figure.subplots(rows, min(_COLUMNS, len(found)), squeeze=False).flat
    for panel, (name, points) in zip(panels, found.items(), strict=False):
        _panel(panel, name, points)
    for panel in list(figure.axes)[len(found) :]:
        panel.set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(ARMS), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _panel(axes: Axes, name: str, points: Sequence[Point]) -> None:
    for arm, (colour, marker, dash) in _STYLES.items():
        best = verdicts.frontier(verdicts.of_arms(points, [arm]))
        hours = [point.outcome.held / 3600.0 for point in best]
        late = [100.0 * point.outcome.late_share for point in best]
        axes.plot(hours, late, dash, color=colour, marker=marker, markersize=4.5, linewidth=1.4, label=arm)
    axes.axhline(100.0 * verdicts.LATE_SHARE, color="#24292f", linewidth=0.6)
    axes.set_yscale("symlog", linthresh=_LINEAR_UP_TO)
    axes.set_ylim(bottom=-_LINEAR_UP_TO / 5.0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.set_title(name, fontsize=9.0)
    axes.set_xlabel("GPU-hours", fontsize=8.0)
    axes.set_ylabel("waited > 1 s", fontsize=8.0)
    axes.tick_params(labelsize=8.0)
    axes.grid(color="#e3e6ea", linewidth=0.5)

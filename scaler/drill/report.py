"""The report's folder: report.json, report.md, report.html and summary.png, all from one `Report`."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from scaler.drill.figures import Report
from scaler.drill.markdown import render_markdown
from scaler.drill.page import Pictures, render_page
from scaler.drill.records import Record

MISSING_PLOTS = "the report has no plots: install the extra with `pip install 'emberpool[drill]'`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The files of a report.

    Attributes:
        folder: where they are.
        json, markdown, html: the report in three forms.
        picture: the summary picture; None without matplotlib.
        hint: what is missing and how to get it; empty when nothing is.
    """

    folder: Path
    json: Path
    markdown: Path
    html: Path
    picture: Path | None
    hint: str


def write_report(report: Report, folder: Path) -> Written:
    """Write a report into an existing folder. Without matplotlib its page has tables only, and `hint` says so."""
    data = folder / "report.json"
    data.write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")
    markdown = folder / "report.md"
    markdown.write_text(render_markdown(report), encoding="utf-8")
    pictures, picture = _draw(report)
    page = folder / "report.html"
    page.write_text(render_page(report, pictures), encoding="utf-8")
    summary = None
    if picture is not None:
        summary = folder / "summary.png"
        summary.write_bytes(picture)
    return Written(
        folder=folder,
        json=data,
        markdown=markdown,
        html=page,
        picture=summary,
        hint="" if pictures is not None else MISSING_PLOTS,
    )


def read_report(path: Path) -> Report:
    """Read a report.json.

    Raises:
        pydantic.ValidationError: it isn't one.
    """
    return Report.model_validate_json(path.read_text(encoding="utf-8"))


def write_requests(records: Iterable[Record], path: Path) -> None:
    """Write every request as one JSON object a line, in the order of their intended times."""
    with path.open("w", encoding="utf-8") as file:
        for record in sorted(records, key=lambda one: one.intended):
            file.write(json.dumps(asdict(record), separators=(",", ":")) + "\n")


def _draw(report: Report) -> tuple[Pictures | None, bytes | None]:
    try:
        from scaler.drill import plots  # noqa: PLC0415 - matplotlib is an extra, and slow to import
    except ImportError:
        return None, None
    pictures = Pictures(
        timeline=plots.timeline_svg(report),
        percentiles=plots.percentiles_svg(report),
        promotions=plots.promotions_svg(report),
    )
    return pictures, plots.summary_png(report)

"""The report as one HTML page that needs nothing else: no script, no font, no address outside itself."""

from dataclasses import dataclass
from html import escape
from importlib import resources
from string import Template
from time import gmtime, strftime

from scaler.drill.figures import ArmFigures, Report, Status
from scaler.drill.tables import VERDICT, Table, all_tables, checks_table, key_figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """The page's pictures, as `<svg>` elements.

    Attributes:
        timeline: everything over time.
        percentiles: TTFT per stage and model.
        promotions: each promotion's steps; None when there was none.
    """

    timeline: str
    percentiles: str
    promotions: str | None


_NO_PLOTS = "<p class='hint'>No plots: matplotlib is not installed. <code>pip install 'emberpool[drill]'</code> brings it.</p>"


def render_page(report: Report, pictures: Pictures | None) -> str:
    """Render the page; without pictures it says how to get them."""
    template = resources.files("scaler.drill").joinpath("templates/report.html").read_text(encoding="utf-8")
    verdict = "Pass" if report.passed else "Fail"
    started = strftime("%Y-%m-%d %H:%M UTC", gmtime(report.started_at))
    return Template(template).substitute(
        title=escape(f"Burst drill {report.scenario.name}: {verdict.lower()}"),
        name=escape(report.scenario.name),
        description=escape(report.scenario.description),
        verdict=verdict,
        verdict_class=verdict.lower(),
        facts=escape(
            f"{started} · {report.host.cores} cores · {report.host.system} · Python {report.host.python} · seed {report.scenario.seed}"
        ),
        cards="".join(_card(*figure) for figure in key_figures(report)),
        checks=_table(checks_table(report.checks)),
        pictures=_NO_PLOTS if pictures is None else _pictures(pictures),
        tables="".join(_section(table) for table in all_tables(report) if table.title != VERDICT),
        failures="".join(_failures(arm) for arm in report.arms if arm.failure_examples),
    )


def _card(name: str, value: str, remark: str) -> str:
    return (
        f"<div class='card'><div class='name'>{escape(name)}</div><div class='value'>{escape(value)}</div>"
        f"<div class='remark'>{escape(remark)}</div></div>"
    )


def _pictures(pictures: Pictures) -> str:
    parts = [
        _figure(
            "Over time",
            "Each mark is one request, at the time at which it was due. In flight: the thin line; capacity of the residents in "
            "rotation: the broad one. Tinted: bursts.",
            pictures.timeline,
        ),
        _figure("TTFT per stage and model", "Stages of a burst are tinted.", pictures.percentiles),
    ]
    if pictures.promotions is not None:
        note = "From the sample that showed the need to the first token of the resident that was promoted for it."
        parts.append(_figure("Promotions of the warm arm, step by step", note, pictures.promotions))
    return "".join(parts)


def _figure(title: str, note: str, svg: str) -> str:
    head = f"<h2>{escape(title)}</h2><figcaption>{escape(note)}</figcaption>"
    return f"<figure>{head}<div class='scroll'>{svg}</div></figure>"


def _section(table: Table) -> str:
    note = f"<p class='note'>{escape(table.note)}</p>" if table.note else ""
    return f"<section><h2>{escape(table.title)}</h2>{note}{_table(table)}</section>"


def _table(table: Table) -> str:
    def cell(tag: str, number: int, text: str) -> str:
        classes = [] if number < table.text_columns else ["number"]
        if text in set(Status) and tag == "td":
            classes.append(text.lower())
        attribute = f" class='{' '.join(classes)}'" if classes else ""
        return f"<{tag}{attribute}>{escape(text)}</{tag}>"

    head = "".join(cell("th", number, text) for number, text in enumerate(table.header))
    body = "".join(
        "<tr>" + "".join(cell("td", number, text) for number, text in enumerate(row)) + "</tr>"
        for row in table.rows
    )
    return f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _failures(arm: ArmFigures) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in arm.failure_examples)
    return f"<section><h2>First failures, {escape(arm.arm)} arm</h2><ul>{items}</ul></section>"

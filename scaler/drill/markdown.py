"""The report as Markdown, for a pull request or a terminal."""

from collections.abc import Sequence

from scaler.drill.figures import Report
from scaler.drill.tables import Table, all_tables, key_figures


def render_markdown(report: Report) -> str:
    """Render the whole report; it ends with a newline."""
    lines = [
        f"# Burst drill {report.scenario.name}: {'pass' if report.passed else 'fail'}",
        "",
        *([report.scenario.description, ""] if report.scenario.description else []),
        *(f"- {name}: **{value}** ({remark})" for name, value, remark in key_figures(report)),
        "",
        f"{report.host.cores} cores, {report.host.system}, Python {report.host.python}; load seed {report.scenario.seed}.",
        "",
    ]
    for table in all_tables(report):
        lines += _table(table)
    for arm in report.arms:
        if arm.failure_examples:
            lines += [
                f"## First failures, {arm.arm} arm",
                "",
                *(f"- {_cell(text)}" for text in arm.failure_examples),
                "",
            ]
    return "\n".join(lines).rstrip() + "\n"


def _table(table: Table) -> list[str]:
    rules = ["---" if number < table.text_columns else "---:" for number in range(len(table.header))]
    return [
        f"## {table.title}",
        "",
        *([table.note, ""] if table.note else []),
        _row(table.header),
        _row(rules),
        *(_row([_cell(cell) for cell in row]) for row in table.rows),
        "",
    ]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")

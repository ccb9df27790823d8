"""The end of a drill on the terminal: bursts, promotions, seat-seconds, the verdict's parts, where the report is."""

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from scaler.drill.figures import Report, Status
from scaler.drill.report import Written
from scaler.drill.tables import (
    Table,
    bursts_table,
    checks_table,
    policies_table,
    promotion_summary_table,
    seats_table,
)

_STYLES = {Status.PASS: "green", Status.FAIL: "bold red", Status.WARN: "yellow"}


def print_summary(report: Report, written: Written, console: Console) -> None:
    """Print what a person wants to know before opening the report."""
    for table in (
        policies_table(report),
        bursts_table(report),
        promotion_summary_table(report),
        seats_table(report),
        checks_table(report.checks),
    ):
        if table.rows:
            console.print()
            console.print(_rich(table))
    for arm in report.arms:
        for text in arm.failure_examples[:3]:
            console.print(f"failed in the {arm.arm} arm: {text}", markup=False, highlight=False)
    console.print()
    console.print(verdict(report))
    console.print(f"report: {written.html}", markup=False, highlight=False, soft_wrap=True)
    if written.hint:
        console.print(f"hint: {written.hint}", markup=False, highlight=False, soft_wrap=True)


def _rich(table: Table) -> RichTable:
    result = RichTable(
        title=table.title,
        title_justify="left",
        title_style="bold",
        box=None,
        header_style="dim",
        pad_edge=False,
    )
    for number, name in enumerate(table.header):
        result.add_column(name, justify="left" if number < table.text_columns else "right", overflow="fold")
    for row in table.rows:
        result.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))  # type: ignore[call-overload]
    return result


def verdict(report: Report) -> Text:
    """The verdict in one line."""
    failed = [check for check in report.checks if check.status is Status.FAIL]
    warned = [check for check in report.checks if check.status is Status.WARN]
    text = Text(f"drill {report.scenario.name}: ")
    text.append(
        "pass" if report.passed else "fail", style=_STYLES[Status.PASS if report.passed else Status.FAIL]
    )
    text.append(f", {len(report.checks)} check{'' if len(report.checks) == 1 else 's'}")
    if failed:
        text.append(f", {len(failed)} failed")
    if warned:
        text.append(f", {len(warned)} warned")
    return text

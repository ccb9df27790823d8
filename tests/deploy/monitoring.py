"""What the tests of deploy/monitoring read: the dashboard's queries, the rules, the runbooks and the metrics that exist."""

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import typer.core
import typer.main
from ruamel.yaml import YAML

from scaler.cli.app import app
from scaler.drill.metrics import FAMILIES as DRILL_FAMILIES

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
DASHBOARDS = sorted((MONITORING / "dashboards").glob("*.json"))
RULES = sorted(path for path in (MONITORING / "rules").glob("*.yaml") if not path.name.endswith(".test.yaml"))
RULE_TESTS = sorted((MONITORING / "rules").glob("*.test.yaml"))
RUNBOOKS = ROOT / "deploy" / "runbooks"

HISTOGRAM_PARTS = ("_bucket", "_count", "_sum")
RATE_INTERVAL = "7m"
RANGE = "11m"
"""Unlikely durations that stand for Grafana's variables, so that they can be told from durations that were written."""
VARIABLES = {"namespace": ".*", "job": ".+", "arm": ".*", "policy": ".+", "fleet": ".+"}
"""The dashboard's variables and what All means for each: a namespace and an arm may be empty."""


def needs(program: str) -> str:
    """Return the program's path; without it the test is skipped for people and fails in CI."""
    found = shutil.which(program)
    if found is None:
        message = f"{program} is not installed: `apt-get install prometheus` brings it"
        if os.environ.get("CI"):
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    return found


# ------------------------------------------------------------------ the metrics that exist


@dataclass(frozen=True, slots=True)
class Metric:
    """One family of deploy/monitoring/METRICS.md, or of the drill."""

    name: str
    kind: str
    labels: frozenset[str]


def catalogue() -> Mapping[str, Metric]:
    """Read every family that the project exposes."""
    found = {
        family.name: Metric(family.name, str(family.kind), frozenset(family.label_names))
        for family in DRILL_FAMILIES
    }
    for line in (MONITORING / "METRICS.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) >= 5 and cells[1] in {"counter", "gauge", "histogram"}:
            name = cells[0].strip("`")
            found[name] = Metric(name, cells[1], frozenset(re.findall(r"`(\w+)`", cells[3])))
    return found


def family(series: str, metrics: Mapping[str, Metric]) -> Metric | None:
    """Return the family that a series' name belongs to."""
    if series in metrics:
        return metrics[series]
    for part in HISTOGRAM_PARTS:
        found = metrics.get(series.removesuffix(part))
        if series.endswith(part) and found is not None and found.kind == "histogram":
            return found
    return None


# ------------------------------------------------------------------ queries


@dataclass(frozen=True, slots=True)
class Query:
    """One query with the place that it stands at."""

    place: str
    expr: str

    def filled(
        self, *, rate_interval: str = RATE_INTERVAL, whole: str = RANGE, everything: str | None = None
    ) -> str:
        """Replace Grafana's variables as Grafana does with All picked everywhere, or with one value for all of them."""
        text = self.expr.replace("$__rate_interval", rate_interval).replace("$__range", whole)
        return filled(text, dict.fromkeys(VARIABLES, everything) if everything else VARIABLES)


def filled(text: str, values: Mapping[str, str]) -> str:
    """Replace Grafana's variables by these values."""
    return re.sub(rf"\$({'|'.join(values)})\b", lambda match: values[match[1]], text)


def load_dashboard(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return loaded


def panels(dashboard: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all panels that show something, those that a collapsed row holds too: rows show nothing."""
    found = []
    for panel in dashboard["panels"]:
        found += panel["panels"] if panel["type"] == "row" else [panel]
    return found


def rows(dashboard: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows."""
    return [panel for panel in dashboard["panels"] if panel["type"] == "row"]


def dashboard_queries(dashboard: Mapping[str, Any]) -> list[Query]:
    """Return the queries of all panels and annotations."""
    found = [
        Query(f"{panel['title']} / {target['refId']}", target["expr"])
        for panel in panels(dashboard)
        for target in panel["targets"]
    ]
    notes = dashboard["annotations"]["list"]
    return found + [Query(f"annotation {note['name']}", note["expr"]) for note in notes if "expr" in note]


def load_rules() -> list[dict[str, Any]]:
    """Return all alerting rules."""
    yaml = YAML(typ="safe", pure=True)
    return [
        rule
        for path in RULES
        for group in yaml.load(path)["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]


def walk(expr: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield every node of a parsed query with the nodes above it, outermost first."""
    yield expr, above
    for name in ("expr", "lhs", "rhs", "param", "vector_selector"):
        child = getattr(expr, name, None)
        if isinstance(child, promql_parser.Expr):
            yield from walk(child, (*above, expr))
    for child in getattr(expr, "args", None) or ():
        yield from walk(child, (*above, expr))


def series_named(expr: str) -> set[str]:
    """Return the names of all series that a query reads."""
    nodes = (node for node, _ in walk(promql_parser.parse(expr)))
    return {node.name for node in nodes if isinstance(node, promql_parser.VectorSelector) and node.name}


# ------------------------------------------------------------------ runbooks


def commands(runbook: Path) -> list[str]:
    """Return the command lines of a runbook's shell blocks, one a line."""
    blocks = re.findall(r"```sh\n(.*?)```", runbook.read_text("utf-8"), re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def words(command: str, values: Mapping[str, str]) -> list[str]:
    """Split a command line as a shell does, its variables replaced; a pipe ends it."""
    text = re.sub(r"\$\{?(\w+)\}?", lambda match: values[match[1]], command)
    split = shlex.split(text)
    return split[: split.index("|")] if "|" in split else split


def parse(arguments: list[str]) -> None:
    """Parse a command line down to its command, without running it.

    Raises:
        TyperException: there is no such command or option.
    """
    command: Any = typer.main.get_command(app)
    context = None
    rest = arguments
    while isinstance(command, typer.core.TyperGroup):
        context = command.make_context(command.name, list(rest), parent=context)
        _, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
    command.make_context(command.name, list(rest), parent=context)

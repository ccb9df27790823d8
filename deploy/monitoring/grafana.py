# ruff: noqa: INP001 - deploy/ holds files for other programs; it is no package
"""Grafana's JSON, as much of it as our dashboards need: a panel is written as what it shows, the rest follows.

Grafana 10 and newer read it (schema 38; newer ones bring it up to date themselves when they load it).
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

Json = dict[str, Any]

SCHEMA_VERSION = 38
"""Grafana 10.0 and 10.1 write this one."""
COLUMNS = 24
DATA_SOURCE: Mapping[str, str] = MappingProxyType({"type": "prometheus", "uid": "${datasource}"})


class Unit(StrEnum):
    """Grafana's ids of the units that we use."""

    SECONDS = "s"
    SHARE = "percentunit"
    COUNT = "short"
    REQUESTS_PER_SECOND = "reqps"
    EVENTS_PER_SECOND = "ops"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL query of a panel and what its series are called.

    Attributes:
        expr: the query.
        legend: name of its series; `{{label}}` stands for a label's value.
    """

    expr: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel.

    Attributes:
        title: what it shows.
        text: how to read it, shown behind the (i).
        unit: unit of its values.
        queries: where the values come from.
        kind: Grafana's type of panel.
        width, height: in columns and rows of the grid.
        axis: what is counted, where the unit doesn't say it.
        stacked: whether the series add up to something.
        states: names of the values of a state timeline or a stat, by value, each with its colour.
        colours: colours of series by the whole name or, between slashes, a regular expression.
        dashed: series drawn as dashed lines without filling: limits, not measurements.
        warn_above: value from which a stat turns red; None for no such value.
        repeat: variable for each of whose values the panel is drawn once.
        columns: labels that a table shows, in order; time and value are left out.
    """

    title: str
    text: str
    unit: Unit
    queries: Sequence[Query]
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    axis: str = ""
    stacked: bool = False
    states: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    colours: Mapping[str, str] = field(default_factory=dict)
    dashed: Sequence[str] = ()
    warn_above: float | None = None
    repeat: str = ""
    columns: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A row with a heading and the panels under it.

    Attributes:
        title: its heading.
        panels: what is under it.
        collapsed: only the heading is shown, and nothing is queried, until somebody opens it.
    """

    title: str
    panels: Sequence[Panel]
    collapsed: bool = False


def lay_out(rows: Sequence[Row]) -> list[Json]:
    """Place rows and panels on the grid, from left to right and from top to bottom, and number them.

    A collapsed row holds its panels and takes no more room than its heading. They stand below it as if it were open:
    Grafana moves everything else down when somebody opens it.
    """
    placed: list[Json] = []
    numbers = itertools.count(1)
    top = 0
    for row in rows:
        head = _row(row, top, next(numbers))
        panels, bottom = _under(row.panels, top + 1, numbers)
        placed.append(head)
        if row.collapsed:
            head["panels"] = panels
            top += 1
        else:
            placed += panels
            top = bottom
    return placed


def _row(row: Row, top: int, number: int) -> Json:
    place = {"h": 1, "w": COLUMNS, "x": 0, "y": top}
    return {
        "id": number,
        "type": "row",
        "title": row.title,
        "gridPos": place,
        "collapsed": row.collapsed,
        "panels": [],
    }


def _under(panels: Sequence[Panel], top: int, numbers: Iterator[int]) -> tuple[list[Json], int]:
    """Return the panels of one row, placed from `top` on, and where they end."""
    placed: list[Json] = []
    left = tallest = 0
    for panel in panels:
        if left + panel.width > COLUMNS:
            top, left, tallest = top + tallest, 0, 0
        place = {"h": panel.height, "w": panel.width, "x": left, "y": top}
        placed.append({"id": next(numbers), "gridPos": place, **_panel(panel)})
        left, tallest = left + panel.width, max(tallest, panel.height)
    return placed, top + tallest


def _panel(panel: Panel) -> Json:
    result: Json = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": dict(DATA_SOURCE),
        "targets": [_target(panel, index, query) for index, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel),
    }
    if panel.repeat:
        result |= {"repeat": panel.repeat, "repeatDirection": "h", "maxPerRow": 3}
    if panel.columns:
        result["transformations"] = [_columns(panel.columns)]
    return result


def _columns(names: Sequence[str]) -> Json:
    """Return the transformation that leaves a query's labels, in this order."""
    order = {name: place for place, name in enumerate(names)}
    left_out = {"Time": True, "Value": True}
    return {
        "id": "organize",
        "options": {"excludeByName": left_out, "indexByName": order, "renameByName": {}},
    }


def _target(panel: Panel, index: int, query: Query) -> Json:
    instant = panel.kind in {"stat", "bargauge", "table"}
    return {
        "refId": chr(ord("A") + index),
        "datasource": dict(DATA_SOURCE),
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend,
        "format": {"heatmap": "heatmap", "table": "table"}.get(panel.kind, "time_series"),
        "instant": instant,
        "range": not instant,
    }


def _defaults(panel: Panel) -> Json:
    steps: list[Json] = [{"color": "text" if panel.kind == "stat" else "green", "value": None}]
    if panel.warn_above is not None:
        steps.append({"color": "red", "value": panel.warn_above})
    result: Json = {
        "unit": str(panel.unit),
        "mappings": _mappings(panel.states),
        "thresholds": {"mode": "absolute", "steps": steps},
        "color": {"mode": "thresholds" if panel.kind in {"stat", "bargauge"} else "palette-classic"},
    }
    if panel.kind == "timeseries":
        result["min"] = 0
        result["custom"] = {
            "axisLabel": panel.axis,
            "drawStyle": "line",
            "lineInterpolation": "stepAfter" if panel.unit is Unit.COUNT else "linear",
            "lineWidth": 1,
            "fillOpacity": 60 if panel.stacked else 8,
            "showPoints": "auto",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        }
    elif panel.kind == "state-timeline":
        result["custom"] = {"fillOpacity": 80, "lineWidth": 0}
    return result


def _mappings(states: Mapping[int, tuple[str, str]]) -> list[Json]:
    if not states:
        return []
    options = {
        str(value): {"text": text, "color": colour, "index": index}
        for index, (value, (text, colour)) in enumerate(states.items())
    }
    return [{"type": "value", "options": options}]


def _overrides(panel: Panel) -> list[Json]:
    result: list[Json] = []
    for name, colour in panel.colours.items():
        properties: list[Json] = [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}]
        result.append({"matcher": _matcher(name), "properties": properties})
    for name in panel.dashed:
        properties = [
            {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}},
            {"id": "custom.lineWidth", "value": 2},
            {"id": "custom.fillOpacity", "value": 0},
            {"id": "custom.stacking", "value": {"mode": "none", "group": "A"}},
        ]
        result.append({"matcher": _matcher(name), "properties": properties})
    return result


def _matcher(name: str) -> Json:
    return {"id": "byRegexp" if name.startswith("/") else "byName", "options": name}


def _options(panel: Panel) -> Json:
    legend: Json = {
        "displayMode": "table",
        "placement": "bottom",
        "showLegend": True,
        "calcs": ["lastNotNull", "max"],
    }
    calculated = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    match panel.kind:
        case "timeseries":
            return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
        case "stat":
            colour = "value" if panel.warn_above is not None or panel.states else "none"
            return {
                "reduceOptions": calculated,
                "colorMode": colour,
                "graphMode": "none",
                "textMode": "value_and_name",
            }
        case "bargauge":
            return {"reduceOptions": calculated, "orientation": "horizontal", "displayMode": "basic"}
        case "state-timeline":
            short = {"displayMode": "list", "placement": "bottom", "showLegend": bool(panel.states)}
            return {"mergeValues": True, "showValue": "auto", "rowHeight": 0.8, "legend": short}
        case "heatmap":
            return {
                "calculate": False,
                "yAxis": {"unit": str(panel.unit), "axisPlacement": "left"},
                "color": {"mode": "scheme", "scheme": "Oranges", "steps": 32, "exponent": 0.5},
                "cellGap": 0,
                "rowsFrame": {"layout": "auto"},
                "filterValues": {"le": 1e-9},
                "legend": {"show": True},
                "tooltip": {"mode": "single", "show": True, "yHistogram": True},
            }
        case "table":
            return {"showHeader": True}
    raise ValueError(f"{panel.kind}: no options are known for this type of panel")


# ------------------------------------------------------------------ variables and annotations


def data_source_variable() -> Json:
    """Return the variable that lets whoever looks pick the Prometheus."""
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "regex": "",
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "refresh": 1,
        "options": [],
        "current": {},
    }


def label_variable(name: str, label: str, query: str, text: str, *, everything: str = ".+") -> Json:
    """Return a variable over the values of a label; several may be picked, and by default all are.

    Args:
        name: as queries name it.
        label: as people see it.
        query: a `label_values(…)` query.
        text: its description.
        everything: regular expression that stands for all values.
    """
    return {
        "name": name,
        "label": label,
        "description": text,
        "type": "query",
        "datasource": dict(DATA_SOURCE),
        "definition": query,
        "query": {"query": query, "refId": f"variable-{name}"},
        "regex": "",
        "sort": 1,
        "hide": 0,
        "includeAll": True,
        "allValue": everything,
        "multi": True,
        # on change of the time range, so that a policy of last week's drill can be found
        "refresh": 2,
        "options": [],
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def tag_annotation(name: str, tags: Sequence[str], colour: str) -> Json:
    """Return an annotation that shows what was sent to Grafana's own store with all of these tags."""
    return {
        "name": name,
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": True,
        "hide": False,
        "iconColor": colour,
        "target": {"type": "tags", "tags": list(tags), "matchAny": False, "limit": 200},
    }


def query_annotation(name: str, query: Query, tags: str, colour: str) -> Json:
    """Return an annotation over the times at which a query has a value other than 0."""
    return {
        "name": name,
        "datasource": dict(DATA_SOURCE),
        "enable": True,
        "hide": False,
        "iconColor": colour,
        "expr": query.expr,
        "titleFormat": query.legend,
        "tagKeys": tags,
        "useValueForTime": False,
        "step": "1s",
    }

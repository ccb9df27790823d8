"""The rules of Grafana's dashboard linter, and a few of our own, on every committed dashboard."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from ruamel.yaml import YAML

from deploy.monitoring.burst_drill import PATH, rendered
from tests.deploy.monitoring import (
    DASHBOARDS,
    HISTOGRAM_PARTS,
    RANGE,
    RATE_INTERVAL,
    VARIABLES,
    Metric,
    Query,
    catalogue,
    dashboard_queries,
    family,
    filled,
    load_dashboard,
    needs,
    panels,
    rows,
    walk,
)

METRICS = catalogue()
UNITS = {"s", "percentunit", "short", "reqps", "ops", "bytes"}
WINDOWS = {promql_parser.parse_duration(RATE_INTERVAL), promql_parser.parse_duration(RANGE)}
RATES = {"rate", "increase"}
SCRAPED = {"namespace", "job", "instance", "arm"}
"""Labels that the scraping side gives, the last one for drills."""


# ------------------------------------------------------------------ a query's faults


def faults(query: Query) -> list[str]:
    """Say what is wrong with a query; nothing where it is good."""
    text = query.filled(everything="all-of-them")
    try:
        parsed = promql_parser.parse(text)
    except ValueError as error:
        return [f"not PromQL: {error}"]
    found = []
    for node, above in walk(parsed):
        if isinstance(node, promql_parser.MatrixSelector) and node.range not in WINDOWS:
            found.append("a window is $__rate_interval or $__range, never a fixed duration")
        if isinstance(node, promql_parser.VectorSelector):
            found += selector_faults(node, above)
    return found


def selector_faults(selector: Any, above: tuple[Any, ...]) -> Iterator[str]:
    name = selector.name or ""
    metric = family(name, METRICS)
    if metric is None:
        yield f"{name} is not in METRICS.md"
        return
    yield from kind_faults(name, metric, above)
    given = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
    labels = metric.labels | SCRAPED | ({"le"} if name.endswith("_bucket") else set())
    for variable in ("namespace", "job", "arm", *sorted({"policy", "fleet"} & metric.labels)):
        if "all-of-them" not in given.get(variable, ""):
            yield f"{name} isn't selected by ${variable}"
    kept = {label for node in above for label in grouping(node)}
    yield from (f"{name} has no label {label}" for label in sorted((set(given) | kept) - labels))


def kind_faults(name: str, metric: Metric, above: tuple[Any, ...]) -> Iterator[str]:
    called = [node.func.name for node in above if isinstance(node, promql_parser.Call)]
    rated = bool(RATES & set(called))
    grows = metric.kind == "counter" or name.endswith(HISTOGRAM_PARTS)
    if grows and not rated:
        yield f"{name} only grows: it needs rate or increase"
    if rated and not grows:
        yield f"{name} goes up and down: rate means nothing"
    if grows and not any(isinstance(node, promql_parser.AggregateExpr) for node in above):
        yield f"{name} isn't aggregated: each instance would get a line"


def grouping(node: Any) -> list[str]:
    if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
        return list(node.modifier.labels)
    return []


@pytest.mark.parametrize(
    ("expr", "fault"),
    [
        pytest.param('sum(rate(emberpool_tick_wakeups_total{job=~"$job"}[5m]', "not PromQL", id="broken"),
        pytest.param(
            'sum(rate(emberpool_tick_wakeups_total{job=~"$job"}[5m]))', "fixed duration", id="fixed-window"
        ),
        pytest.param(
            'sum(emberpool_tick_wakeups_total{job=~"$job"})', "only grows", id="counter-without-rate"
        ),
        pytest.param(
            'rate(emberpool_tick_wakeups_total{job=~"$job"}[$__rate_interval])', "aggregated", id="bare-rate"
        ),
        pytest.param(
            'sum(rate(emberpool_leader{job=~"$job"}[$__rate_interval]))', "up and down", id="rate-of-a-gauge"
        ),
        pytest.param("max(emberpool_leader)", "isn't selected by $job", id="without-job"),
        pytest.param('max(emberpool_leader{job=~"$job"})', "$namespace", id="without-namespace"),
        pytest.param('max(emberpool_demand_requests{job=~"$job"})', "$policy", id="without-policy"),
        pytest.param('max(emberpool_seats{job=~"$job"})', "$fleet", id="without-fleet"),
        pytest.param('max(emberpool_drill_stage{job=~"$job"})', "$arm", id="without-arm"),
        pytest.param('max(emberpool_leaders{job=~"$job"})', "METRICS.md", id="unknown-metric"),
        pytest.param(
            'max by (policy) (emberpool_leader{job=~"$job"})', "no label policy", id="unknown-label"
        ),
        pytest.param('max(emberpool_leader{job=~"$job", pod="a"})', "no label pod", id="unknown-matcher"),
        pytest.param(
            'histogram_quantile(0.9, sum by (le) (emberpool_tick_duration_seconds_bucket{job=~"$job"}))',
            "only grows",
            id="histogram-without-rate",
        ),
    ],
)
def test_a_bad_query_is_noticed(expr: str, fault: str) -> None:
    assert any(fault in found for found in faults(Query("here", expr)))


# ------------------------------------------------------------------ dashboards

ALL = [pytest.param(path, id=path.stem) for path in DASHBOARDS]
QUERIES = [
    pytest.param(query, id=query.place)
    for path in DASHBOARDS
    for query in dashboard_queries(load_dashboard(path))
]
PANELS = [
    pytest.param(panel, id=panel["title"]) for path in DASHBOARDS for panel in panels(load_dashboard(path))
]


def test_the_committed_file_is_what_its_source_says() -> None:
    assert PATH in DASHBOARDS
    assert PATH.read_text("utf-8") == rendered(), "run `python -m deploy.monitoring.burst_drill`"


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_keeps_the_rules(query: Query) -> None:
    assert faults(query) == []


@pytest.mark.parametrize("path", ALL)
def test_a_dashboard_has_a_stable_identity(path: Path) -> None:
    dashboard = load_dashboard(path)
    assert re.fullmatch(r"emberpool-[a-z-]{1,30}", dashboard["uid"])
    assert dashboard["title"].startswith("Emberpool / ")
    assert dashboard["description"]
    assert "emberpool" in dashboard["tags"]
    assert dashboard["editable"] is False
    assert dashboard["schemaVersion"] >= 38, "Grafana 10"
    assert "id" not in dashboard, "numeric ids belong to one installation"
    assert "__inputs" not in dashboard, "an export for sharing can't be provisioned"


@pytest.mark.parametrize("path", ALL)
def test_variables_are_templated_and_follow_the_time_range(path: Path) -> None:
    variables = {each["name"]: each for each in load_dashboard(path)["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert set(variables) == {"datasource", *VARIABLES}
    for name, everything in VARIABLES.items():
        variable = variables[name]
        assert variable["datasource"]["uid"] == "${datasource}"
        assert variable["label"]
        assert variable["refresh"] == 2, "on change of the time range"
        assert variable["description"].endswith(".")
        assert (variable["multi"], variable["includeAll"], variable["allValue"]) == (True, True, everything)


@pytest.mark.parametrize("path", ALL)
def test_the_queries_of_variables_name_what_exists(path: Path) -> None:
    for variable in load_dashboard(path)["templating"]["list"]:
        if variable["type"] != "query":
            continue
        parts = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert parts is not None
        selector = promql_parser.parse(filled(parts[1], VARIABLES))
        assert isinstance(selector, promql_parser.VectorSelector)
        if selector.name is not None:
            metric = family(selector.name, METRICS)
            assert metric is not None, selector.name
            assert parts[2] in metric.labels


@pytest.mark.parametrize("path", ALL)
def test_annotations_show_what_a_drill_sends(path: Path) -> None:
    notes = load_dashboard(path)["annotations"]["list"]
    tags = [note["target"]["tags"] for note in notes if "target" in note]
    assert ["emberpool", "drill"] in tags


@pytest.mark.parametrize("path", ALL)
def test_panels_have_numbers_of_their_own_and_do_not_overlap(path: Path) -> None:
    dashboard = load_dashboard(path)
    placed = [*rows(dashboard), *panels(dashboard)]
    numbers = [panel["id"] for panel in placed]
    assert len(set(numbers)) == len(numbers)
    titles = [panel["title"] for panel in placed]
    assert len(set(titles)) == len(titles)
    for shown in (dashboard["panels"], *(row["panels"] for row in rows(dashboard))):
        for one, other in combinations((panel["gridPos"] for panel in shown), 2):
            assert not _overlap(one, other), (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in placed)


@pytest.mark.parametrize("path", ALL)
def test_a_row_holds_its_panels_when_it_is_collapsed_and_only_then(path: Path) -> None:
    for row in rows(load_dashboard(path)):
        assert row["collapsed"] == bool(row["panels"]), row["title"]
        tops = [panel["gridPos"]["y"] for panel in row["panels"]]
        assert not tops or tops[0] == min(tops) == row["gridPos"]["y"] + 1, (
            "Grafana moves them by the first one"
        )


def test_what_few_look_at_is_collapsed() -> None:
    closed = {row["title"] for row in rows(load_dashboard(PATH)) if row["collapsed"]}
    assert closed == {"The drill, as its load saw it", "The controller itself"}


def _overlap(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    return not (beside or below)


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith((".", ")"))
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    if panel["type"] == "timeseries" and panel["fieldConfig"]["defaults"]["unit"] == "short":
        assert panel["fieldConfig"]["defaults"]["custom"]["axisLabel"], "what is counted?"


@pytest.mark.parametrize("panel", PANELS)
def test_a_panels_series_have_names_that_its_query_can_give(panel: dict[str, Any]) -> None:
    targets = panel["targets"]
    assert targets
    letters = [target["refId"] for target in targets]
    assert len(set(letters)) == len(letters)
    for target in targets:
        assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert target["legendFormat"]
        query = Query(panel["title"], target["expr"])
        named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        nodes = [node for node, _ in walk(promql_parser.parse(query.filled(everything="x")))]
        kept = {label for node in nodes for label in grouping(node)}
        bare = not any(isinstance(node, promql_parser.AggregateExpr) for node in nodes)
        assert bare or named <= kept, f"{named - kept} is aggregated away"


@pytest.mark.parametrize("panel", PANELS)
def test_a_table_shows_labels_and_neither_time_nor_value(panel: dict[str, Any]) -> None:
    if panel["type"] != "table":
        return
    (target,) = panel["targets"]  # with a second one the values' fields have other names
    labels = grouping(promql_parser.parse(filled(target["expr"], VARIABLES)))
    (organize,) = (each["options"] for each in panel["transformations"] if each["id"] == "organize")
    shown = {"Time", "Value", *labels} - organize["excludeByName"].keys()
    assert shown == set(labels)
    assert sorted(shown, key=organize["indexByName"].__getitem__) == labels


def test_versions_are_a_table_of_job_instance_and_version() -> None:
    (panel,) = (panel for panel in panels(load_dashboard(PATH)) if panel["title"] == "Versions")
    (options,) = (each["options"] for each in panel["transformations"])
    assert sorted(options["indexByName"], key=options["indexByName"].get) == ["job", "instance", "version"]


@pytest.mark.parametrize("title", ["Failed requests", "Failures by outcome"])
def test_what_gateways_refuse_before_they_know_the_model_counts_as_failed(title: str) -> None:
    (panel,) = (panel for panel in panels(load_dashboard(PATH)) if panel["title"] == title)
    picked = set()
    for target in panel["targets"]:
        for node, _ in walk(promql_parser.parse(Query(title, target["expr"]).filled(everything="chat"))):
            if isinstance(node, promql_parser.VectorSelector):
                given = {matcher.name: matcher.value for matcher in node.matchers.matchers}
                picked |= {
                    outcome
                    for outcome in ("Overloaded", "Draining")
                    if re.fullmatch(given["policy"], "") and re.fullmatch(given.get("outcome", ""), outcome)
                }
    assert picked == {"Overloaded", "Draining"}


@pytest.mark.parametrize("panel", PANELS)
def test_a_repeated_panel_says_which_one_it_is(panel: dict[str, Any]) -> None:
    if "repeat" in panel:
        assert f"${panel['repeat']}" in panel["title"]
        assert all('"$' + panel["repeat"] + '"' in target["expr"] for target in panel["targets"])


# ------------------------------------------------------------------ what queries give


SILENT_AGENT = """\
'emberpool_seats{job="c", fleet="f", value="Serving"}': 1
'emberpool_seats{job="c", fleet="f", value="Draining"}': 1
'emberpool_seats{job="c", fleet="f", value="Spare"}': 1
'emberpool_supply_residents{job="c", fleet="f", policy="chat", supply="Serving"}': 1
'emberpool_supply_residents{job="c", fleet="f", policy="code", supply="Serving"}': 0
"""
"""Three seats, one of which served code when its agent fell silent: it counts as Draining and is no supply of anybody."""


@pytest.mark.parametrize(
    ("policy", "others"), [pytest.param(".+", 1, id="all policies"), pytest.param("code", 2, id="one policy")]
)
def test_every_seat_is_shown_once_when_an_agent_is_silent(tmp_path: Path, policy: str, others: int) -> None:
    (panel,) = (each for each in panels(load_dashboard(PATH)) if each["title"] == "Seats by what they serve")
    supply, rest, values = (
        filled(each["expr"], {**VARIABLES, "policy": policy}) for each in panel["targets"]
    )
    expected = {f"sum({supply}) + sum({rest}) + sum({values})": 3, f"sum({rest})": others}
    assert evaluated(tmp_path, SILENT_AGENT, expected) == ""


def evaluated(folder: Path, series: str, expected: Mapping[str, float]) -> str:
    """Have Prometheus evaluate queries over constant series; return how what they give differs from what is expected."""
    yaml = YAML(typ="safe", pure=True)
    inputs = [{"series": name, "values": f"{value}x4"} for name, value in yaml.load(series).items()]
    tests = [
        {"expr": expr, "eval_time": "1m", "exp_samples": [{"labels": "{}", "value": value}]}
        for expr, value in expected.items()
    ]
    path = folder / "test.yaml"
    with path.open("w") as file:
        yaml.dump({"tests": [{"interval": "15s", "input_series": inputs, "promql_expr_test": tests}]}, file)
    done = subprocess.run(
        [needs("promtool"), "test", "rules", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_a_wrong_expectation_of_a_query_is_noticed(tmp_path: Path) -> None:
    assert "exp" in evaluated(tmp_path, SILENT_AGENT, {"sum(emberpool_seats)": 4})

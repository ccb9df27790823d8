"""Alert rules: promtool's verdict, what each must carry, and runbooks whose commands and panels exist."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from ruamel.yaml import YAML
from typer.exceptions import TyperException

from scaler.cluster.static.listing import load_agents
from tests.deploy.monitoring import (
    DASHBOARDS,
    MONITORING,
    ROOT,
    RULE_TESTS,
    RULES,
    RUNBOOKS,
    catalogue,
    commands,
    family,
    load_dashboard,
    load_rules,
    needs,
    panels,
    parse,
    rows,
    series_named,
    walk,
    words,
)

ALERTS = [pytest.param(rule, id=rule["alert"]) for rule in load_rules()]
BOOKS = [pytest.param(path, id=path.stem) for path in sorted(RUNBOOKS.glob("*.md"))]
SEVERITIES = {"critical", "warning"}
SECTIONS = ["Meaning", "Impact", "First 5 minutes", "Diagnosis", "Mitigation"]
VALUES = {
    "POLICY": "chat",
    "FLEET": "spares",
    "SEAT": "spares-0",
    "NODE": "gpu-a",
    "STATE_DIR": "state",
    "EMBERPOOL_SERVER": "http://127.0.0.1:9080",
    "GATEWAY_METRICS": "http://127.0.0.1:9080",
}
"""What the variables of runbooks' commands stand for."""
README = MONITORING / "README.md"
SCENARIO = str(ROOT / "policies" / "drills" / "smoke.yaml")
OTHER_PROGRAMS = {"curl", "export", "grep", "ls"}


def promtool(*arguments: str, cwd: Path = MONITORING) -> None:
    done = subprocess.run(
        [needs("promtool"), *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", *map(str, RULES))


def test_promtool_accepts_the_configuration() -> None:
    promtool("check", "config", "prometheus.yaml")


def test_promtool_accepts_the_configuration_with_the_jobs_of_separate_processes(tmp_path: Path) -> None:
    text = (MONITORING / "prometheus.yaml").read_text("utf-8")
    opened = re.sub(r"^  # (?=- job_name|  )", "  ", text, flags=re.MULTILINE)
    jobs = YAML(typ="safe", pure=True).load(opened)["scrape_configs"]
    targets = {job["job_name"]: job.get("static_configs", [{}])[0].get("targets") for job in jobs}
    assert targets["emberpool-gateway"] == ["127.0.0.1:9082"]
    listed = load_agents(ROOT / "deploy/compose/agents-here.yaml")
    seats = [seat.agent for fleet in listed.spec.fleets for seat in fleet.seats]
    assert [f"http://{target}" for target in targets["emberpool-agent"]] == seats
    shutil.copytree(MONITORING / "rules", tmp_path / "rules")
    (tmp_path / "agent-token").write_text("secret")
    (tmp_path / "prometheus.yaml").write_text(opened)
    promtool("check", "config", "prometheus.yaml", cwd=tmp_path)


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in RULE_TESTS])
def test_the_rules_pass_their_tests(path: Path) -> None:
    promtool("test", "rules", path.name, cwd=path.parent)


def lives() -> Iterator[tuple[str, list[bool]]]:
    """Yield, per test and alert, whether it fires at the times that are looked at, in order."""
    yaml = YAML(typ="safe", pure=True)
    for path in RULE_TESTS:
        for test in yaml.load(path)["tests"]:
            looks = sorted(
                test["alert_rule_test"], key=lambda each: promql_parser.parse_duration(each["eval_time"])
            )
            for name in {each["alertname"] for each in looks}:
                yield name, [bool(each.get("exp_alerts")) for each in looks if each["alertname"] == name]


@pytest.mark.parametrize(
    "life",
    [
        pytest.param([True], id="fires"),
        pytest.param([False, True], id="waits before it fires"),
        pytest.param([True, False], id="ends"),
    ],
)
def test_every_alert_is_seen_in_a_test(life: list[bool]) -> None:
    seen = {
        name
        for name, fires in lives()
        if any(fires[start : start + len(life)] == life for start in range(len(fires)))
    }
    assert seen == {rule["alert"] for rule in load_rules()}


def test_the_readme_lists_every_alert_with_its_severity() -> None:
    rows = re.findall(r"^\| (Emberpool\w+) \| (\w+) \| .+ \|$", README.read_text("utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted((rule["alert"], rule["labels"]["severity"]) for rule in load_rules())


def test_the_readmes_command_points_every_alert_to_a_file_elsewhere(tmp_path: Path) -> None:
    shutil.copytree(MONITORING / "rules", tmp_path / "rules")
    (command,) = re.findall(r"^sed .+$", README.read_text("utf-8"), re.MULTILINE)
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, timeout=120)
    promtool("test", "rules", *(path.name for path in RULE_TESTS), cwd=tmp_path / "rules")
    yaml = YAML(typ="safe", pure=True)
    for path in RULES:
        for group in yaml.load(tmp_path / "rules" / path.name)["groups"]:
            for rule in group["rules"]:
                server, folder, page = rule["annotations"]["runbook_url"].partition("/deploy/runbooks/")
                assert (server, folder) == ("https://git.example.org/emberpool", "/deploy/runbooks/")
                assert (RUNBOOKS / page).is_file()


@pytest.mark.parametrize("rule", ALERTS)
def test_an_alert_says_what_is_wrong_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert re.fullmatch(r"Emberpool([A-Z][a-z]+)+", rule["alert"])
    assert rule["labels"]["severity"] in SEVERITIES
    notes = rule["annotations"]
    assert notes["summary"]
    assert not notes["summary"].endswith(".")
    assert notes["description"].endswith(".")
    assert notes["runbook_url"].rpartition("/")[2] == rule["alert"]


@pytest.mark.parametrize("rule", ALERTS)
def test_an_alert_names_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    metrics = catalogue()
    assert series_named(rule["expr"])
    for node, above in walk(promql_parser.parse(rule["expr"])):
        if not isinstance(node, promql_parser.VectorSelector):
            continue
        metric = family(node.name or "", metrics)
        assert metric is not None, node.name
        named = {matcher.name for matcher in node.matchers.matchers}
        for each in above:
            if isinstance(each, promql_parser.AggregateExpr) and each.modifier is not None:
                named |= set(each.modifier.labels)
        assert named <= metric.labels | {"namespace", "job", "instance", "le"}, node.name


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == {rule["alert"] for rule in load_rules()}


@pytest.mark.parametrize("book", BOOKS)
def test_a_runbook_has_its_sections_in_order(book: Path) -> None:
    text = book.read_text("utf-8")
    assert text.startswith(f"# {book.stem}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS


@pytest.mark.parametrize("book", BOOKS)
def test_a_runbooks_commands_parse(book: Path) -> None:
    lines = commands(book)
    assert any(line.startswith("emberpool ") for line in lines)
    for line in lines:
        program, *arguments = words(line, VALUES)
        if program == "emberpool":
            parse(arguments)
        else:
            assert program in OTHER_PROGRAMS, line


@pytest.mark.parametrize("book", BOOKS)
def test_a_runbook_that_was_told_nothing_asks_no_process_that_cannot_answer(book: Path) -> None:
    """A gateway's metric asked of a controller would print nothing, and look like zero."""
    lines = commands(book)
    (controller,) = {line for line in lines if line.startswith("export EMBERPOOL_SERVER=")}
    gateway = {line for line in lines if line.startswith("export GATEWAY_METRICS=")}
    assert words(controller, VALUES)[1] == "EMBERPOOL_SERVER=http://127.0.0.1:9080"
    assert all(words(line, VALUES)[1] == "GATEWAY_METRICS=http://127.0.0.1:9082" for line in gateway)
    for line in lines:
        if "emberpool_gateway_" in line:
            assert "$GATEWAY_METRICS/" in line
            assert gateway


@pytest.mark.parametrize("book", BOOKS)
def test_a_runbooks_commands_end_where_a_process_hangs(book: Path) -> None:
    for text in re.findall(r"\bcurl [^`\n]+", book.read_text("utf-8")):
        if "/" in text:
            assert re.search(r" -m \d+ ", text), text


@pytest.mark.parametrize("book", BOOKS)
def test_the_panels_that_a_runbook_names_are_on_a_dashboard(book: Path) -> None:
    dashboards = [load_dashboard(path) for path in DASHBOARDS]
    titles = [each["title"] for board in dashboards for each in (*rows(board), *panels(board))]
    for name in re.findall(r'"([A-Z][^"\n]+)"', book.read_text("utf-8")):
        assert any(title.startswith(name) for title in titles), name


@pytest.mark.parametrize("book", BOOKS)
def test_a_runbooks_services_are_those_of_compose(book: Path) -> None:
    services = YAML(typ="safe", pure=True).load(ROOT / "docker-compose.yaml")["services"]
    text = book.read_text("utf-8")
    for name in re.findall(r"`docker compose (?:exec|logs|restart|up -d) ([\w-]+)", text):
        assert name == "SEAT" or name in services, name


@pytest.mark.parametrize("book", BOOKS)
def test_what_a_runbook_names_in_its_text_exists(book: Path) -> None:
    text = book.read_text("utf-8")
    metrics = catalogue()
    for name in re.findall(r"`(emberpool_\w+)`", text):
        assert family(name, metrics) is not None, name
    for path in re.findall(r"`(deploy/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path
    for alert in set(re.findall(r"\bEmberpool[A-Z]\w+", text)):
        assert (RUNBOOKS / f"{alert}.md").exists(), alert
    for line in re.findall(r"`emberpool ([^`]+)`", text):
        parse([{"NAME": "chat", "FILE": SCENARIO, "PATH": SCENARIO}.get(word, word) for word in line.split()])


def test_a_command_that_is_not_there_is_noticed() -> None:
    with pytest.raises(TyperException, match="gett"):
        parse(["seat", "gett"])
    with pytest.raises(TyperException, match="--wide"):
        parse(["seat", "get", "--wide"])

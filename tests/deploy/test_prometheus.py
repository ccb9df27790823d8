"""A real burst under a real Prometheus: every query of the dashboard returns data, and every command of the runbooks works.

One drill (the smallest scenario, its warm arm) runs as a person would run it. Prometheus scrapes the drill and the controller
that it started by the shipped configuration and the file in which the drill names them, and beside them the drill's agents
and a gateway of its own process that finds no controller, all of them once a second.
"""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from ruamel.yaml import YAML

from tests.deploy.monitoring import (
    DASHBOARDS,
    MONITORING,
    ROOT,
    RULES,
    RUNBOOKS,
    VARIABLES,
    Query,
    catalogue,
    commands,
    dashboard_queries,
    family,
    filled,
    load_dashboard,
    load_rules,
    needs,
    series_named,
)

pytestmark = [pytest.mark.drill, pytest.mark.timeout(240)]

SCENARIO = "policies/drills/smoke.yaml"
DRILL_JOB = "emberpool-drill"
LONGEST_SECONDS = 150.0
"""The whole proof; it takes about a quarter of that on two quiet cores."""
_STEP_SECONDS = 1
TOKEN = "EMBERPOOL_AGENT_TOKEN"  # a variable's name
T = TypeVar("T")

QUERIES = [query for path in DASHBOARDS for query in dashboard_queries(load_dashboard(path))]
MAY_BE_EMPTY = {
    "Failures by outcome / A": "nothing failed; the panel's other query says 0",
    "Age of the gateways' pods / A": "gateways on Kubernetes alone watch pods",
    "Residents of the gateways / B": "likewise",
    "Policy files / B": "gateways on Kubernetes alone read policy files",
}
"""Queries that the smallest drill needn't answer, and why; all others must."""


# ------------------------------------------------------------------ waiting and asking


@dataclass
class Deadline:
    """One deadline for everything."""

    at: float = field(default_factory=lambda: time.monotonic() + LONGEST_SECONDS)

    def until(self, found: Callable[[], T | None], what: str) -> T:
        """Ask again and again until there is something; fail with `what` is missing when time is over."""
        while time.monotonic() < self.at:
            result = found()
            if result:
                return result
            time.sleep(0.05)  # between two looks
        pytest.fail(f"{what}: not within {LONGEST_SECONDS:.0f} s")


def ask(url: str) -> Any:
    """Return the JSON behind a URL; None where nobody answers yet."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        text = error.read().decode()
        error.close()
        if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # it listens, and is still reading its own log
            return None
        pytest.fail(f"{url}: {error.code} {text}")
    except OSError:
        return None


@dataclass(frozen=True, kw_only=True)
class Prometheus:
    """A running Prometheus."""

    url: str
    folder: Path
    started: float = field(default_factory=time.time)

    def api(self, path: str, **parameters: str) -> Any:
        answer = ask(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        assert answer is not None, "Prometheus is gone"
        assert answer["status"] == "success", answer
        return answer["data"]

    def target(self, job: str, addresses: Sequence[str]) -> None:
        """Name what a job scrapes; the file appears whole, because Prometheus watches the folder."""
        partial = self.folder / f"{job}.partial"
        partial.write_text(json.dumps([{"targets": [urllib.parse.urlsplit(a).netloc for a in addresses]}]))
        partial.replace(self.folder / f"{job}.json")

    def up(self, pages: int) -> bool:
        targets = self.api("targets", state="active")["activeTargets"]
        return [target["health"] for target in targets] == ["up"] * pages

    def values(self, expr: str, end: float) -> list[float]:
        """All numbers that a query gives at any second from the start until `end` has passed.

        The verdict may be scraped less than a second before the drill ends, and no step of the query may fall between.
        """
        last = end + _STEP_SECONDS
        found = self.api(
            "query_range",
            query=expr,
            start=f"{self.started:.3f}",
            end=f"{last:.3f}",
            step=f"{_STEP_SECONDS}s",
        )
        numbers = [float(value) for series in found["result"] for _, value in series["values"]]
        return [number for number in numbers if not math.isnan(number)]


@contextmanager
def prometheus(folder: Path, deadline: Deadline) -> Iterator[Prometheus]:
    """Run one on a free port of its own choice, by the shipped configuration with short intervals.

    The drill's job is as it is shipped. Agents and the gateway have ports of their own choice here, so that theirs read files too.
    """
    yaml = YAML(typ="safe", pure=True)
    shipped = yaml.load(MONITORING / "prometheus.yaml")
    shipped["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    shipped["rule_files"] = [str(path) for path in RULES]
    agents: dict[str, Any] = {"job_name": "emberpool-agent"}
    agents["authorization"] = {"credentials_file": str(folder / "token")}
    here = [agents, {"job_name": "emberpool-gateway"}]
    for job in here:
        job["file_sd_configs"] = [{"files": [f"{job['job_name']}.json"]}]
    shipped["scrape_configs"] = [
        *(job for job in shipped["scrape_configs"] if job["job_name"] == DRILL_JOB),
        *here,
    ]
    with (folder / "prometheus.yaml").open("w") as file:
        yaml.dump(shipped, file)
    log = folder / "prometheus.log"
    command = [
        needs("prometheus"),
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    ]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            port = deadline.until(
                lambda: re.search(r"Listening on.*127\.0\.0\.1:(\d+)", log.read_text()), str(log)
            )[1]
            url = f"http://127.0.0.1:{port}"
            deadline.until(lambda: ask(f"{url}/api/v1/status/runtimeinfo"), "Prometheus answers")
            yield Prometheus(url=url, folder=folder)
        finally:
            process.terminate()


@contextmanager
def drill(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the scenario's warm arm; it ends itself and all that it started on SIGINT."""
    (folder / "tmp").mkdir()
    command = [sys.executable, "-m", "scaler", "drill", "run", SCENARIO, "--arm", "warm"]
    command += ["--metrics-port", "0", "--targets-file", str(folder / "drill-targets.json")]
    command += ["--out", str(folder / "report")]
    environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
    with (
        (folder / "drill.log").open("wb") as log,
        subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=environment) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(timeout=40)


@contextmanager
def gateway(folder: Path, deadline: Deadline) -> Iterator[str]:
    """Run a gateway as a process of its own, which no controller answers; yield the address of its metrics."""
    command = [sys.executable, "-m", "scaler", "gateway", "--controller", "http://127.0.0.1:1"]
    command += ["--port", "0", "--metrics-port", "0"]
    log = folder / "gateway.log"
    environment = {**os.environ, "EMBERPOOL_SIGNAL_TOKEN": "nobody asks for it"}
    with (
        log.open("wb") as output,
        subprocess.Popen(command, cwd=ROOT, stderr=output, env=environment) as process,
    ):
        try:
            yield deadline.until(
                lambda: re.search(r'"metrics": "(http://[\d.:]+)"', log.read_text()), str(log)
            )[1]
        finally:
            process.terminate()
            process.wait(timeout=30)


# ------------------------------------------------------------------ the proof


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was seen of one burst."""

    prometheus: Prometheus
    end: float
    exit_code: int
    log: str
    commands: dict[str, subprocess.CompletedProcess[str]]
    rules: list[dict[str, Any]]

    def values(self, query: Query) -> list[float]:
        whole = f"{math.ceil(self.end - self.prometheus.started)}s"
        return self.prometheus.values(query.filled(rate_interval="5s", whole=whole), self.end)

    def most(self, expr: str) -> float:
        """The largest number that a query gave at any time."""
        return max(self.values(Query("here", expr)))


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proof]:
    folder, deadline = tmp_path_factory.mktemp("proof"), Deadline()
    with ExitStack() as stack:
        server = stack.enter_context(prometheus(folder, deadline))
        server.target("emberpool-gateway", [stack.enter_context(gateway(folder, deadline))])
        process = stack.enter_context(drill(folder))
        state = follow(server, process, deadline)
        tried = try_commands(state, server, deadline)
        deadline.until(lambda: process.poll() is not None, "the end of the drill")
        yield Proof(
            prometheus=server,
            end=time.time(),
            exit_code=process.returncode,
            log=(folder / "drill.log").read_text("utf-8"),
            commands=tried,
            rules=[rule for group in server.api("rules")["groups"] for rule in group["rules"]],
        )


def follow(server: Prometheus, process: subprocess.Popen[bytes], deadline: Deadline) -> Path:
    """Tell Prometheus of the drill's agents as they come up, and wait until it sees all; return the state directory of the
    drill's child.
    """
    folder = server.folder

    def alive(found: T | None) -> T | None:
        assert process.poll() is None, (folder / "drill.log").read_text("utf-8")
        return found

    local = deadline.until(
        lambda: alive(next(folder.glob("tmp/emberpool-drill-*/local.json"), None)), "local.json"
    )
    controller = json.loads(local.read_text("utf-8"))["controller"]

    def agents() -> list[str] | None:
        seats = (ask(f"{controller}/v1/seats") or {"items": []})["items"]
        found = [seat["agent"] for seat in seats if seat["agent"]]
        return alive(found if seats and len(found) == len(seats) else None)

    found = deadline.until(agents, "reports of all agents")
    (folder / "token").write_text(token(process.pid))
    server.target("emberpool-agent", found)
    deadline.until(
        lambda: alive(server.up(pages=3 + len(found)) or None),
        "scrapes of drill, controller, gateway and agents",
    )
    return local.parent


def token(pid: int) -> str:
    """The bearer token that the drill's agents want: a person would know it, here it is made anew each time."""
    for process in psutil.Process(pid).children(recursive=True):
        if found := process.environ().get(TOKEN):
            return str(found)
    pytest.fail("no agent has a token")


def try_commands(
    state: Path, server: Prometheus, deadline: Deadline
) -> dict[str, subprocess.CompletedProcess[str]]:
    """Run the runbooks' commands that ask pages and files, as a shell does, while the drill's child runs.

    Those of `emberpool` itself run in tests/deploy/test_compose_drill.py, which has the time for them.
    """
    controller = json.loads((state / "local.json").read_text("utf-8"))["controller"]
    deadline.until(
        lambda: server.values("emberpool_gateway_requests_total", time.time()), "a gateway with routes"
    )
    seat = ask(f"{controller}/v1/seats")["items"][0]
    variables = {
        "EMBERPOOL_SERVER": controller,
        "GATEWAY_METRICS": controller,
        "STATE_DIR": str(state),
        "POLICY": "chat",
        "FLEET": seat["fleet"],
        "SEAT": seat["name"],
    }
    lines = {
        line
        for book in RUNBOOKS.glob("*.md")
        for line in commands(book)
        if not line.startswith(("export ", "emberpool "))
    }

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line],
            cwd=ROOT,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(sorted(lines), pool.map(run, sorted(lines)), strict=True))


# ------------------------------------------------------------------ what it proves


def test_the_burst_was_answered(proof: Proof) -> None:
    assert proof.exit_code == 0, proof.log


@pytest.mark.parametrize("query", [pytest.param(query, id=query.place) for query in QUERIES])
def test_a_query_returns_data(proof: Proof, query: Query) -> None:
    if query.place not in MAY_BE_EMPTY:
        assert proof.values(query), query.filled(rate_interval="5s", whole="1m")


def test_what_may_be_empty_is_a_query() -> None:
    assert MAY_BE_EMPTY.keys() <= {query.place for query in QUERIES}


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_has_values(proof: Proof, name: str) -> None:
    (variable,) = (
        each
        for path in DASHBOARDS
        for each in load_dashboard(path)["templating"]["list"]
        if each["name"] == name
    )
    parts = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
    assert parts is not None
    assert proof.prometheus.api(f"label/{parts[2]}/values", **{"match[]": filled(parts[1], VARIABLES)})


def test_an_arm_and_a_namespace_leave_out_what_is_not_theirs(proof: Proof) -> None:
    (query,) = (each for each in QUERIES if each.place == "Demand against capacity: $policy / A")

    def shown(**picked: str) -> bool:
        return bool(proof.prometheus.values(filled(query.expr, {**VARIABLES, **picked}), proof.end))

    assert shown(arm="warm")
    assert shown(namespace=DRILL_JOB)
    assert not shown(arm="cold")
    assert not shown(namespace="serving")


def test_a_drill_is_a_job_that_can_be_picked_and_keeps_to_its_own_namespace(proof: Proof) -> None:
    def values(label: str, series: str) -> list[str]:
        found: list[str] = proof.prometheus.api(f"label/{label}/values", **{"match[]": series})
        return found

    everything = '{__name__=~"emberpool_.+"}'  # as the dashboard's variable asks
    assert DRILL_JOB in values("job", everything)
    of_drill = f'{{job="{DRILL_JOB}"}}'
    assert values("component", of_drill) == ["controller", "drill"]
    assert values("namespace", of_drill) == values("namespace", everything) == ["emberpool-drill"]
    assert values("exported_arm", everything) == [], "no label of a target is in the way of a metric's own"
    assert json.loads((proof.prometheus.folder / "drill-targets.json").read_text()) == []


ON_CLUSTERS = {
    "emberpool_exclusion_breaker_tripped",
    "emberpool_gateway_pods_age_seconds",
    "emberpool_gateway_pods_residents_without_port",
    "emberpool_gateway_policy_reload_success",
}
"""Shown on Kubernetes alone, by the leader and by gateways; tests/integration/gpuhealth and tests/integration/gateway see them there."""


def test_every_metric_that_dashboard_and_alerts_name_is_there(proof: Proof) -> None:
    exposed = set(proof.prometheus.api("label/__name__/values"))
    named = {name for query in QUERIES for name in series_named(query.filled())}
    named |= {name for rule in load_rules() for name in series_named(rule["expr"])}
    assert named - exposed == ON_CLUSTERS


def test_every_metric_that_is_exposed_is_in_the_catalogue(proof: Proof) -> None:
    exposed = proof.prometheus.api("label/__name__/values")
    metrics = catalogue()
    ours = [name for name in exposed if name.startswith("emberpool_")]
    assert [name for name in ours if family(name, metrics) is None] == []


def test_the_pictures_show_the_burst(proof: Proof) -> None:
    assert proof.most("sum(emberpool_serving_residents)") == 2
    assert proof.most("max(emberpool_demand_requests)") > 4, "more than one resident holds"
    assert proof.most('max(emberpool_policy_mode{mode="Burst"})') == 1
    assert proof.most('sum(increase(emberpool_promotions_total{outcome="Promoted"}[$__range]))') >= 1
    assert proof.most('sum(increase(emberpool_seat_seconds_total{value="Spare"}[$__range]))') > 0
    assert (
        proof.most(
            "histogram_quantile(1, sum by (le) (rate(emberpool_promotion_to_rotation_seconds_bucket[$__range])))"
        )
        > 0
    )
    assert proof.most('max(emberpool_drill_stage{arm="warm", stage="burst"})') == 1


def test_every_rule_is_evaluated_and_a_good_burst_alarms_nobody(proof: Proof) -> None:
    assert {rule["name"] for rule in proof.rules} == {rule["alert"] for rule in load_rules()}
    assert [rule for rule in proof.rules if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in proof.rules if rule["state"] == "firing"] == []


def test_every_command_of_the_runbooks_that_asks_a_page_or_a_file_works(proof: Proof) -> None:
    assert proof.commands
    failed = {
        line: done.stdout + done.stderr for line, done in proof.commands.items() if done.returncode != 0
    }
    assert failed == {}

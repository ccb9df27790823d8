"""docs/gateway.md says what is so."""

import json
import re
from pathlib import Path
from typing import Any

import typer
from ruamel.yaml import YAML

from scaler.cli.gateway import app
from scaler.cli.local import app as local
from scaler.gateway.attempts import ENGINE_FAILED
from scaler.gateway.messages import EXPECTED_WAIT_HEADER, RETRY_HEADER
from scaler.gateway.queue import Refusal
from scaler.gateway.relay import STREAM_CUT
from scaler.gateway.routes import ERRORS_BEFORE_PENALTY, FIRST_PENALTY_SECONDS, LONGEST_PENALTY_SECONDS
from scaler.runtime.rotation import HOLD_SECONDS
from scaler.runtime.route_sources import HEAD_START_SECONDS, SILENT_SECONDS
from tests.integration.gateway import flow

PAGE = (Path(__file__).parents[3] / "docs" / "gateway.md").read_text("utf-8")
TEXT = " ".join(PAGE.split())


def test_every_option_that_it_names_is_there() -> None:
    commands = [typer.main.get_command(each) for each in (app, local)]
    options = {option for command in commands for parameter in command.params for option in parameter.opts}
    named = set(re.findall(r"`(--[a-z-]+)", PAGE))
    assert named
    assert named <= options


def test_every_code_that_it_names_is_one() -> None:
    codes = {f"Queue{each.value}" for each in Refusal} | {
        "DeadlineExceeded",
        ENGINE_FAILED,
        STREAM_CUT["code"],
    }
    named = set(re.findall(r"`((?:Queue|Deadline|Engine|Stream)[A-Za-z]+)`", PAGE))
    assert named == codes


def test_its_headers_and_times_are_those_that_hold() -> None:
    assert f"`{RETRY_HEADER}: never`" in TEXT
    assert f"{EXPECTED_WAIT_HEADER}: 42" in TEXT
    assert (FIRST_PENALTY_SECONDS, LONGEST_PENALTY_SECONDS, ERRORS_BEFORE_PENALTY) == (0.1, 5.0, 3)
    assert "0.1 s and twice as long each time up to 5 s" in TEXT
    assert "5xx three times in a row" in TEXT
    assert (HOLD_SECONDS, "keeps its routes for ten seconds" in TEXT) == (10.0, True)


def test_its_times_are_the_defaults() -> None:
    told = dict(re.findall(r"^\| `(--[a-z-]+-seconds)` \| (\d+) \|", PAGE, re.MULTILINE))
    defaults = {
        option: parameter.default
        for parameter in typer.main.get_command(app).params
        for option in parameter.opts
        if option in told
    }
    assert {option: float(seconds) for option, seconds in told.items()} == defaults
    assert {"--queue-seconds", "--deadline-seconds", "--connect-seconds"} <= told.keys()


def test_its_rule_of_who_counts_has_the_times_that_hold() -> None:
    assert (HEAD_START_SECONDS, "two seconds later" in TEXT) == (2.0, True)
    assert (SILENT_SECONDS, "silent for 100 seconds" in TEXT) == (100.0, True)


def test_its_nginx_is_the_one_that_was_recorded() -> None:
    (block,) = re.findall(r"```nginx\n(.*?)```", PAGE, re.DOTALL)
    said = {line.strip() for line in block.splitlines() if line.strip().startswith("proxy_")}
    assert said - {"proxy_pass http://llama-8b;"} <= {line.strip() for line in flow.SETTINGS.splitlines()}


def documented_virtual_service() -> dict[str, Any]:
    (block,) = re.findall(r"```yaml\n(apiVersion: networking.istio.io/v1\n.*?)```", PAGE, re.DOTALL)
    return dict(YAML(typ="safe", pure=True).load(block))


def faults(value: Any, schema: dict[str, Any], path: str) -> list[str]:
    """Return what a schema doesn't admit; a key that it doesn't name is dropped by an API server, or refused."""
    match schema["type"]:
        case "object":
            known = schema["properties"]
            found = [f"{path}.{key}: unknown" for key in value.keys() - known.keys()]
            found += [f"{path}.{key}: missing" for key in schema.get("required", ()) if key not in value]
            parts = [(value[key], known[key], f"{path}.{key}") for key in value.keys() & known.keys()]
        case "array":
            found, parts = [], [(each, schema["items"], f"{path}[]") for each in value]
        case "duration":
            found, parts = [] if re.fullmatch(r"[1-9]\d*(ms|s|m|h)", value) else [f"{path}: {value}"], []
        case kind:
            found = [] if type(value) is {"string": str, "integer": int, "boolean": bool}[kind] else [path]
            parts = []
    return [*found, *(fault for each in parts for fault in faults(*each))]


def test_its_virtual_service_is_one_that_istio_s_crd_admits() -> None:
    properties = json.loads((flow.record("istio-http-route")).read_text("utf-8"))
    del properties["about"]
    schema = {"type": "object", "required": ["route"], "properties": properties}
    (route,) = documented_virtual_service()["spec"]["http"]
    assert faults(route, schema, "http") == []
    assert faults({**route, "timeout": "0s"}, schema, "http") == ["http.timeout: 0s"]


def test_its_virtual_service_becomes_the_envoy_route_that_was_tried() -> None:
    """Istio takes numbers among the conditions for statuses, and sets no time-out where none is named."""
    (route,) = documented_virtual_service()["spec"]["http"]
    retries, tried = route["retries"], flow.documented_route()
    words = retries["retryOn"].split(",")
    statuses = [int(word) for word in words if word.isdecimal()]
    conditions = [word for word in words if not word.isdecimal()] + ["retriable-status-codes"]
    assert "timeout" not in route
    assert tried["timeout"] == "0s"
    policy = tried["retry_policy"]
    assert ",".join(conditions) == policy["retry_on"]
    assert (statuses, retries["attempts"]) == (policy["retriable_status_codes"], policy["num_retries"])
    (predicate,) = policy["retry_host_predicate"]
    assert retries["retryIgnorePreviousHosts"] == (
        predicate["name"] == "envoy.retry_host_predicates.previous_hosts"
    )

"""docs/gateway.md says what is so."""

import re
from pathlib import Path

import typer

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


def test_its_rule_of_who_counts_has_the_times_that_hold() -> None:
    assert (HEAD_START_SECONDS, "two seconds later" in TEXT) == (2.0, True)
    assert (SILENT_SECONDS, "silent for 100 seconds" in TEXT) == (100.0, True)


def test_its_nginx_is_the_one_that_was_recorded() -> None:
    (block,) = re.findall(r"```nginx\n(.*?)```", PAGE, re.DOTALL)
    said = {line.strip() for line in block.splitlines() if line.strip().startswith("proxy_")}
    assert said - {"proxy_pass http://llama-8b;"} <= {line.strip() for line in flow.SETTINGS.splitlines()}

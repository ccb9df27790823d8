"""docs/node-agent.md tells everything that the node agent takes and says."""

import inspect
from pathlib import Path

import pytest
import typer.main

from scaler.cli.node_agent import app
from tests.unit.warmpool.nodehealth.history import A, History
from warmpool.nodehealth import server, service
from warmpool.nodehealth.account import DeviceAccount, Holding
from warmpool.nodehealth.handover import STOPS
from warmpool.nodehealth.nvml import Device
from warmpool.nodehealth.preflight.command import SWITCH
from warmpool.nodehealth.preflight.command import options as preflight_options
from warmpool.nodehealth.preflight.findings import Outcome
from warmpool.nodehealth.processes import Owner
from warmpool.nodehealth.service import AskError
from warmpool.nodehealth.wire import Answer, HealthAnswer, answer_to_json, health_to_json

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs/node-agent.md").read_text(encoding="utf-8")
HOLDING = Holding(pid=7, ns_pid=1, ids=(7,), namespace="", owner=Owner("pod", "container"), held_bytes=1)
ACCOUNT = DeviceAccount(device=Device(uuid="GPU-a", index=0), memory=None, holdings=(HOLDING,))
ANSWER = answer_to_json(Answer(accounts=(ACCOUNT,), complete=True, age_seconds=0.001))
NODE = History().read(A, recovery=1).judged()
HEALTH = health_to_json(
    HealthAnswer(node=NODE, gpus=[A], epoch=1, reason="", sources={"Events": "", "File": ""})
)
HEALTH_FIELDS = {*HEALTH, *HEALTH["sources"], *HEALTH["gpus"][0], *HEALTH["gpus"][0]["reasons"][0]}
FIELDS = {*ANSWER, *ANSWER["gpus"][0], *ANSWER["gpus"][0]["processes"][0]}
OPTIONS = [
    each for parameter in typer.main.get_command(app).params for each in parameter.opts if each != "--help"
]
CODES = {
    kind.code
    for module in (server, service)
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, AskError)
}


@pytest.mark.parametrize("word", sorted(FIELDS | HEALTH_FIELDS | CODES | server.PARAMETERS))
def test_the_page_tells_of_it(word: str) -> None:
    assert f"`{word}`" in PAGE


@pytest.mark.parametrize("option", OPTIONS)
def test_the_page_tells_of_the_option(option: str) -> None:
    assert f"`{option}" in PAGE


@pytest.mark.parametrize(
    "word",
    sorted(
        {
            *STOPS,
            *(each.value for each in Outcome),
            *(server.CANARY_PARAMETERS - server.HEALTH_PARAMETERS - {"passed"}),
            SWITCH,
        }
    ),
)
def test_the_page_tells_of_what_stops_or_starts_an_engine(word: str) -> None:
    assert f"`{word}`" in PAGE


@pytest.mark.parametrize("option", [each for each in preflight_options() if each != "--help"])
def test_the_page_tells_of_the_pre_flights_option(option: str) -> None:
    assert option in PAGE


def test_there_is_something_to_tell() -> None:
    assert len(OPTIONS) == 15
    assert sorted(CODES) == ["BadQuestion", "NotYours", "Unauthorized", "UnknownGpu"]
    assert len(FIELDS) > 20
    assert len(HEALTH_FIELDS) > 15

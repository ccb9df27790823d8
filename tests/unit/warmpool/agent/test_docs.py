"""docs/agent.md tells everything that the agent may be asked, be told, and answer."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from warmpool.agent import config, holding
from warmpool.agent.annotations import HEALTH, MEMORY, RESIDENTS
from warmpool.agent.app import TOKEN_VARIABLE
from warmpool.agent.metrics import ORDER_PHASES
from warmpool.agent.orders import Order, OrderKind
from warmpool.agent.seat import DRAIN_AT_END_SECONDS
from warmpool.agent.server import describe
from warmpool.agent.wakes import REMEMBERED
from warmpool.errors import AgentError, EngineError
from warmpool.launcher import SECRET_VARIABLE
from warmpool.nodehealth.client import TOKEN_VARIABLE as NODE_TOKEN
from warmpool.states import Depth
from warmpool.tiers import RESERVE_PERCENT, Budget
from warmpool.wire import budget_to_json

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs/agent.md").read_text(encoding="utf-8")
ERRORS = [EngineError(), AgentError(), *(each() for each in AgentError.__subclasses__())]
BUDGET = Budget(
    device_bytes=None,
    paused_bytes=0,
    largest_compute_bytes=0,
    reserve_bytes=0,
    host_bytes=0,
    parked_bytes=0,
)


def keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


@pytest.mark.parametrize("kind", OrderKind)
def test_the_page_tells_of_each_order(kind: OrderKind) -> None:
    assert f"`POST /v1/{kind}`" in PAGE
    assert f"| `{kind}` |" in PAGE


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_the_page_tells_of_each_error_with_its_status(error: AgentError | EngineError) -> None:
    code, status = describe(error)
    assert re.search(rf"\| {status}[\d, ]* \| `{code}` \|", PAGE), (code, status)


@pytest.mark.parametrize(
    "key",
    [
        *(each for each in keys(Order) if each != "kind"),
        *keys(config.AgentConfig),
        *keys(config.ResidentConfig),
        *keys(config.Memory),
        *budget_to_json(BUDGET),
        *ORDER_PHASES,
        *Depth,
        *(
            TOKEN_VARIABLE,
            SECRET_VARIABLE,
            NODE_TOKEN,
            config.POD_VARIABLE,
            config.SEAT_VARIABLE,
            config.NODE_VARIABLE,
            config.STAGE_VARIABLE,
            RESIDENTS,
            MEMORY,
            HEALTH,
        ),
    ],
)
def test_the_page_tells_of_each_key(key: str) -> None:
    assert f"`{key}`" in PAGE or f".{key}`" in PAGE


@pytest.mark.parametrize("key", [*keys(config.Proof), *keys(config.Owner), *keys(config.Expectation)])
def test_the_page_shows_each_key_of_a_proof(key: str) -> None:
    assert f'"{key}"' in PAGE


@pytest.mark.parametrize(
    "figure",
    [
        f"+ {RESERVE_PERCENT} % ≤",
        f"{holding.SLACK_BYTES >> 20} MiB, or {holding.SLACK_PERCENT} %",
        f"at least {holding.TELLING_BYTES >> 20} MiB",
        f"last {REMEMBERED} promotions",
        f"go on for {DRAIN_AT_END_SECONDS:.0f} s",
    ],
)
def test_the_page_has_the_figures(figure: str) -> None:
    assert figure in PAGE

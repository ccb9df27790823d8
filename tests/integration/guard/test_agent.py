"""An agent whose residents' engines are guarded in either form: started, proven, promoted, drained and paused, past what clients reach."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import starlette_vllm
from tests.integration.agent.conftest import of, running_agent
from tests.integration.guard.conftest import TOKEN
from warmpool import guard_middleware
from warmpool.agent.config import ResidentConfig
from warmpool.agent.guarding import control_url
from warmpool.agent.processes import Ports
from warmpool.errors import StartFailed

PORTS = Ports(host="127.0.0.1", public=8001, control=8101)


def resident(directory: Path, form: str, **environment: str) -> dict[str, Any]:
    """A vLLM with the middleware inside, or alone on loopback."""
    shutil.copy(starlette_vllm.__file__, directory)
    shutil.copy(guard_middleware.__file__, directory)
    (directory / "token").write_text(TOKEN)
    inside = form == "Middleware"
    port = "{port}" if inside else "{controlPort}"
    variables = ["EMBERPOOL_GUARD_CONTROL=127.0.0.1:{controlPort}", "GUARD_PORT={port}"]
    server = [
        sys.executable,
        "-m",
        "uvicorn",
        "starlette_vllm:app",
        "--app-dir",
        str(directory),
        "--port",
        port,
    ]
    return {
        "policy": "a",
        "model": "chat",
        "command": ["env", *variables, *server],
        "environment": {
            "MIDDLEWARE": "guard_middleware.Guard" if inside else "",
            "EMBERPOOL_GUARD_TOKEN_FILE": str(directory / "token"),
            **environment,
        },
        "type": "VLLM",
        "guard": form,
        "proof": {"prompts": [{"prompt": "one fish", "tokens": [1, 2, 3]}]},
    }


@pytest.mark.parametrize("form", ["Middleware", "Port"])
async def test_a_resident_is_led_from_its_start_to_service_and_back(tmp_path: Path, form: str) -> None:
    async with running_agent(tmp_path, [resident(tmp_path, form)]) as agent:
        assert (await agent.api.generate("a", tokens=2))[0] == 503
        assert (await agent.api.order("resume", "a")).status == 200
        status, text = await agent.api.generate("a", tokens=3)
        assert (status, text.count("token_ids")) == (200, 3)
        address = of(await agent.api.get("/v1/state"), "a")["address"]
        async with agent.api.session.post(f"{address}/pause") as answer:
            assert answer.status == 404
        assert (await agent.api.order("drain", "a")).status == 200
        assert (await agent.api.order("pause", "a")).status == 200
        assert (await agent.api.generate("a", tokens=2))[0] == 503


def config(**others: Any) -> ResidentConfig:
    known = {
        "policy": "a",
        "model": "chat",
        "command": ["serve", "{port}", "{controlPort}"],
        "type": "VLLM",
        "proof": {"prompts": [{"prompt": "p", "tokens": [1]}]},
    }
    return ResidentConfig.model_validate(known | others)


def test_a_port_speaks_to_the_engine_itself() -> None:
    assert control_url(config(), PORTS) == "http://127.0.0.1:8101"


def test_the_middleware_is_shown_the_token_that_it_was_given() -> None:
    guarded = config(guard="Middleware", environment={"EMBERPOOL_GUARD_TOKEN": "with a /slash and @"})
    assert control_url(guarded, PORTS) == "http://agent:with%20a%20%2Fslash%20and%20%40@127.0.0.1:8101"


@pytest.mark.parametrize(
    ("environment", "named"),
    [({}, "EMBERPOOL_GUARD_TOKEN"), ({"EMBERPOOL_GUARD_TOKEN_FILE": "/no/such/file"}, "can't be read")],
)
def test_a_middleware_without_a_token_is_named(environment: dict[str, str], named: str) -> None:
    with pytest.raises(StartFailed, match=named):
        control_url(config(guard="Middleware", environment=environment), PORTS)

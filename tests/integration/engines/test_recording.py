"""The server that stands for vLLM in tests answers what a real vLLM 0.32 was recorded to answer, in the same order of calls."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.vllm_server import FakeVllm

RECORDED = json.loads((Path(__file__).resolve().parents[2] / "data/engines/vllm-0.32-cpu.json").read_text())
CLOSE_ENOUGH = {"/v1/completions", "/pause?mode=nonsense", "/server_info?config_format=json"}
"""Routes whose bodies hold times, names and texts of their own; their status is compared."""


@pytest.mark.parametrize("part", ["devMode", "plain"])
async def test_the_fake_answers_as_recorded(part: str) -> None:
    fake = FakeVllm(model="tiny", dev_mode=part == "devMode", device=False, pool=False)
    async with fake, aiohttp.ClientSession() as session:
        for place, exchange in enumerate(RECORDED[part]):
            status, body = await ask(session, fake, exchange)
            where = f"{place}: {exchange['method']} {exchange['path']}"
            assert status == exchange["status"], where
            if exchange["path"] not in CLOSE_ENOUGH and status == 200:
                assert body == exchange["body"].replace('":', '": ').replace(',"', ', "'), where


async def test_recorded_completions_and_streams_have_the_shape_that_is_read() -> None:
    whole, stream = (
        each for each in RECORDED["devMode"] if each["path"] == "/v1/completions" and each["status"] == 200
    )
    choice = json.loads(whole["body"])["choices"][0]
    assert (len(choice["token_ids"]), choice["finish_reason"]) == (3, "length")
    events = [json.loads(line[6:]) for line in stream["body"].splitlines() if line.startswith("data: {")]
    choices = [event["choices"][0] for event in events if event["choices"]]
    assert sum(len(each["token_ids"] or ()) for each in choices) == 3
    assert [each["finish_reason"] for each in choices][-1] == "length"


async def ask(session: aiohttp.ClientSession, fake: FakeVllm, exchange: dict[str, Any]) -> tuple[int, str]:
    request = {} if exchange["request"] is None else {"json": exchange["request"]}
    async with session.request(exchange["method"], f"{fake.url}{exchange['path']}", **request) as response:
        return response.status, await response.text()

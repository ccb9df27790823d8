"""An agent with engines of other kinds than its own: probed before they are paused for the first time, refused what they lack, guarded."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.engine_server import FakeEngine
from tests.integration.agent.conftest import TOKEN, of, resident, running_agent

PROMPTS = ("one fish", "two fish", "red fish")


def engine(policy: str, kind: str, module: str, *options: str) -> dict[str, Any]:
    """A resident whose engine has one listener, on loopback, and no guard of its own."""
    python = [sys.executable, "-m", f"tests.fakes.{module}", "--host", "{host}", "--port", "{controlPort}"]
    fake = FakeEngine()
    proof = [{"prompt": prompt, "tokens": fake.tokens(prompt, 3)} for prompt in PROMPTS]
    return {
        "policy": policy,
        "model": "chat",
        "command": ["env", "GUARD_PORT={port}", *python, *options],
        "type": kind,
        "proof": {"prompts": proof},
        "warmup": {"prompts": ["warm"], "maxTokens": 2},
    }


async def test_a_vllm_is_probed_guarded_promoted_and_paused(tmp_path: Path) -> None:
    async with running_agent(tmp_path, [engine("a", "VLLM", "vllm_server")]) as agent:
        told = of(await agent.api.get("/v1/state"), "a")
        findings = told["capabilities"]["findings"]
        assert told["capabilities"]["version"] == "0.32.0"
        assert findings["SchedulerPause"]["ground"] == "Tried"
        assert told["verification"]["verdict"] == "Verified"
        assert (await agent.api.generate("a", tokens=2))[0] == 503
        assert (await agent.api.order("resume", "a")).status == 200
        status, text = await agent.api.generate("a", tokens=3)
        assert (status, text.count("token_ids")) == (200, 3)
        assert (await agent.api.order("drain", "a")).status == 200
        assert (await agent.api.order("pause", "a")).status == 200
        assert (await agent.api.generate("a", tokens=2))[0] == 503


async def test_two_vllms_share_a_seat_and_hand_the_kv_memory_over(tmp_path: Path) -> None:
    residents = [engine("a", "VLLM", "vllm_server"), engine("b", "VLLM", "vllm_server")]
    async with running_agent(tmp_path, residents) as agent:
        state = await agent.api.get("/v1/state")
        assert all(of(state, policy)["kvReleased"] for policy in "ab")
        assert of(state, "a")["verification"] == {
            "change": "Release",
            "verdict": "Unverified",
            "evidence": [
                "GET /is_paused: true",
                "GET /metrics: nothing runs",
                "it doesn't tell whether its KV memory is there; that takes a measurement of the device",
            ],
        }
        for policy in "ab":
            assert (await agent.api.order("resume", policy)).status == 200
            assert (await agent.api.generate(policy, tokens=2))[0] == 200
            await agent.api.order("drain", policy)
            await agent.api.order("pause", policy)


async def test_an_sglang_shares_a_seat_with_a_reference_engine(tmp_path: Path) -> None:
    residents = [engine("a", "SGLang", "sglang_server"), resident("b")]
    async with running_agent(tmp_path, residents) as agent:
        assert of(await agent.api.get("/v1/state"), "a")["capabilities"]["version"] == "0.5.23"
        for policy in "aba":
            assert (await agent.api.order("resume", policy)).status == 200
            await agent.api.order("drain", policy)
            assert (await agent.api.order("pause", policy)).status == 200


async def test_a_generic_engine_alone_on_its_seat_is_kept_out_of_rotation(tmp_path: Path) -> None:
    async with running_agent(tmp_path, [engine("a", "Generic", "generic_server")]) as agent:
        told = of(await agent.api.get("/v1/state"), "a")
        assert told["capabilities"]["findings"]["SchedulerPause"]["ground"] == "NotOfKind"
        assert told["verification"]["verdict"] == "Unverified"
        assert (await agent.api.generate("a", tokens=2))[0] == 503
        assert (await agent.api.order("resume", "a")).status == 200
        assert (await agent.api.generate("a", tokens=2))[0] == 200


@pytest.mark.parametrize(
    ("residents", "reason"),
    [
        ([engine("a", "Generic", "generic_server"), resident("b")], "KvRelease is refused (NotOfKind)"),
        (
            [engine("a", "VLLM", "vllm_server", "--set", "pool=false"), resident("b")],
            "KvRelease is refused (SwitchedOff)",
        ),
        (
            [engine("a", "VLLM", "vllm_server", "--set", "dev_mode=false")],
            "VLLM_SERVER_DEV_MODE=1 brings the control routes",
        ),
        (
            [engine("a", "SGLang", "sglang_server", "--set", "saver=false"), resident("b")],
            "--enable-memory-saver",
        ),
    ],
)
async def test_an_engine_that_lacks_what_its_seat_needs_fails_with_the_reason(
    tmp_path: Path, residents: list[dict[str, Any]], reason: str
) -> None:
    async with running_agent(tmp_path, residents, wait=False) as agent:
        told = await agent.controller.until(lambda state: of(state, "a")["state"] == "Failed")
        assert reason in of(told, "a")["failure"]


async def test_a_release_that_no_memory_follows_fails_the_engine(tmp_path: Path) -> None:
    claims = engine("a", "VLLM", "vllm_server", "--set", f"kv_bytes={1 << 30}")
    async with running_agent(tmp_path, [claims, resident("b")], wait=False) as agent:
        told = await agent.controller.until(lambda state: of(state, "a")["state"] == "Failed")
        assert "answered that 1024 MiB of KV memory were released" in of(told, "a")["failure"]


async def test_the_agent_s_metrics_tell_grounds_and_verdicts(tmp_path: Path) -> None:
    async with running_agent(tmp_path, [engine("a", "VLLM", "vllm_server")]) as agent:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url = f"{agent.api.url}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
            lines = (await response.text()).splitlines()
    ones = [
        line
        for line in lines
        if line.startswith(("emberpool_agent_resident_capability", "emberpool_agent_resident_verification"))
        and line.endswith(" 1.0")
    ]
    assert (
        'emberpool_agent_resident_capability{capability="SchedulerPause",ground="Tried",policy="a"} 1.0'
        in ones
    )
    assert (
        'emberpool_agent_resident_capability{capability="KvRelease",ground="NotTried",policy="a"} 1.0' in ones
    )
    assert 'emberpool_agent_resident_verification{change="Pause",policy="a",verdict="Verified"} 1.0' in ones
    assert len(ones) == 8


async def test_a_claim_during_a_probe_gets_an_engine_that_computes_and_the_next_proof_probes_it(
    tmp_path: Path,
) -> None:
    slow = engine("a", "VLLM", "vllm_server", "--set", f"faults={json.dumps({'GET /openapi.json': 'slow'})}")
    async with running_agent(tmp_path, [slow], wait=False) as agent:
        await agent.controller.until(lambda state: of(state, "a")["provenAt"] is not None)
        assert of(await agent.api.get("/v1/state"), "a")["state"] == "Proving"
        async with asyncio.timeout(5):
            promoted = await agent.api.order("resume", "a")
        assert (promoted.status, promoted.body["state"]) == (200, "Serving")
        assert (await agent.api.generate("a", tokens=2))[0] == 200
        assert of(await agent.api.get("/v1/state"), "a")["capabilities"] is None
        for order in ("drain", "pause", "prove"):
            assert (await agent.api.order(order, "a")).status == 200
        found = of(await agent.api.get("/v1/state"), "a")["capabilities"]["findings"]
        assert found["SchedulerPause"]["ground"] == "Tried"

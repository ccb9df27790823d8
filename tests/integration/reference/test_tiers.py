"""An engine takes its weights by the fastest tier that is there, and tells which and why no faster one.

Engines and stage daemons are processes, since one of them is killed; each imports torch, which is most of the time that this takes.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch

import loader
from loader.stage.client import StageClient
from tests.integration.loader.hold_rig import Process
from tests.integration.reference.conftest import START_SECONDS, Client, start, stop
from tests.unit.warmpool.reference.fixed_device import FixedMemoryDevice
from warmpool.reference.attached import AttachedWeights, Attachment
from warmpool.reference.config import parse_config
from warmpool.reference.copies import FileCopy
from warmpool.reference.errors import WeightsDamaged
from warmpool.reference.identity import identify
from warmpool.reference.model import LlamaModel, weight_names
from warmpool.reference.supply import Supply
from warmpool.reference.weights import AnonymousMemory, FixedWeights

GONE = "no stage daemon answers"


@contextmanager
def stage_daemon(checkpoint: Path, socket: Path) -> Iterator[subprocess.Popen[str]]:
    """A daemon that has a checkpoint in host memory."""
    command = [sys.executable, "-m", "loader", "stage", str(checkpoint), "--budget", "0.1"]
    process = subprocess.Popen([*command, "--socket", str(socket)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        assert process.stderr.readline() == "ready: 1 staged\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@asynccontextmanager
async def engine(checkpoint: Path, socket: Path) -> AsyncIterator[Client]:
    served = await asyncio.to_thread(start, checkpoint, ["--stage", f"unix://{socket}"])
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(START_SECONDS)) as session:
            yield Client(session, served)
    finally:
        await asyncio.to_thread(stop, served)


async def told(client: Client) -> tuple[Any, dict[str, str]]:
    """How an engine says that its weights came, and by tier why others were passed over."""
    weights = (await client.get("/emberpool/startup"))["phases"]["weights"]
    assert all(each["reason"] for each in weights["passedOver"])
    return weights, {each["tier"]: each["code"] for each in weights["passedOver"]}


async def answer(client: Client) -> Any:
    status, body = await client.complete(prompt="The quick brown fox")
    assert status == 200
    return body["choices"][0]["text"]


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_kill_9_of_the_daemon_hurts_no_engine_and_the_next_start_takes_the_next_tier(
    checkpoint: Path, tmp_path: Path
) -> None:
    socket = tmp_path / "stage.sock"
    with stage_daemon(checkpoint, socket) as daemon:
        async with engine(checkpoint, socket) as first:
            weights, passed_over = await told(first)
            assert weights["tier"] == "Staged"
            assert passed_over == {"Attached": "WeightsTurned", "Sibling": "NotHandedOver"}
            before = await answer(first)
            ownership = (await first.get("/emberpool/startup"))["ownership"]
            daemon.kill()
            daemon.wait()
            assert await answer(first) == before
            async with engine(checkpoint, socket) as second:
                weights, passed_over = await told(second)
                assert weights["tier"] not in {"Staged", "Attached"}
                gone = dict.fromkeys(("Sibling", "Staged"), "StageUnreachable")
                assert passed_over == {"Attached": "WeightsTurned", **gone}
                assert all(GONE in each["reason"] for each in weights["passedOver"][1:])
                assert await answer(second) == before
                assert (await second.get("/emberpool/startup"))["ownership"] == ownership
                async with second.session.get(second.served.control + "/metrics") as response:
                    page = await response.text()
    passed = [line for line in page.splitlines() if line.startswith("reference:weight_tier_passed_over{")]
    assert len(passed) == 3
    assert any('code="StageUnreachable"' in line and line.endswith(" 1.0") for line in passed)
    assert f'tier="{weights["tier"]}"' in next(
        line for line in page.splitlines() if line.startswith("reference:weight_load_seconds{")
    )


@pytest.mark.long
@pytest.mark.timeout(240)
def test_kill_9_of_a_daemon_takes_no_weights_from_who_is_attached(checkpoint: Path, tmp_path: Path) -> None:
    socket = tmp_path / "stage.sock"
    opened = loader.open_checkpoint(checkpoint)
    config = parse_config(opened.config)
    expected = loader.load(opened).tensors
    dtype = expected["model.norm.weight"].dtype
    with Process(["-m", "tests.integration.loader.hold_daemon", str(socket), str(checkpoint)]) as daemon:
        daemon.expect("ready")
        with StageClient(socket) as client:
            client.hold(str(checkpoint), "0")
        attachment = Attachment(opened, FixedMemoryDevice(), socket)
        weights = AttachedWeights(
            attachment, weight_names(config), lambda nbytes: FixedWeights(AnonymousMemory(nbytes), FileCopy)
        )
        model = LlamaModel(config, device=torch.device("cpu"), dtype=dtype, weights=weights)
        weights.fill()
        daemon.kill()
        parameters = model.parameters()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in parameters.items())
    supply = Supply(opened.only(parameters.keys()), socket)
    next_model = LlamaModel(config, device=torch.device("cpu"), dtype=dtype)
    assert supply.load(next_model.parameters()).tier not in {"Staged", "Attached"}
    assert [(each.tier, each.code) for each in supply.passed] == [
        ("Sibling", "StageUnreachable"),
        ("Staged", "StageUnreachable"),
    ]
    assert identify(next_model.parameters()) == identify(parameters)
    weights.park()
    with pytest.raises(WeightsDamaged, match="can't be attached to again"):
        weights.unpark()

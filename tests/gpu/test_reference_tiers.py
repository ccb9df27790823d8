"""Engines that are attached to the stage daemon's copy on a real device, and what becomes of them when the daemon is killed."""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch

from loader.cuda.driver import Driver
from loader.cuda.nvml import Usage, usage_of
from loader.cuda.port import Device
from loader.stage.client import StageClient
from tests.unit.warmpool.reference.fixed_device import FixedDeviceContract

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(400),
]

WAIT_SECONDS = 180.0
PROMPT = "The quick brown fox"


def say(what: str) -> None:
    sys.stdout.write(f"\n  {what}")
    sys.stdout.flush()


class TestFixedDevice(FixedDeviceContract):
    @pytest.fixture
    def fixed(self) -> Device:
        from warmpool.reference.attached import FixedDevice  # noqa: PLC0415 (collected where there is no device, too)

        return FixedDevice(0)

    @pytest.fixture
    def giver(self) -> Device:
        return Driver(0)


@pytest.fixture
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="stage-") as directory:  # a socket's path must be short
        yield Path(directory) / "s.sock"


@contextmanager
def stage_daemon(checkpoint: Path, socket: Path) -> Iterator[subprocess.Popen[str]]:
    """A daemon that has a checkpoint in host memory, and may hold it on devices."""
    command = [sys.executable, "-m", "loader", "stage", str(checkpoint), "--budget", "20", "--cuda"]
    process = subprocess.Popen(
        [*command, "--hold-budget", "20", "--socket", str(socket)], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        said: list[str] = []
        while not (said and said[-1].startswith("ready:")):
            line = process.stderr.readline()
            assert line, f"the daemon ended: {said}"
            said.append(line)
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


class Engine:
    """An engine process, and how long it took to be ready."""

    def __init__(
        self, process: subprocess.Popen[bytes], ready: Any, seconds: float, session: aiohttp.ClientSession
    ) -> None:
        self.process, self.seconds, self.session = process, seconds, session
        self.public = f"http://127.0.0.1:{ready['port']}"
        self.control = f"http://127.0.0.1:{ready['controlPort']}"

    async def get(self, path: str) -> Any:
        async with self.session.get(self.control + path) as response:
            return await response.json()

    async def order(self, path: str) -> tuple[int, str]:
        async with self.session.post(self.control + path) as response:
            return response.status, await response.text()

    async def must(self, path: str) -> None:
        status, text = await self.order(path)
        assert status == 200, f"{path}: {status} {text}"

    async def weights(self) -> Any:
        return (await self.get("/emberpool/startup"))["phases"]["weights"]

    async def answer(self) -> str:
        asked = {"model": "m", "prompt": PROMPT, "temperature": 0, "max_tokens": 24, "ignore_eos": True}
        async with self.session.post(f"{self.public}/v1/completions", json=asked) as response:
            body = await response.json()
            assert response.status == 200, body
            return str(body["choices"][0]["text"])


def begin(checkpoint: Path, options: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "warmpool.reference", "serve", "--model", "m", "--device", "cuda"]
    command += ["--checkpoint", str(checkpoint), "--port", "0", "--control-port", "0", "--ready-fd", "1"]
    with log.open("wb") as errors:
        return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=errors)


@asynccontextmanager
async def engine(checkpoint: Path, options: Sequence[str]) -> AsyncIterator[Engine]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        process = begin(checkpoint, options, log)
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), WAIT_SECONDS)
            assert line, f"the engine ended: {log.read_text()[-3000:]}"
            seconds = time.monotonic() - began
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(WAIT_SECONDS)) as session:
                yield Engine(process, json.loads(line), seconds, session)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def show_growth(before: Usage | None) -> None:
    """Print what NVML says that an attached engine takes: whether the daemon's copy counts as the engine's, too."""
    after = usage_of(Driver(0).uuid)
    if before is not None and after is not None:
        new = {pid: size for pid, size in after.by_process.items() if pid not in before.by_process}
        grown = (after.nbytes - before.nbytes) / 2**20
        say(f"device memory grew by {grown:.0f} MiB; NVML says of the new processes: {new}")


async def test_an_attached_engine_answers_as_another_parks_comes_back_and_outlives_the_daemon(
    made: Callable[[str], Path], socket: Path
) -> None:
    checkpoint = made("llama-1b")
    async with engine(checkpoint, []) as plain:
        expected = await plain.answer()
        ownership = (await plain.get("/emberpool/startup"))["ownership"]
        weights_bytes = (await plain.get("/emberpool/startup"))["weightsBytes"]
        say(f"plain: ready after {plain.seconds:.2f} s, weights {await plain.weights()}")
    stage = ["--stage", f"unix://{socket}"]
    with stage_daemon(checkpoint, socket) as daemon:
        async with engine(checkpoint, stage) as staged:
            told = await staged.weights()
            say(f"staged: ready after {staged.seconds:.2f} s, weights {told}")
            assert told["tier"] == "Staged", told
            assert [each["code"] for each in told["passedOver"]] == ["NotHeld", "NoSibling"], told
            assert list(told["steps"]) == ["Copy"], f"the daemon didn't copy into the engine's memory: {told}"
            await parks_and_comes_back(staged, expected)
            assert await staged.answer() == expected
        with StageClient(socket) as client:
            held = client.hold(str(checkpoint), "0")
            say(f"held: {held}; devices: {client.devices()}")
        before = usage_of(Driver(0).uuid)
        async with engine(checkpoint, stage) as attached:
            told = await attached.weights()
            say(f"attached: ready after {attached.seconds:.2f} s, weights {told}")
            assert (told["tier"], told["passedOver"]) == ("Attached", []), told
            facts = await attached.get("/emberpool/startup")
            assert facts["ownership"] == ownership
            assert facts["weightsBytes"] < weights_bytes / 2, "most of the weights are the daemon's"
            show_growth(before)
            assert await attached.answer() == expected
            await parks_and_comes_back(attached, expected)
            daemon.kill()
            daemon.wait()
            await goes_on_without_it(attached, checkpoint, stage, expected)


async def parks_and_comes_back(engine: Engine, expected: str) -> None:
    for _ in range(2):
        await engine.must("/sleep?level=1&mode=wait")
        memory = await engine.get("/emberpool/memory")
        assert (memory["weights"], memory["weightsTakenBytes"]) == ("Parked", 0), memory
        began = time.monotonic()
        await engine.must("/wake_up")
        say(f"unparked in {time.monotonic() - began:.3f} s")
        assert await engine.answer() == expected


async def goes_on_without_it(attached: Engine, checkpoint: Path, stage: Sequence[str], expected: str) -> None:
    """The daemon has been killed: who is attached serves, the next start takes another tier, and nobody comes back wrong."""
    assert await attached.answer() == expected, "an attached engine must outlive the daemon"
    async with engine(checkpoint, stage) as later:
        told = await later.weights()
        say(f"without the daemon: ready after {later.seconds:.2f} s, weights {told}")
        codes = {each["tier"]: each["code"] for each in told["passedOver"]}
        assert codes == dict.fromkeys(("Attached", "Sibling", "Staged"), "StageUnreachable"), told
        assert await later.answer() == expected
    await attached.must("/sleep?level=1&mode=wait")
    status, text = await attached.order("/wake_up")
    assert status == HTTPStatus.GONE, text
    assert "attached to again" in text, text

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes import engine_zygote
from warmpool.reference.checkpoints import make_checkpoint
from warmpool.standins import VARIABLE, stood_for

START_SECONDS = 60.0
STOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Served:
    """A running engine process."""

    process: subprocess.Popen[str]
    public: str
    control: str

    @property
    def pid(self) -> int:
        """Of the engine: of the fork, where the process that was started stands for one."""
        return (*stood_for(self.process.pid), self.process.pid)[0]


def command(checkpoint: Path, *options: str) -> list[str]:
    base = [
        sys.executable,
        "-m",
        "warmpool.reference",
        "serve",
        "--model",
        "tiny",
        "--checkpoint",
        str(checkpoint),
    ]
    return [*base, "--port", "0", "--control-port", "0", "--device", "cpu", "--die-with-parent", *options]


def start(checkpoint: Path, options: Sequence[str] = (), *, plain: bool = False) -> Served:
    """Start an engine and wait until it says that it is ready: as a fork, or plainly as a process that imports for itself."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as pipe:
        process = subprocess.Popen(
            command(checkpoint, "--ready-fd", str(writing), *options),
            stderr=subprocess.DEVNULL,
            text=True,
            pass_fds=[writing],
            env=os.environ | ({VARIABLE: ""} if plain else engine_zygote.asked()),
        )
        os.close(writing)
        ready = json.loads(pipe.readline())
    return Served(process, f"http://127.0.0.1:{ready['port']}", f"http://127.0.0.1:{ready['controlPort']}")


def stop(served: Served) -> int:
    if served.process.poll() is None:
        served.process.send_signal(signal.SIGTERM)
    return served.process.wait(STOP_SECONDS)


class Client:
    """Speaks to one engine process."""

    def __init__(self, session: aiohttp.ClientSession, served: Served) -> None:
        self.session = session
        self.served = served

    async def get(self, path: str) -> Any:
        async with self.session.get(self.served.control + path) as response:
            return await response.json()

    async def order(self, path: str) -> tuple[int, Any]:
        async with self.session.post(self.served.control + path) as response:
            return response.status, await response.json()

    async def metric(self, name: str) -> float:
        """Read one of vLLM's metrics; the first of that name, or with its labels the one that has them."""
        async with self.session.get(self.served.control + "/metrics") as response:
            page = await response.text()
        start = f"vllm:{name}" if name.endswith("}") else f"vllm:{name}{{"
        return next(float(line.split()[-1]) for line in page.splitlines() if line.startswith(start))

    async def metric_becomes(self, name: str, value: float) -> None:
        async with asyncio.timeout(STOP_SECONDS):
            while await self.metric(name) != value:
                await asyncio.sleep(0.01)

    async def complete(self, *, public: bool = True, **fields: Any) -> tuple[int, Any]:
        base = self.served.public if public else self.served.control
        async with self.session.post(base + "/v1/completions", json=body(**fields)) as response:
            return response.status, await response.json()

    async def stream(self, **fields: Any) -> aiohttp.ClientResponse:
        """Begin a stream; the caller closes it."""
        return await self.session.post(
            self.served.public + "/v1/completions", json=body(stream=True, **fields)
        )


def body(**fields: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "prompt": "hello",
        "temperature": 0,
        "max_tokens": 8,
        "ignore_eos": True,
    } | fields


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    """A stream's events; the end mark as it is."""
    async for line in response.content:
        text = line.decode().strip()
        if text:
            data = text.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny", "tiny", seed=1)


@pytest.fixture(scope="session", autouse=True)
def _closed_loop() -> Iterator[None]:
    """Give the main thread a loop that is closed in the end: Python 3.11 makes one on demand that nobody closes."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()


@pytest.fixture(scope="session")
def served(checkpoint: Path) -> Iterator[Served]:
    made = start(checkpoint, ["--max-num-seqs", "2", "--max-model-len", "2048"])
    yield made
    assert stop(made) == 0


@asynccontextmanager
async def client_of(served: Served) -> AsyncIterator[Client]:
    """Speak to one engine process."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield Client(session, served)


@pytest.fixture
async def client(served: Served) -> AsyncIterator[Client]:
    async with client_of(served) as made:
        yield made
        await made.order("/guard/open")
        await made.order("/guard/abort")
        if (await made.get("/is_sleeping"))["is_sleeping"]:
            await made.order("/wake_up")
        await made.order("/resume")
        await made.metric_becomes("num_requests_running", 0)


class Tools:
    """The helpers above, for tests that start processes of their own."""

    command = staticmethod(command)
    start = staticmethod(start)
    stop = staticmethod(stop)
    body = staticmethod(body)
    events = staticmethod(events)
    client = staticmethod(client_of)


@pytest.fixture(scope="session")
def tools() -> type[Tools]:
    return Tools

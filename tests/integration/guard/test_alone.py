"""The middleware as it is used: its one file, copied beside an engine, in a server's process; and the agent's adapter, which drives it."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.fakes import starlette_vllm
from tests.fakes.ports import free_port
from tests.integration.guard.conftest import TOKEN, error_of, soon
from warmpool import guard_middleware
from warmpool.engines.port import KvWhenPaused
from warmpool.engines.vllm import VllmEngine
from warmpool.errors import EngineError

OTHERS = ("python3.9", "python3.10", "python3.11", "python3.12", "python3.13", "python3.14")
KEEP = KvWhenPaused.KEEP


@dataclass(frozen=True)
class Process:
    """A server with the middleware inside."""

    process: subprocess.Popen[bytes]
    public: str
    control: str
    log: Path


@contextmanager
def server(directory: Path, environment: Mapping[str, str], *arguments: str) -> Iterator[Process]:
    """Start one as an image has it: two files in a directory, and nothing of Emberpool on the path."""
    shutil.copy(guard_middleware.__file__, directory)
    shutil.copy(starlette_vllm.__file__, directory)
    port, control = free_port(), free_port()
    variables = {
        "PATH": os.environ["PATH"],
        "MIDDLEWARE": "guard_middleware.Guard",
        "EMBERPOOL_GUARD_CONTROL": f"127.0.0.1:{control}",
        **environment,
    }
    command = [sys.executable, "-m", "uvicorn", "starlette_vllm:app", "--port", str(port), *arguments]
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=directory, env=variables, stdout=output, stderr=output)
    try:
        yield Process(process, f"http://127.0.0.1:{port}", f"http://agent:{TOKEN}@127.0.0.1:{control}", log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Process]:
    with server(tmp_path, {"EMBERPOOL_GUARD_TOKEN": TOKEN}) as process:
        async with VllmEngine(process.control, model="chat") as engine:
            await answering(engine)
        yield process


@pytest.fixture
async def engine(alone: Process) -> AsyncIterator[VllmEngine]:
    async with VllmEngine(alone.control, model="chat") as engine:
        yield engine


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield session


async def answering(engine: VllmEngine) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await engine.guard(deadline=soon())
            except EngineError:
                await asyncio.sleep(0.02)
            else:
                return


async def test_the_agent_s_adapter_drives_it_from_birth_to_drain(
    alone: Process, engine: VllmEngine, session: aiohttp.ClientSession
) -> None:
    body = {"prompt": "fox", "max_tokens": 5}
    state = await engine.guard(deadline=soon())
    assert (state.is_open, state.in_flight) == (False, 0)
    async with session.post(f"{alone.public}/v1/completions", json=body) as answer:
        assert answer.status == 503
    assert (await engine.startup(deadline=soon())).ready
    assert await engine.complete("fox", tokens=3, deadline=soon()) == (1, 2, 3)
    await engine.pause(KEEP, deadline=soon())
    assert await engine.is_paused(deadline=soon())
    await engine.resume(KEEP, deadline=soon())
    await engine.open_guard(deadline=soon())
    async with session.post(f"{alone.public}/v1/completions", json=body | {"max_tokens": 200}) as answer:
        assert answer.status == 200
        assert len((await answer.json())["choices"][0]["token_ids"]) == 200
    assert (await engine.close_guard(deadline=soon())).in_flight == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_an_abort_ends_the_generation_too(
    alone: Process, engine: VllmEngine, session: aiohttp.ClientSession, *, stream: bool
) -> None:
    """vLLM's handlers hand the work to a task of its own, which outlives a cancelled call and not a client that has left."""
    await engine.open_guard(deadline=soon())
    body = {"prompt": "fox", "max_tokens": 1_000_000, "stream": stream}

    async def ask() -> tuple[int, str]:
        async with session.post(f"{alone.public}/v1/completions", json=body) as answer:
            return answer.status, await answer.text()

    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(ask())
        while (await engine.load(deadline=soon())).running == 0:
            await asyncio.sleep(0.002)
        await engine.close_guard(deadline=soon())
        await engine.abort(deadline=soon())
        while (await engine.guard(deadline=soon())).in_flight:
            await asyncio.sleep(0.002)
        while (await known(alone, session))["running"]:  # a cut generator ends when the loop has finalised it
            await asyncio.sleep(0.002)
        status, text = await asking
    assert (await known(alone, session))["endedEarly"] == 1
    assert status == (200 if stream else 503)
    assert error_of(text.rstrip().rpartition("data: ")[2])["code"] == "ResidentNotServing"


async def test_nothing_of_emberpool_is_needed(alone: Process, session: aiohttp.ClientSession) -> None:
    modules = (await known(alone, session))["modules"]
    assert "guard_middleware" in modules
    assert not [name for name in modules if str(name).partition(".")[0] in {"warmpool", "scaler", "loader"}]


async def test_what_the_framework_keeps_for_its_handlers_is_there_past_the_guard(
    alone: Process, session: aiohttp.ClientSession
) -> None:
    assert (await known(alone, session))["state"] == "the app's life"


async def known(process: Process, session: aiohttp.ClientSession) -> dict[str, object]:
    async with session.get(f"{process.control}/known") as answer:
        return dict(await answer.json())


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, "EMBERPOOL_GUARD_TOKEN"),
        ({"EMBERPOOL_GUARD_TOKEN": "short"}, "EMBERPOOL_GUARD_TOKEN"),
        ({"EMBERPOOL_GUARD_CONTROL": ""}, "EMBERPOOL_GUARD_CONTROL"),
        ({"EMBERPOOL_GUARD_CONTROL": "0.0.0.0:8001", "EMBERPOOL_GUARD_TOKEN": TOKEN}, "loopback"),
        ({"EMBERPOOL_GUARD_ROUTES": "/pause", "EMBERPOOL_GUARD_TOKEN": TOKEN}, "commands the engine"),
        ({"EMBERPOOL_GUARD_CONTROL": "unix:/nowhere/at/all.sock"}, "can't be listened on"),
    ],
)
def test_a_guard_that_is_configured_wrongly_lets_no_server_start(
    tmp_path: Path, environment: dict[str, str], named: str
) -> None:
    with server(tmp_path, environment) as process:
        assert process.process.wait(60) != 0
        assert named in process.log.read_text()


def test_a_second_process_that_would_share_the_door_does_not_start(tmp_path: Path) -> None:
    """Two doors with one control side: an order would turn one of them."""
    control = free_port()
    both = {"EMBERPOOL_GUARD_TOKEN": TOKEN, "EMBERPOOL_GUARD_CONTROL": f"127.0.0.1:{control}"}
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with server(tmp_path / "one", both) as one:
        while b"startup complete" not in one.log.read_bytes():
            assert one.process.poll() is None
        with server(tmp_path / "two", both) as two:
            assert two.process.wait(60) != 0
            assert "can't be listened on" in two.log.read_text()


BY_HAND = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
import guard_middleware as g

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        raise RuntimeError("no life of its own")
    while (await receive())["type"] != "http.disconnect":
        if scope["path"] != "/v1/completions":
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})

async def control(path, order):
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(order.encode() + b" HTTP/1.1\\r\\n\\r\\n")
    head, _, body = (await reader.read()).partition(b"\\r\\n\\r\\n")
    writer.close()
    return json.loads(body) if body.startswith(b"{") else body.decode()

async def main(path):
    guard = g.Guard(app, g.Settings(control="unix:" + path))
    events, started, sent = asyncio.Queue(), asyncio.Event(), []
    async def told(message):
        sent.append(message["type"]); started.set()
    life = asyncio.get_running_loop().create_task(guard({"type": "lifespan"}, events.get, told))
    await events.put({"type": "lifespan.startup"}); await started.wait()
    answers = []
    async def client():
        messages = asyncio.Queue(); said = []
        await messages.put({"type": "http.request", "body": b"", "more_body": False})
        async def send(message):
            said.append(message)
        scope = {"type": "http", "path": "/v1/completions", "headers": [], "method": "POST", "http_version": "1.1"}
        await guard(scope, messages.get, send)
        return said[0]["status"], json.loads(said[1]["body"])["error"]["code"]
    answers.append(await client())
    answers.append(await control(path, "POST /guard/open"))
    task = asyncio.get_running_loop().create_task(client())
    while (await control(path, "GET /guard"))["inFlight"] != 1:
        await asyncio.sleep(0.001)
    answers.append(await control(path, "POST /guard/abort"))
    answers.append(await task)
    answers.append(await control(path, "GET /guard"))
    answers.append(await control(path, "GET /anything"))
    await events.put({"type": "lifespan.shutdown"}); await life
    print(json.dumps([answers, sent]))

asyncio.run(main(sys.argv[2]))
"""


@pytest.mark.parametrize("python", OTHERS)
def test_it_runs_on_every_python_from_3_9_on(tmp_path: Path, python: str) -> None:
    if (
        shutil.which(python) is None
        or subprocess.run([python, "-V"], capture_output=True, check=False).returncode
    ):
        pytest.skip(f"no {python} here")
    shutil.copy(guard_middleware.__file__, tmp_path)
    command = [python, "-I", "-W", "error", "-c", BY_HAND, str(tmp_path), str(tmp_path / "s")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
    answers, sent = json.loads(ended.stdout)
    assert answers == [
        [503, "ResidentNotServing"],
        {"open": True, "inFlight": 0},
        {"open": True, "inFlight": 1, "aborted": 1},
        [503, "ResidentNotServing"],
        {"open": True, "inFlight": 0},
        "ok",
    ]
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

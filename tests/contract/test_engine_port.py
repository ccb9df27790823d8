"""What every engine adapter promises, tried on the scripted engine and on the real reference engine alike."""

import asyncio
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from warmpool.agent.processes import Ports
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import KvWhenPaused
from warmpool.engines.vllm import VllmEngine, parse_load
from warmpool.errors import EngineError, EngineLost, EngineRejected, EngineTimeout, EngineUnfit

ROOT = Path(__file__).resolve().parents[2]
MODEL = "chat"
PROMPT = "the quick brown fox"
LONG = 60


@dataclass(frozen=True, kw_only=True)
class Running:
    """An engine's process and where it listens."""

    process: subprocess.Popen[bytes]
    ports: Ports


def soon(seconds: float = 20.0) -> Deadline:
    return Deadline.after(seconds)


def serve(command: list[str], log: Path) -> Iterator[Running]:
    ports = Ports.free("127.0.0.1")
    with log.open("wb") as output:
        process = subprocess.Popen(ports.fill_in(command), cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield Running(process=process, ports=ports)
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    command = [
        sys.executable,
        "tests/fakes/scripted_engine.py",
        "--port",
        "{port}",
        "--control-port",
        "{controlPort}",
    ]
    script = ["--script", json.dumps({"tokenSeconds": 0.005})]
    yield from serve([*command, *script], tmp_path_factory.mktemp("scripted") / "log")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("the reference engine needs torch")
    directory = tmp_path_factory.mktemp("reference")
    make = "import sys, pathlib; from warmpool.reference.checkpoints import make_checkpoint as m; "
    make += "m(pathlib.Path(sys.argv[1]), shape='tiny', seed=1)"
    subprocess.run([sys.executable, "-c", make, str(directory / "model")], cwd=ROOT, check=True, timeout=60)
    command = [sys.executable, "-m", "warmpool.reference", "serve", "--model", MODEL]
    command += ["--checkpoint", str(directory / "model"), "--host", "{host}", "--port", "{port}"]
    command += ["--control-port", "{controlPort}", "--max-num-seqs", "4", "--max-model-len", "256"]
    command += ["--threads", "1", "--guard", "closed", "--die-with-parent"]
    yield from serve(command, directory / "log")


@pytest.fixture(params=["scripted", "reference"])
def running(request: pytest.FixtureRequest) -> Running:
    engine: Running = request.getfixturevalue(request.param)
    return engine


async def ready(engine: VllmEngine, running: Running) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert running.process.poll() is None, "the engine's process has ended"
        with suppress(EngineLost):
            if (await engine.startup(deadline=soon())).ready:
                return
        await asyncio.sleep(0.02)
    pytest.fail("the engine did not become ready")


@pytest.fixture
async def engine(running: Running) -> AsyncIterator[VllmEngine]:
    async with VllmEngine(running.ports.control_url, model=MODEL) as engine:
        await ready(engine, running)
        await engine.close_guard(deadline=soon())
        yield engine
        await engine.resume(KvWhenPaused.RELEASE, deadline=soon())


async def stream(running: Running, *, tokens: int, started: asyncio.Event) -> tuple[int, str]:
    """Send a streaming request through the guard."""
    body = {
        "model": MODEL,
        "prompt": PROMPT,
        "max_tokens": tokens,
        "stream": True,
        "temperature": 0,
        "ignore_eos": True,
    }
    url = f"{running.ports.public_url}/v1/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        text = ""
        async for line in response.content:
            text += line.decode()
            started.set()
        return response.status, text


# -------------------------------------------------------------------- what works


async def test_a_ready_engine_tells_its_process_and_phases(engine: VllmEngine, running: Running) -> None:
    startup = await engine.startup(deadline=soon())
    assert startup.ready
    assert startup.pid == running.process.pid
    assert {"import", "weights"} <= startup.phases.keys()
    assert all(seconds >= 0 for seconds in startup.phases.values())
    assert (startup.kv_bytes or 0) > 0
    assert (startup.weights_bytes or 0) > 0


async def test_greedy_tokens_repeat_and_a_short_answer_begins_a_long_one(engine: VllmEngine) -> None:
    long = await engine.complete(PROMPT, tokens=6, deadline=soon())
    assert len(long) == 6
    assert await engine.complete(PROMPT, tokens=6, deadline=soon()) == long
    assert await engine.complete(PROMPT, tokens=1, deadline=soon()) == long[:1]
    assert await engine.complete("something else entirely", tokens=6, deadline=soon()) != long


@pytest.mark.parametrize("kv", list(KvWhenPaused))
async def test_a_paused_engine_holds_requests_and_computes_the_same_after_resuming(
    engine: VllmEngine, kv: KvWhenPaused
) -> None:
    before = await engine.complete(PROMPT, tokens=4, deadline=soon())
    await engine.pause(kv, deadline=soon())
    assert await engine.is_paused(deadline=soon())
    if kv is KvWhenPaused.KEEP:  # what a request means to an engine without KV memory is its own affair
        with pytest.raises(EngineTimeout):
            await engine.complete(PROMPT, tokens=1, deadline=soon(0.1))
    await engine.resume(kv, deadline=soon())
    assert not await engine.is_paused(deadline=soon())
    assert await engine.complete(PROMPT, tokens=4, deadline=soon()) == before


async def test_pausing_lets_what_runs_finish(engine: VllmEngine) -> None:
    whole = await engine.complete(PROMPT, tokens=LONG, deadline=soon())
    async with asyncio.TaskGroup() as tasks:
        request = tasks.create_task(engine.complete(PROMPT, tokens=LONG, deadline=soon()))
        await until(lambda: is_running(engine))
        await engine.pause(KvWhenPaused.KEEP, deadline=soon())
    assert request.result() == whole


@pytest.mark.parametrize("kv", list(KvWhenPaused))
async def test_pausing_and_resuming_twice_is_once(engine: VllmEngine, kv: KvWhenPaused) -> None:
    for _ in range(2):
        await engine.pause(kv, deadline=soon())
    for _ in range(2):
        await engine.resume(kv, deadline=soon())
    assert len(await engine.complete(PROMPT, tokens=2, deadline=soon())) == 2


async def test_the_guard_lets_requests_through_only_when_open(engine: VllmEngine, running: Running) -> None:
    status, _ = await stream(running, tokens=2, started=asyncio.Event())
    assert status == 503
    await engine.open_guard(deadline=soon())
    status, text = await stream(running, tokens=2, started=asyncio.Event())
    assert status == 200
    assert text.rstrip().endswith("data: [DONE]")
    assert not (await engine.close_guard(deadline=soon())).is_open
    status, _ = await stream(running, tokens=2, started=asyncio.Event())
    assert status == 503


async def test_the_guard_counts_what_is_in_flight_and_abort_ends_it_well_formed(
    engine: VllmEngine, running: Running
) -> None:
    await engine.open_guard(deadline=soon())
    started = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        request = tasks.create_task(stream(running, tokens=200, started=started))
        await asyncio.wait_for(started.wait(), 20)
        assert (await engine.close_guard(deadline=soon())).in_flight == 1
        await engine.abort(deadline=soon())
        await until(lambda: is_drained(engine))
    _, text = request.result()
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert any("error" in json.loads(event) for event in events if event != "[DONE]")


async def test_the_load_counts_running_requests(engine: VllmEngine) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(engine.complete(PROMPT, tokens=LONG, deadline=soon()))
        await until(lambda: is_running(engine))
    await until(lambda: is_idle(engine))


async def test_no_call_outlives_its_deadline(engine: VllmEngine) -> None:
    began = time.monotonic()
    with pytest.raises(EngineTimeout):
        await engine.complete(PROMPT, tokens=200, deadline=soon(0.05))
    with pytest.raises(EngineTimeout, match="no time was left"):
        await engine.resume(KvWhenPaused.KEEP, deadline=soon(-1.0))
    assert time.monotonic() - began < 2


# -------------------------------------------------------------------- what goes wrong


@pytest.fixture
async def faulty(scripted: Running) -> AsyncIterator[VllmEngine]:
    async with VllmEngine(scripted.ports.control_url, model=MODEL) as engine:
        await ready(engine, scripted)
        yield engine
        await script(scripted, {"faults": {}})
        await engine.resume(KvWhenPaused.RELEASE, deadline=soon())


async def script(running: Running, change: dict[str, object]) -> None:
    url = f"{running.ports.control_url}/script"
    async with aiohttp.ClientSession() as session, session.post(url, json=change) as response:
        assert response.status == 200


Call = Callable[[VllmEngine, Deadline], Awaitable[object]]
CALLS: dict[str, Call] = {
    "POST /pause": lambda engine, deadline: engine.pause(KvWhenPaused.RELEASE, deadline=deadline),
    "POST /release_kv_cache_memory": lambda engine, deadline: engine.pause(
        KvWhenPaused.RELEASE, deadline=deadline
    ),
    "POST /resume": lambda engine, deadline: engine.resume(KvWhenPaused.KEEP, deadline=deadline),
    "POST /v1/completions": lambda engine, deadline: engine.complete(PROMPT, tokens=1, deadline=deadline),
    "POST /guard/open": lambda engine, deadline: engine.open_guard(deadline=deadline),
    "POST /guard/close": lambda engine, deadline: engine.close_guard(deadline=deadline),
    "POST /guard/abort": lambda engine, deadline: engine.abort(deadline=deadline),
    "GET /guard": lambda engine, deadline: engine.guard(deadline=deadline),
    "GET /health": lambda engine, deadline: engine.startup(deadline=deadline),
    "GET /metrics": lambda engine, deadline: engine.load(deadline=deadline),
}


@pytest.mark.parametrize("route", CALLS)
@pytest.mark.parametrize(("fault", "expected"), [("hang", EngineTimeout), ("refuse", EngineRejected)])
async def test_a_fault_becomes_the_error_that_says_what_to_do(
    faulty: VllmEngine, scripted: Running, route: str, fault: str, expected: type[EngineError]
) -> None:
    await script(scripted, {"faults": {route: {"do": fault}}})
    began = time.monotonic()
    with pytest.raises(expected, match=route):
        await CALLS[route](faulty, soon(0.1 if fault == "hang" else 10))
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("route", "call"),
    [
        pytest.param("POST /pause", CALLS["POST /pause"], id="paused"),
        pytest.param("POST /guard/open", CALLS["POST /guard/open"], id="guard opened"),
        pytest.param("POST /v1/completions", CALLS["POST /v1/completions"], id="no token ids"),
        pytest.param("GET /is_paused", CALLS["POST /pause"], id="no boolean"),
        pytest.param("GET /guard", CALLS["GET /guard"], id="no guard's state"),
        pytest.param("GET /metrics", CALLS["GET /metrics"], id="no metrics"),
    ],
)
async def test_a_200_is_not_trusted(faulty: VllmEngine, scripted: Running, route: str, call: Call) -> None:
    await faulty.close_guard(deadline=soon())
    await script(scripted, {"faults": {route: {"do": "lie"}}})
    with pytest.raises(EngineUnfit):
        await call(faulty, soon())


async def test_kv_memory_of_unknown_state_is_taken_before_it_is_released(
    faulty: VllmEngine, scripted: Running
) -> None:
    await faulty.pause(KvWhenPaused.RELEASE, deadline=soon())
    await script(scripted, {"faults": {"POST /wake_up": {"do": "hang", "times": 1}}})
    with pytest.raises(EngineTimeout):
        await faulty.resume(KvWhenPaused.RELEASE, deadline=soon(0.1))
    await faulty.pause(KvWhenPaused.RELEASE, deadline=soon())
    await faulty.resume(KvWhenPaused.RELEASE, deadline=soon())
    assert len(await faulty.complete(PROMPT, tokens=1, deadline=soon())) == 1


async def test_an_engine_that_dies_during_a_call_is_lost(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "tests/fakes/scripted_engine.py",
        "--port",
        "{port}",
        "--control-port",
        "{controlPort}",
    ]
    faults = {"faults": {"POST /resume": {"do": "crash"}}}
    for running in serve([*command, "--script", json.dumps(faults)], tmp_path / "log"):
        async with VllmEngine(running.ports.control_url, model=MODEL) as engine:
            await ready(engine, running)
            with pytest.raises(EngineLost) as lost:
                await engine.resume(KvWhenPaused.KEEP, deadline=soon())
            assert isinstance(lost.value.__cause__, aiohttp.ClientError)
            with pytest.raises(EngineLost):
                await engine.guard(deadline=soon())


async def test_an_engine_without_a_route_is_unfit(faulty: VllmEngine, scripted: Running) -> None:
    async with VllmEngine(scripted.ports.public_url, model=MODEL) as wrong_listener:
        with pytest.raises(EngineUnfit, match="no such route"):
            await wrong_listener.pause(KvWhenPaused.KEEP, deadline=soon())


def test_load_is_summed_over_engines_and_other_metrics_are_skipped() -> None:
    text = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 7.0
process_open_fds nonsense
"""
    load = parse_load(text)
    assert (load.running, load.waiting) == (5, 1)


# -------------------------------------------------------------------- conditions


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.001)


async def is_running(engine: VllmEngine) -> bool:
    return (await engine.load(deadline=soon())).running > 0


async def is_idle(engine: VllmEngine) -> bool:
    return not await is_running(engine)


async def is_drained(engine: VllmEngine) -> bool:
    return (await engine.guard(deadline=soon())).in_flight == 0

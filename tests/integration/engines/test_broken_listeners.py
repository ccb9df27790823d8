"""Listeners that are half broken: every call of every adapter ends by its deadline, with an error whose type says what to do."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from tests.fakes.engine_server import Fault, half_open
from tests.fakes.engine_subjects import FAKES, MODEL, Subject, on_fake
from tests.fakes.ports import free_port
from warmpool.engines.deadline import Deadline
from warmpool.engines.kinds import connect
from warmpool.engines.port import Engine, KvWhenPaused
from warmpool.errors import EngineError, EngineLost, EngineRejected, EngineTimeout, EngineUnfit

KEEP, RELEASE = KvWhenPaused.KEEP, KvWhenPaused.RELEASE
Call = Callable[[Engine, Deadline], Awaitable[object]]


async def released_before(engine: Engine, deadline: Deadline) -> object:
    await engine.pause(RELEASE, deadline=Deadline.after(30))
    return await engine.resume(RELEASE, deadline=deadline)


def startup(engine: Engine, deadline: Deadline) -> Awaitable[object]:
    return engine.startup(deadline=deadline)


def complete(engine: Engine, deadline: Deadline) -> Awaitable[object]:
    return engine.complete("fox", tokens=1, deadline=deadline)


def load(engine: Engine, deadline: Deadline) -> Awaitable[object]:
    return engine.load(deadline=deadline)


def pause(engine: Engine, deadline: Deadline) -> Awaitable[object]:
    return engine.pause(KEEP, deadline=deadline)


def release(engine: Engine, deadline: Deadline) -> Awaitable[object]:
    return engine.pause(RELEASE, deadline=deadline)


def resume(engine: Engine, deadline: Deadline) -> Awaitable[object]:
    return engine.resume(KEEP, deadline=deadline)


async def parked(engine: Engine, deadline: Deadline) -> object:
    await engine.pause(KEEP, deadline=Deadline.after(30))
    return await engine.park(deadline=deadline)


async def parked_before(engine: Engine, deadline: Deadline) -> object:
    await engine.pause(KEEP, deadline=Deadline.after(30))
    await engine.park(deadline=Deadline.after(30))
    return await engine.unpark(deadline=deadline)


CALLS: list[tuple[str, str, Call]] = [
    ("recorded vLLM", "GET /health", startup),
    ("recorded vLLM", "POST /v1/completions", complete),
    ("recorded vLLM", "GET /metrics", load),
    ("recorded vLLM", "POST /pause", pause),
    ("recorded vLLM", "GET /is_paused", pause),
    ("recorded vLLM", "POST /release_kv_cache_memory", release),
    ("recorded vLLM", "POST /resume", resume),
    ("recorded vLLM", "POST /wake_up", released_before),
    ("recorded vLLM", "GET /is_sleeping", resume),
    ("recorded vLLM", "POST /sleep", parked),
    ("recorded vLLM", "POST /wake_up", parked_before),
    ("SGLang by its source", "GET /ready", startup),
    ("SGLang by its source", "POST /v1/completions", complete),
    ("SGLang by its source", "GET /v1/loads", load),
    ("SGLang by its source", "POST /pause_generation", pause),
    ("SGLang by its source", "GET /v1/loads", pause),
    ("SGLang by its source", "POST /release_memory_occupation", release),
    ("SGLang by its source", "POST /continue_generation", resume),
    ("SGLang by its source", "POST /resume_memory_occupation", released_before),
    ("SGLang by its source", "POST /release_memory_occupation", parked),
    ("SGLang by its source", "POST /resume_memory_occupation", parked_before),
    ("generic", "GET /health", startup),
    ("generic", "POST /v1/completions", complete),
    ("generic", "GET /v1/models", resume),
]
MEANINGS: list[tuple[str, type[EngineError]]] = [
    ("hang", EngineTimeout),
    ("drip", EngineTimeout),
    ("refuse", EngineRejected),
    ("elsewhere", EngineRejected),
    ("cut", EngineLost),
    ("reset", EngineLost),
    ("garbled", EngineLost),
    ("huge", EngineUnfit),
]
TELLING = {"GET /is_paused", "GET /is_sleeping", "GET /metrics", "GET /v1/loads", "POST /v1/completions"}
"""Routes whose answer is read, so that a page for people instead of it is no success."""


def name_of(value: object) -> str:
    return getattr(value, "__name__", str(value))


@pytest.mark.wall_clock
@pytest.mark.parametrize(("fault", "expected"), MEANINGS, ids=name_of)
@pytest.mark.parametrize(("kind", "route", "call"), CALLS, ids=name_of)
async def test_a_broken_answer_ends_by_the_deadline_with_an_error_that_says_what_to_do(
    kind: str, route: str, call: Call, fault: str, expected: type[EngineError]
) -> None:
    async with on_fake(kind) as subject:
        assert subject.fake is not None
        subject.fake.faults[route] = Fault(fault)
        began = time.monotonic()
        with pytest.raises(expected):
            await call(subject.engine, Deadline.after(0.3 if expected is EngineTimeout else 30))
        assert time.monotonic() - began < 3


@pytest.mark.parametrize(
    ("kind", "route", "call"), [each for each in CALLS if each[1] in TELLING], ids=name_of
)
async def test_a_page_for_people_is_no_answer(kind: str, route: str, call: Call) -> None:
    async with on_fake(kind) as subject:
        assert subject.fake is not None
        subject.fake.faults[route] = Fault("html")
        with pytest.raises(EngineUnfit):
            await call(subject.engine, Deadline.after(30))


@pytest.mark.wall_clock
@pytest.mark.parametrize("kind", FAKES)
@pytest.mark.parametrize("call", [startup, complete, resume], ids=name_of)
async def test_a_listener_that_nobody_reads_is_late_and_not_waited_for(kind: str, call: Call) -> None:
    async with half_open() as url:
        engine = connect(FAKES[kind][0], url, model=MODEL, guard=None)
        began = time.monotonic()
        with pytest.raises(EngineTimeout):
            await call(engine, Deadline.after(0.2))
        assert time.monotonic() - began < 1.5
        await engine.close()


@pytest.mark.parametrize(("kind", "route", "call"), CALLS, ids=name_of)
async def test_a_cancelled_call_closes_its_connection(kind: str, route: str, call: Call) -> None:
    async with on_fake(kind) as subject:
        assert subject.fake is not None
        subject.fake.faults[route] = Fault("hang")
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(cut_short(call, subject))
            await until(lambda: bool(subject.fake is not None and subject.fake.asked(route)))
            waiting.cancel()
        await until(lambda: subject.fake is not None and subject.fake.hung_up == 1)


async def cut_short(call: Call, subject: Subject) -> None:
    await call(subject.engine, Deadline.after(30))


async def test_an_answer_after_a_while_is_an_answer() -> None:
    async with on_fake("recorded vLLM") as subject:
        assert subject.fake is not None
        subject.fake.faults["POST /pause"] = Fault("slow", seconds=0.2)
        await subject.engine.pause(KEEP, deadline=Deadline.after(30))
        assert await subject.engine.is_paused(deadline=Deadline.after(30))


async def test_the_connection_of_a_server_fault_is_not_used_again() -> None:
    async with on_fake("recorded vLLM") as subject:
        assert subject.fake is not None
        subject.fake.faults["POST /pause"] = Fault("doom", times=1)
        with pytest.raises(EngineRejected):
            await subject.engine.pause(KEEP, deadline=Deadline.after(30))
        await subject.engine.resume(KEEP, deadline=Deadline.after(30))


@pytest.mark.parametrize("kind", FAKES)
async def test_nobody_there_is_lost(kind: str) -> None:
    engine = connect(FAKES[kind][0], f"http://127.0.0.1:{free_port()}", model=MODEL, guard=None)
    with pytest.raises(EngineLost):
        await engine.startup(deadline=Deadline.after(30))
    await engine.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)

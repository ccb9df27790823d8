"""What every engine adapter promises, tried on each kind: in-loop servers, the scripted and the reference engine, a real vLLM."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from tests.fakes.engine_server import FakeEngine, Fault
from tests.fakes.engine_subjects import (
    FAKES,
    MODEL,
    VLLM_BIN,
    VLLM_ENVIRONMENT,
    VLLM_SECONDS,
    Process,
    Subject,
    on_fake,
    on_process,
    reference_command,
    scripted_command,
    serve,
    vllm_command,
)
from tests.fakes.generic_server import FakeGeneric
from tests.fakes.sglang_server import FakeSglang
from tests.fakes.vllm_server import FakeVllm
from warmpool.engines.capabilities import Capability, Change, Ground, Verdict
from warmpool.engines.deadline import Deadline
from warmpool.engines.kinds import EngineKind, connect
from warmpool.engines.port import Engine, KvWhenPaused
from warmpool.engines.reference import ReferenceEngine
from warmpool.engines.vllm import VllmEngine
from warmpool.errors import (
    EngineContradicted,
    EngineError,
    EngineLost,
    EngineRejected,
    EngineTimeout,
    EngineUnfit,
)

PROMPT = "the quick brown fox"
LONG = 60
KEEP, RELEASE = KvWhenPaused.KEEP, KvWhenPaused.RELEASE


def soon(seconds: float = 20.0) -> Deadline:
    return Deadline.after(seconds)


# -------------------------------------------------------------------- what it is tried on


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    log = tmp_path_factory.mktemp("scripted") / "log"
    with serve(EngineKind.REFERENCE, scripted_command({"tokenSeconds": 0.005}), log) as process:
        yield process


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    directory = tmp_path_factory.mktemp("reference")
    with serve(EngineKind.REFERENCE, reference_command(directory), directory / "log") as process:
        yield process


@pytest.fixture(scope="module")
def real_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    directory = tmp_path_factory.mktemp("vllm")
    command = vllm_command(directory)
    with serve(EngineKind.VLLM, command, directory / "log", VLLM_ENVIRONMENT) as process:
        yield process


REAL = ("real vLLM",) if os.environ.get(VLLM_BIN) else ()
ALL = (*FAKES, "scripted", "reference", *REAL)
PAUSING = tuple(name for name in ALL if name != "generic")
PARKING = tuple(name for name in PAUSING if name not in REAL)
"""A CPU build of vLLM has no device from which weights could be moved."""
LONGEST = {"reference": 256, **dict.fromkeys(REAL, 512)}
"""Tokens of a sequence, as their commands say."""


@pytest.fixture(params=ALL)
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    """An adapter whose engine is ready, computes and has its guard closed."""
    async for found in connected(request):
        yield found


@pytest.fixture(params=PAUSING)
async def pausing(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    """The same, of those that can be paused."""
    async for found in connected(request):
        yield found


@pytest.fixture(params=PARKING)
async def parking(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    """The same, of those that can be parked."""
    async for found in connected(request):
        yield found


async def connected(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    name = request.param
    if name in FAKES:
        context = on_fake(name)
    else:
        process: Process = request.getfixturevalue(name.replace(" ", "_").lower())
        context = on_process(process, releases=name not in REAL)  # a CPU build has no device to release from
    async with context as found:
        await ready(found)
        await found.engine.close_guard(deadline=soon())
        yield found
        if found.pauses:
            with suppress(EngineRejected):  # it isn't paused, and so isn't parked either
                await found.engine.unpark(deadline=soon())
        await found.engine.resume(KEEP, deadline=soon())


async def ready(subject: Subject) -> None:
    ends = time.monotonic() + (VLLM_SECONDS if subject.kind is EngineKind.VLLM else 60)
    while time.monotonic() < ends:
        if subject.process is not None and subject.process.process.poll() is not None:
            pytest.fail(f"the engine's process has ended: {subject.process.log.read_text()[-2000:]}")
        with suppress(EngineLost):
            if (await subject.engine.startup(deadline=soon())).ready:
                return
        await asyncio.sleep(0.02)
    pytest.fail("the engine did not become ready")


def releasable(subject: Subject) -> list[KvWhenPaused]:
    """What may become of the KV memory there: without a device there is none to release."""
    return [KEEP, RELEASE] if subject.releases else [KEEP]


# -------------------------------------------------------------------- what works


async def test_a_ready_engine_says_so_and_what_it_tells_is_sound(subject: Subject) -> None:
    startup = await subject.engine.startup(deadline=soon())
    assert startup.ready
    assert all(seconds >= 0 for seconds in startup.phases.values())
    assert startup.kv_bytes is None or startup.kv_bytes > 0
    assert bool(startup.ownership.engine_version) is (subject.kind is not EngineKind.GENERIC)
    if subject.kind is EngineKind.REFERENCE:
        assert subject.process is not None
        assert startup.pid == subject.process.process.pid
        assert {"import", "weights"} <= startup.phases.keys()
        assert startup.load is None or startup.load.seconds >= 0
        assert (startup.kv_bytes or 0) > 0
        assert (startup.weights_bytes or 0) > 0


@pytest.mark.parametrize(("subject", "longest"), LONGEST.items(), indirect=["subject"])
async def test_a_ready_engine_tells_the_longest_sequence_that_it_takes(
    subject: Subject, longest: int
) -> None:
    assert (await subject.engine.startup(deadline=soon())).longest == longest


async def test_greedy_tokens_repeat_and_a_short_answer_begins_a_long_one(subject: Subject) -> None:
    long = await subject.engine.complete(PROMPT, tokens=6, deadline=soon())
    assert len(long) == 6
    assert await subject.engine.complete(PROMPT, tokens=6, deadline=soon()) == long
    assert await subject.engine.complete(PROMPT, tokens=1, deadline=soon()) == long[:1]
    assert await subject.engine.complete("something else entirely", tokens=6, deadline=soon()) != long


async def test_a_prompt_may_be_ids_of_tokens(subject: Subject) -> None:
    first, again, other = [
        await subject.engine.complete(ids, tokens=4, deadline=soon())
        for ids in ([20, 30, 40], (20, 30, 40), [90] * 12)
    ]
    assert len(first) == len(other) == 4
    assert first == again


async def test_log_probabilities_repeat_where_they_are_told(subject: Subject) -> None:
    first, again = [await subject.engine.complete(PROMPT, tokens=5, deadline=soon()) for _ in range(2)]
    assert len(first.logprobs) == (5 if subject.kind in {EngineKind.VLLM, EngineKind.REFERENCE} else 0)
    assert all(value <= 0 for value in first.logprobs)
    assert again.logprobs == pytest.approx(first.logprobs, abs=1e-4)


async def test_an_engine_that_refuses_to_tell_log_probabilities_is_asked_without() -> None:
    async with on_fake("recorded vLLM", FakeVllm(tells_logprobs=False)) as subject:
        for _ in range(2):
            answered = await subject.engine.complete(PROMPT, tokens=3, deadline=soon())
            assert (len(answered), answered.logprobs) == (3, ())
        assert subject.fake is not None
        assert len(subject.fake.asked("POST /v1/completions")) == 3


async def test_a_paused_engine_holds_requests_and_computes_the_same_after_resuming(
    pausing: Subject,
) -> None:
    engine = pausing.engine
    before = await engine.complete(PROMPT, tokens=4, deadline=soon())
    for kv in releasable(pausing):
        await engine.pause(kv, deadline=soon())
        assert await engine.is_paused(deadline=soon())
        if kv is KEEP:  # what a request means to an engine without KV memory is its own affair
            with pytest.raises(EngineTimeout):
                await engine.complete(PROMPT, tokens=1, deadline=soon(0.1))
        await engine.resume(kv, deadline=soon())
        assert not await engine.is_paused(deadline=soon())
        assert await engine.complete(PROMPT, tokens=4, deadline=soon()) == before


async def test_pausing_lets_what_runs_finish(pausing: Subject) -> None:
    engine = pausing.engine
    whole = await engine.complete(PROMPT, tokens=LONG, deadline=soon())
    async with asyncio.TaskGroup() as tasks:
        request = tasks.create_task(engine.complete(PROMPT, tokens=LONG, deadline=soon()))
        await until(lambda: is_running(pausing))
        await engine.pause(KEEP, deadline=soon())
    assert request.result() == whole


async def test_pausing_and_resuming_twice_is_once(pausing: Subject) -> None:
    engine = pausing.engine
    for kv in releasable(pausing):
        for _ in range(2):
            await engine.pause(kv, deadline=soon())
        for _ in range(2):
            await engine.resume(kv, deadline=soon())
        assert len(await engine.complete(PROMPT, tokens=2, deadline=soon())) == 2


async def test_the_guard_lets_requests_through_only_when_open(subject: Subject) -> None:
    engine = subject.engine
    assert (await stream(subject, tokens=2))[0] == 503
    await engine.open_guard(deadline=soon())
    status, text = await stream(subject, tokens=2)
    assert status == 200
    assert text.rstrip().endswith("data: [DONE]")
    assert not (await engine.close_guard(deadline=soon())).is_open
    assert (await stream(subject, tokens=2))[0] == 503


async def test_the_guard_counts_what_is_in_flight_and_abort_ends_it_well_formed(subject: Subject) -> None:
    engine = subject.engine
    await engine.open_guard(deadline=soon())
    started = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        request = tasks.create_task(stream(subject, tokens=200, started=started))
        await asyncio.wait_for(started.wait(), 20)
        assert (await engine.close_guard(deadline=soon())).in_flight == 1
        await engine.abort(deadline=soon())
        await until(lambda: is_drained(subject))
    _, text = request.result()
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert "error" in json.loads(
        events[-1]
    )  # and no [DONE] after it, which would say that the answer is whole
    assert all("error" not in json.loads(event) for event in events[:-1])


async def test_a_client_that_hangs_up_is_no_longer_in_flight(subject: Subject) -> None:
    engine = subject.engine
    await engine.open_guard(deadline=soon())
    async with asyncio.TaskGroup() as tasks:
        started = asyncio.Event()
        request = tasks.create_task(stream(subject, tokens=200, started=started))
        await asyncio.wait_for(started.wait(), 20)
        request.cancel()
    await until(lambda: is_drained(subject))
    await engine.close_guard(deadline=soon())


async def test_the_load_counts_running_requests(pausing: Subject) -> None:
    engine = pausing.engine
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(engine.complete(PROMPT, tokens=LONG, deadline=soon()))
        await until(lambda: is_running(pausing))
    await until(lambda: is_idle(pausing))


@pytest.mark.wall_clock
async def test_no_call_outlives_its_deadline(subject: Subject) -> None:
    began = time.monotonic()
    with pytest.raises(EngineTimeout):
        await subject.engine.complete(PROMPT, tokens=200, deadline=soon(0.05))
    with pytest.raises(EngineTimeout, match="no time was left"):
        await subject.engine.resume(KEEP, deadline=soon(-1.0))
    assert time.monotonic() - began < 2


async def test_a_probe_finds_out_what_the_engine_does_and_leaves_it_computing(subject: Subject) -> None:
    before = await subject.engine.complete(PROMPT, tokens=4, deadline=soon())
    found = await subject.engine.probe(RELEASE if subject.releases else KEEP, deadline=soon(60))
    assert set(found.findings) == set(Capability)
    assert all(finding.reason for finding in found.findings.values())
    assert found.has(Capability.TOKEN_IDS)
    assert found.has(Capability.SCHEDULER_PAUSE) is subject.pauses
    assert found.has(Capability.KV_RELEASE) is (subject.pauses and subject.releases)
    assert await subject.engine.complete(PROMPT, tokens=4, deadline=soon()) == before


async def test_an_engine_in_rotation_is_not_probed(subject: Subject) -> None:
    await subject.engine.open_guard(deadline=soon())
    with pytest.raises(EngineRejected, match="in rotation"):
        await subject.engine.probe(KEEP, deadline=soon())
    await subject.engine.close_guard(deadline=soon())


async def test_a_probe_that_is_cut_short_leaves_an_engine_that_resumes(subject: Subject) -> None:
    before = await subject.engine.complete(PROMPT, tokens=4, deadline=soon())
    for seconds in (0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2):
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await subject.engine.probe(RELEASE if subject.releases else KEEP, deadline=soon(60))
        await subject.engine.resume(KEEP, deadline=soon())
        assert await subject.engine.complete(PROMPT, tokens=4, deadline=soon()) == before


async def test_a_change_is_verified_as_far_as_the_engine_tells(subject: Subject) -> None:
    engine = subject.engine
    expected = Verdict.VERIFIED if subject.pauses else Verdict.UNVERIFIED
    assert (await engine.pause(KEEP, deadline=soon())).verdict is expected
    assert (await engine.resume(KEEP, deadline=soon())).verdict is expected


# -------------------------------------------------------------------- parking


@pytest.mark.parametrize("kv", KvWhenPaused)
async def test_a_parked_engine_computes_the_same_once_it_is_back(parking: Subject, kv: KvWhenPaused) -> None:
    engine = parking.engine
    before = await engine.complete(PROMPT, tokens=4, deadline=soon())
    for _ in range(2):
        await engine.pause(kv, deadline=soon())
        await engine.park(deadline=soon())
        assert await engine.is_paused(deadline=soon())
        await engine.unpark(deadline=soon())
        assert await engine.is_paused(deadline=soon())
        await engine.resume(kv, deadline=soon())
        assert await engine.complete(PROMPT, tokens=4, deadline=soon()) == before


@pytest.mark.long
async def test_an_unparked_engine_takes_its_kv_memory_whatever_its_seat_does_with_it(
    parking: Subject,
) -> None:
    engine = parking.engine
    for kv in (KEEP, RELEASE):
        await engine.pause(KEEP, deadline=soon())
        await engine.park(deadline=soon())
        await engine.unpark(deadline=soon())
        await engine.resume(kv, deadline=soon())
        assert len(await engine.complete(PROMPT, tokens=2, deadline=soon())) == 2


async def test_an_unparked_engine_may_be_paused_and_parked_again_before_it_computes(parking: Subject) -> None:
    engine = parking.engine
    before = await engine.complete(PROMPT, tokens=4, deadline=soon())
    await engine.pause(RELEASE, deadline=soon())
    for _ in range(2):
        await engine.park(deadline=soon())
        await engine.unpark(deadline=soon())
        await engine.pause(RELEASE, deadline=soon())
    await engine.resume(RELEASE, deadline=soon())
    assert await engine.complete(PROMPT, tokens=4, deadline=soon()) == before


async def test_parking_and_unparking_twice_is_once(parking: Subject) -> None:
    engine = parking.engine
    await engine.pause(RELEASE, deadline=soon())
    for _ in range(2):
        await engine.park(deadline=soon())
    for _ in range(2):
        await engine.unpark(deadline=soon())
    await engine.resume(RELEASE, deadline=soon())
    assert len(await engine.complete(PROMPT, tokens=2, deadline=soon())) == 2


PARKED_CALLS: dict[str, Callable[[Engine], Awaitable[object]]] = {
    "pause": lambda engine: engine.pause(RELEASE, deadline=soon()),
    "resume": lambda engine: engine.resume(RELEASE, deadline=soon()),
    "complete": lambda engine: engine.complete(PROMPT, tokens=1, deadline=soon()),
    "probe": lambda engine: engine.probe(RELEASE, deadline=soon()),
}


async def test_a_parked_engine_does_nothing_but_be_unparked(parking: Subject) -> None:
    await parking.engine.pause(RELEASE, deadline=soon())
    await parking.engine.park(deadline=soon())
    for call in PARKED_CALLS.values():
        with pytest.raises(EngineRejected, match="parked; unpark first"):
            await call(parking.engine)


async def test_an_engine_that_computes_is_neither_parked_nor_unparked(parking: Subject) -> None:
    engine = parking.engine
    for order in (engine.park, engine.unpark):
        with pytest.raises(EngineRejected, match="pause it first"):
            await order(deadline=soon())
    assert len(await engine.complete(PROMPT, tokens=2, deadline=soon())) == 2


async def test_moved_weights_are_verified_as_far_as_the_engine_tells(parking: Subject) -> None:
    engine = parking.engine
    expected = Verdict.VERIFIED if parking.kind is EngineKind.REFERENCE else Verdict.UNVERIFIED
    await engine.pause(RELEASE, deadline=soon())
    parked, unparked = await engine.park(deadline=soon()), await engine.unpark(deadline=soon())
    assert (parked.change, parked.verdict) == (Change.PARK, expected)
    assert (unparked.change, unparked.verdict) == (Change.UNPARK, expected)


async def test_an_adapter_that_takes_over_a_parked_engine_brings_it_back(parking: Subject) -> None:
    before = await parking.engine.complete(PROMPT, tokens=4, deadline=soon())
    await parking.engine.pause(RELEASE, deadline=soon())
    await parking.engine.park(deadline=soon())
    taken_over = on_process(parking.process) if parking.process else again(parking)
    async with taken_over as other:
        other.engine.assume(kv_released=True, parked=True)
        await other.engine.unpark(deadline=soon())
        await other.engine.resume(RELEASE, deadline=soon())
        assert await other.engine.complete(PROMPT, tokens=4, deadline=soon()) == before
    parking.engine.assume(kv_released=False)


async def test_a_reference_engine_tells_what_a_parked_copy_takes(reference: Process) -> None:
    async with on_process(reference) as subject:
        await ready(subject)
        await subject.engine.pause(KEEP, deadline=soon())
        await subject.engine.park(deadline=soon())
        parked = await subject.engine.startup(deadline=soon())
        assert (parked.parked_bytes or 0) >= (parked.weights_bytes or 0) > 0
        await subject.engine.unpark(deadline=soon())
        assert (await subject.engine.startup(deadline=soon())).parked_bytes == parked.parked_bytes
        await subject.engine.resume(KEEP, deadline=soon())


REFUSING: dict[str, tuple[str, Callable[[], FakeEngine], Ground]] = {
    "generic": ("generic", FakeGeneric, Ground.NOT_OF_KIND),
    "no copy": ("SGLang by its source", lambda: FakeSglang(backup=False), Ground.SWITCHED_OFF),
    "speculative": ("SGLang by its source", lambda: FakeSglang(speculative="EAGLE"), Ground.UNCERTIFIED),
    "no sleep mode": ("recorded vLLM", lambda: FakeVllm(pool=False), Ground.SWITCHED_OFF),
    "no routes": ("recorded vLLM", lambda: FakeVllm(dev_mode=False), Ground.ROUTE_MISSING),
    "tells nothing": (
        "recorded vLLM",
        lambda: FakeVllm(tells_config=False, lists_routes=False),
        Ground.NOT_TRIED,
    ),
}


@pytest.mark.parametrize("name", REFUSING)
async def test_what_was_not_granted_is_refused_and_nothing_is_moved(name: str) -> None:
    kind, make, ground = REFUSING[name]
    async with on_fake(kind, make()) as subject:
        await subject.engine.close_guard(deadline=soon())
        with suppress(EngineUnfit):
            await subject.engine.pause(KEEP, deadline=soon())
        with pytest.raises(EngineRejected, match=rf"can't be parked \({ground}\)"):
            await subject.engine.park(deadline=soon())
        assert subject.fake is not None
        assert not [call for call in subject.fake.calls if "sleep?" in call or "release_memory" in call]


async def test_a_scripted_engine_that_cannot_park_says_why(scripted: Process) -> None:
    async with on_process(scripted) as subject:
        await until(lambda: is_ready(subject.engine))
        await script(scripted, {"cannotPark": "they lie in the wrong place"})
        found = await subject.engine.probe(KEEP, deadline=soon())
        assert found.finding(Capability.WEIGHTS_PARKING).ground is Ground.SWITCHED_OFF
        await subject.engine.pause(KEEP, deadline=soon())
        with pytest.raises(EngineRejected, match="the wrong place"):
            await subject.engine.park(deadline=soon())
        await script(scripted, {"cannotPark": ""})
        await subject.engine.resume(KEEP, deadline=soon())


# -------------------------------------------------------------------- what goes wrong


@pytest.fixture
async def told(scripted: Process) -> AsyncIterator[ReferenceEngine]:
    """An adapter of an engine that tells where its memory is, paused."""
    async with ReferenceEngine(scripted.ports.control_url, model=MODEL) as engine:
        await until(lambda: is_ready(engine))
        await engine.pause(RELEASE, deadline=soon())
        yield engine
        await script(scripted, {"faults": {}})
        with suppress(EngineRejected):  # as above
            await engine.unpark(deadline=soon())
        await engine.resume(RELEASE, deadline=soon())


@pytest.mark.parametrize(("do", "expected"), [("refuse", EngineRejected), ("hang", EngineTimeout)])
async def test_an_order_to_park_that_failed_leaves_nothing_open_where_the_engine_tells(
    told: ReferenceEngine, scripted: Process, do: str, expected: type[EngineError]
) -> None:
    for route, order in (("POST /sleep", told.park), ("POST /wake_up", told.unpark)):
        await script(scripted, {"faults": {route: {"do": do, "times": 1}}})
        with pytest.raises(expected, match=route):
            await order(deadline=soon(0.2 if do == "hang" else 10))
        assert (await order(deadline=soon())).verdict is Verdict.VERIFIED
    assert len(await woken(told)) == 1


async def test_weights_that_did_not_move_are_contradicted(told: ReferenceEngine, scripted: Process) -> None:
    for route, order, says in (
        ("POST /sleep", told.park, "Held, with 4096 bytes"),
        ("POST /wake_up", told.unpark, "Parked, with 0 bytes"),
    ):
        await script(scripted, {"faults": {route: {"do": "lie", "times": 1}}})
        with pytest.raises(EngineContradicted, match=says):
            await order(deadline=soon())
        told.assume(kv_released=True, parked="unpark" in order.__name__)
        await order(deadline=soon())


async def woken(engine: Engine) -> tuple[int, ...]:
    await engine.resume(RELEASE, deadline=soon())
    return await engine.complete(PROMPT, tokens=1, deadline=soon())


@pytest.mark.parametrize("do", ["refuse", "hang"])
@pytest.mark.parametrize("kind", ["recorded vLLM", "SGLang by its source"])
async def test_weights_that_may_be_half_moved_are_not_moved_again(kind: str, do: str) -> None:
    """What was mapped when waking up failed leaked with each further attempt."""
    routes = {
        "recorded vLLM": ("POST /sleep", "POST /wake_up"),
        "SGLang by its source": ("POST /release_memory_occupation", "POST /resume_memory_occupation"),
    }
    for place, route in enumerate(routes[kind]):
        async with on_fake(kind) as subject:
            engine, fake = subject.engine, subject.fake
            assert fake is not None
            await engine.pause(KEEP, deadline=soon())
            if place:
                await engine.park(deadline=soon())
            fake.faults[route] = Fault(do)
            with pytest.raises(EngineTimeout if do == "hang" else EngineRejected):
                await (engine.unpark if place else engine.park)(deadline=soon(0.2 if do == "hang" else 10))
            fake.faults.clear()
            asked = len(fake.asked(route))
            for call in (engine.park, engine.unpark):
                with pytest.raises(EngineUnfit, match="has to be replaced"):
                    await call(deadline=soon())
            with pytest.raises(EngineUnfit, match="has to be replaced"):
                await engine.complete(PROMPT, tokens=1, deadline=soon())
            assert len(fake.asked(route)) == asked


@pytest.fixture
async def faulty(scripted: Process) -> AsyncIterator[VllmEngine]:
    async with VllmEngine(scripted.ports.control_url, model=MODEL) as engine:
        await until(lambda: is_ready(engine))
        yield engine
        await script(scripted, {"faults": {}})
        await engine.resume(RELEASE, deadline=soon())


async def script(process: Process, change: dict[str, object]) -> None:
    url = f"{process.ports.control_url}/script"
    async with aiohttp.ClientSession() as session, session.post(url, json=change) as response:
        assert response.status == 200


Call = Callable[[VllmEngine, Deadline], Awaitable[object]]
CALLS: dict[str, Call] = {
    "POST /pause": lambda engine, deadline: engine.pause(RELEASE, deadline=deadline),
    "POST /release_kv_cache_memory": lambda engine, deadline: engine.pause(RELEASE, deadline=deadline),
    "POST /resume": lambda engine, deadline: engine.resume(KEEP, deadline=deadline),
    "POST /v1/completions": lambda engine, deadline: engine.complete(PROMPT, tokens=1, deadline=deadline),
    "POST /guard/open": lambda engine, deadline: engine.open_guard(deadline=deadline),
    "POST /guard/close": lambda engine, deadline: engine.close_guard(deadline=deadline),
    "POST /guard/abort": lambda engine, deadline: engine.abort(deadline=deadline),
    "GET /guard": lambda engine, deadline: engine.guard(deadline=deadline),
    "GET /health": lambda engine, deadline: engine.startup(deadline=deadline),
    "GET /metrics": lambda engine, deadline: engine.load(deadline=deadline),
}


@pytest.mark.wall_clock
@pytest.mark.parametrize("route", CALLS)
@pytest.mark.parametrize(("fault", "expected"), [("hang", EngineTimeout), ("refuse", EngineRejected)])
async def test_a_fault_becomes_the_error_that_says_what_to_do(
    faulty: VllmEngine, scripted: Process, route: str, fault: str, expected: type[EngineError]
) -> None:
    await script(scripted, {"faults": {route: {"do": fault}}})
    began = time.monotonic()
    with pytest.raises(expected, match=route):
        await CALLS[route](faulty, soon(0.1 if fault == "hang" else 10))
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("route", "call", "expected"),
    [
        pytest.param("POST /pause", CALLS["POST /pause"], EngineContradicted, id="paused"),
        pytest.param("POST /guard/open", CALLS["POST /guard/open"], EngineUnfit, id="guard opened"),
        pytest.param("POST /v1/completions", CALLS["POST /v1/completions"], EngineUnfit, id="no token ids"),
        pytest.param("GET /is_paused", CALLS["POST /pause"], EngineUnfit, id="no boolean"),
        pytest.param("GET /guard", CALLS["GET /guard"], EngineUnfit, id="no guard's state"),
        pytest.param("GET /metrics", CALLS["GET /metrics"], EngineUnfit, id="no metrics"),
    ],
)
async def test_a_200_is_not_trusted(
    faulty: VllmEngine, scripted: Process, route: str, call: Call, expected: type[EngineError]
) -> None:
    await faulty.close_guard(deadline=soon())
    await script(scripted, {"faults": {route: {"do": "lie"}}})
    with pytest.raises(expected):
        await call(faulty, soon())


async def test_a_resume_that_did_nothing_is_contradicted(faulty: VllmEngine, scripted: Process) -> None:
    await faulty.pause(KEEP, deadline=soon())
    await script(scripted, {"faults": {"POST /resume": {"do": "lie", "times": 1}}})
    with pytest.raises(EngineContradicted) as contradicted:
        await faulty.resume(KEEP, deadline=soon())
    assert contradicted.value.verification.verdict is Verdict.CONTRADICTED
    assert contradicted.value.verification.evidence == ("GET /is_paused: true",)


async def test_kv_memory_of_unknown_state_is_taken_before_it_is_released(
    faulty: VllmEngine, scripted: Process
) -> None:
    await faulty.pause(RELEASE, deadline=soon())
    await script(scripted, {"faults": {"POST /wake_up": {"do": "hang", "times": 1}}})
    with pytest.raises(EngineTimeout):
        await faulty.resume(RELEASE, deadline=soon(0.1))
    await faulty.pause(RELEASE, deadline=soon())
    await faulty.resume(RELEASE, deadline=soon())
    assert len(await faulty.complete(PROMPT, tokens=1, deadline=soon())) == 1


async def test_an_engine_that_dies_during_a_call_is_lost(tmp_path: Path) -> None:
    faults: dict[str, object] = {"faults": {"POST /resume": {"do": "crash"}}}
    with serve(EngineKind.REFERENCE, scripted_command(faults), tmp_path / "log") as process:
        async with VllmEngine(process.ports.control_url, model=MODEL) as engine:
            await until(lambda: is_ready(engine))
            with pytest.raises(EngineLost) as lost:
                await engine.resume(KEEP, deadline=soon())
            assert isinstance(lost.value.__cause__, aiohttp.ClientError)
            with pytest.raises(EngineLost):
                await engine.guard(deadline=soon())


async def test_an_engine_without_a_route_is_unfit(faulty: VllmEngine, scripted: Process) -> None:
    async with VllmEngine(scripted.ports.public_url, model=MODEL) as wrong_listener:
        with pytest.raises(EngineUnfit, match="no such route"):
            await wrong_listener.pause(KEEP, deadline=soon())


async def test_a_real_vllm_without_a_device_is_refused_the_release(real_vllm: Process) -> None:
    async with on_process(real_vllm) as subject:
        await ready(subject)
        found = await subject.engine.probe(RELEASE, deadline=soon(60))
        assert found.finding(Capability.KV_RELEASE).ground is Ground.SWITCHED_OFF
        with pytest.raises(EngineRejected, match="answered 500"):
            await subject.engine.pause(RELEASE, deadline=soon())
        resumed = await subject.engine.resume(RELEASE, deadline=soon())
        assert resumed.verdict is Verdict.VERIFIED


# -------------------------------------------------------------------- helpers


@asynccontextmanager
async def again(subject: Subject) -> AsyncIterator[Subject]:
    """Another adapter for the same server in the test's loop."""
    assert subject.fake is not None
    engine = connect(subject.kind, subject.fake.url, model=MODEL, guard=None)
    yield replace(subject, engine=engine)
    await engine.close()


async def stream(subject: Subject, *, tokens: int, started: asyncio.Event | None = None) -> tuple[int, str]:
    """Send a streaming request through the guard."""
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": tokens, "stream": True}
    body |= {"temperature": 0, "ignore_eos": True}
    url = f"{subject.public_url}/v1/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        text = ""
        async for line in response.content:
            text += line.decode()
            if started is not None:
                started.set()
        return response.status, text


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.001)


async def is_ready(engine: Engine) -> bool:
    with suppress(EngineLost):
        return (await engine.startup(deadline=soon())).ready
    return False


async def is_running(subject: Subject) -> bool:
    return (await subject.engine.load(deadline=soon())).running > 0


async def is_idle(subject: Subject) -> bool:
    return not await is_running(subject)


async def is_drained(subject: Subject) -> bool:
    return (await subject.engine.guard(deadline=soon())).in_flight == 0

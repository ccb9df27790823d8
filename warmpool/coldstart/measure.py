"""Makes one cold start of a reference engine on this machine, and times it: a real process, real weights, a real first request."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from warmpool.agent.processes import EngineProcess, Ports
from warmpool.coldstart.steps import Step, steps_of
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import Startup
from warmpool.engines.reference import ReferenceEngine
from warmpool.errors import EngineLost, EngineTimeout, StartFailed
from warmpool.nodehealth.keeping import kept_open
from warmpool.standins import VARIABLE
from warmpool.timeline import Account, Phase, WeightLoad, in_phases

_HOST: Final = "127.0.0.1"
MODEL: Final = "coldstart"
"""What an engine that is started here calls its model."""
_PROMPT: Final = "The first request of an engine"
_START_SECONDS: Final = 900.0
_REQUEST_SECONDS: Final = 120.0
_ANSWER_SECONDS: Final = 5.0
_ZYGOTE_SECONDS: Final = 120.0
_DEVICE_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 0.005
_GRACE_SECONDS: Final = 5.0
INITIALISE: Final = """
import ctypes, sys, time
try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError:
    sys.exit(3)
began = time.monotonic()
failed = driver.cuInit(0)
print(time.monotonic() - began)
sys.exit(4 if failed else 0)
"""
"""Initialises the driver in a process of its own, which makes no context on any device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is started.

    Attributes:
        checkpoint: the weights.
        device: where it computes, as the engine's own option says it.
        zygote: it is forked from a process that has imported everything.
        directory: where its log and the zygote's socket go.
        options: further ones of the engine.
    """

    checkpoint: Path
    device: str
    zygote: bool
    directory: Path
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was found.

    Attributes:
        seconds: what each step took, of those that could be measured.
        notes: what is to be known of a step.
        gpu: it computed on a GPU.
        weights_bytes: size of its weights.
        load: how they came; None if that wasn't told.
    """

    seconds: Mapping[Step, float]
    notes: Mapping[Step, str] = field(default_factory=lambda: MappingProxyType({}))
    gpu: bool
    weights_bytes: int
    load: WeightLoad | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """An engine that has answered its first request, and runs on.

    Attributes:
        process: its process.
        engine: what answers.
        startup: what it tells of its start.
        measured: what its start took; the driver's initialisation, which is measured apart, isn't among it.
    """

    process: EngineProcess
    engine: ReferenceEngine
    startup: Startup
    measured: Measured


async def measure(setup: Setup) -> Measured:
    """Make a cold start, and end it again.

    Raises:
        StartFailed: the engine can't be started; the message has its last words.
        EngineError: it doesn't answer its first request.
    """
    device_seconds, device_note = await _initialise_device()
    if device_seconds is not None:
        device_note = await _kept_note()
    async with surroundings(setup) as environment, started(setup, environment) as running:
        measured = running.measured
    seconds, notes = dict(measured.seconds), dict(measured.notes)
    if device_seconds is not None:
        seconds[Step.DEVICE] = device_seconds
    if device_note:
        notes[Step.DEVICE] = device_note
    return replace(measured, seconds=seconds, notes=notes)


@asynccontextmanager
async def started(setup: Setup, environment: Mapping[str, str]) -> AsyncIterator[Started]:
    """Start an engine, have it answer one request, and end it when the block ends.

    Args:
        setup: what is started.
        environment: what it is told beside this process's environment, as `surroundings` yields it.

    Raises:
        StartFailed: the engine can't be started; the message has its last words.
        EngineError: it doesn't answer its first request.
    """
    clock = asyncio.get_running_loop().time
    ports = Ports.free(_HOST)
    began = clock()
    account = Account(began)
    account.enter(Phase.OTHER, began)
    process = await EngineProcess.start(_command(setup), environment, ports, setup.directory / "engine.log")
    try:
        async with ReferenceEngine(ports.control_url, model=MODEL) as engine:
            startup = await _ready(engine, process)
            ready = clock()
            account.enter(Phase.WAITING, ready)
            await engine.complete(_PROMPT, tokens=1, deadline=Deadline.after(_REQUEST_SECONDS))
            answered = clock()
            account.explain(in_phases(startup.phases), Phase.PROCESS)
            phases = account.seconds(ready)
            phases.pop(Phase.WAITING, None)
            seconds = steps_of(phases)
            seconds |= {Step.FIRST_REQUEST: answered - ready, Step.TOTAL: answered - began}
            measured = _measured(setup, startup, seconds)
            yield Started(process=process, engine=engine, startup=startup, measured=measured)
    finally:
        await process.stop(grace_seconds=_GRACE_SECONDS)


def _measured(setup: Setup, startup: Startup, seconds: Mapping[Step, float]) -> Measured:
    load = startup.load
    notes = {} if load is None or not load.tier else {Step.WEIGHTS: f"from {load.tier}"}
    if setup.zygote and seconds[Step.IMPORT] > 0.0:
        notes[Step.IMPORT] = "the zygote gave no fork"
    return Measured(
        seconds=seconds,
        notes=notes,
        gpu=startup.device.startswith("cuda"),
        weights_bytes=startup.weights_bytes or 0,
        load=load,
    )


def _command(setup: Setup) -> list[str]:
    command = [sys.executable, "-m", "warmpool.reference", "serve", "--model", MODEL]
    command += ["--checkpoint", str(setup.checkpoint), "--device", setup.device]
    command += ["--host", "{host}", "--port", "{port}", "--control-port", "{controlPort}"]
    return [*command, "--guard", "closed", "--die-with-parent", *setup.options]


async def _ready(engine: ReferenceEngine, process: EngineProcess) -> Startup:
    """Wait until it is ready, and return what it tells of its start.

    Raises:
        StartFailed: it has ended, or isn't ready in time.
    """
    deadline = Deadline.after(_START_SECONDS)
    while deadline.left_seconds > 0:
        if process.exited:
            raise StartFailed(await process.wait())
        with suppress(EngineLost, EngineTimeout):
            startup = await engine.startup(deadline=deadline.at_most(_ANSWER_SECONDS))
            if startup.ready:
                return startup
        await asyncio.sleep(_LOOK_SECONDS)
    raise StartFailed(f"the engine isn't ready within {_START_SECONDS:.0f} s")


@asynccontextmanager
async def surroundings(setup: Setup) -> AsyncIterator[Mapping[str, str]]:
    """Yield what the engine is told beside this process's environment; a zygote that is ready is part of it."""
    if not setup.zygote:
        yield {VARIABLE: ""}
        return
    socket = setup.directory / "zygote.sock"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "warmpool.reference", "zygote", "--socket", str(socket), "--die-with-parent"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=dict(os.environ),
        start_new_session=True,
    )
    try:
        await _imported(process)
        yield {VARIABLE: str(socket)}
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _imported(zygote: asyncio.subprocess.Process) -> None:
    """Wait until a zygote has imported everything: only then is a start cold and nothing else.

    Raises:
        StartFailed: it has ended, or isn't ready in time.
    """
    assert zygote.stderr is not None
    said = ""
    with suppress(TimeoutError):
        async with asyncio.timeout(_ZYGOTE_SECONDS):
            while line := (await zygote.stderr.readline()).decode(errors="replace"):
                said = line.strip() or said
                if '"zygote": "ready"' in line:
                    return
    raise StartFailed(f"the zygote isn't ready: {said or 'it said nothing'}")


async def _kept_note() -> str:
    """Say how long a new process needs while GPUs are kept initialised, and how long when this process has let go of them again."""
    with kept_open() as files:
        if not files:
            return "no device file may be opened here, so nobody can keep the GPUs initialised"
        kept, _ = await _initialise_device()
    again, _ = await _initialise_device()
    if kept is None or again is None:
        return ""
    return f"{kept:.3f} s while device files are held open, {again:.3f} s once they are closed again"


async def _initialise_device() -> tuple[float | None, str]:
    """Return how long a new process needs to initialise the driver; None and why if there is nothing to be initialised."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", INITIALISE),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_DEVICE_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        return None, f"the driver doesn't answer within {_DEVICE_SECONDS:.0f} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    match process.returncode:
        case 0:
            return float(output), ""
        case 3:
            return None, "there is no CUDA driver"
        case _:
            return None, "the driver can't be initialised: no GPU is to be seen"

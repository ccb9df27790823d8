"""What a node agent takes of its node: one runs as a process of its own, alone at first and then asked as agents ask it.

    python -m warmpool.nodehealth.bench.agent                   over this machine's driver
    python -m warmpool.nodehealth.bench.agent --library MODULE  over a module that has nvidia-ml-py's functions

Before that all GPUs are probed as a node agent does it, one probe after the other, and each call of the driver is timed. Half the time nobody asks. Then each seat's agent asks after its GPU's health once a second and after its memory twice a minute, two
controllers are told, and Prometheus reads the page every 15 s. What it takes is the process's own processor time and resident memory.
"""

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil
from aiohttp import web

from warmpool.engines.deadline import Deadline
from warmpool.nodehealth.app import NodeAgentOptions, run
from warmpool.nodehealth.client import UNIX, NodeAgent, NoMemory
from warmpool.nodehealth.metrics import NodeMetrics
from warmpool.nodehealth.nvml import DriverNvml
from warmpool.nodehealth.probe import HealthProbe
from warmpool.nodehealth.proc_files import ProcFiles
from warmpool.nodehealth.reader import DriverState, Limits, Reader
from warmpool.nodehealth.readings import Contact
from warmpool.nodehealth.telling import PATH, Telling

CORE_PERCENT: Final = 1.0
"""What it may take of one core."""
RESIDENT_MB: Final = 80.0
"""What it may hold of host memory, in MB."""
PROBE_SECONDS: Final = 0.05
"""What 99 of 100 probes of all GPUs may take at most."""
BINDING: Final = "pynvml"
"""nvidia-ml-py's module."""
_SHOWN_CALLS: Final = 8
_MB: Final = 1e6
_WARM_SECONDS: Final = 5.0
_START_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 1.0
_HEALTH_SECONDS: Final = 1.0
_MEMORY_SECONDS: Final = 30.0
_SCRAPE_SECONDS: Final = 15.0
_ANSWER_SECONDS: Final = 1.0
_CONTROLLERS: Final = 2
_TOKEN: Final = "bench"  # noqa: S105 - of a controller that is none
_SOCKET: Final = "node.sock"


@dataclass
class Phase:
    """What was measured over some time.

    Attributes:
        name: what went on.
        seconds: for how long.
        processor: processor seconds that it took.
        resident: resident memory at each look, in bytes.
        answers: seconds until each answer after health.
        unanswered: questions without an answer.
    """

    name: str
    seconds: float = 0.0
    processor: float = 0.0
    resident: list[int] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    unanswered: int = 0

    @property
    def core_percent(self) -> float:
        """The share of one core that it took."""
        return 100 * self.processor / self.seconds

    @property
    def resident_mb(self) -> float:
        """The most that it held, in MB."""
        return max(self.resident) / _MB

    @property
    def keeps_within(self) -> bool:
        """Whether both are within what it may take."""
        return self.core_percent <= CORE_PERCENT and self.resident_mb <= RESIDENT_MB


@dataclass
class Probes:
    """What probing all GPUs took.

    Attributes:
        gpus: how many there are.
        seconds: what each probe took: memory, processes and health of all of them.
        calls: what each call of the driver took, in seconds by function.
        silent: GPUs that did not answer, over all probes.
    """

    gpus: int = 0
    seconds: list[float] = field(default_factory=list)
    calls: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    silent: int = 0

    @property
    def keeps_within(self) -> bool:
        """Whether they took what they may, and all were answered."""
        return not self.silent and _percentile(self.seconds, 99) <= PROBE_SECONDS


class TimedLibrary:
    """A library like nvidia-ml-py, each of whose calls is timed.

    Args:
        library: the module.
        calls: takes the seconds, by function.
    """

    def __init__(self, library: Any, calls: dict[str, list[float]]) -> None:  # noqa: ANN401 - a module without types
        self._library = library
        self._calls = calls

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the module has
        """Return what the module has of this name."""
        found = getattr(self._library, name)
        is_call = name.startswith(("nvmlDevice", "nvmlInit", "nvmlEvent")) and callable(found)
        return partial(self._timed, name, found) if is_call else found

    def _timed(self, name: str, function: Callable[..., Any], *arguments: object, **named: object) -> Any:  # noqa: ANN401 - its own
        began = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            self._calls[name].append(time.perf_counter() - began)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the tables; the exit status is 0 where it keeps within what it may take, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m warmpool.nodehealth.bench.agent", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("--seconds", type=float, default=240.0, help="how long, both halves (default: 240)")
    parser.add_argument("--seats", type=int, default=8, help="agents that ask (default: 8)")
    parser.add_argument("--probes", type=int, default=200, help="probes that are timed (default: 200)")
    parser.add_argument("--library", default=BINDING, metavar="MODULE", help="in place of nvidia-ml-py")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--told", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child is not None:
        _be_the_agent(options.child, options.library, options.told)
        return 0
    probes = asyncio.run(_probed(options.library, options.probes))
    sys.stdout.write(probe_table(probes) + "\n")
    sys.stdout.flush()
    phases = asyncio.run(_measured(options.seconds, options.seats, options.library))
    sys.stdout.write(table(phases))
    return 0 if probes.keeps_within and all(phase.keeps_within for phase in phases) else 1


def _be_the_agent(directory: Path, library: str, told: str) -> None:
    telling = Telling(node="bench", controllers=tuple(told.split(",")), token=_TOKEN)
    run(
        NodeAgentOptions(socket=directory / _SOCKET, latches=directory / "gpu-health.json", telling=telling),
        DriverNvml(import_module(library)),
    )


# ---------------------------------------------------------------------- probing


async def _probed(library: str, count: int) -> Probes:
    """Probe all GPUs so many times."""
    found = Probes()
    nvml = DriverNvml(TimedLibrary(import_module(library), found.calls))
    reader = Reader(nvml, ProcFiles(), NodeMetrics(), Limits())
    probe = HealthProbe(nvml, reader, lambda _: None, "")
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(reader.run())
        async with asyncio.timeout(_START_SECONDS):
            await reader.settled.wait()
        if reader.state is not DriverState.OPEN or reader.without_gpu:
            raise SystemExit(f"error: there is no GPU to probe: {reader.reason or 'NVML lists none'}")
        for _ in range(count):
            began = time.perf_counter()
            read = await probe.read(time.time())
            found.seconds.append(time.perf_counter() - began)
            found.gpus = len(read.gpus)
            found.silent += sum(gpu.contact is not Contact.ANSWERS for gpu in read.gpus.values())
        reading.cancel()
    nvml.stop()
    return found


# ---------------------------------------------------------------------- measuring


async def _measured(seconds: float, seats: int, library: str) -> list[Phase]:
    with tempfile.TemporaryDirectory(prefix="emberpool-bench-") as made:
        directory = Path(made)
        async with _controllers() as urls, _agent(directory, library, urls) as (process, gpus):
            await asyncio.sleep(_WARM_SECONDS)
            alone = Phase("nobody asks")
            await _watch(process, alone, seconds / 2)
            asked = Phase(f"{seats} seats ask, Prometheus reads")
            async with asyncio.TaskGroup() as tasks:
                asking = [
                    tasks.create_task(_ask(directory, gpu, asked))
                    for gpu in itertools.islice(itertools.cycle(gpus), seats)
                ]
                asking.append(tasks.create_task(_scrape(directory)))
                await _watch(process, asked, seconds / 2)
                for each in asking:
                    each.cancel()
            return [alone, asked]


async def _watch(process: psutil.Process, phase: Phase, seconds: float) -> None:
    loop, before = asyncio.get_running_loop(), process.cpu_times()
    began = loop.time()
    while loop.time() - began < seconds:
        await asyncio.sleep(_LOOK_SECONDS)
        phase.resident.append(process.memory_info().rss)
    after = process.cpu_times()
    phase.seconds = loop.time() - began
    phase.processor = after.user + after.system - before.user - before.system


@asynccontextmanager
async def _agent(
    directory: Path, library: str, urls: Sequence[str]
) -> AsyncIterator[tuple[psutil.Process, Sequence[str]]]:
    """Run a node agent; yield its process and its GPUs' UUIDs, once it has read them."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "warmpool.nodehealth.bench.agent", "--child", str(directory)),
        *("--told", ",".join(urls), "--library", library),
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_START_SECONDS):
            gpus = await _gpus(directory, child)
        yield psutil.Process(child.pid), gpus
    finally:
        if child.returncode is None:
            child.terminate()
        await child.wait()


async def _gpus(directory: Path, child: asyncio.subprocess.Process) -> Sequence[str]:
    async with _session(directory) as session:
        while child.returncode is None:
            try:
                async with session.get("http://node/healthz") as answer:
                    found = await answer.json()
                    if found["gpus"]:
                        return [str(uuid) for uuid in found["gpus"]]
            except aiohttp.ClientConnectionError:  # it doesn't listen yet
                pass
            await asyncio.sleep(0.1)
    raise SystemExit(f"the node agent ended with status {child.returncode}")


def _session(directory: Path) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(directory / _SOCKET)))


# ---------------------------------------------------------------------- who asks, and who is told


async def _ask(directory: Path, gpu: str, phase: Phase) -> None:
    """Ask as an agent does, until cancelled."""
    client, loop = (
        NodeAgent(f"{UNIX}{directory / _SOCKET}", NoMemory("there is none")),
        asyncio.get_running_loop(),
    )
    try:
        for number in itertools.count():
            began = loop.time()
            health = await client.health([gpu], deadline=Deadline.after(_ANSWER_SECONDS))
            phase.answers.append(loop.time() - began)
            phase.unanswered += not health.known
            if number % round(_MEMORY_SECONDS / _HEALTH_SECONDS) == 0:
                await client.read([gpu], deadline=Deadline.after(_ANSWER_SECONDS))
            await asyncio.sleep(_HEALTH_SECONDS)
    finally:
        await client.close()


async def _scrape(directory: Path) -> None:
    async with _session(directory) as session:
        while True:
            async with session.get("http://node/metrics") as page:
                await page.read()
            await asyncio.sleep(_SCRAPE_SECONDS)


@asynccontextmanager
async def _controllers() -> AsyncIterator[Sequence[str]]:
    """Listen as controllers do, and take what is told."""

    async def take(request: web.Request) -> web.Response:
        asks = "asks" in await request.json()
        return web.json_response({"kept": ""}) if asks else web.Response(status=204)

    runners = []
    try:
        for _ in range(_CONTROLLERS):
            app = web.Application()
            app.router.add_post(PATH, take)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            runners.append(runner)
        yield [f"http://127.0.0.1:{runner.addresses[0][1]}" for runner in runners]
    finally:
        for runner in runners:
            await runner.cleanup()


# ---------------------------------------------------------------------- the table


def table(phases: Sequence[Phase]) -> str:
    """Return what was measured, as a table in Markdown."""
    lines = [
        f"A node agent on {os.cpu_count()} cores; it may take {CORE_PERCENT:g} % of one core and {RESIDENT_MB:g} MB.",
        "",
        "| | seconds | of one core | resident, at most | answers after health | p50 / p99 | without |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {phase.name} | {phase.seconds:.0f} | {phase.core_percent:.2f} % | {phase.resident_mb:.1f} MB | "
        f"{len(phase.answers) or '–'} | {_spans(phase.answers)} | {phase.unanswered or '–'} |"
        for phase in phases
    ]
    return "\n".join(lines) + "\n"


def probe_table(probes: Probes) -> str:
    """Return what probing took, as tables in Markdown: the probes, and the driver's slowest functions."""
    seconds = probes.seconds
    calls = sum(map(len, probes.calls.values())) / max(1, len(seconds))
    longest = max(seconds, default=0.0) * 1000
    lines = [
        f"{len(seconds)} probes of {probes.gpus} GPUs; 99 of 100 may take {PROBE_SECONDS * 1000:g} ms at most.",
        "",
        "| probes | p50 / p99 | longest | calls of the driver in each | GPUs that did not answer |",
        "|---|---|---|---|---|",
        f"| {len(seconds)} | {_spans(seconds)} | {longest:.1f} ms | {calls:.0f} | {probes.silent or '–'} |",
        "",
        "| calls that took the most of it | made | of a probe | p50 / p99 | longest |",
        "|---|---|---|---|---|",
    ]
    most = sorted(probes.calls.items(), key=lambda each: -sum(each[1]))
    lines += [
        f"| {name} | {len(each)} | {sum(each) / max(1, len(seconds)) * 1000:.2f} ms | {_spans(each, 2)} | "
        f"{max(each) * 1000:.2f} ms |"
        for name, each in most[:_SHOWN_CALLS]
    ]
    return "\n".join(lines) + "\n"


def _spans(seconds: Sequence[float], digits: int = 1) -> str:
    if len(seconds) < 2:  # noqa: PLR2004 - no distribution
        return "–"
    return " / ".join(f"{_percentile(seconds, each) * 1000:.{digits}f}" for each in (50, 99)) + " ms"


def _percentile(seconds: Sequence[float], percent: int) -> float:
    if len(seconds) < 2:  # noqa: PLR2004 - no distribution
        return max(seconds, default=0.0)
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1]


if __name__ == "__main__":
    sys.exit(main())

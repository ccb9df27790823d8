"""What reading many engines costs, how often each is read, and how late: the source itself against a real HTTP server.

    python -m scaler.signals.bench.scrape --engines 200 --interval 250
    python -m scaler.signals.bench.scrape --engines 1000 --interval 1000
    python -m scaler.signals.bench.scrape --engines 200 --names

All engines are one server process with an address each, so that each has a connection of its own; it answers every request
with the page that is given. With `--names` it answers with the wanted names alone, as servers do that know them. Processor
seconds are those of this process alone, the parsing and the telling of readings included; the delay of a reading is what it
began late and took, and the age is that of the oldest page in each sum that was told. With fewer free cores than two the
delays include waiting for one.
"""

import argparse
import asyncio
import logging
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from aiohttp import web

from scaler.signals.engine_metrics import EngineMetricsSource, EngineScrapes
from scaler.signals.engine_page import read_page
from scaler.signals.engine_targets import EngineTarget
from scaler.signals.port import Part, SignalKey
from scaler.signals.scrape_pace import ScrapePace
from warmpool.seats import PolicyName

_PAGE = Path(__file__).parents[3] / "tests" / "data" / "engine-pages" / "vllm-0.32-under-load.txt"
_OBJECTIVE_SECONDS = 1.0
_SETTLED_SECONDS = 3.0
"""Connections are opened, and the stretch is found, before measuring begins."""


def _address(number: int) -> str:
    """Return an address of the loopback network for an engine."""
    return f"127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"


async def _serve(whole: bytes, engines: int, *, names: bool) -> None:
    """Serve a page at every engine's address, until our input is closed."""
    wanted = read_page(whole).dialect.names
    few = b"".join(line for line in whole.splitlines(keepends=True) if line.startswith(wanted))

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=few if names and request.query_string else whole)

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    port = 0
    for number in range(engines):
        await web.TCPSite(runner, _address(number), port).start()
        port = port or runner.addresses[0][1]
    print(port, flush=True)  # noqa: T201 - the parent reads it
    await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def _process(options: argparse.Namespace) -> AsyncIterator[int]:
    """Run the engines as a process; yield their port."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "scaler.signals.bench.scrape", "--serve"),
        *("--page", str(options.page), "--engines", str(options.engines)),
        *(("--names",) if options.names else ()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            port = int(await process.stdout.readline())
        yield port
    finally:
        process.stdin.close()
        await process.wait()


@dataclass(slots=True)
class _Tally:
    """A sink that counts."""

    told: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    ages: list[float] = field(default_factory=list)

    def observed(self, key: SignalKey, parts: Mapping[Part, float], at: float, lacking: str = "") -> None:
        del key, parts, lacking
        self.told += 1
        self.ages.append(asyncio.get_running_loop().time() - at)

    def failed(self, key: SignalKey, why: str) -> None:
        del key
        self.failures[why] = self.failures.get(why, 0) + 1


class _Pace(ScrapePace):
    """Counts readings as they begin, on top of what a pace does."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[float] = []

    def began(self, late: float, interval: float) -> None:
        self.late.append(late)
        super().began(late, interval)


def _targets(engines: int, policies: int, port: int) -> dict[PolicyName, list[EngineTarget]]:
    """Return engines, each with an address of its own, dealt out to policies."""
    dealt: dict[PolicyName, list[EngineTarget]] = {}
    for number in range(engines):
        place = f"http://{_address(number)}:{port}"
        policy = PolicyName(f"model-{number % policies:03d}")
        dealt.setdefault(policy, []).append(EngineTarget(f"uid-{number}", place, f"seat-{number:04d}"))
    return dealt


@contextmanager
def _measured() -> Iterator[list[float]]:
    """Measure a block: [wall seconds, processor seconds of this thread]."""
    figures: list[float] = []
    begun, ran = time.monotonic(), time.thread_time()
    yield figures
    figures += [time.monotonic() - begun, time.thread_time() - ran]


def _percentiles(values: list[float]) -> str:
    cut = statistics.quantiles(values, n=100)
    return " / ".join(f"{cut[percent - 1] * 1000:.1f}" for percent in (50, 90, 99))


async def _measure(options: argparse.Namespace) -> None:
    pace, tally = _Pace(), _Tally()
    scrapes = EngineScrapes(interval=options.interval / 1000, timeout=1.0, objective=_OBJECTIVE_SECONDS)
    async with _process(options) as port, asyncio.TaskGroup() as group:
        targets = _targets(options.engines, options.policies, port)
        sources = [
            EngineMetricsSource(SignalKey(policy, "engines"), scrapes, targets.__getitem__, pace)
            for policy in targets
        ]
        tasks = [group.create_task(source.run(tally)) for source in sources]
        await asyncio.sleep(_SETTLED_SECONDS)
        pace.late.clear()
        tally.told, tally.ages, tally.failures = 0, [], {}
        with _measured() as figures:
            await asyncio.sleep(options.seconds)
        silent = sum(bool(engine.trouble) for source in sources for engine in source.describe().engines)
        _show(options, figures, pace, tally)
        print(f"engines silent at the end  {silent}")  # noqa: T201 - the bench's output
        for task in tasks:
            task.cancel()


def _show(options: argparse.Namespace, figures: list[float], pace: _Pace, tally: _Tally) -> None:
    wall, ran = figures
    rate = len(pace.late) / wall
    asked = options.engines / (options.interval / 1000)
    what = f"{options.engines} engines of {options.policies} policies, each {options.interval} ms"
    lines = [
        f"{what}, {options.page.stat().st_size} bytes a page{', or the wanted names alone' if options.names else ''}",
        f"processor seconds a second {ran / wall:.3f}  ({ran / max(1, len(pace.late)) * 1e6:.0f} µs a reading)",
        f"readings a second          {rate:.0f} of {asked:.0f} asked for ({rate / asked:.1%})",
        f"stretch at the end         {pace.stretch:.2f}",
        f"begun late, p50/p90/p99    {_percentiles(pace.late)} ms",
        f"age of sums, p50/p90/p99   {_percentiles(tally.ages)} ms, {tally.told / wall:.0f} told a second",
        f"failures told              {sum(tally.failures.values())} {next(iter(tally.failures), '')}",
        f"load average               {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, Python {sys.version.split()[0]}",
    ]
    print("\n".join(lines))  # noqa: T201 - the bench's output


def main() -> None:
    """Run one measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engines", type=int, default=200)
    parser.add_argument("--policies", type=int, default=5)
    parser.add_argument("--interval", type=int, default=250, help="milliseconds")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to measure")
    parser.add_argument("--page", type=Path, default=_PAGE)
    parser.add_argument("--names", action="store_true", help="the engines can be asked for names")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(_serve(options.page.read_bytes(), options.engines, names=options.names))
    else:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
        asyncio.run(_measure(options))


if __name__ == "__main__":
    main()

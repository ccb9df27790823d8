"""What the gateway adds to a stream's first token, beside nginx and a bare pass-through, in one run.

    python -m scaler.gateway.bench --rounds 5

Every proxy has one core to itself, the engine and the client share the others. In each round all arms are asked in random order,
each at the same rate for the same time; every answer is compared with what the engine gives. After that the gateway holds requests
that nobody answers, and its memory is read. Last, the same streams are measured while others do it harm: idle connections, heads
that trickle in, bodies of 100 MB, and requests that are none. `--record FILE` keeps all figures as JSON.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import statistics
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import aiohttp

from scaler.gateway.bench.abuse import abuse
from scaler.gateway.bench.client import Client, Taken
from scaler.gateway.bench.holding import hold
from scaler.gateway.bench.proxies import (
    Running,
    nginx,
    nginx_started,
    serve_bare,
    serve_engine,
    serve_gateway,
    started,
)

TARGETS_MILLISECONDS: Final = {50: 1.0, 99: 3.0}
"""The most that the first token may be later by than without a proxy, by percentile."""
MOST_TIMES_ABUSED: Final = 2.0
"""By how much the p99 of a stream's first token may grow while others do harm."""
MOST_HELD_MIB: Final = 150.0
"""The most memory that the gateway may have while it holds 5,000 requests."""
_DIRECT, _GATEWAY, _BARE, _NGINX = "direct", "gateway", "aiohttp", "nginx"
_PERCENTILES: Final = (50, 90, 99)


async def _run(arguments: argparse.Namespace, record: dict[str, Any]) -> bool:
    cores = sorted(os.sched_getaffinity(0))
    proxy_core, other_cores = cores[:1], cores[1:] or cores
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        engine = await stack.enter_async_context(started(other_cores, "engine"))
        os.sched_setaffinity(0, other_cores)
        arms: dict[str, Running] = {_DIRECT: engine}
        for name, role in ((_GATEWAY, "gateway"), (_BARE, "bare")):
            arms[name] = await stack.enter_async_context(
                started(proxy_core, role, "--engine", str(engine.port))
            )
        if binary := nginx():
            made = nginx_started(binary, engine.port, proxy_core, directory)
            arms[_NGINX] = await stack.enter_async_context(made)
        record |= {
            "python": platform.python_version(),
            "aiohttp": aiohttp.__version__,
            "cores": len(cores),
            "loadAverage": round(os.getloadavg()[0], 1),
            "streamsPerSecond": arguments.rate,
            "tokens": arguments.tokens,
        }
        _say(
            f"{len(cores)} cores, load average {os.getloadavg()[0]:.1f}; {arguments.rate:g} streams/s of "
            f"{arguments.tokens} tokens, {arguments.rounds} rounds of {arguments.seconds:g} s each"
        )
        taken, cpu = await _measure(arms, arguments)
    record["arms"] = {name: _figures(seen, cpu[name]) for name, seen in taken.items()}
    met = _show(taken, cpu)
    async with started(proxy_core, "gateway", "--engine", "0") as gateway:
        held = await hold(gateway, arguments.held)
    _say(
        f"{arguments.held} held requests: {held.mib:.0f} MiB, {held.before_mib:.0f} of them without any; "
        f"target {MOST_HELD_MIB:.0f} MiB: {_verdict(held.mib <= MOST_HELD_MIB)}"
    )
    record["held"] = {"requests": arguments.held, "mib": held.mib, "mibWithoutAny": held.before_mib}
    met = met and held.mib <= MOST_HELD_MIB
    if arguments.abuse:
        async with started(other_cores, "engine") as engine:
            met = await _abused(engine, proxy_core, other_cores, arguments, record) and met
    record["met"] = met
    return met


async def _abused(
    engine: Running,
    proxy_core: list[int],
    other_cores: list[int],
    arguments: argparse.Namespace,
    record: dict[str, Any],
) -> bool:
    chance, seconds = random.Random(2), arguments.seconds * arguments.rounds / 2
    async with started(proxy_core, "gateway", "--engine", str(engine.port)) as gateway:
        client = Client("127.0.0.1", gateway.port, arguments.tokens)
        await client.run(arguments.rate, arguments.seconds, chance)
        alone = await client.run(arguments.rate / 2, seconds, chance)
        async with started(other_cores, "abuse", "--engine", str(gateway.port)):
            beside = await client.run(arguments.rate / 2, seconds, chance)
        client.close()
    before, after = _quantile(alone.first, 99), _quantile(beside.first, 99)
    met = after <= MOST_TIMES_ABUSED * before and not beside.wrong
    record["abused"] = {"p99Ms": before, "p99MsBesideAbuse": after, "wrong": beside.wrong}
    _say(
        f"gateway, {arguments.rate / 2:g} streams/s: first token p99 {before:.2f} ms, and {after:.2f} ms beside abuse "
        f"({beside.wrong} wrong); target {MOST_TIMES_ABUSED:g} times: {_verdict(met)}"
    )
    return met


async def _measure(
    arms: dict[str, Running], arguments: argparse.Namespace
) -> tuple[dict[str, Taken], dict[str, float]]:
    """Return what each arm's client saw, and the CPU seconds of each arm's process per stream."""
    chance = random.Random(1)
    names = list(arms)
    clients = {name: Client("127.0.0.1", arm.port, arguments.tokens) for name, arm in arms.items()}
    taken = {name: Taken() for name in names}
    cpu, asked = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
    for number in range(arguments.rounds + 1):  # the first warms up
        chance.shuffle(names)
        for name in names:
            before = arms[name].cpu_seconds
            seen = await clients[name].run(arguments.rate, arguments.seconds, chance)
            if number:
                cpu[name] += arms[name].cpu_seconds - before
                asked[name] += round(arguments.rate * arguments.seconds)
                taken[name].first += seen.first
                taken[name].whole += seen.whole
                taken[name].wrong += seen.wrong
    for client in clients.values():
        client.close()
    return taken, {name: cpu[name] / max(1, asked[name]) for name in names}


def _figures(seen: Taken, cpu_seconds: float) -> dict[str, Any]:
    return {
        "streams": len(seen.first),
        "wrong": seen.wrong,
        "cpuMsPerStream": 1000 * cpu_seconds,
        "firstTokenMs": {f"p{percent}": _quantile(seen.first, percent) for percent in _PERCENTILES},
        "wholeAnswerMs": {f"p{percent}": _quantile(seen.whole, percent) for percent in _PERCENTILES},
    }


def _show(taken: dict[str, Taken], cpu: dict[str, float]) -> bool:
    direct, met = taken[_DIRECT], True
    for name, seen in taken.items():
        for what, values, bare in (
            ("first token", seen.first, direct.first),
            ("whole answer", seen.whole, direct.whole),
        ):
            cells = "  ".join(
                f"p{percent} {_quantile(values, percent):7.2f} ({_quantile(values, percent) - _quantile(bare, percent):+6.2f})"
                for percent in _PERCENTILES
            )
            _say(f"{name:9} {what:13} {cells} ms")
        _say(
            f"{name:9} {len(seen.first)} streams, {seen.wrong} wrong, {1000 * cpu[name]:.2f} ms of CPU a stream"
        )
        met = met and not seen.wrong
    for percent, target in TARGETS_MILLISECONDS.items():
        added = _quantile(taken[_GATEWAY].first, percent) - _quantile(direct.first, percent)
        met = met and added <= target
        _say(
            f"gateway: first token later by {added:.2f} ms at p{percent}; target {target} ms: {_verdict(added <= target)}"
        )
    return met


def _verdict(met: bool) -> str:  # noqa: FBT001
    return "met" if met else "missed"


def _quantile(values: list[float], percent: int) -> float:
    return 1000 * statistics.quantiles(values, n=100)[percent - 1]


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def main() -> None:
    """Run the bench, or one of its processes. Exits with 1 if a target is missed."""
    parser = argparse.ArgumentParser(description="What the gateway adds to a stream.")
    parser.add_argument(
        "role", nargs="?", choices=["measure", "engine", "gateway", "bare", "abuse"], default="measure"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each arm in each round")
    parser.add_argument("--rate", type=float, default=200.0, help="streams a second")
    parser.add_argument("--tokens", type=int, default=16, help="tokens of a stream")
    parser.add_argument("--held", type=int, default=5000, help="requests that are held at once")
    parser.add_argument("--abuse", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--record", type=Path, metavar="FILE", help="write all figures there, as JSON")
    parser.add_argument(
        "--engine", type=int, default=0, help="port of what is behind, for a process of this bench"
    )
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    match arguments.role:
        case "engine":
            asyncio.run(serve_engine())
        case "gateway":
            asyncio.run(serve_gateway(arguments.engine))
        case "bare":
            asyncio.run(serve_bare(arguments.engine))
        case "abuse":
            asyncio.run(abuse(arguments.engine))
        case _:
            record: dict[str, Any] = {}
            met = asyncio.run(_run(arguments, record))
            if arguments.record is not None:
                arguments.record.write_text(json.dumps(record, indent=2) + "\n", "utf-8")
            sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()

"""Probes and hooks of containers: what asks whether they have started, live and are ready."""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.fakes.kubelet.processes import REAP_SECONDS

Object = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Asking:
    """How a container is asked.

    Attributes:
        ip: the pod's address.
        ports: the container's ports by name.
        run: runs a command in the container and returns its status.
        reach: what stands in front of a command that runs in the pod's network.
    """

    ip: str
    ports: Mapping[str, int]
    run: Callable[[Sequence[str]], Any]

    def port(self, told: int | str) -> int:
        return self.ports[told] if told in self.ports else int(told)  # type: ignore[index]


async def once(action: Object, asking: Asking, seconds: float) -> bool:
    """Carry out a probe's or a hook's action, and say whether it succeeded."""
    try:
        async with asyncio.timeout(seconds):
            return await _act(action, asking)
    except (TimeoutError, OSError, aiohttp.ClientError):
        return False


async def _act(action: Object, asking: Asking) -> bool:
    if command := action.get("exec"):
        return bool(await asking.run(command["command"]) == 0)
    if sleep := action.get("sleep"):
        await asyncio.sleep(sleep["seconds"])
        return True
    if get := action.get("httpGet"):
        scheme, host = get.get("scheme", "HTTP").lower(), get.get("host") or asking.ip
        url = f"{scheme}://{host}:{asking.port(get['port'])}{get.get('path', '/')}"
        headers = {each["name"]: each["value"] for each in get.get("httpHeaders") or ()}
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, headers=headers, ssl=False, allow_redirects=False) as response,
        ):
            return 200 <= response.status < 400
    socket = action["tcpSocket"]
    _, writer = await asyncio.open_connection(socket.get("host") or asking.ip, asking.port(socket["port"]))
    writer.close()
    return True


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """A probe's numbers, with the defaults that Kubernetes documents, in seconds."""

    delay: float = 0.0
    period: float = 10.0
    timeout: float = 1.0
    failures: int = 3
    successes: int = 1

    @classmethod
    def of(cls, probe: Object) -> "Thresholds":
        return cls(
            delay=probe.get("initialDelaySeconds", 0),
            period=probe.get("periodSeconds", 10),
            timeout=probe.get("timeoutSeconds", 1),
            failures=probe.get("failureThreshold", 3),
            successes=probe.get("successThreshold", 1),
        )


async def follow(probe: Object, asking: Asking, tell: Callable[[bool], bool]) -> None:
    """Probe again and again; `tell` hears each verdict that has reached its threshold, and says whether to go on."""
    numbers = Thresholds.of(probe)
    await asyncio.sleep(numbers.delay)
    last, row = None, 0
    while True:
        good = await once(probe, asking, numbers.timeout)
        row = row + 1 if good == last else 1
        last = good
        enough = numbers.successes if good else numbers.failures
        if row >= enough and not tell(good):
            return
        await asyncio.sleep(numbers.period)


async def run_command(words: Sequence[str], environment: Mapping[str, str], directory: str) -> int:
    """Run a command to its end; a cancelled one is killed, and waited for: a loop that ends before its children leaves them behind."""
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=dict(environment),
        cwd=directory,
        start_new_session=True,
    )
    try:
        return await process.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.returncode is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(REAP_SECONDS):
                    await process.wait()

"""Controller, gateway and agents as the separate processes that they are elsewhere, with scripted engines."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import psutil

from tests.fakes import forked
from tests.fakes.forked import AwaitedFork
from tests.fakes.ports import free_ports
from tests.integration.agent.conftest import agent_config, resident

TOKEN = "secret"
EMBERPOOL = (sys.executable, "-m", "scaler")
WAIT_SECONDS = 40.0
POLICIES = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares}
spec:
  maxSeats: 2
  seat: {gpus: 0}
  spare: {mode: Fixed, min: 1}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec:
  fleets: [{name: spares, targetInFlight: 4}]
  serving: {min: 1, max: 2, queueDrainSeconds: 1}
  burst: {thresholdPercent: 150, windowSeconds: 2, stableWindowSeconds: 60, demoteAfterSeconds: 30}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: code}
spec:
  fleets: [{name: spares, targetInFlight: 4}]
  serving: {min: 0, max: 1}
"""
Json = dict[str, Any]


def silent_agents(seats: int) -> str:
    """Return a list of agents at whose addresses nobody answers."""
    listed = ", ".join(f'{{name: seat-{i}, agent: "http://127.0.0.1:{9 + i}"}}' for i in range(seats))
    return (
        "apiVersion: emberpool.dev/v1alpha1\nkind: AgentList\nmetadata: {name: test}\n"
        f"spec: {{fleets: [{{name: spares, seats: [{listed}]}}]}}\n"
    )


def events_in(state: Path, kind: str) -> list[Json]:
    """What has been written so far of a kind; the thread that writes may be behind what everybody knows."""
    text = (state / "events.jsonl").read_text("utf-8")
    events = (json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines())
    return [event for event in events if event["kind"] == kind]


async def recorded_in(state: Path, kind: str, count: int = 1, **facts: object) -> list[Json]:
    """Wait until so many events with these facts have been written."""

    def found() -> list[Json]:
        return [each for each in events_in(state, kind) if facts.items() <= each.items()]

    async with asyncio.timeout(WAIT_SECONDS):
        while len(events := found()) < count:
            await asyncio.sleep(0.05)
    return events


class Processes:
    """Children with logs; whatever they leave is killed at the end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, asyncio.subprocess.Process | AwaitedFork] = {}
        self._family: dict[int, psutil.Process] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._look()
        for process in self._running.values():
            if process.returncode is None:
                process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(20):
                for process in self._running.values():
                    await process.wait()
        for process in self._family.values():
            with contextlib.suppress(psutil.Error):
                process.kill()
        for process in self._running.values():
            await process.wait()

    async def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        variables = {**os.environ, **environment}
        with (self._directory / f"{name}.log").open("ab") as log:
            if tuple(command[:3]) == EMBERPOOL:
                self._running[name] = await forked.start(command[3:], variables, log.fileno())
                return
            self._running[name] = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=variables,
            )

    async def emberpool(self, name: str, *arguments: str) -> None:
        await self.start(name, [*EMBERPOOL, *arguments], {"EMBERPOOL_AGENT_TOKEN": TOKEN})

    async def kill(self, name: str) -> None:
        """SIGKILL, as the kernel does it when memory is short: no last words."""
        self._look()
        self._running[name].kill()
        await self._running[name].wait()

    async def end(self, name: str, seconds: float = 40) -> int:
        """SIGTERM; return the exit code."""
        self._look()
        self._running[name].send_signal(signal.SIGTERM)
        async with asyncio.timeout(seconds):
            return await self._running[name].wait()

    async def wait(self, name: str, seconds: float = 110) -> int:
        """Wait for the end of one that ends by itself; return the exit code."""
        async with asyncio.timeout(seconds):
            return await self._running[name].wait()

    def signal(self, name: str, number: int) -> None:
        self._running[name].send_signal(number)

    def process(self, name: str) -> psutil.Process:
        return psutil.Process(self._running[name].pid)

    def children(self, name: str) -> list[psutil.Process]:
        return self.process(name).children()

    def log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text(encoding="utf-8")

    def _look(self) -> None:
        for process in self._running.values():
            with contextlib.suppress(psutil.Error):
                mine = psutil.Process(process.pid)
                self._family |= {each.pid: each for each in [mine, *mine.children(recursive=True)]}


@dataclass
class Traffic:
    """Requests at a steady rate, whatever becomes of them (an open loop)."""

    statuses: list[tuple[float, int]] = field(default_factory=list)
    open: int = 0

    async def one(self, session: aiohttp.ClientSession, gateway: str, tokens: int) -> None:
        body = {"model": "chat", "prompt": f"{time.time()}", "max_tokens": tokens}
        began, status = time.monotonic(), 0
        self.open += 1
        try:
            async with session.post(f"{gateway}/v1/completions", json=body) as response:
                await response.read()
                status = response.status
        except (aiohttp.ClientError, OSError, TimeoutError):
            status = -1
        finally:
            self.open -= 1
            self.statuses.append((began, status))

    async def answers(self, count: int) -> None:
        """Wait until so many more requests have been answered well."""
        wanted = self.answered + count
        async with asyncio.timeout(WAIT_SECONDS):
            while self.answered < wanted:
                await asyncio.sleep(0.05)

    @property
    def answered(self) -> int:
        return sum(status == 200 for _, status in self.statuses)

    @property
    def failed(self) -> list[tuple[float, int]]:
        return [each for each in self.statuses if each[1] != 200]


class Rig:
    """Two seats of two residents, one controller, one gateway."""

    def __init__(self, directory: Path, processes: Processes, session: aiohttp.ClientSession) -> None:
        self.directory = directory
        self.processes = processes
        self.session = session
        ports = free_ports(5)
        self.controller, self.gateway = (f"http://127.0.0.1:{port}" for port in ports[:2])
        self.metrics = f"http://127.0.0.1:{ports[2]}"
        self.agents = {f"seat-{i}": f"http://127.0.0.1:{port}" for i, port in enumerate(ports[3:])}

    async def start_agents(self) -> None:
        listed = "".join(f"        - {{name: {name}, agent: '{url}'}}\n" for name, url in self.agents.items())
        (self.directory / "agents.yaml").write_text(
            "apiVersion: emberpool.dev/v1alpha1\nkind: AgentList\nmetadata: {name: test}\n"
            f"spec:\n  fleets:\n    - name: spares\n      seats:\n{listed}",
            "utf-8",
        )
        (self.directory / "policies.yaml").write_text(POLICIES, "utf-8")
        for turn, (name, url) in enumerate(self.agents.items()):
            script = {"tokenSeconds": 0.02}
            residents = [resident("chat", seed=1, script=script), resident("code", seed=2)]
            residents = residents[turn:] + residents[:turn]  # each model is warm somewhere early
            config = agent_config(
                self.directory / name,
                residents,
                seat=name,
                uid=f"uid-{name}",
                port=int(url.rpartition(":")[2]),
                controllers=[self.controller],
            )
            path = self.directory / f"{name}.json"
            path.write_text(json.dumps(config), "utf-8")
            await self.processes.emberpool(name, "agent", "--config", str(path))

    async def start_controller(self) -> None:
        await self.processes.emberpool(
            "controller",
            "controller",
            *("--policy", str(self.directory / "policies.yaml")),
            *("--agents", str(self.directory / "agents.yaml")),
            *("--port", self.controller.rpartition(":")[2], "--state-dir", str(self.directory / "state")),
        )

    async def start_gateway(self, name: str = "gateway") -> None:
        await self.processes.emberpool(
            name,
            "gateway",
            *("--controller", self.controller, "--port", self.gateway.rpartition(":")[2]),
            *("--metrics-port", self.metrics.rpartition(":")[2]),
        )

    # ---- looking

    async def get(self, url: str) -> tuple[int, str]:
        """One GET; status 0 when nobody answers."""
        try:
            async with self.session.get(url, headers={"Authorization": f"Bearer {TOKEN}"}) as response:
                return response.status, await response.text()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0, ""

    async def until(self, what: str, url: str, condition: Callable[[Any], bool]) -> Any:
        """Poll a JSON resource until it fulfils a condition; the deadline names what was waited for."""
        body: Any = None
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            status, text = await self.get(url)
            if status == 200:
                body = json.loads(text)
                if condition(body):
                    return body
            await asyncio.sleep(0.05)
        raise AssertionError(
            f"waited for {what}; last: {body}; controller: {self.processes.log('controller')[-3000:]}"
        )

    async def ready(self) -> None:
        await self.until("a warm fleet", f"{self.controller}/v1/status", lambda body: body["ready"])
        await self.until(
            "the gateway's models", f"{self.gateway}/v1/models", lambda body: len(body["data"]) == 2
        )

    async def serving(self, count: int) -> Json:
        """Wait until so many residents of chat are in rotation; return the seats by name."""
        body = await self.until(
            f"{count} in rotation",
            f"{self.controller}/v1/seats",
            lambda body: sum("chat" in seat["serving"] for seat in body["items"]) == count,
        )
        return {seat["name"]: seat for seat in body["items"]}

    async def seats(self) -> Json:
        body = await self.until("seats", f"{self.controller}/v1/seats", lambda body: bool(body["items"]))
        return {seat["name"]: seat for seat in body["items"]}

    async def epochs(self) -> list[int]:
        return [json.loads((await self.get(f"{url}/v1/state"))[1])["epoch"] for url in self.agents.values()]

    async def pids(self) -> set[int]:
        states = [json.loads((await self.get(f"{url}/v1/state"))[1]) for url in self.agents.values()]
        return {each["pid"] for state in states for each in state["residents"]}

    async def engines_serving(self) -> set[str]:
        """Seats on which chat serves, as their agents say."""
        states = [json.loads((await self.get(f"{url}/v1/state"))[1]) for url in self.agents.values()]
        return {
            s["seat"]
            for s in states
            for r in s["residents"]
            if (r["policy"], r["state"]) == ("chat", "Serving")
        }

    def events(self, kind: str) -> list[Json]:
        return events_in(self.directory / "state", kind)

    async def recorded(self, kind: str, count: int, **facts: object) -> list[Json]:
        """Wait until so many events with these facts are on the controller's record."""
        return await recorded_in(self.directory / "state", kind, count, **facts)

    @contextlib.asynccontextmanager
    async def traffic(self, *, each_seconds: float, tokens: int = 10) -> AsyncIterator[Traffic]:
        """Send requests meanwhile, and wait for the answers to the last ones."""
        traffic = Traffic()
        async with asyncio.TaskGroup() as group:

            async def send() -> None:
                while True:
                    group.create_task(traffic.one(self.session, self.gateway, tokens))
                    await asyncio.sleep(each_seconds)

            sending = group.create_task(send())
            try:
                yield traffic
            finally:
                sending.cancel()


@contextlib.asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Rig]:
    """Start everything and wait until one resident of chat serves and the other seat is spare."""
    timeout = aiohttp.ClientTimeout(total=30)
    async with Processes(directory) as processes, aiohttp.ClientSession(timeout=timeout) as session:
        rig = Rig(directory, processes, session)
        await rig.start_agents()
        await rig.start_controller()
        await rig.start_gateway()
        await rig.ready()
        yield rig

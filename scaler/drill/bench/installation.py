"""Controller, gateway, and for each seat a launcher and an agent, as the separate processes that they are on machines without a cluster.

Whoever dies is started again, as a kubelet or a service manager does: the agent beside engines that live on, the launcher in
place of one whose engines have died with it.
"""

import asyncio
import contextlib
import json
import os
import random
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

import warmpool.launcher
from scaler.drill.bench.layout import document
from scaler.drill.bench.waiting import NotSo, until
from scaler.drill.cpu import ProcessTree
from warmpool.lifeline import child_environment

Json = Mapping[str, Any]
_STOP_SECONDS = 20.0
_ANSWER_SECONDS = 5.0
_HOST = "127.0.0.1"
_PORTS = range(20_000, 32_768)
"""Below Linux's ephemeral ports (net.ipv4.ip_local_port_range, 32768 and up unless somebody has changed it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatPlan:
    """One seat.

    Attributes:
        name: its name; its fleet's, too.
        residents: the agent's configuration of each resident.
        gpus: UUIDs of its GPUs.
        settings: further keys of the agent's configuration.
    """

    name: str
    residents: Sequence[Json]
    gpus: Sequence[str] = ()
    settings: Json = field(default_factory=dict)


@dataclass(slots=True)
class _Part:
    """One process that is kept."""

    command: Sequence[str]
    environment: Mapping[str, str]
    process: asyncio.subprocess.Process | None = None
    tree: ProcessTree | None = None


class Installation:
    """The processes of one installation, and what they tell.

    Args:
        folder: where configurations, sockets, logs and records go; its path must be short, for sockets lie in it.
        policies: the policy file's text.
        seats: the seats.
        session: for looking.

    Attributes:
        controller, gateway: base URLs.
        token: what agents and the controller want to see.
    """

    def __init__(
        self, folder: Path, policies: str, seats: Sequence[SeatPlan], session: aiohttp.ClientSession
    ) -> None:
        self._folder = folder
        self._session = session
        self.token = secrets.token_urlsafe(16)
        ports = _free_ports(3 + len(seats))
        self.controller, self.gateway = (f"http://{_HOST}:{port}" for port in ports[:2])
        self._agents = {
            seat.name: f"http://{_HOST}:{port}" for seat, port in zip(seats, ports[3:], strict=True)
        }
        self._parts: dict[str, _Part] = {}
        self._dead: list[ProcessTree] = []
        self._write(policies, seats)
        for seat in seats:
            launcher = [sys.executable, str(warmpool.launcher.__file__), "--socket", str(folder / seat.name)]
            self._parts[f"launcher {seat.name}"] = _Part(launcher, {})
            agent = [sys.executable, "-m", "warmpool.agent", "--config", str(folder / f"{seat.name}.json")]
            self._parts[f"agent {seat.name}"] = _Part(agent, {"EMBERPOOL_AGENT_TOKEN": self.token})
        self._parts["controller"] = self._emberpool(
            *("controller", "--policy", str(folder / "policies.yaml"), "--port", str(ports[0])),
            *("--agents", str(folder / "agents.yaml"), "--state-dir", str(folder / "state")),
        )
        self._parts["gateway"] = self._emberpool(
            *("gateway", "--controller", self.controller),
            *("--port", str(ports[1]), "--metrics-port", str(ports[2])),
        )

    def _emberpool(self, *arguments: str) -> _Part:
        return _Part([sys.executable, "-m", "scaler", *arguments], {"EMBERPOOL_AGENT_TOKEN": self.token})

    def _write(self, policies: str, seats: Sequence[SeatPlan]) -> None:
        (self._folder / "policies.yaml").write_text(policies, "utf-8")
        fleets = [
            {"name": name, "seats": [{"name": name, "agent": url}]} for name, url in self._agents.items()
        ]
        listed = document("AgentList", "bench", {"fleets": fleets})
        (self._folder / "agents.yaml").write_text(json.dumps(listed), "utf-8")
        for seat in seats:
            config = {
                "seat": seat.name,
                "fleet": seat.name,
                "uid": f"uid-{seat.name}",
                "host": _HOST,
                "port": int(self._agents[seat.name].rpartition(":")[2]),
                "controllers": [self.controller],
                "gpus": list(seat.gpus),
                "logDirectory": str(self._folder / "logs"),
                "launcher": str(self._folder / seat.name),
                "residents": list(seat.residents),
                **seat.settings,
            }
            (self._folder / f"{seat.name}.json").write_text(json.dumps(config, indent=1), "utf-8")

    # ------------------------------------------------------------------ processes

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start everything, and end it and whatever it has started on every way out."""
        (self._folder / "logs").mkdir(parents=True, exist_ok=True)
        try:
            for name in self._parts:
                await self.start(name)
            yield
        finally:
            await self._stop()

    async def start(self, name: str) -> None:
        """Start one of the processes: `controller`, `gateway`, `agent SEAT` or `launcher SEAT`."""
        part = self._parts[name]
        with (self._folder / "logs" / f"{name.replace(' ', '-')}.log").open("ab") as log:
            part.process = await asyncio.create_subprocess_exec(
                *part.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=child_environment({**os.environ, **part.environment}),
            )
        with contextlib.suppress(psutil.NoSuchProcess):
            part.tree = ProcessTree.of(part.process.pid)

    async def kill(self, name: str) -> None:
        """SIGKILL to one of the processes, and to nothing that it has started."""
        part = self._parts[name]
        assert part.process is not None
        if part.tree is not None:
            part.tree.look()
            self._dead.append(part.tree)
        part.process.kill()
        await part.process.wait()

    def engines(self) -> list[psutil.Process]:
        """Return the engines that run: what the launchers have started, with what that has started."""
        found = []
        for name, part in self._parts.items():
            if name.startswith("launcher") and part.tree is not None:
                part.tree.look()
                found += [each for each in part.tree.alive() if each.pid != part.tree.root.pid]
        return [each for each in found if _is_engine(each)]

    def orphans(self) -> list[psutil.Process]:
        """Return what still runs of what processes that were killed had started, unless it belongs to another by now."""
        owned = {
            each.pid for part in self._parts.values() if part.tree is not None for each in part.tree.alive()
        }
        return [each for tree in self._dead for each in tree.alive() if each.pid not in owned]

    async def _stop(self) -> None:
        parts = [part for part in self._parts.values() if part.process is not None]
        trees = [part.tree for part in parts if part.tree is not None] + self._dead
        for tree in trees:
            tree.look()
        for part in parts:
            if part.process is not None and part.process.returncode is None:
                part.process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                for part in parts:
                    if part.process is not None:
                        await part.process.wait()
        for tree in trees:
            for process in tree.alive():
                with contextlib.suppress(psutil.Error):
                    process.kill()
        for part in parts:
            if part.process is not None:
                await part.process.wait()

    # ------------------------------------------------------------------ looking

    async def seat(self, name: str) -> Json | None:
        """Return a seat's state as its agent tells it; None if it tells none."""
        return await self._get(f"{self._agents[name]}/v1/state")

    async def seats(self) -> dict[str, Json]:
        """Return the seats as the controller sees them, by name."""
        body = await self._get(f"{self.controller}/v1/seats")
        return {} if body is None else {str(seat["name"]): seat for seat in body["items"]}

    async def resident(self, seat: str, policy: str) -> Json | None:
        """Return a resident as its agent tells it; None if it tells nothing."""
        return resident_of(await self.seat(seat), policy)

    async def ready(self, seconds: float) -> None:
        """Wait until everything is warm and the gateway has routes.

        Raises:
            NotSo: it doesn't become so in time; the message says what is waited for.
        """
        told: Json | None = None

        async def warm() -> bool:
            nonlocal told
            told = await self._get(f"{self.controller}/v1/status")
            models = await self._get(f"{self.gateway}/v1/models")
            return bool(told and told["ready"] and models and models["data"])

        try:
            await until(warm, "a warm installation", seconds)
        except NotSo as error:
            waits = "its processes" if told is None else ", ".join(told.get("waitingFor") or ["the gateway"])
            raise NotSo(f"{error}; it waits for {waits}") from error

    def agent(self, seat: str) -> str:
        """Return the base URL of a seat's agent."""
        return self._agents[seat]

    async def _get(self, url: str) -> Json | None:
        headers = {"Authorization": f"Bearer {self.token}"}
        try:
            async with (
                asyncio.timeout(_ANSWER_SECONDS),
                self._session.get(url, headers=headers) as response,
            ):
                body = await response.json()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None
        return body if isinstance(body, dict) else None


def resident_of(seat: Json | None, policy: str) -> Json | None:
    """Return one resident of a seat; None without a seat or without such a resident."""
    residents: Sequence[Json] = () if seat is None else seat.get("residents", ())
    return next((each for each in residents if each["policy"] == policy), None)


def _is_engine(process: psutil.Process) -> bool:
    try:
        return "warmpool.reference" in process.cmdline()
    except psutil.Error:
        return False


def _free_ports(count: int) -> list[int]:
    """Return ports on which nobody listens, out of those that the system gives nobody who asks for any: engines ask for any."""
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if len(found) == count:
            break
        with contextlib.suppress(OSError), socket.create_server((_HOST, port)):
            found.append(port)
    return found

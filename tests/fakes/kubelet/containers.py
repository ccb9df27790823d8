"""One container's life: started, probed, started again after a pause, and ended on order."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from scaler.cluster.kube.times import seconds_text
from tests.fakes.kubelet import probes
from tests.fakes.kubelet.environment import Unmakeable
from tests.fakes.kubelet.processes import Process, Start
from tests.fakes.kubelet.status import ContainerState, Ended

Object = Mapping[str, Any]
_SOUND_SECONDS = 600.0
"""After so long a run a container that ends is started at once again, as if it were the first time."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long a node lets things take, in seconds; the defaults are a kubelet's.

    Attributes:
        backoff: the first pause before a container is started once more; each is twice as long, up to `longest`.
        longest: see there.
        retry: until something that can't be made is tried again.
        heartbeat: between renewals of the node's lease.
        refresh: between looks at ConfigMaps and Secrets of pods that run.
    """

    backoff: float = 10.0
    longest: float = 300.0
    retry: float = 2.0
    heartbeat: float = 10.0
    refresh: float = 60.0

    def pause(self, failures: int) -> float:
        """How long to wait after so many ends in a row: not at all after the first."""
        return 0.0 if failures <= 1 else min(self.longest, self.backoff * 2.0 ** min(failures - 2, 16))


class Maker(Protocol):
    """Knows a pod's place, files and variables."""

    async def start_of(self, container: Object) -> Start:
        """Work out what is run.

        Raises:
            Unmakeable: it can't be.
        """

    def log_of(self, container: Object, restarts: int) -> Path:
        """Where its output goes."""

    def asking_of(self, container: Object, start: Start) -> probes.Asking:
        """How its probes and hooks ask."""


class Runner:
    """Runs one container; `run` ends when it won't be started again.

    Args:
        spec: the container.
        state: what is told of it; changed here alone.
        policy: `Always`, `OnFailure` or `Never`.
        maker: makes its process.
        pace: how long things take.
        changed: is called after each change of the state.
    """

    def __init__(
        self,
        spec: Object,
        state: ContainerState,
        policy: str,
        maker: Maker,
        pace: Pace,
        changed: Callable[[], None],
    ) -> None:
        self.spec = spec
        self.state = state
        self._policy = policy
        self._maker = maker
        self._pace = pace
        self._changed = changed
        self._process: Process | None = None
        self._asking: probes.Asking | None = None
        self._stopping = asyncio.Event()
        self.started = asyncio.Event()
        """Set once it has started for the first time, and when it is over."""
        self.over = asyncio.Event()
        """Set once it won't be started again."""

    async def run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            begun = time.monotonic()
            try:
                await self._once()
            except Unmakeable as error:
                self._wait_for(error.reason, str(error))
                await self._pause(self._pace.retry)
                continue
            if not self._again():
                break
            failures = 1 if time.monotonic() - begun >= _SOUND_SECONDS else failures + 1
            if pause := self._pace.pause(failures):
                text = f"back-off {pause:g}s restarting failed container={self.state.name}"
                self._wait_for("CrashLoopBackOff", text)
                await self._pause(pause)
            self.state.restarts += not self._stopping.is_set()
        self.state.over = True
        self.state.waiting = self.state.waiting or "ContainerCreating"
        self.over.set()
        self._advance()

    def _again(self) -> bool:
        failed = self.state.ended is None or self.state.ended.code != 0
        wanted = self._policy == "Always" or (self._policy == "OnFailure" and failed)
        return wanted and not self._stopping.is_set()

    async def _once(self) -> None:
        start = await self._maker.start_of(self.spec)
        if self._stopping.is_set():
            return
        process = await Process.start(start, self._maker.log_of(self.spec, self.state.restarts))
        state, begun = self.state, seconds_text(time.time())
        self._process, self._asking = process, self._maker.asking_of(self.spec, start)
        state.waiting = state.message = ""
        state.running = begun
        state.started = "startupProbe" not in self.spec
        state.ready = state.started and "readinessProbe" not in self.spec
        self._advance()
        try:
            async with asyncio.TaskGroup() as tasks:
                probing = tasks.create_task(self._probe(self._asking))
                code = await process.wait()
                probing.cancel()
        except BaseException:
            await process.destroy()
            raise
        finally:
            self._process = None
        state.running, state.started, state.ready = "", False, False
        state.ended = Ended(code=code, started=begun, finished=seconds_text(time.time()))
        self._changed()

    def _wait_for(self, reason: str, message: str) -> None:
        self.state.waiting, self.state.message = reason, message
        self._changed()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _advance(self) -> None:
        if self.state.started or self.state.over:
            self.started.set()
        self._changed()

    # ------------------------------------------------------------ probes and hooks

    async def _probe(self, asking: probes.Asking) -> None:
        hook = (self.spec.get("lifecycle") or {}).get("postStart")
        if hook is not None and not await probes.once(hook, asking, self._pace.longest):
            await self._kill("postStart hook failed")
        if probe := self.spec.get("startupProbe"):
            await probes.follow(probe, asking, self._on_startup)
            if not self.state.started:
                await self._kill("startup probe failed")
        async with asyncio.TaskGroup() as tasks:
            if probe := self.spec.get("readinessProbe"):
                tasks.create_task(probes.follow(probe, asking, self._on_readiness))
            if probe := self.spec.get("livenessProbe"):
                tasks.create_task(self._watch_liveness(probe, asking))

    def _on_startup(self, good: bool) -> bool:  # noqa: FBT001 - the verdict
        if good:
            self.state.started = True
            self.state.ready = "readinessProbe" not in self.spec
            self._advance()
        return False

    def _on_readiness(self, good: bool) -> bool:  # noqa: FBT001 - the verdict
        if good != self.state.ready:
            self.state.ready = good
            self._changed()
        return True

    async def _watch_liveness(self, probe: Object, asking: probes.Asking) -> None:
        await probes.follow(probe, asking, lambda good: good or self._stopping.is_set())
        await self._kill("liveness probe failed")

    async def _kill(self, _why: str) -> None:
        if self._process is not None:
            await self._process.end(self.spec.get("terminationGracePeriodSeconds", 30))

    # ------------------------------------------------------------ ending

    async def stop(self, seconds: float) -> None:
        """End it within some seconds: its preStop hook, SIGTERM, SIGKILL; it isn't started again."""
        self._stopping.set()
        process, asking = self._process, self._asking
        if process is None or asking is None:
            return
        ends = time.monotonic() + seconds
        hook = (self.spec.get("lifecycle") or {}).get("preStop")
        if hook is not None and seconds > 0:
            await probes.once(hook, asking, seconds)
        await process.end(ends - time.monotonic())

    def kill(self) -> None:
        """SIGKILL it, now."""
        self._stopping.set()
        if self._process is not None:
            self._process.kill()


def ports_of(container: Object) -> dict[str, int]:
    return {each["name"]: each["containerPort"] for each in container.get("ports") or () if each.get("name")}

"""A step of the load to 300 %: how long the last of all spare seats takes into rotation, with everything over real sockets.

A controller process promotes seats of a fleet whose agents are scripted: their engines take a set time, which is told beside what the
whole took. API server, pods and agents are this process, so that on a busy machine the figures are theirs as much as the controller's.
"""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from scaler.runtime.actuator import Actuator, Ports
from scaler.runtime.clock import SystemClock
from scaler.runtime.events import EventLog
from tests.contract.kube_rig import LEADER, NAMESPACE_NAME, Cluster, fleet_of, running, stage, until
from tests.fakes.kube_api import KubeApi, User, kubeconfig, serving
from tests.fakes.kube_api.kinds import POD
from tests.fakes.kube_api.store import Change
from tests.fakes.memory_cluster import Timing
from tests.fakes.ports import free_ports
from tests.fakes.scripted_agents import scripted_agents
from tests.integration.kube.conftest import written
from tests.integration.processes.rig import TOKEN, Processes
from tests.integration.standby.rig import CHAT, FLEET, PodAgents, Replica, Rig
from warmpool.plan import Promote
from warmpool.seats import Seat
from warmpool.states import ResidentState

IN_FLIGHT = 4
"""Requests that one resident serves at a time."""
ENGINE_SECONDS = 0.03
"""What an engine takes to be resumed and to answer a canary token."""
LABEL = f"serving.emberpool.dev/{CHAT}"
TABLE = "{:<44}{:>10}{:>10}{:>10}"


def policies(spare: int) -> str:
    base = spare // 2
    return f"""\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {{name: {FLEET}, namespace: {NAMESPACE_NAME}}}
spec:
  maxSeats: {base + spare}
  seat: {{gpus: 0}}
  spare: {{mode: Fixed, min: {spare}}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {{name: {CHAT}, namespace: {NAMESPACE_NAME}}}
spec:
  fleets: [{{name: {FLEET}, targetInFlight: {IN_FLIGHT}}}]
  serving: {{min: {base}, max: {base + spare}, queueDrainSeconds: 1}}
  burst: {{thresholdPercent: 150, windowSeconds: 2, stableWindowSeconds: 60, demoteAfterSeconds: 30}}
  signals: [{{name: gateway, type: Pushed}}]
"""


@dataclass
class Labels:
    """When pods got the serving label, in Unix seconds."""

    at: dict[str, float] = field(default_factory=dict)

    def heard(self, change: Change) -> None:
        metadata = change.new.body["metadata"]
        if metadata["labels"].get(LABEL) == "true":
            self.at.setdefault(metadata["name"], time.time())
        else:
            self.at.pop(metadata["name"], None)


@dataclass(frozen=True)
class Step:
    """What became of one step of the load.

    Attributes:
        labels: seconds from the sample to each new serving label, in order.
        events: what the controller has recorded of it.
        computing: processor time of the controller, and of all that stands in for the rest, in seconds.
    """

    labels: Sequence[float]
    events: Sequence[Mapping[str, Any]]
    computing: tuple[float, float]

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        return [each for each in self.events if each["kind"] == kind]

    def seconds(self, begin: str, end: str) -> list[float]:
        """How long a stretch of each promotion took, in order."""
        return sorted(each[end] - each[begin] for each in self.of("promotion"))

    def table(self) -> Iterator[str]:
        """Lines of figures, in milliseconds."""
        yield TABLE.format("", "p50", "p99", "last")
        for name, seconds in (
            ("sample -> serving label", self.labels),
            ("  sample -> decision", self.seconds("sample", "decision")),
            ("  decision -> claimed", self.seconds("decision", "claimed")),
            ("  claimed -> the engine has answered", self.seconds("claimed", "canary")),
            ("    of which the engine's own", [ENGINE_SECONDS]),
            ("  the engine has answered -> label", self.seconds("canary", "rotation")),
        ):
            last = len(seconds) - 1
            places = (last // 2, last * 99 // 100, last)
            yield TABLE.format(name, *(f"{1000 * seconds[place]:.0f}" for place in places))
        for name, spent in zip(("controller", "stand-ins"), self.computing, strict=True):
            yield TABLE.format(f"{name}: processor time", "", "", f"{1000 * spent:.0f}")


@asynccontextmanager
async def fleet(directory: Path, spare: int, certificate: tuple[str, str]) -> AsyncIterator[Rig]:
    """Bring up a third of the seats in rotation, and the others spare, all Ready; the API server speaks TLS, as they do."""
    (directory / "policies.yaml").write_text(policies(spare), "utf-8")
    port, keda_port = free_ports(2)
    replica = Replica("a", port, keda_port)
    api = KubeApi({"a": User(name="a", may=replica.may)})
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*certificate)
    async with (
        serving(api, tls=tls) as url,
        scripted_agents(TOKEN, Timing(start=0.1, resume=ENGINE_SECONDS)) as agents,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
        Processes(directory) as processes,
        asyncio.TaskGroup() as tasks,
    ):
        kube = Cluster(api, PodAgents(agents, [replica.url]))
        kube.make(FLEET, {"emberpool.dev/agent-port": str(agents.port)}, replicas=spare + spare // 2)
        behind = tasks.create_task(kube.run())
        rig = Rig(directory, api, kube, agents, processes, session, replica, replica, url)
        try:
            written(directory / "a.kubeconfig", kubeconfig(url, "a", NAMESPACE_NAME, certificate[0]))
            await processes.emberpool(
                "a",
                *("controller", "--policy", str(directory / "policies.yaml"), "--kubernetes"),
                *("--kubeconfig", str(directory / "a.kubeconfig"), "--state-dir", str(directory / "state")),
                *("--port", str(port), "--keda-port", str(keda_port)),
            )
            await rig.warm(replica)
            await rig.until("all seats to be Ready", partial(_all_ready, api))
            yield rig
        finally:
            behind.cancel()


async def _all_ready(api: KubeApi) -> bool:
    pods = api.store.all(POD, NAMESPACE_NAME)
    return all(
        any(each["type"] == "Ready" and each["status"] == "True" for each in pod.body["status"]["conditions"])
        for pod in pods
    )


async def stepped(rig: Rig, spare: int) -> Step:
    """Push a sample that wants three times the seats that serve, and wait for the last of them."""
    labels, told = Labels(), len(recorded(rig))
    for each in rig.api.store.all(POD, NAMESPACE_NAME):
        labels.heard(Change(each.version, None, each))
    before = set(labels.at)
    assert len(before) == spare // 2
    controller = rig.processes.process("a")
    unlisten = rig.api.store.listen(POD, labels.heard)
    theirs, mine, at = _seconds(controller), time.process_time(), time.time()
    await rig.push(queued=spare * IN_FLIGHT, in_flight=spare // 2 * IN_FLIGHT)

    async def all_serve() -> bool:
        return len(labels.at) == spare + spare // 2

    await rig.until("all seats to serve", all_serve)
    unlisten()
    computing = _seconds(controller) - theirs, time.process_time() - mine

    async def all_told() -> bool:
        return len([each for each in recorded(rig)[told:] if each["kind"] == "promotion"]) >= spare

    await rig.until("records of all promotions", all_told)
    took = sorted(when - at for name, when in labels.at.items() if name not in before)
    return Step(took, recorded(rig)[told:], computing)


def recorded(rig: Rig) -> list[Mapping[str, Any]]:
    text = (rig.directory / "state" / "events.jsonl").read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@pytest.mark.long
@pytest.mark.wall_clock
async def test_after_a_step_to_300_percent_the_last_of_100_spare_seats_serves_within_a_second(
    tmp_path: Path, certificate: tuple[str, str], record_property: Callable[[str, object], None]
) -> None:
    spare = 100
    async with fleet(tmp_path, spare, certificate) as rig:
        step = await stepped(rig, spare)
    print(f"\n{spare} spare seats, {spare // 2} that serve", *step.table(), sep="\n")  # noqa: T201 - a report
    record_property("last_label_seconds", round(step.labels[-1], 3))
    assert [each["error"] for each in step.of("promotion")] == [""] * spare
    assert step.of("resize") == []
    assert step.labels[-1] <= 1.0


@pytest.mark.wall_clock
async def test_20_promotions_at_once_end_soon(tmp_path: Path) -> None:
    async with stage(tmp_path, FLEET, [CHAT]) as on, on.controller([fleet_of(FLEET)]) as cluster:
        clock = SystemClock()
        ports = Ports(cluster, on.orders, clock, EventLog(lambda _: None, clock))
        actuator = Actuator(ports, LEADER.term, lambda _: None)
        await cluster.resize(FLEET, 20)
        seats = await until(cluster, _all_spare)
        async with running([actuator.run]):
            await asyncio.sleep(0)
            began = time.monotonic()
            actuator.start([Promote(seat=seat, policy=CHAT, why="a burst") for seat in seats], {})
            await until(cluster, lambda found: all(seat.serving for seat in found))
            took = time.monotonic() - began
    assert took <= 2.0


def _all_spare(seats: Sequence[Seat]) -> bool:
    return len(seats) == 20 and all(
        seat.residents and seat.residents[0].state is ResidentState.PAUSED for seat in seats
    )

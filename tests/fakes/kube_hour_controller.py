"""A leading controller of many seats, as a process of its own: `python -m tests.fakes.kube_hour_controller DIRECTORY URL PODS FLEETS`.

It is what `emberpool controller --kubernetes` runs, but for the election, and with agents that tell the same each two seconds without a
network: thousands of those would be most of the work, and none of the memory. Prints `ready` once it has decided.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client import CollectorRegistry

from scaler.cluster.http_agents import HttpAgents
from scaler.cluster.kube.access import AccessOptions, find_access
from scaler.cluster.kube.client import KubeClient
from scaler.cluster.kube.cluster import KubeCluster, Place
from scaler.cluster.kube.election import Leadership
from scaler.cluster.kube.fleets import find_fleets
from scaler.errors import Unreachable
from scaler.keda.settings import KedaSettings
from scaler.policy.reading import PolicyFiles
from scaler.runtime import logs
from scaler.runtime.clock import SystemClock
from scaler.runtime.controller_assembly import assemble
from scaler.runtime.controller_options import ControllerOptions
from scaler.runtime.controller_wiring import Begin, Parts, Seats
from scaler.runtime.kept import Nowhere
from scaler.runtime.kube_policies import KubePolicies
from scaler.runtime.policy_tables import table_of
from scaler.runtime.sockets import listen
from tests.fakes import kube_crowd
from tests.fakes.kube_api import kubeconfig
from tests.fakes.kube_hour import fleet, policies
from tests.integration.kube.conftest import written
from warmpool.claim import Term
from warmpool.errors import BadOrder
from warmpool.metric_families import expose_declared_only

TOKEN = "secret"
HEARTBEAT_SECONDS = 2.0
FLEET = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{maxSeats: {seats}, spare: {{mode: Fixed, min: {seats}}}}}
---
"""
POLICY = """\
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  fleets: [{{name: {fleet}, targetInFlight: 4}}]
  serving: {{min: 0, max: {seats}}}
  signals: [{{name: gateway, type: Pushed}}]
---
"""


def policy_file(seats: int, fleets: int) -> str:
    parts = []
    for number in range(fleets):
        name, words = fleet(number, fleets), {"namespace": kube_crowd.NAMESPACE, "seats": seats}
        parts.append(FLEET.format(name=name, **words))
        parts += [POLICY.format(name=each, fleet=name, **words) for each in policies(name)]
    return "".join(parts)


class Agents:
    """What agents tell."""

    def __init__(self, pods: int, fleets: int) -> None:
        self._pods = pods
        self._fleets = fleets
        self._proven_at = time.time() + 10 * 3600  # no proof is due meanwhile
        self._numbers = {f"http://{kube_crowd.address(number)}:9081": number for number in range(pods)}

    def told(self, number: int) -> Mapping[str, Any]:
        name = fleet(number, self._fleets)
        body = kube_crowd.report(number)
        body["fleet"] = name
        for resident, policy in zip(body["residents"], policies(name), strict=True):
            resident |= {"policy": policy, "provenAt": self._proven_at}
        return body

    async def read(self, agent: str) -> Mapping[str, Any]:
        await asyncio.sleep(0)
        if agent not in self._numbers:
            raise Unreachable(agent)
        return self.told(self._numbers[agent])

    async def keep_telling(self, cluster: KubeCluster) -> None:
        """All tell each two seconds that nothing is new, and what there is where that isn't known."""
        while True:
            for number in range(self._pods):
                heartbeat = {"uid": f"uid-{number}", "pid": 1, "seq": 1, "epoch": 0}
                try:
                    cluster.report({**heartbeat, "fleet": fleet(number, self._fleets)})
                except BadOrder:
                    cluster.report(self.told(number))
                if number % 1000 == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(HEARTBEAT_SECONDS)


async def main(directory: Path, url: str, pods: int, fleets: int) -> None:
    (directory / "policies.yaml").write_text(policy_file(pods // fleets, fleets))
    config = written(directory / "kubeconfig", kubeconfig(url, namespace=kube_crowd.NAMESPACE))
    reading = PolicyFiles((directory / "policies.yaml",)).read()
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            KubeClient(await find_access(AccessOptions(kubeconfig=config), {}))
        )
        session = await stack.enter_async_context(aiohttp.ClientSession())
        place = Place(client=client, namespace=kube_crowd.NAMESPACE)
        found = await find_fleets(client, place.namespace, reading.set.fleets.values())
        agents = Agents(pods, fleets)
        cluster = KubeCluster(place, found, agents)
        begin = Begin(
            options=ControllerOptions(
                policies=(directory / "policies.yaml",),
                token=TOKEN,
                port=0,
                state_dir=directory,
                keda=KedaSettings(port=0),
            ),
            policies=reading.set,
            stop=asyncio.Event(),
            reload=asyncio.Event(),
            listener=stack.enter_context(listen("127.0.0.1", 0, "--port")),
            clock=SystemClock(),
            registry=CollectorRegistry(),
        )
        seats = Seats(
            cluster=cluster,
            agents=HttpAgents(session, TOKEN),
            table=table_of(reading.set),
            force=lambda adopt: KubePolicies(client, place.namespace, found, cluster.adopt, adopt),
            archive=Nowhere(),
        )
        await run(stack, assemble(stack, begin, seats), cluster, agents)


async def run(stack: contextlib.AsyncExitStack, parts: Parts, cluster: KubeCluster, agents: Agents) -> None:
    leadership = Leadership(Term(holder="hour", epoch=1), lambda _: True)
    await stack.enter_async_context(parts.listening())
    async with asyncio.TaskGroup() as tasks:
        for part in parts.standing():
            tasks.create_task(part)
        await cluster.wait_synced()
        tasks.create_task(agents.keep_telling(cluster))
        async with cluster.leading(leadership):
            tasks.create_task(parts.lead(leadership.term, parts.ports))
            while parts.controller.last is None or not all(seat.reachable for seat in cluster.seats()):
                await asyncio.sleep(0.1)
            print("ready", flush=True)  # noqa: T201 - its output
            await asyncio.Event().wait()


if __name__ == "__main__":
    logs.configure()
    expose_declared_only()
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))

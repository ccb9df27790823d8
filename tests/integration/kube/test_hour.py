"""An hour of 10,000 pods' watch events, compressed: what a controller weighs with them, and that it weighs no more at the end.

Each pod's status changes once a minute. The short form counts what the cache of fewer pods is made of.
"""

import asyncio
import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from scaler.cluster.kube.access import AccessOptions, find_access
from scaler.cluster.kube.client import KubeClient
from scaler.cluster.kube.cluster import KubeCluster, Place
from scaler.cluster.kube.election import Leadership
from tests.contract.kube_rig import fleet_of, running
from tests.fakes import kube_crowd, kube_hour
from tests.fakes.kube_api import KubeApi, kubeconfig, serving
from tests.fakes.kube_api.kinds import POD
from tests.fakes.kube_hour_controller import Agents
from tests.integration.kube.conftest import written
from warmpool.claim import Term
from warmpool.seats import FleetName

MEGABYTE = 2**20
READINGS = 20
TABLE = "{:>10}{:>12}"


@contextmanager
def process(module: str, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def said(running: "subprocess.Popen[str]") -> str:
    assert running.stdout is not None
    line = running.stdout.readline().strip()
    assert line, "it has ended"
    return line


def played(directory: Path, pods: int, fleets: int, events: int) -> list[float]:
    """Play events to a controller, and return its megabytes before the first and after each stretch of them."""
    with process("tests.fakes.kube_hour", pods, fleets) as server:
        url = said(server)
        with process("tests.fakes.kube_hour_controller", directory, url, pods, fleets) as controller:
            while said(controller) != "ready":
                continue
            measured = psutil.Process(controller.pid)
            readings = [measured.memory_info().rss / MEGABYTE]
            for _ in range(READINGS):
                assert server.stdin is not None
                server.stdin.write(f"{events // READINGS}\n")
                server.stdin.flush()
                assert said(server) == "done"
                readings.append(measured.memory_info().rss / MEGABYTE)
    return readings


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_an_hour_of_10000_pods_takes_300_mb_at_most_and_no_more_at_its_end(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    pods, fleets, events = 10_000, 250, 600_000
    readings = played(tmp_path, pods, fleets, events)
    lines = [TABLE.format(events * n // READINGS, f"{each:.1f}") for n, each in enumerate(readings)]
    print(f"\n{pods} pods, {2 * fleets} policies", TABLE.format("events", "MB"), *lines, sep="\n")  # noqa: T201 - a report
    early, last = readings[READINGS // 10], max(readings[READINGS // 10 :])
    record_property("megabytes", round(last))
    record_property("growth_percent", round(100 * (last / early - 1), 1))
    assert last <= 300
    assert last <= 1.05 * early


async def test_what_a_cache_is_made_of_does_not_grow_with_watch_events(tmp_path: Path) -> None:
    pods, fleets = 100, 4
    api = kube_hour.filled(pods, fleets)
    agents, leader = Agents(pods, fleets), Leadership(Term(holder="t", epoch=1), lambda _: True)
    async with serving(api) as url:
        config = written(tmp_path / "config", kubeconfig(url, namespace=kube_crowd.NAMESPACE))
        async with KubeClient(await find_access(AccessOptions(kubeconfig=config), {})) as client:
            place = Place(client=client, namespace=kube_crowd.NAMESPACE)
            found = [fleet_of(FleetName(kube_hour.fleet(number, fleets))) for number in range(fleets)]
            cluster = KubeCluster(place, found, agents)
            async with running([cluster.run]), cluster.leading(leader):
                await cluster.wait_synced()
                counts = []
                for first in (0, 500, 1000):
                    await kube_hour.play(api, pods, iter(range(first, first + 500)))
                    async with asyncio.timeout(30):
                        while _shown(cluster) != _newest(api):
                            await asyncio.sleep(0.01)
                    api.store.compact()
                    gc.collect()
                    counts.append(len(gc.get_objects()))
    assert counts[2] <= 1.02 * counts[1]


def _shown(cluster: KubeCluster) -> set[str]:
    return {seat.version for seat in cluster.seats()}


def _newest(api: KubeApi) -> set[str]:
    return {str(item.version) for item in api.store.all(POD, kube_crowd.NAMESPACE)}

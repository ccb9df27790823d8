"""10,000 pods: what their copy weighs, and how long a list keeps the loop from anything else."""

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from scaler.cluster.kube.access import AccessOptions, find_access
from scaler.cluster.kube.client import KubeClient
from scaler.cluster.kube.reflector import Reflector
from scaler.cluster.kube.resources import POD, Collection
from scaler.cluster.kube.views import pod_from_json
from scaler.runtime.garbage import freeze_what_there_is
from tests.fakes import kube_pages
from tests.fakes.kube_api import kubeconfig
from tests.integration.kube.conftest import written

PODS = 10_000
MEGABYTE = 2**20


@pytest.fixture
def _quiet_collector() -> Iterator[None]:
    """As in the controller's process, which keeps full collections out of the way."""
    thresholds = gc.get_threshold()
    freeze_what_there_is()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.fixture
def url() -> Iterator[str]:
    command = [sys.executable, kube_pages.__file__, str(PODS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().split()[0]}"
        finally:
            server.kill()


class Longest:
    """The longest that the loop's thread computed between two of its turns; waiting for a processor doesn't count."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def measure(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.seconds, before = max(self.seconds, now - before), now


@pytest.mark.long
@pytest.mark.usefixtures("_quiet_collector")
async def test_10000_pods_take_150_mb_at_most_and_a_list_50_ms_of_the_loop_at_a_time(
    url: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    access = await find_access(AccessOptions(kubeconfig=written(tmp_path / "config", kubeconfig(url))), {})
    async with KubeClient(access) as client, asyncio.TaskGroup() as tasks:
        before, longest = psutil.Process().memory_info().rss, Longest()
        pods = Reflector(client, Collection(kind=POD, namespace="pool"), pod_from_json)
        both = [tasks.create_task(pods.run()), tasks.create_task(longest.measure())]
        await pods.wait_synced()
        grown = (psutil.Process().memory_info().rss - before) / MEGABYTE
        for task in both:
            task.cancel()
    record_property("megabytes", round(grown))
    record_property("longest_ms", round(longest.seconds * 1000, 1))
    assert len(pods) == PODS
    assert grown <= 150
    assert longest.seconds <= 0.05

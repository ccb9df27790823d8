"""The stand-ins as processes of their own: an API server, and nodes with everything that runs pods."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from scaler.cluster.kube.resources import DEPLOYMENT, NODE, POD
from tests.fakes.kube_calls import Calls, calling
from tests.integration.nodes.conftest import QUIET, deployment_body, ready

ROOT = Path(__file__).resolve().parents[3]


@asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=dict(os.environ),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def pods_of(calls: Calls, count: int) -> list[dict[str, object]]:
    async with asyncio.timeout(40):
        while True:
            found = await calls.list(POD, "default")
            if len(found) == count and all(map(ready, found)):
                return list(found)
            await asyncio.sleep(0.05)


@pytest.mark.long
async def test_pods_run_on_nodes_of_another_process_and_end_with_it(tmp_path: Path) -> None:
    async with running("tests.fakes.kube_api") as server:
        assert server.stdout is not None
        text = b""
        while not text.endswith(b"\n}\n"):
            text += await asyncio.wait_for(server.stdout.readline(), 30)
        path = tmp_path / "kubeconfig"
        path.write_bytes(text)
        assert json.loads(text)["kind"] == "Config"
        options = ["--kubeconfig", str(path), "--nodes", "2", "--gpus", "2", "--any-image", "--control-plane"]
        async with running("tests.fakes.kubelet", *options) as nodes, calling(str(path)) as calls:
            assert nodes.stderr is not None
            assert b"2 nodes are ready" in await asyncio.wait_for(nodes.stderr.readline(), 30)
            assert [each["status"]["capacity"]["nvidia.com/gpu"] for each in await calls.list(NODE)] == [
                "2",
                "2",
            ]
            await calls.create(DEPLOYMENT, "default", deployment_body("web", 2, QUIET))
            await pods_of(calls, 2)
            children = psutil.Process(nodes.pid).children(recursive=True)
            assert len(children) >= 2
            nodes.terminate()
            assert await asyncio.wait_for(nodes.wait(), 30) == 0
            gone, alive = await asyncio.to_thread(psutil.wait_procs, children, 10)
            assert (len(gone), alive) == (len(children), [])

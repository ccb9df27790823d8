"""A controller whose agents have taken orders of a later term stops at once, and says why."""

import asyncio
from pathlib import Path

import aiohttp

from tests.fakes.ports import free_ports
from tests.integration.processes.rig import POLICIES, TOKEN, Processes, silent_agents

REPORT = {"seat": "seat-0", "fleet": "spares", "uid": "u", "pid": 1, "seq": 1, "at": 1.0, "residents": []}


async def test_a_controller_that_another_one_has_overtaken_ends(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text(POLICIES, "utf-8")
    (tmp_path / "agents.yaml").write_text(silent_agents(1), "utf-8")
    (port,) = free_ports(1)
    url, token = f"http://127.0.0.1:{port}", {"Authorization": f"Bearer {TOKEN}"}
    async with Processes(tmp_path) as processes, aiohttp.ClientSession(headers=token) as session:
        await processes.emberpool(
            "controller",
            *("controller", "--policy", str(tmp_path / "policies.yaml")),
            *("--agents", str(tmp_path / "agents.yaml"), "--port", str(port)),
        )
        async with asyncio.timeout(30):
            while await tell(session, url, epoch=0) != 204:
                await asyncio.sleep(0.05)
        assert await tell(session, url, epoch=2**40) in {0, 204}
        assert await processes.wait("controller") == 1
    assert "error: an agent has seen term 1099511627776" in processes.log("controller")


async def tell(session: aiohttp.ClientSession, url: str, *, epoch: int) -> int:
    """Report as an agent; 0 when nobody listens."""
    try:
        async with session.post(f"{url}/v1/agents", json={**REPORT, "epoch": epoch}) as response:
            return response.status
    except aiohttp.ClientError:
        return 0

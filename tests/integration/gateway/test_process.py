"""`emberpool gateway` as a process: what it is told, what it shows, and how it reads its files again."""

import asyncio
import signal
from pathlib import Path

import aiohttp

from tests.fakes.ports import free_ports
from tests.integration.gateway.running import process


async def test_a_gateway_goes_by_flags_and_variables_shows_them_and_reads_its_keys_again(
    tmp_path: Path,
) -> None:
    """One process for all of it, for each takes a second to begin."""
    keys = tmp_path / "keys"
    keys.write_text("key-1\n", "utf-8")
    port, operators = free_ports(2)
    options = (
        "--port",
        str(port),
        "--metrics-port",
        str(operators),
        "--instance",
        "gw-1",
        "--queue-seconds",
        "7",
    )
    variables = {"EMBERPOOL_GATEWAY_DEADLINE_SECONDS": "33", "EMBERPOOL_GATEWAY_KEYS_FILE": str(keys)}
    async with process(*options, **variables) as running, aiohttp.ClientSession() as session:

        async def get(number: int, path: str, key: str = "") -> int:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            try:
                async with session.get(f"http://127.0.0.1:{number}{path}", headers=headers) as response:
                    await response.read()
                    return response.status
            except aiohttp.ClientError:
                return 0

        async def until_status(wanted: int, number: int, path: str, key: str = "") -> None:
            async with asyncio.timeout(20):
                while await get(number, path, key) != wanted:
                    await asyncio.sleep(0.05)

        await until_status(200, port, "/livez")
        assert await get(operators, "/readyz") == 503
        async with session.get(f"http://127.0.0.1:{operators}/v1/gateway") as response:
            state = await response.json()
        assert state["instance"] == "gw-1"
        assert (state["settings"]["queue"]["maxAgeSeconds"], state["settings"]["deadlineSeconds"]) == (7, 33)
        assert state["assumptions"]["gatewayQueueSeconds"] == 7
        assert state["routes"] == {"term": None, "version": None, "gateways": []}
        assert "secret" not in str(state)
        assert await get(port, "/v1/gateway", "key-1") == 405, "clients are shown nothing"
        assert [await get(port, "/v1/models", key) for key in ("", "key-1", "key-2")] == [401, 200, 401]
        keys.write_text("key-2\n", "utf-8")
        running.send_signal(signal.SIGHUP)
        await until_status(200, port, "/v1/models", "key-2")
        assert await get(port, "/v1/models", "key-1") == 401
        keys.write_text("", "utf-8")
        running.send_signal(signal.SIGHUP)
        assert await get(port, "/v1/models", "key-2") == 200, "a file that can't be used changes nothing"
        running.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await running.wait() == 0


async def test_a_file_that_can_t_be_used_ends_it_with_a_hint() -> None:
    async with process("--port", "0", "--metrics-port", "0", "--tls-certificate", "/nowhere") as running:
        output, _ = await running.communicate()
        assert running.returncode == 2
        assert "--tls-certificate /nowhere can't be used" in output.decode()
        assert "hint: " in output.decode()

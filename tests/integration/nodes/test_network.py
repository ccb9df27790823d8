"""Pods in network namespaces: addresses that everybody takes, and nothing shared between pods but the wire."""

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from scaler.cluster.kube.resources import POD
from scaler.errors import UserError
from tests.fakes.kubelet import namespaces
from tests.fakes.workloads import SeatFleet, scripted
from tests.integration.nodes.conftest import TWO_NODES, World, agent_state, is_running, main, ready, world_of

SERVER = """cd $HOME; exec python3 -c '
import http.server, socketserver
socketserver.TCPServer(("{}", 8080), http.server.SimpleHTTPRequestHandler).serve_forever()
'"""
"""Asks no name server for its own name, as `python -m http.server` does; there is none."""


@pytest.fixture
async def apart(tmp_path: Path) -> AsyncIterator[World]:
    async with contextlib.AsyncExitStack() as stack:
        try:
            async with namespaces() as tried:
                await tried.attach("tried")
        except UserError as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield await stack.enter_async_context(world_of(tmp_path, replace(TWO_NODES, network=namespaces)))


async def page(url: str) -> str:
    """The text at a URL; empty where nobody answers."""
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return await response.text()
    return ""


async def test_pods_have_addresses_of_their_own_that_are_not_loopback(apart: World) -> None:
    for name in ("a", "b"):
        await apart.pod(name, main(f"echo {name} > $HOME/index.html; {SERVER.format('0.0.0.0')}"))
    pods = [await apart.when(name, ready) for name in ("a", "b")]
    addresses = [pod["status"]["podIP"] for pod in pods]
    assert len(set(addresses)) == 2
    assert not any(ipaddress.ip_address(each).is_loopback for each in addresses)

    async def answers() -> bool:
        return [await page(f"http://{ip}:8080/") for ip in addresses] == ["a\n", "b\n"]

    await apart.until("both pods' answers", answers)


async def test_a_pods_loopback_is_its_own_and_pods_reach_each_other(apart: World) -> None:
    await apart.pod("inner", main(f"echo inner > $HOME/index.html; {SERVER.format('127.0.0.1')}"))
    await apart.pod("outer", main(f"echo outer > $HOME/index.html; {SERVER.format('0.0.0.0')}"))
    inner, outer = [await apart.when(name, ready) for name in ("inner", "outer")]
    ask = "python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=2).read().decode())'"
    script = f"while :; do {ask} http://$0:8080/ && break; sleep 0.1; done; exec sleep 1000"
    await apart.pod("asker", main(script, args=[outer["status"]["podIP"]]))
    await apart.printed("asker", "outer")
    assert await page(f"http://{inner['status']['podIP']}:8080/") == ""
    assert await page("http://127.0.0.1:8080/") == ""


async def test_namespaces_go_with_their_pods(apart: World) -> None:
    await apart.pod("short", main("exec sleep 1000"))
    await apart.when("short", ready)
    before = await listed()
    await apart.calls.delete(POD, "default", "short")
    await apart.when_gone("short")
    assert len(set(before) - set(await listed())) >= 1


async def listed() -> list[str]:
    process = await asyncio.create_subprocess_exec("ip", "netns", "list", stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return output.decode().splitlines()


@pytest.mark.long
async def test_a_seat_listens_on_all_addresses_of_its_pod(apart: World) -> None:
    fleet = SeatFleet(name="spares", residents=[scripted("chat", 8001), scripted("code", 8002, seed=2)])
    await fleet.create(apart.calls)
    (pod,) = await apart.when_pods(
        lambda pods: len(pods) == 1 and is_running(pods[0]), "a running seat", app=fleet.name
    )

    async def all_paused() -> bool:
        state = await agent_state(pod)
        return state is not None and {each["state"] for each in state["residents"]} == {"Paused"}

    await apart.until("paused residents", all_paused)
    state = await agent_state(pod)
    assert state is not None
    assert state["agent"] == "http://0.0.0.0:9081"

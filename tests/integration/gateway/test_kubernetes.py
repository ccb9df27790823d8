"""Routing by pods' labels: with a controller, without one, and while the API server is gone."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from scaler.cluster.kube.resources import POD
from tests.fakes.memory_cluster import MemoryCluster
from tests.fakes.openai_engine import Script
from tests.fakes.ports import free_ports
from tests.integration.gateway.publishing import FLEET, Controller
from tests.integration.gateway.rig import CHAT, until
from tests.integration.gateway.running import process
from tests.integration.gateway.watched import (
    POLICIES,
    READS,
    SERVES,
    Watched,
    asked,
    front,
    watched,
)
from warmpool.seats import Resident, Seat, SeatName
from warmpool.states import ResidentState


@pytest.fixture
async def around(tmp_path: Path) -> AsyncIterator[Watched]:
    async with watched(tmp_path) as made:
        yield made


async def test_a_label_puts_a_pod_into_rotation_and_its_end_takes_it_out(around: Watched) -> None:
    first, second = await around.pod("seat-0"), await around.pod("seat-1", **SERVES)
    async with front(around) as gateway:
        await gateway.until_seats("seat-1")
        assert (await gateway.ask())[0] == 200
        await around.label("seat-0")
        await gateway.until_seats("seat-0", "seat-1")
        await around.label("seat-1", None)
        await gateway.until_seats("seat-0")
        for _ in range(4):
            assert (await gateway.ask())[0] == 200
        assert (len(first.seen), len(second.seen)) == (4, 1)
        slots = [each.slots for each in gateway.gateway.routes.policies[CHAT].endpoints]
        assert slots == [4], "what the policy says for the fleet"
    calls = {(call.resource, call.verb) for call in around.api.calls if call.verb in READS}
    assert calls == {("pods", "list"), ("pods", "watch")}


async def test_what_waits_goes_to_the_pod_that_gets_the_label(around: Watched) -> None:
    await around.pod("seat-0")
    async with front(around) as gateway, asyncio.TaskGroup() as tasks:
        await until(lambda: CHAT in gateway.gateway.routes.policies)
        waiting = tasks.create_task(gateway.ask())
        await until(lambda: gateway.gateway.stats(CHAT).queued == 1)
        await around.label("seat-0")
        assert (await waiting)[0] == 200


async def test_a_terminating_pod_gets_nothing_new_and_finishes_what_it_has(around: Watched) -> None:
    leaving, staying = await around.pod("seat-0", **SERVES), await around.pod("seat-1")
    leaving.script = Script(gated=True)
    async with front(around) as gateway, asyncio.TaskGroup() as tasks:
        await gateway.until_seats("seat-0")
        running = tasks.create_task(gateway.ask())
        await leaving.until(lambda engine: engine.in_flight == 1)
        await around.label("seat-1")
        await around.terminate("seat-0")
        await gateway.until_seats("seat-1")
        assert (await gateway.ask())[0] == 200
        leaving.gate.set()
        status, text = await running
        assert (status, text.count("[DONE]")) == (200, 1)
        assert (len(leaving.seen), len(staying.seen)) == (1, 1)


async def test_the_last_labels_hold_while_the_api_server_is_gone(around: Watched) -> None:
    engine = await around.pod("seat-0", **SERVES)
    await around.pod("seat-1")
    async with front(around) as gateway:
        await gateway.until_seats("seat-0")
        await around.go_away()
        for _ in range(3):
            assert (await gateway.ask())[0] == 200
        assert len(engine.seen) == 3
        await around.come_back()
        await around.label("seat-1")
        await gateway.until_seats("seat-0", "seat-1")


async def test_a_gateway_begins_without_an_api_server_and_learns_of_it(around: Watched) -> None:
    await around.pod("seat-0", **SERVES)
    await around.go_away()
    async with front(around) as gateway:
        assert not gateway.gateway.ready
        await around.come_back()
        await gateway.until_seats("seat-0")
        assert gateway.gateway.ready


@pytest.mark.parametrize(
    "residents",
    [
        "no JSON",
        "[]",
        '[{"policy": "code", "command": ["x"], "port": 9}]',
        '[{"policy": "chat", "port": "9"}]',
    ],
)
async def test_a_pod_that_names_no_port_harms_no_other(around: Watched, residents: str) -> None:
    await around.pod("seat-0", residents=residents, **SERVES)
    await around.pod("seat-1", **SERVES)
    async with front(around) as gateway:
        await gateway.until_seats("seat-1")
        assert (await gateway.ask())[0] == 200
        assert gateway.follower.state()["withoutPort"] == ["seat-0/chat"]


async def _get(session: aiohttp.ClientSession, url: str) -> int:
    try:
        async with session.get(url) as response:
            return response.status
    except aiohttp.ClientError:
        return 0


async def _state(session: aiohttp.ClientSession, operators: int) -> dict[str, Any]:
    async with session.get(f"http://127.0.0.1:{operators}/v1/gateway") as response:
        return dict(await response.json())


async def _metrics(session: aiohttp.ClientSession, operators: int) -> dict[str, float]:
    """Return the samples of the gateway's page, without what all their names begin with."""
    async with session.get(f"http://127.0.0.1:{operators}/metrics") as response:
        lines = [line for line in (await response.text()).splitlines() if not line.startswith("#")]
    samples = (line.removeprefix("emberpool_gateway_").rpartition(" ") for line in lines)
    return {name: float(number) for name, _, number in samples}


async def _until_answers(session: aiohttp.ClientSession, url: str, model: str) -> None:
    async with asyncio.timeout(30):
        while (await asked(session, url, model))[0] != 200:
            await asyncio.sleep(0.05)


async def test_the_process_follows_its_flags_and_its_policy_files(around: Watched, tmp_path: Path) -> None:
    """One process for all of it, for each takes seconds to begin."""
    await around.pod("seat-0", **SERVES)
    for name in ("gw-1", "gw-2"):
        await around.gateway_pod(name)
    port, operators = free_ports(2)
    where = ("--port", str(port), "--metrics-port", str(operators), "--policy", str(around.policies))
    flags = (*where, "--kubernetes", "--kubeconfig", str(tmp_path / "test"), "-n", "serving")
    flags += ("--peers", "app=gateway,app!=other", "--instance", "gw-1")
    url, session = f"http://127.0.0.1:{port}", around.session
    async with process(*flags, controllers=(), EMBERPOOL_SIGNAL_TOKEN="") as running:
        async with asyncio.timeout(30):
            while await _get(session, f"http://127.0.0.1:{operators}/readyz") != 200:
                await asyncio.sleep(0.05)
        assert (await asked(session, url))[0] == 200
        async with asyncio.timeout(30):
            while (state := await _state(session, operators))["routes"]["gateways"] != ["gw-1", "gw-2"]:
                await asyncio.sleep(0.05)
        assert [each["slots"] for each in state["policies"]["chat"]["endpoints"]] == [2]
        assert (state["pods"]["namespace"], state["pods"]["seats"]) == ("serving", 1)
        shown = await _metrics(session, operators)
        assert (shown["pods_synced"], shown["pods_seats"], shown["policy_reload_success"]) == (1, 1, 1)
        assert 0 <= shown["pods_age_seconds"] < 30
        assert shown["pods_residents_without_port"] == 0
        read_at = shown["policy_last_reload_timestamp_seconds"]
        around.policies.write_text(POLICIES.replace("MODEL", "other"), "utf-8")
        running.send_signal(signal.SIGHUP)
        await _until_answers(session, url, "other")
        assert (await asked(session, url))[0] == 404, "the old name has gone with the old file"
        around.policies.write_text("nonsense: [", "utf-8")
        running.send_signal(signal.SIGHUP)
        async with asyncio.timeout(30):
            while True:
                attempt = (await _state(session, operators))["policyFiles"]["lastAttempt"]
                if attempt is not None and attempt["faults"]:
                    break
                await asyncio.sleep(0.05)
        shown = await _metrics(session, operators)
        assert (shown["policy_reload_success"], shown['policy_reloads_total{outcome="Loaded"}']) == (0, 1)
        assert shown["policy_last_reload_timestamp_seconds"] > read_at
        assert (await asked(session, url, "other"))[0] == 200, "files that can't be used change nothing"
        running.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await running.wait() == 0


async def test_gateways_without_a_controller_divide_by_their_own_pods(around: Watched) -> None:
    await around.pod("seat-0", **SERVES)
    await around.gateway_pod("gw-1")
    async with front(around, peers="app=gateway") as gateway:

        def slots() -> list[int]:
            routes = gateway.gateway.routes.policies.get(CHAT)
            return [each.slots for each in routes.endpoints] if routes is not None else []

        await until(lambda: slots() == [4], seconds=10.0)
        await around.gateway_pod("gw-2")
        await until(lambda: slots() == [2], seconds=10.0)
        assert gateway.followed.state()["gateways"] == ["gw-1", "gw-2"]
        await around.terminate("gw-2")
        await until(lambda: slots() == [4], seconds=10.0)


# ---------------------------------------------------------------- beside a controller


def _listed(around: Watched, name: str, uid: str) -> Seat:
    """Return a seat in rotation as a controller knows it."""
    address = f"http://127.0.0.1:{around.ports[name]}"
    resident = Resident(policy=CHAT, state=ResidentState.SERVING, since=1.0, address=address)
    return Seat(
        name=SeatName(name),
        uid=uid,
        version="",
        fleet=FLEET,
        residents=(resident,),
        serving=frozenset({CHAT}),
    )


async def _uid(around: Watched, name: str) -> str:
    return str((await around.cluster.get(POD, name))["metadata"]["uid"])


async def test_a_controller_is_ahead_of_the_labels_and_never_against_them(around: Watched) -> None:
    await around.pod("seat-0", **SERVES)
    early = await around.pod("seat-1")
    controller = Controller(MemoryCluster({FLEET: [CHAT]}, lambda: 1.0), term=1)
    async with controller.serve() as url, front(around, [url]) as gateway:
        await gateway.until_seats("seat-0")
        around.api.faults.silent = True
        controller.cluster.objects.add(_listed(around, "seat-1", await _uid(around, "seat-1")))
        await gateway.until_seats("seat-0", "seat-1")
        for _ in range(4):
            assert (await gateway.ask())[0] == 200
        assert len(early.seen) == 2, "before its label is there"
        around.api.faults.silent = False
        await around.label("seat-1")
        await until(lambda: not gateway.followed.sources.early)
        assert gateway.seats() == {"seat-0", "seat-1"}
        await around.label("seat-1", None)
        await gateway.until_seats("seat-0")
        assert [each.uid for each in gateway.followed.sources.table.policies[CHAT].endpoints]
        for _ in range(4):
            assert (await gateway.ask())[0] == 200
        assert len(early.seen) == 2, "the label's end counts, though the controller still lists it"


async def test_routing_goes_on_when_the_controller_is_gone(around: Watched) -> None:
    await around.pod("seat-0", **SERVES)
    await around.pod("seat-1")
    controller = Controller(MemoryCluster({FLEET: [CHAT]}, lambda: 1.0), term=1)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(controller.serve())
        controller.cluster.objects.add(_listed(around, "seat-0", await _uid(around, "seat-0")))
        async with front(around, [url]) as gateway:
            await until(lambda: gateway.followed.sources.table is not None)
            await gateway.until_seats("seat-0")
            await stack.aclose()
            await around.label("seat-1")
            await around.label("seat-0", None)
            await gateway.until_seats("seat-1")
            assert (await gateway.ask())[0] == 200


async def test_a_controller_tells_a_gateway_that_can_t_reach_the_api_server(around: Watched) -> None:
    await around.pod("seat-0", **SERVES)
    uid = await _uid(around, "seat-0")
    await around.go_away()
    controller = Controller(MemoryCluster({FLEET: [CHAT]}, lambda: 1.0), term=1)
    controller.cluster.objects.add(_listed(around, "seat-0", uid))
    async with controller.serve() as url, front(around, [url]) as gateway:
        await gateway.until_seats("seat-0")
        assert (await gateway.ask())[0] == 200

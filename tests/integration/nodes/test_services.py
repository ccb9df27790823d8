"""Services on the stand-ins: an address whose connections go to endpoints that are ready, and names inside of pods."""

import asyncio
import contextlib
from typing import Any

import aiohttp
import pytest

from scaler.cluster.kube.resources import POD
from tests.fakes.control_plane.stateful_sets import REVISION
from tests.fakes.kube_calls import SERVICE, STATEFUL_SET
from tests.fakes.kubelet.services import takers
from tests.integration.nodes.conftest import QUIET, World, main, pod_body, ready

SERVING = "serving.emberpool.dev/chat"
PAGE = "echo $HOSTNAME > $HOME/index.html; cd $HOME; exec python3 -m http.server 8001 --bind 0.0.0.0"
ECHO = """exec python3 -c '
import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(64):
            self.request.sendall(data)
socketserver.ThreadingTCPServer(("0.0.0.0", 8001), Echo).serve_forever()
'"""
PROBE = {"tcpSocket": {"port": 8001}, "periodSeconds": 0.1}
Body = dict[str, Any]


async def service(world: World, name: str, **spec: Any) -> str:
    """Make a Service and return its address."""
    ports = [{"name": "http", "port": 80, "targetPort": 8001}]
    await world.calls.create(
        SERVICE, "default", {"metadata": {"name": name}, "spec": {"ports": ports, **spec}}
    )

    async def address() -> str:
        found: str = (await world.get(SERVICE, name))["spec"].get("clusterIP", "")
        return found

    found: str = await world.until("a Service's address", address)
    return found


async def page(url: str) -> str:
    """Who answers; empty for nobody."""
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return (await response.text()).strip()
    return ""


async def test_connections_follow_a_serving_label_and_are_refused_without_one(world: World) -> None:
    for name in ("a", "b"):
        await world.pod(name, main(PAGE, readinessProbe=PROBE))
    address = await service(world, "chat", selector={SERVING: "true"})
    for name in ("a", "b"):
        await world.when(name, ready)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(address, 80)
    for name in ("a", "b"):
        await world.calls.merge(POD, "default", name, {"metadata": {"labels": {SERVING: "true"}}})

        async def answers(wanted: str = name) -> bool:
            return await page(f"http://{address}/") == wanted

        await world.until(f"an answer of {name}", answers)
        await world.calls.merge(POD, "default", name, {"metadata": {"labels": {SERVING: None}}})

    async def nobody() -> bool:
        return await page(f"http://{address}/") == ""

    await world.until("nobody", nobody)


async def test_an_open_connection_stays_where_it_is(world: World) -> None:
    await world.pod("echo", main(ECHO, readinessProbe=PROBE), terminationGracePeriodSeconds=1)
    address = await service(world, "echo", selector={"app": "echo"})
    await world.when("echo", ready)

    async def connected() -> Any:
        with contextlib.suppress(OSError):
            return await asyncio.open_connection(address, 80)
        return None

    reader, writer = await world.until("a connection", connected)
    with contextlib.closing(writer):
        await world.calls.merge(POD, "default", "echo", {"metadata": {"labels": {"app": "other"}}})

        async def refused() -> bool:
            try:
                _, other = await asyncio.open_connection(address, 80)
            except ConnectionRefusedError:
                return True
            other.close()
            return False

        await world.until("a Service without endpoints", refused)
        writer.write(b"still")
        assert await asyncio.wait_for(reader.readexactly(5), 10) == b"still"


async def test_a_service_and_a_pod_of_a_headless_one_are_found_by_name(world: World) -> None:
    await service(world, "web", selector={"app": "named"})
    await service(world, "peers", selector={"app": "named"}, clusterIP="None")
    template = pod_body("named", main(PAGE, readinessProbe=PROBE))
    del template["metadata"]["name"]
    spec = {"replicas": 2, "serviceName": "peers", "podManagementPolicy": "Parallel", "template": template}
    spec |= {"selector": {"matchLabels": {"app": "named"}}}
    await world.calls.create(STATEFUL_SET, "default", {"metadata": {"name": "named"}, "spec": spec})
    await world.when_pods(lambda pods: len(pods) == 2 and all(map(ready, pods)), "two of a set", app="named")
    ask = "python3 -c 'import sys, urllib.request as u; [print(u.urlopen(each).read().decode()) for each in sys.argv[1:]]'"
    urls = "http://named-1.peers:8001/ http://named-0.peers.default.svc:8001/ http://web/ http://web.default.svc:80/"
    await world.pod("asker", main(f"{ask} {urls}; echo over; exec sleep 1000"))
    lines = (await world.printed("asker", "over")).split()
    assert lines[:2] == ["named-1", "named-0"]
    assert set(lines[2:4]) <= {"named-0", "named-1"}


async def test_a_stateful_set_keeps_names_and_is_renewed_from_the_last_one_on(world: World) -> None:
    template = pod_body("db", QUIET, terminationGracePeriodSeconds=1)
    del template["metadata"]["name"]
    spec = {
        "replicas": 2,
        "serviceName": "db",
        "template": template,
        "selector": {"matchLabels": {"app": "db"}},
    }
    await world.calls.create(STATEFUL_SET, "default", {"metadata": {"name": "db"}, "spec": spec})

    def two(pods: list[Body]) -> bool:
        return [pod["metadata"]["name"] for pod in pods] == ["db-0", "db-1"] and all(map(ready, pods))

    before = await world.when_pods(two, "two pods", app="db")
    hashes = {pod["metadata"]["labels"][REVISION] for pod in before}
    patch = {"spec": {"template": {"metadata": {"annotations": {"version": "2"}}}}}
    await world.calls.merge(STATEFUL_SET, "default", "db", patch)

    def renewed(pods: list[Body]) -> bool:
        return two(pods) and not hashes & {pod["metadata"]["labels"][REVISION] for pod in pods}

    after = await world.when_pods(renewed, "two new pods", app="db")
    born = {pod["metadata"]["name"]: pod["status"]["startTime"] for pod in after}
    assert born["db-1"] <= born["db-0"]
    await world.calls.merge(STATEFUL_SET, "default", "db", {"spec": {"replicas": 1}})
    await world.when_gone("db-1")
    assert (await world.get(POD, "db-0"))["metadata"]["uid"] in {pod["metadata"]["uid"] for pod in after}


def endpoint(number: int, **conditions: bool) -> Body:
    return {"addresses": [f"10.0.0.{number}"], "conditions": conditions}


@pytest.mark.parametrize(
    ("endpoints", "taking"),
    [
        ([endpoint(1, ready=True), endpoint(2, ready=False)], [1]),
        ([endpoint(1, ready=True), endpoint(2, ready=False, serving=True, terminating=True)], [1]),
        ([endpoint(2, ready=False, serving=True, terminating=True)], [2]),
        ([endpoint(2, ready=False, serving=False, terminating=True)], []),
        ([endpoint(1)], [1]),
    ],
)
def test_who_takes_a_new_connection(endpoints: list[Body], taking: list[int]) -> None:
    slices = [{"ports": [{"name": "http", "port": 8001}], "endpoints": endpoints}]
    assert takers(slices, "http") == [(f"10.0.0.{number}", 8001) for number in taking]
    assert takers(slices, "other") == []

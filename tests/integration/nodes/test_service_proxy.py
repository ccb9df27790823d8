"""`services/NAME/proxy` of the tests' API server: a request reaches a pod behind a Service, and its answer comes back."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.fakes.kube_api import Call, KubeApi, User, serving
from tests.fakes.kube_api.api import Target
from tests.fakes.kube_api.kinds import ENDPOINT_SLICE, NAMESPACE, SERVICE, Kind
from tests.fakes.ports import free_port

Body = dict[str, Any]
TOKENS = {
    "admin": User(name="admin"),
    "reader": User(name="reader", may=lambda call: call.verb in {"get", "list"}),
}


async def _echo(request: web.Request) -> web.Response:
    told = {
        "method": request.method,
        "path": request.raw_path,
        "body": (await request.read()).decode(),
        "headers": dict(request.headers),
    }
    return web.json_response(told, status=418, headers={"X-Own": "yes", "Location": "/elsewhere"})


@asynccontextmanager
async def pod() -> AsyncIterator[int]:
    """Somebody who answers with what they were asked; yields their port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", _echo)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def made(port: int, **conditions: bool) -> KubeApi:
    """An API with a Service `web` of the ports `http` and `more`, of which the first has one endpoint."""
    api = KubeApi(TOKENS)

    def create(kind: Kind, namespace: str, body: Body) -> None:
        api.create(Target(kind=kind, namespace=namespace), body, {})

    create(NAMESPACE, "", {"metadata": {"name": "serving"}})
    ports = [{"name": "http", "port": 80, "targetPort": port}, {"name": "more", "port": 81}]
    create(SERVICE, "serving", {"metadata": {"name": "web"}, "spec": {"ports": ports}})
    piece = {
        "metadata": {"name": "web-x", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": port}],
        "endpoints": [{"addresses": ["127.0.0.1"], "conditions": conditions}],
    }
    create(ENDPOINT_SLICE, "serving", piece)
    return api


async def asked(
    api: KubeApi, service: str, path: str = "", method: str = "GET", token: str = "admin", **more: Any
) -> tuple[int, Any, Mapping[str, str]]:
    async with serving(api) as url, aiohttp.ClientSession() as session:
        headers = {"Authorization": f"Bearer {token}", **more.pop("headers", {})}
        at = f"{url}/api/v1/namespaces/serving/services/{service}/proxy{path}"
        async with session.request(method, at, headers=headers, allow_redirects=False, **more) as answer:
            return answer.status, json.loads(await answer.read()), dict(answer.headers)


@pytest.mark.parametrize("service", ["web:http", "web:80", ":web:http", "http:web:http"])
async def test_a_request_reaches_an_endpoint_and_its_answer_comes_back_whole(service: str) -> None:
    async with pod() as port:
        api = made(port, ready=True)
        status, told, headers = await asked(
            api, service, "/v1/x?a=b%26c&d=1", "POST", data=b"fish", headers={"X-Asked": "me"}
        )
    assert (status, headers["X-Own"], headers["Location"]) == (418, "yes", "/elsewhere")
    assert (told["method"], told["path"], told["body"]) == ("POST", "/v1/x?a=b%26c&d=1", "fish")
    assert told["headers"]["X-Asked"] == "me"
    assert told["headers"]["Host"] == f"127.0.0.1:{port}"
    assert "Authorization" not in told["headers"], "credentials are the API server's alone"
    asked_for = Call(
        verb="create", group="", resource="services", subresource="proxy", namespace="serving", name=service
    )
    assert api.calls == [asked_for]


async def test_an_empty_path_is_the_root() -> None:
    async with pod() as port:
        _, told, _ = await asked(made(port, ready=True), "web:http")
    assert told["path"] == "/"


@pytest.mark.parametrize(
    ("service", "ready", "status", "reason", "message"),
    [
        ("other:http", True, 404, "NotFound", 'services "other" not found'),
        (
            "web:http",
            False,
            503,
            "ServiceUnavailable",
            'no endpoints available for service "web:http"',
        ),
        ("web:more", True, 503, "ServiceUnavailable", 'no endpoints available for service "web:more"'),
        ("web", True, 503, "ServiceUnavailable", 'no endpoints available for service "web"'),
        ("web:82", True, 503, "ServiceUnavailable", 'no service port 82 found for service "web"'),
        ("ftp:web:http", True, 400, "BadRequest", 'invalid service request "ftp:web:http"'),
    ],
)
async def test_who_cannot_be_asked_is_said_as_a_status(
    service: str, *, ready: bool, status: int, reason: str, message: str
) -> None:
    async with pod() as port:
        found, told, _ = await asked(made(port, ready=ready), service, "/v1/x")
    assert (found, told["kind"], told["reason"], told["message"]) == (status, "Status", reason, message)


async def test_an_endpoint_that_does_not_answer_is_said_as_a_status() -> None:
    status, told, _ = await asked(made(free_port(), ready=True), "web:http", "/v1/x")
    assert (status, told["kind"], told["reason"]) == (503, "Status", "ServiceUnavailable")
    assert told["message"].startswith("error trying to reach service: ")


async def test_who_may_only_read_asks_for_nothing_to_be_done() -> None:
    async with pod() as port:
        api = made(port, ready=True)
        assert (await asked(api, "web:http", token="reader"))[0] == 418
        status, told, _ = await asked(api, "web:http", method="POST", token="reader")
    assert (status, told["reason"]) == (403, "Forbidden")

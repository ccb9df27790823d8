"""A cluster for the command line's tests: the tests' API server over a real socket, in a thread of its own.

Beside what that server does it reviews accesses as its users' rights say, and passes on what is asked of the controller's
Service, as a kube-apiserver does: without `Authorization`, and with a Status where there is no such Service.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
from aiohttp import web
from yarl import URL

from tests.fakes.kube_api import Call, KubeApi, User, kubeconfig
from tests.fakes.kube_api.api import Target
from tests.fakes.kube_api.kinds import BY_PATH, KINDS, NAMESPACE
from tests.fakes.kube_api.server import Server
from tests.integration.cli.fake_controller import FakeController

Body = Mapping[str, Any]
_PROXY = "/api/v1/namespaces/{namespace}/services/{service}/proxy/{path:.*}"
_REVIEWS = "/apis/authorization.k8s.io/v1/{plural:(self)?subjectaccessreviews}"
_BY_KIND = {kind.kind: kind for kind in KINDS}
AGE_SECONDS = 3630
"""So old are objects as they are made: far from where their age would read otherwise a moment later."""
SERVICE = BY_PATH["", "v1", "services"]


class FakeCluster:
    """One API server with a controller behind it.

    Args:
        api: its objects and users.
        controller: who answers at Services named emberpool-controller.
    """

    def __init__(self, api: KubeApi, controller: FakeController | None = None) -> None:
        self.api = api
        self.controller = controller
        self.url = ""
        self.date: Callable[[], str] | None = None
        """What its answers say the time is; None for what it is."""
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._stop = asyncio.Event()

    # ------------------------------------------------------------ its objects

    def create(self, kind: str, body: Body, namespace: str = "serving") -> Any:
        """Make an object, with its status, as whoever writes that would."""
        return self.do(lambda: self._create(_BY_KIND[kind], body, namespace))

    def _create(self, kind: Any, body: Body, namespace: str) -> Any:
        where = namespace if kind.namespaced else ""
        if where and self.api.store.get(NAMESPACE, ("", where)) is None:
            self.api.create(Target(kind=NAMESPACE, namespace=""), {"metadata": {"name": where}}, {})
        made, _ = self.api.create(Target(kind=kind, namespace=where), dict(body), {})
        name = made.body["metadata"]["name"]
        if "managedFields" in body.get("metadata", {}):
            written = {**made.body["metadata"], "managedFields": body["metadata"]["managedFields"]}
            made = self.api.store.put(kind, (where, name), {**made.body, "metadata": written})
        if "status" in body:
            target = Target(kind=kind, namespace=where, name=name, subresource="status")
            patch = {"status": body["status"]}
            made, _ = self.api.patch(target, "application/merge-patch+json", patch, {})
        return made.body

    def patch(self, kind: str, name: str, body: Body, namespace: str = "serving") -> None:
        target = Target(kind=_BY_KIND[kind], namespace=namespace, name=name)
        self.do(lambda: self.api.patch(target, "application/merge-patch+json", dict(body), {}))

    def do(self, what: Callable[[], Any]) -> Any:
        """Do something in the server's thread."""

        async def done() -> Any:
            return what()

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(timeout=30)

    def calls(self) -> list[Call]:
        return list(self.api.calls)

    # ------------------------------------------------------------ serving

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        assert self._started.wait(timeout=30)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", _PROXY, self._passed_on)
        app.router.add_post(_REVIEWS, self._reviewed)
        app.router.add_route("*", "/{path:.*}", Server(self.api).handle)
        app.on_response_prepare.append(self._dated)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._started.set()
        try:
            await self._stop.wait()
        finally:
            self.api.faults.drop_watches()
            await runner.cleanup()

    async def _dated(self, _: web.Request, response: web.StreamResponse) -> None:
        if self.date is not None:
            response.headers["Date"] = self.date()

    async def _passed_on(self, request: web.Request) -> web.Response:
        at = request.match_info
        name = at["service"].partition(":")[0]
        call = Call(
            verb="create" if request.method == "POST" else "get",
            group="",
            resource="services",
            subresource="proxy",
            namespace=at["namespace"],
            name=at["service"],
        )
        self.api.calls.append(call)
        if not self._user(request).may(call):
            return _status(403, "Forbidden", f'services "{at["service"]}" is forbidden')
        if self.controller is None or self.api.store.get(SERVICE, (at["namespace"], name)) is None:
            return _status(404, "NotFound", f'services "{name}" not found')
        headers = {
            key: value for key, value in request.headers.items() if key not in {"Authorization", "Host"}
        }
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.request(
                    request.method,
                    URL(f"{self.controller.url}/{quote(at['path'])}", encoded=True),
                    headers=headers,
                    data=await request.read(),
                ) as answer,
            ):
                content = answer.headers.get("Content-Type", "application/json")
                return web.Response(
                    status=answer.status, body=await answer.read(), headers={"Content-Type": content}
                )
        except aiohttp.ClientConnectionError as error:
            return _status(503, "ServiceUnavailable", f"error trying to reach service: {error}")

    async def _reviewed(self, request: web.Request) -> web.Response:
        body = await request.json()
        asker = self._user(request)
        user = asker
        if request.match_info["plural"] == "subjectaccessreviews":
            review = Call(verb="create", group="authorization.k8s.io", resource="subjectaccessreviews")
            if not asker.may(review):
                return _status(403, "Forbidden", "subjectaccessreviews.authorization.k8s.io is forbidden")
            named = [each for each in self.api.users.values() if each.name == body["spec"]["user"]]
            user = named[0] if named else User(name="nobody", may=lambda _: False)
        wanted = body["spec"]["resourceAttributes"]
        call = Call(
            verb=wanted["verb"],
            group=wanted.get("group", ""),
            resource=wanted["resource"],
            subresource=wanted.get("subresource", ""),
            namespace=wanted.get("namespace", ""),
            name=wanted.get("name", ""),
        )
        return web.json_response({**body, "status": {"allowed": user.may(call)}}, status=201)

    def _user(self, request: web.Request) -> User:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return self.api.users.get(token, User(name="anonymous", may=lambda _: False))


def _status(code: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
    return web.json_response({**body, "reason": reason, "message": message}, status=code)


def written(path: Path, cluster: FakeCluster, token: str = "admin", namespace: str = "serving") -> str:
    """Write a kubeconfig."""
    path.write_text(json.dumps(kubeconfig(cluster.url, token, namespace)))
    return str(path)


@contextmanager
def cluster(
    users: Mapping[str, User] | None = None, controller: FakeController | None = None
) -> Iterator[FakeCluster]:
    api = KubeApi(users or {"admin": User(name="admin")}, wall=lambda: time.time() - AGE_SECONDS)
    made = FakeCluster(api, controller)
    made.start()
    try:
        yield made
    finally:
        made.stop()

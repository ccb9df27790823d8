"""HTTP around the API: paths to requests, refusals to Status objects, changes to watch streams."""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.web_request import Request

from tests.fakes.kube_api import service_proxy
from tests.fakes.kube_api.api import KubeApi, Target
from tests.fakes.kube_api.faults import Answer, Call, Cut
from tests.fakes.kube_api.kinds import BY_PATH, KINDS, POD, SERVICE, Kind
from tests.fakes.kube_api.refusals import Refusal, bad_request
from tests.fakes.kube_api.selectors import Matches, selection
from tests.fakes.kube_api.store import Change, Stored, stored

VERSION = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.2",
    "goVersion": "go1.27.3",
    "compiler": "gc",
    "platform": "linux/amd64",
}
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_TRUE = frozenset({"true", "True", "1"})


def target_of(path: str) -> Target | None:
    """Read the path of an object or a collection; None if it is neither."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and (group, version, rest[2]) in BY_PATH:
        namespace, rest = rest[1], rest[2:]
    kind = BY_PATH.get((group, version, rest[0]))
    if kind is None:
        return None
    name, subresource = [*rest, "", ""][1:3]
    return Target(kind=kind, namespace=namespace, name=name, subresource=subresource)


def call_of(request: Request, target: Target | None) -> Call:
    verb = _VERBS.get(request.method, "get")
    if target is None:
        return Call(verb=verb, group="", resource=request.path)
    if not target.name:
        watching = request.query.get("watch") in _TRUE
        verb = {"get": "watch" if watching else "list", "delete": "deletecollection"}.get(verb, verb)
    return Call(
        verb=verb,
        group=target.kind.group,
        resource=target.kind.plural,
        subresource=target.subresource,
        namespace=target.namespace,
        name=target.name or _only(request.query.get("fieldSelector", "")),
        dry_run=bool(request.query.get("dryRun")),
    )


def _only(selector: str) -> str:
    """Return the name of the only object that a list or a watch may have: rules take such for requests of that name."""
    exact = (each.partition("=") for each in selector.split(","))
    return next((value.lstrip("=") for key, _, value in exact if key == "metadata.name"), "")


def _json(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    content = body.full if isinstance(body, Stored) else json.dumps(body).encode()
    return web.Response(body=content, status=status, content_type="application/json", headers=headers)


def _warned(warnings: list[str]) -> dict[str, str]:
    return {"Warning": f"299 - {json.dumps(warnings[0])}"} if warnings else {}


class Server:
    """Handles each request of an API."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._late: set[asyncio.Task[None]] = set()

    async def handle(self, request: Request) -> web.StreamResponse:
        target = target_of(request.path)
        call = call_of(request, target)
        self._api.calls.append(call)
        seconds, answer, cut = self._api.faults.take(call)
        if cut is Cut.LATE:
            await request.read()  # it is there when the connection is gone
            self._late.add(asyncio.get_running_loop().create_task(self._later(request, call, seconds)))
            return _cut(request)
        if seconds:
            await asyncio.sleep(seconds)
        if answer is not None:
            return _instead(answer)
        if cut is Cut.BEFORE:
            return _cut(request)
        try:
            self._api.admit(
                request.headers.get("Authorization", ""), call, None if target is None else target.kind
            )
            response = await self._answer(request, target, call)
        except Refusal as refusal:
            response = _json(refusal.status(), refusal.code, refusal.headers)
        return _cut(request) if cut is Cut.AFTER else response

    async def _later(self, request: Request, call: Call, seconds: float) -> None:
        await asyncio.sleep(seconds)
        with contextlib.suppress(Refusal):
            await self._answer(request, target_of(request.path), call)

    async def end(self, _: web.Application) -> None:
        """Carry out nothing more."""
        for each in self._late:
            each.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)

    async def _answer(self, request: Request, target: Target | None, call: Call) -> web.StreamResponse:
        if target is None:
            return _discovery(request.path)
        if target.kind is SERVICE and target.subresource == service_proxy.SUBRESOURCE:
            return await service_proxy.passed_on(self._api.store, request, target.namespace, target.name)
        if call.verb == "watch":
            return await _watch(self._api, request, target)
        if call.verb == "list":
            return _listing(target.kind, *self._api.listing(target, request.query))
        if call.verb == "get":
            return _json(self._api.get(target))
        if call.verb == "deletecollection":
            return _listing(target.kind, *self._api.delete_collection(target, request.query))
        return await self._write(request, target, call.verb)

    async def _write(self, request: Request, target: Target, verb: str) -> web.Response:
        text = await request.read()
        if "protobuf" in request.content_type:
            raise Refusal(415, "UnsupportedMediaType", "415: Unsupported Media Type", details={})
        try:
            body = json.loads(text) if text else {}
        except ValueError:
            raise bad_request("the body is not JSON") from None
        if verb == "delete":
            return _json(self._api.delete(target, body, request.query))
        if verb == "create" and target.subresource == "binding":
            return _json(self._api.bind(target, body, request.query), 201)
        if verb == "create" and target.subresource == "eviction":
            return _json(self._api.evict(target, body, request.query), 201)
        if verb == "create":
            created, warnings = self._api.create(target, body, request.query)
            return _json(created, 201, _warned(warnings))
        written, warnings = (
            self._api.patch(target, request.content_type, body, request.query)
            if verb == "patch"
            else self._api.replace(target, body, request.query)
        )
        return _json(written, 200, _warned(warnings))


def _instead(answer: Answer) -> web.Response:
    headers = {"Retry-After": answer.retry_after} if answer.retry_after else {}
    if answer.html:
        page = f"<html><body><h1>{answer.status} Bad Gateway</h1></body></html>"
        return web.Response(status=answer.status, text=page, content_type="text/html", headers=headers)
    reason = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}.get(answer.status, "")
    refusal = Refusal(answer.status, reason, "refused on demand", headers=headers)
    return _json(refusal.status(), answer.status, headers)


def _cut(request: Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def _listing(kind: Kind, metadata: Mapping[str, Any], items: Any) -> web.Response:
    head = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata}
    content = json.dumps(head).encode()[:-1] + b',"items":[' + b",".join(item.text for item in items) + b"]}"
    return web.Response(body=content, content_type="application/json")


# ---------------------------------------------------------------- watches


def _event(kind: str, text: bytes) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + text + b"}\n"


def seen(change: Change, matches: Matches | None) -> bytes:
    """Render a change as a watch with a selector sees it; empty if it doesn't."""
    before = change.old is not None and (matches is None or matches(change.old.body))
    now = not change.deleted and (matches is None or matches(change.new.body))
    if now:
        return _event("MODIFIED" if before else "ADDED", change.new.full)
    if not before or change.old is None:
        return b""
    last = change.new if change.deleted else change.old
    metadata = {**last.body["metadata"], "resourceVersion": str(change.version)}
    return _event("DELETED", stored({**last.body, "metadata": metadata}).full)


@dataclass
class _Schedule:
    """When a watch ends and when it sends bookmarks, in the loop's time."""

    ends: float
    bookmarks: list[float]

    def next(self) -> float:
        return min([self.ends, *self.bookmarks[:1]])


def _schedule(api: KubeApi, query: Mapping[str, str]) -> _Schedule:
    """Bookmarks come regularly, and twice shortly before the end, as the recordings show."""
    now, second = asyncio.get_running_loop().time(), api.pace.second
    length = float(query.get("timeoutSeconds") or 1800)
    marks: list[float] = []
    if query.get("allowWatchBookmarks") in _TRUE:
        regular = [
            api.pace.bookmarks * i for i in range(1, min(1000, int((length - 2) / api.pace.bookmarks) + 1))
        ]
        marks = [*regular, *(length - at for at in (2.0, 1.0) if at < length)]
    return _Schedule(ends=now + length * second, bookmarks=[now + at * second for at in sorted(marks)])


def _started(api: KubeApi, target: Target, version: str) -> list[Change]:
    """Return what a watch begins with: the present objects, or the changes since a version."""
    if version in {"", "0"}:
        return [Change(item.version, None, item) for item in api.store.all(target.kind, target.namespace)]
    if not version.isdigit():
        raise Refusal(
            500,
            "",
            f'resourceVersion: Invalid value: "{version}": strconv.ParseUint: parsing "{version}": invalid syntax',
        )
    return [change for change in api.store.since(target.kind, int(version)) if _inside(target, change)]


def _inside(target: Target, change: Change) -> bool:
    return not target.namespace or change.new.body["metadata"].get("namespace") == target.namespace


async def _watch(api: KubeApi, request: Request, target: Target) -> web.StreamResponse:
    matches = selection(target.kind, request.query)
    version = request.query.get("resourceVersion", "")
    gone: Refusal | None = None
    try:
        backlog = deque(_started(api, target, version))
    except Refusal as refusal:
        if refusal.code != 410 or api.faults.gone_as_status:
            raise
        gone, backlog = refusal, deque()
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.enable_chunked_encoding()
    dropped = api.faults.dropped
    woken = asyncio.Event()

    def heard(change: Change) -> None:
        if _inside(target, change):
            backlog.append(change)
            woken.set()

    end = api.store.listen(target.kind, heard)
    api.backlogs.append(backlog)
    try:
        await response.prepare(request)
        if gone is not None:
            await response.write(_event("ERROR", json.dumps(gone.status()).encode()))
            return response
        feed = _Feed(api, target.kind, response, backlog, matches)
        after = int(version) if version.isdigit() else 0
        feed.from_version(max(after, api.store.version if after == 0 else 0))
        await feed.run(_schedule(api, request.query), woken, dropped)
    except ConnectionError:
        pass  # the other end has gone
    finally:
        end()
        api.backlogs = [each for each in api.backlogs if each is not backlog]
    return response


class _Feed:
    """Writes one watch."""

    def __init__(
        self,
        api: KubeApi,
        kind: Kind,
        response: web.StreamResponse,
        backlog: deque[Change],
        matches: Matches | None,
    ) -> None:
        self._api = api
        self._kind = kind
        self._response = response
        self._backlog = backlog
        self._matches = matches
        self._from = 0

    def from_version(self, version: int) -> None:
        """Send nothing that is older, but what the watch begins with."""
        self._from = version

    async def run(self, schedule: _Schedule, woken: asyncio.Event, dropped: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        while not dropped.is_set():
            woken.clear()
            if not self._api.faults.silent and not await self._flush():
                return
            if loop.time() >= schedule.ends:
                return
            if schedule.bookmarks and loop.time() >= schedule.bookmarks[0]:
                schedule.bookmarks.pop(0)
                await self._bookmark()
                continue
            await _either(woken, dropped, schedule.next() - loop.time())

    async def _flush(self) -> bool:
        while self._backlog:
            line = seen(self._backlog.popleft(), self._matches)
            if self._api.faults.spacing:
                await asyncio.sleep(self._api.faults.spacing)
            if self._api.faults.tear and line:
                await self._response.write(line[: len(line) // 2])
                return False
            if line:
                await self._response.write(line)
        return True

    async def _bookmark(self) -> None:
        if self._api.faults.silent:
            return
        version = max(self._from, self._api.store.version)
        bare = {
            "kind": self._kind.kind,
            "apiVersion": self._kind.api_version,
            "metadata": {"resourceVersion": str(version)},
            **({"spec": {"containers": None}, "status": {}} if self._kind is POD else {}),
        }
        await self._response.write(_event("BOOKMARK", json.dumps(bare).encode()))


async def _either(first: asyncio.Event, second: asyncio.Event, seconds: float) -> None:
    """Wait until one of two events is set, or for some seconds."""
    async with asyncio.TaskGroup() as tasks:
        waits = [tasks.create_task(event.wait()) for event in (first, second)]
        await asyncio.wait(waits, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


# ---------------------------------------------------------------- discovery


def _discovery(path: str) -> web.Response:
    """Answer what kubectl asks before it asks for objects."""
    path = path.rstrip("/")
    groups = sorted({(kind.group, kind.version) for kind in KINDS if kind.group})
    if path == "/version":
        return _json(VERSION)
    if path in {"/readyz", "/livez", "/healthz"}:
        return web.Response(text="ok")
    if path == "/api":
        return _json({"kind": "APIVersions", "versions": ["v1"]})
    if path == "/apis":
        listed = [
            {
                "name": group,
                "versions": [(at := {"groupVersion": f"{group}/{version}", "version": version})],
                "preferredVersion": at,
            }
            for group, version in groups
        ]
        return _json({"kind": "APIGroupList", "apiVersion": "v1", "groups": listed})
    for group, version in [("", "v1"), *groups]:
        if path == (f"/apis/{group}/{version}" if group else f"/api/{version}"):
            return _json(_resources(group, version))
    return web.Response(status=404, text="404 page not found\n")


_SHORT = {
    "namespaces": ["ns"],
    "pods": ["po"],
    "nodes": ["no"],
    "configmaps": ["cm"],
    "services": ["svc"],
    "deployments": ["deploy"],
    "replicasets": ["rs"],
    "poddisruptionbudgets": ["pdb"],
}


def _resources(group: str, version: str) -> dict[str, Any]:
    verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    listed = [
        {
            "name": kind.plural,
            "singularName": kind.kind.lower(),
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "shortNames": _SHORT.get(kind.plural, []),
            "verbs": verbs,
        }
        for kind in KINDS
        if (kind.group, kind.version) == (group, version)
    ]
    listed += [
        _subresource(kind, each)
        for kind in KINDS
        if (kind.group, kind.version) == (group, version)
        for each in _subresources(kind)
    ]
    name = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": listed}


def _subresources(kind: Kind) -> list[str]:
    own = [name for name, there in (("status", kind.status), ("scale", kind.scale)) if there]
    return [*own, "binding", "eviction"] if kind is POD else own


_FOREIGN = {
    "scale": ("autoscaling", "v1", "Scale"),
    "eviction": ("policy", "v1", "Eviction"),
    "binding": ("", "v1", "Binding"),
}
"""Subresources of another kind than their object: group, version, kind."""


def _subresource(kind: Kind, name: str) -> dict[str, Any]:
    group, version, own = _FOREIGN.get(name, (kind.group, kind.version, kind.kind))
    verbs = ["create"] if name in {"binding", "eviction"} else ["get", "patch", "update"]
    named = {"group": group, "version": version} if name in _FOREIGN else {}
    return {
        "name": f"{kind.plural}/{name}",
        "singularName": "",
        "namespaced": kind.namespaced,
        "kind": own,
        "verbs": verbs,
        **named,
    }


# ---------------------------------------------------------------- serving


@asynccontextmanager
async def serving(
    api: KubeApi, port: int = 0, *, tls: Any = None, host: str = "127.0.0.1"
) -> AsyncIterator[str]:
    """Serve an API until the context is left; yields its URL."""
    app = web.Application(client_max_size=2**24)
    server = Server(api)
    app.router.add_route("*", "/{path:.*}", server.handle)
    app.on_cleanup.append(server.end)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
        yield f"{'https' if tls else 'http'}://{host}:{runner.addresses[0][1]}"
    finally:
        api.faults.drop_watches()
        await runner.cleanup()


def kubeconfig(
    url: str, token: str = "test", namespace: str = "default", authority: str = ""
) -> dict[str, Any]:
    """Make the configuration that kubectl and we read."""
    cluster = {"server": url, **({"certificate-authority": authority} if authority else {})}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fake", "cluster": cluster}],
        "users": [{"name": "fake", "user": {"token": token}}],
        "contexts": [
            {"name": "fake", "context": {"cluster": "fake", "user": "fake", "namespace": namespace}}
        ],
        "current-context": "fake",
    }

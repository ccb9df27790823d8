"""`services/[SCHEME:]NAME[:PORT]/proxy/PATH`: a request goes on to one of the Service's endpoints that are ready.

As kube-apiserver does it (`pkg/registry/core/service/storage/storage.go`, `ResourceLocation`): the port is a name or a number of
the Service's, the endpoint is drawn anew for each request, credentials stay here, and the answer comes back as it is.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
from aiohttp import web
from yarl import URL

from tests.fakes.kube_api.kinds import ENDPOINT_SLICE, SERVICE
from tests.fakes.kube_api.refusals import bad_request, not_found, unavailable
from tests.fakes.kube_api.store import Store

SUBRESOURCE = "proxy"
SERVICE_NAME = "kubernetes.io/service-name"
"""Label of an EndpointSlice that names its Service."""
_ANSWER_SECONDS = 30.0
_ONE_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "content-length",
    }
)
"""Headers of one connection, and the length, which is told anew."""
_KEPT_BACK = _ONE_HOP | {"authorization", "host"}
Address = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Who is asked for; the port is a name, a number, or empty for the one without a name."""

    scheme: str
    name: str
    port: str


def parse(text: str) -> Wanted:
    """Read `[SCHEME:]NAME[:PORT]`. PURE.

    Raises:
        Refusal: 400, it is something else.
    """
    match text.split(":"):
        case [name] if name:
            return Wanted(scheme="http", name=name, port="")
        case [name, port] if name:
            return Wanted(scheme="http", name=name, port=port)
        case [("" | "http" | "https") as scheme, name, port] if name:
            return Wanted(scheme=scheme or "http", name=name, port=port)
    raise bad_request(f'invalid service request "{text}"')


def port_name(service: Mapping[str, Any], wanted: Wanted) -> str:
    """Return the name of a Service's port. PURE.

    Raises:
        Refusal: 503, it has no port of that number.
    """
    if not wanted.port.isdigit():
        return wanted.port
    for port in service.get("spec", {}).get("ports") or ():
        if port["port"] == int(wanted.port):
            return str(port.get("name", ""))
    raise unavailable(f'no service port {wanted.port} found for service "{wanted.name}"')


def ready(slices: Sequence[Mapping[str, Any]], port: str) -> list[Address]:
    """Return where the endpoints that are ready have a port. PURE."""
    return [
        (endpoint["addresses"][0], int(each["port"]))
        for one in slices
        for each in one.get("ports") or ()
        if each.get("name", "") == port
        for endpoint in one.get("endpoints") or ()
        if (endpoint.get("conditions") or {}).get("ready", True)
    ]


def located(store: Store, namespace: str, text: str) -> tuple[str, Address]:
    """Return scheme and address of one who is to answer.

    Raises:
        Refusal: there is no such Service, no such port, or nobody ready behind it.
    """
    wanted = parse(text)
    service = store.get(SERVICE, (namespace, wanted.name))
    if service is None:
        raise not_found(SERVICE, wanted.name)
    port = port_name(service.body, wanted)
    slices = [
        each.body
        for each in store.all(ENDPOINT_SLICE, namespace)
        if (each.body["metadata"].get("labels") or {}).get(SERVICE_NAME) == wanted.name
    ]
    if not (addresses := ready(slices, port)):
        raise unavailable(f'no endpoints available for service "{text}"')
    return wanted.scheme, random.choice(addresses)


async def passed_on(store: Store, request: web.Request, namespace: str, text: str) -> web.Response:
    """Ask one endpoint of a Service, and return what it answers.

    Raises:
        Refusal: nobody can be asked, or nobody answers.
    """
    scheme, (host, port) = located(store, namespace, text)
    path = request.path.partition(f"/services/{text}/{SUBRESOURCE}")[2] or "/"
    asked = f"{scheme}://{host}:{port}{quote(path)}"
    url = URL(f"{asked}?{request.query_string}" if request.query_string else asked, encoded=True)
    try:
        async with (
            asyncio.timeout(_ANSWER_SECONDS),
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                request.method,
                url,
                headers=_without(request.headers, _KEPT_BACK),
                data=await request.read() or None,
                allow_redirects=False,
                ssl=False,
            ) as answer,
        ):
            headers = _without(answer.headers, _ONE_HOP)
            return web.Response(status=answer.status, body=await answer.read(), headers=headers)
    except (aiohttp.ClientError, OSError) as error:  # a timeout is one of the latter
        why = str(error) or type(error).__name__
        raise unavailable(f"error trying to reach service: {why}") from error


def _without(headers: Mapping[str, str], names: frozenset[str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name.lower() not in names]

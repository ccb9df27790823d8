"""Asking an API server: whole lists, answers as they came, and the controller through the server's own proxy.

The proxy lets whoever can read Services reach the controller without a port that is forwarded. What stands between is told
apart: a Status is the API server's word, anything else is the controller's.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, Self
from urllib.parse import unquote

import aiohttp

from scaler.cluster.kube.access import Access
from scaler.cluster.kube.client import KubeClient, Request
from scaler.cluster.kube.errors import Expired
from scaler.cluster.kube.resources import SERVICE, Collection, Kind
from scaler.cluster.kube.views import Json
from scaler.errors import ClusterError, Unreachable

CONTROLLER_SERVICE: Final = "emberpool-controller"
"""Name of the controller's Service."""
CONTROLLER_PORT: Final = "http"
"""Name of the port of its API there."""
CONTROLLER_NAMESPACE: Final = "emberpool"
"""Where it is looked for when it isn't where the seats are."""
_PAGE: Final = 500
_LIST_SECONDS: Final = 15.0
"""For one page of a list."""
_ANSWER_SECONDS: Final = 5.0
"""The controller answers from memory."""
_ELSEWHERE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN})
"""Answers of the API server after which the controller may still be in another namespace."""
_TRIES: Final = 3
"""A list whose pages expire while they are turned is begun anew so often."""


class NoController(ClusterError):
    """The controller isn't reached through the API server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer as it came.

    Attributes:
        status: HTTP's.
        body: its JSON; None where it is none.
        text: its beginning, for people.
        date: the `Date` header; empty where there is none.
        namespace: where the controller is that answered; empty for the API server's own answers.
    """

    status: int
    body: Any
    text: str = ""
    date: str = ""
    namespace: str = ""

    @property
    def of_api_server(self) -> bool:
        """Whether it is the API server that refuses, and not who stands behind it."""
        return isinstance(self.body, dict) and self.body.get("kind") == "Status"

    @property
    def refusal(self) -> str:
        """What the answer says of itself, in words."""
        body = self.body if isinstance(self.body, dict) else {}
        error = body.get("error")
        said = body.get("message") or (error.get("message") if isinstance(error, dict) else None)
        return str(said or self.text.strip() or f"status {self.status}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request to the controller.

    Attributes:
        path: in its API.
        method: GET or POST.
        body: sent as JSON; None for none.
    """

    path: str
    method: str = "GET"
    body: object = None


class Asker(KubeClient):
    """A client that reads whole lists, and returns answers as they came; use it as an async context manager.

    Args:
        access: how the server is reached.
        headers: sent with every request. `Authorization` is the API server's own and never gets through its proxy.
    """

    def __init__(self, access: Access, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(access)
        self._headers = headers

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        assert self._session is not None
        self._session.headers.update(self._headers)
        return self

    async def answer(self, request: Request, *, seconds: float = _ANSWER_SECONDS) -> Answer:
        """Make a call and return the answer, whatever its status is.

        Raises:
            Unreachable: there is none.
            Forbidden: the server refuses the credentials, and there are no others.
        """
        try:
            async with asyncio.timeout(seconds), self._opened(request) as response:
                text = await response.read()
        except TimeoutError as error:
            raise Unreachable(f"{request.method} {request.path}: no answer within {seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            what = str(error) or type(error).__name__
            raise Unreachable(f"{request.method} {request.path}: {what}") from error
        return Answer(
            status=response.status,
            body=_json(text),
            text=text[:200].decode(errors="replace"),
            date=response.headers.get("Date", ""),
        )

    async def listed(self, source: Collection) -> list[Json]:
        """Return all objects of a collection.

        Raises:
            ClusterError: as `KubeClient.call` does; `Rejected` where the server doesn't have the kind.
        """
        for _ in range(_TRIES - 1):
            try:
                return await self._pages(source)
            except Expired:
                continue
        return await self._pages(source)

    async def _pages(self, source: Collection) -> list[Json]:
        found: list[Json] = []
        query = {**source.selectors, "limit": str(_PAGE)}
        while True:
            page = await self.call(Request(path=source.path, query=query), seconds=_LIST_SECONDS)
            if not isinstance(page, dict) or not str(page.get("kind")).endswith("List"):
                raise Unreachable(f"{source.path}: the answer is no list")
            found += [_whole(each, source.kind) for each in page.get("items") or () if isinstance(each, dict)]
            metadata = page.get("metadata")
            if not (following := metadata.get("continue") if isinstance(metadata, dict) else None):
                return found
            query = {**query, "continue": str(following)}

    async def controller(self, question: Question, namespaces: Sequence[str]) -> Answer:
        """Ask the controller through the API server's proxy.

        Args:
            question: what for.
            namespaces: where its Service may be; the first that has one counts.

        Raises:
            NoController: there is none, it doesn't answer, or the credentials don't allow it.
        """
        refused = ""
        for namespace in dict.fromkeys(namespaces):
            request = Request(
                method=question.method, path=proxy_path(namespace, question.path), body=question.body
            )
            try:
                answer = await self.answer(request)
            except ClusterError as error:
                raise NoController(str(error)) from error
            if not answer.of_api_server:
                return replace(answer, namespace=namespace)
            call = f"{question.method} {unquote(proxy_path(namespace, ''))}"  # the same for all that is asked there: it is told once
            why = f"the API server answers {call} with status {answer.status}: {answer.refusal}"
            if answer.status not in _ELSEWHERE:
                raise NoController(why)
            if not refused or answer.status == HTTPStatus.FORBIDDEN:
                refused = why
        raise NoController(refused or "no namespace to look in")


def proxy_path(namespace: str, path: str) -> str:
    """Return the API server's path to a path of the controller's API."""
    service = f"{CONTROLLER_SERVICE}:{CONTROLLER_PORT}"
    return f"{SERVICE.path(namespace, service, 'proxy')}{path}"


def _whole(item: Json, kind: Kind) -> Json:
    """Return an object of a list with its kind, which a list leaves out."""
    return {"apiVersion": kind.api_version, "kind": kind.name, **item}


def _json(text: bytes) -> Any:  # noqa: ANN401 - JSON is what it is
    try:
        return json.loads(text)
    except ValueError:
        return None

"""Asking a running controller or gateway: one request, one answer, or one clear sentence why there is none.

The standard library's client is enough for one request at a time, and imports in a fraction of aiohttp's time.
"""

import http.client
import ipaddress
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, ClassVar, Final, NoReturn, Protocol
from urllib.parse import urlsplit

from scaler.cli.failures import Failed
from scaler.errors import UserError

TIMEOUT_SECONDS: Final = 5.0
"""They answer from memory; whoever takes longer is stuck or something else."""
_LARGEST_ANSWER: Final = 256 * 2**20

REFRESH_SECONDS: Final = 1.0
"""How often `--watch` asks; a controller decides more often, but nobody reads faster."""
ORDERS: Final = "/v1/orders"
"""Where a controller takes orders of people."""

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})

Json = Mapping[str, Any]
Items = list[dict[str, Any]]
Show = Callable[[Items | Failed], None]


class Source(Protocol):
    """Whom a command asks: a controller, or a cluster with its controller."""

    @property
    def several_namespaces(self) -> bool:
        """Whether what it lists may be of several namespaces."""

    def items(self, plural: str) -> Items:
        """Fetch all objects of a kind (`fleets`, `policies`, `seats`).

        Raises:
            Failed: nobody answers, or something else does.
        """

    def ask(self, path: str, namespace: str = "") -> Json:
        """Fetch what only a controller knows, as one JSON object.

        Args:
            path: where.
            namespace: whose controller is asked, where there may be several; empty: that of where is looked usually.

        Raises:
            Failed: no controller answers.
        """

    def follow(self, plural: str, show: Show) -> NoReturn:
        """Show all objects of a kind again and again, until interrupted; what fails is shown and tried again."""

    def order(self, body: Json, token: str, path: str = ORDERS) -> tuple[int, Any]:
        """Give the controller an order; return the answer's status and its JSON, None where it is none.

        Raises:
            Failed: no controller answers.
        """


def items_of(body: Json) -> Items | None:
    """Return the objects that an answer holds; None where it isn't so made."""
    items = body.get("items")
    return items if isinstance(items, list) and all(isinstance(each, dict) for each in items) else None


def ask_again(items: Callable[[], Items], show: Show) -> NoReturn:
    """Ask each second and show what comes, or why nothing does."""
    while True:
        try:
            show(items())
        except Failed as error:
            show(error)
        time.sleep(REFRESH_SECONDS)


class Silent(Failed):
    """Nothing answers at the server's address."""


class Server:
    """One HTTP API.

    Args:
        server: its base URL.

    Raises:
        UserError: it isn't a URL.
    """

    _what: ClassVar[str]
    _option: ClassVar[str]
    _start: ClassVar[str]

    def __init__(self, server: str) -> None:
        self.server = server.rstrip("/")
        try:
            parts = urlsplit(self.server)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise _not_a_url(server) from error
        if parts.scheme not in {"http", "https"} or not host:
            raise _not_a_url(server)
        # a proxy that is set for the outside can't reach this machine's own loopback
        proxies = [urllib.request.ProxyHandler({})] if _is_loopback(host) else []
        self._opener = urllib.request.build_opener(*proxies)

    def get(self, path: str) -> Json:
        """Fetch one JSON object.

        Raises:
            Silent: nobody answers.
            Failed: who answers is something else, or in trouble.
        """
        status, raw = self._exchange(path)
        if status != HTTPStatus.OK:
            raise _said(raw) or self._not_ours(f"{path} answers with status {status}")
        try:
            body = json.loads(raw)
        except ValueError as error:
            raise self._not_ours(f"{path} answers with something else than JSON") from error
        if not isinstance(body, dict):
            raise self._not_ours(f"{path} answers with something else than a JSON object")
        return body

    def _exchange(
        self, path: str, data: bytes | None = None, headers: Mapping[str, str] = _NO_HEADERS
    ) -> tuple[int, bytes]:
        """Send a GET, or a POST of `data`; return the answer's status and body.

        Raises:
            Silent: nobody answers.
        """
        request = urllib.request.Request(self.server + path, data, dict(headers))  # noqa: S310 - see __init__
        try:
            with self._opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                return answer.status, answer.read(_LARGEST_ANSWER)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(_LARGEST_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(error) from error

    def _silent(self, error: Exception) -> Silent:
        if isinstance(error, TimeoutError):  # one while connecting comes as the reason of a URLError
            return self._mute()
        reason = getattr(error, "reason", None) or error
        detail = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        hint = f"start one with {self._start}, or name another: {self._option} URL"
        return Silent(f"no {self._what} answers at {self.server} ({detail})", hint=hint)

    def _mute(self) -> Silent:
        hint = (
            f"a {self._what} that is still starting answers once it is up: try again;"
            f" if it stays so, it is stuck or something else, so name another: {self._option} URL"
        )
        return Silent(
            f"something listens at {self.server} and doesn't answer yet (waited {TIMEOUT_SECONDS:g} s)",
            hint=hint,
        )

    def _not_ours(self, what: str) -> Failed:
        hint = f"is this a {self._what} of the same version? Name another: {self._option} URL"
        return Failed(f"{self.server} doesn't answer as a {self._what} does: {what}", hint=hint)


def _said(raw: bytes) -> Failed | None:
    """Return what a server says is wrong, in its own words; None where it says nothing that we know."""
    try:
        error = json.loads(raw)["error"]
        return Failed(str(error["message"]), hint=str(error.get("hint", "")))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


class Controller(Server):
    """A controller's HTTP API."""

    _what, _option, _start = "controller", "--controller", "`emberpool local`"
    several_namespaces: Final = False

    def ask(self, path: str, namespace: str = "") -> Json:  # noqa: ARG002 - one controller has one namespace
        """See `Source.ask`."""
        return self.get(path)

    def follow(self, plural: str, show: Show) -> NoReturn:
        """See `Source.follow`; a controller that stops answering is waited for."""
        ask_again(lambda: self.items(plural), show)

    def order(self, body: Json, token: str, path: str = ORDERS) -> tuple[int, Any]:
        """See `Source.order`."""
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        status, raw = self._exchange(path, json.dumps(body).encode(), headers)
        try:
            return status, json.loads(raw)
        except ValueError:
            return status, None

    def items(self, plural: str) -> Items:
        """Fetch all objects of a kind (`fleets`, `policies`, `seats`).

        Raises:
            Silent: nobody answers.
            Failed: who answers is no controller, or one in trouble.
        """
        items = items_of(self.get(f"/v1/{plural}"))
        if items is None:
            raise self._not_ours("the answer holds no items")
        return items


class Gateway(Server):
    """What a gateway shows to those who operate it, on the port of its metrics."""

    _what, _option, _start = "gateway", "--gateway", "`emberpool gateway`"

    def assumptions(self) -> dict[str, int]:
        """Fetch what `policy lint` wants to know of it.

        Raises:
            Silent: nobody answers.
            Failed: who answers is no gateway.
        """
        told = self.get("/v1/gateway").get("assumptions")
        if not isinstance(told, dict) or not all(type(value) is int for value in told.values()):
            raise self._not_ours("the answer holds no assumptions")
        return told


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _not_a_url(server: str) -> UserError:
    return UserError(f"{server!r} is not the URL of a server", hint="such as http://127.0.0.1:9080")

"""Asking a running controller or gateway: one GET, one answer, or one clear sentence why there is none.

The standard library's client is enough for one request at a time, and imports in a fraction of aiohttp's time.
"""

import http.client
import ipaddress
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from scaler.cli.failures import Failed
from scaler.errors import UserError

TIMEOUT_SECONDS: Final = 5.0
"""They answer from memory; whoever takes longer is stuck or something else."""
_LARGEST_ANSWER: Final = 256 * 2**20

Json = Mapping[str, Any]


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
        try:
            with self._opener.open(self.server + path, timeout=TIMEOUT_SECONDS) as answer:
                raw = answer.read(_LARGEST_ANSWER)
        except urllib.error.HTTPError as error:
            with error:
                raise self._not_ours(f"{path} answers with status {error.code}") from error
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(error) from error
        try:
            body = json.loads(raw)
        except ValueError as error:
            raise self._not_ours(f"{path} answers with something else than JSON") from error
        if not isinstance(body, dict):
            raise self._not_ours(f"{path} answers with something else than a JSON object")
        return body

    def _silent(self, error: Exception) -> Silent:
        reason = getattr(error, "reason", None) or error
        detail = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        hint = f"start one with {self._start}, or name another: {self._option} URL"
        return Silent(f"no {self._what} answers at {self.server} ({detail})", hint=hint)

    def _not_ours(self, what: str) -> Failed:
        hint = f"is this a {self._what} of the same version? Name another: {self._option} URL"
        return Failed(f"{self.server} doesn't answer as a {self._what} does: {what}", hint=hint)


class Controller(Server):
    """A controller's HTTP API."""

    _what, _option, _start = "controller", "--server", "`emberpool local`"

    def items(self, plural: str) -> list[dict[str, Any]]:
        """Fetch all objects of a kind (`fleets`, `policies`, `seats`).

        Raises:
            Silent: nobody answers.
            Failed: who answers is no controller, or one in trouble.
        """
        body = self.get(f"/v1/{plural}")
        items = body.get("items")
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
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

"""The HTTP under `prometheus_api_client`: an answer is bounded in time and size, comes from the server itself, and is JSON.

The library reads whatever comes, for as long as it comes, follows redirects, and tries again by itself. A session of our
own under it does none of that, and turns what is no good answer into a sentence for people before the library sees it.
"""

import base64
import io
import json
import ssl
import time
from http import HTTPStatus
from http.cookiejar import DefaultCookiePolicy
from typing import Any, Final
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase

from scaler.errors import SignalError
from scaler.policy.signals import Authorization, Tls
from scaler.signals.failures import one_line, system_reason
from scaler.signals.secret_file import read_secret

LARGEST_ANSWER_BYTES: Final = 1024 * 1024
"""One number takes 150 bytes; a query that gives every series of a large server would take hundreds of MiB."""
_CHUNK_BYTES: Final = 64 * 1024


class FileAuthorization(AuthBase):
    """Says who asks, from files that are read for each request.

    Args:
        authorization: which files.
    """

    def __init__(self, authorization: Authorization) -> None:
        self._authorization = authorization

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Put the header on a request.

        Raises:
            SignalError: a file can't be read.
        """
        basic, bearer = self._authorization.basic, self._authorization.bearer_token_file
        if basic is not None:
            pair = f"{basic.username}:{read_secret(basic.password_file)}"
            request.headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode('ascii')}"
        elif bearer is not None:
            token = read_secret(bearer)
            if not token.isascii():
                raise SignalError(f"{bearer} holds no token: tokens are ASCII")
            request.headers["Authorization"] = f"Bearer {token}"
        return request


class BoundedSession(requests.Session):
    """A session that takes nothing from the environment and keeps no cookies.

    `send` raises a `SignalError` for every answer but JSON with the status 200.

    Args:
        tls: how the server proves itself.
    """

    def __init__(self, tls: Tls) -> None:
        super().__init__()
        self.trust_env = False  # a proxy or ~/.netrc of whoever started the process is not in the policy
        self.verify = _verify(tls)
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Return nowhere: credentials go to the server that the policy names."""
        del resp
        return None

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:  # noqa: ANN401 - as requests' own
        """Send a request and read its answer whole.

        Raises:
            SignalError: the answer is too large, takes too long, or is no good one.
            requests.RequestException: there is none.
        """
        deadline = time.monotonic() + kwargs["timeout"]
        response = super().send(request, **{**kwargs, "allow_redirects": False, "stream": True})
        try:
            body = _body(response, deadline)
        finally:
            response.close()
        _check(response, body, _secrets(request))
        response.raw = io.BytesIO(body)
        return response

    def close(self) -> None:
        """Close all connections; one that is in use when its query ends.

        The library only forgets its pools, and their connections stay open until something collects the garbage.
        """
        for adapter in self.adapters.values():
            pools = adapter.poolmanager.pools if isinstance(adapter, HTTPAdapter) else {}
            for pool in [pools.get(key) for key in pools.keys()]:  # noqa: SIM118 - urllib3's container has no iterator
                if pool is not None:
                    pool.close()
        super().close()


def signal_error(error: Exception) -> SignalError:
    """Say in a sentence why a request came to nothing: the one place where the libraries' errors are mapped."""
    match error:
        case SignalError():
            return error
        case requests.ConnectTimeout():
            return SignalError("no connection within the timeout")
        case requests.Timeout():
            return SignalError("no answer within the timeout")
        case urllib3.exceptions.TimeoutError():
            return SignalError("no whole answer within the timeout")
        case urllib3.exceptions.HTTPError():
            return SignalError(f"the answer breaks off: {system_reason(error)}")
        case requests.JSONDecodeError():
            return SignalError("the answer is broken JSON: is this a Prometheus?")
        case RecursionError():
            return SignalError("the answer is JSON that is nested too deeply: is this a Prometheus?")
        case requests.RequestException() | OSError():
            return SignalError(f"no connection: {system_reason(error)}")
        case KeyError() | TypeError():
            return SignalError("the answer is JSON of something else: is this a Prometheus?")
        case _:
            return SignalError(f"unexpected {type(error).__name__}: {one_line(str(error))}")


def _verify(tls: Tls) -> bool | str:
    """Return what requests takes for the certificates to trust; its own idea of them is a list that it brings along."""
    if tls.skip_verify:
        return False
    paths = ssl.get_default_verify_paths()
    return tls.ca_file or paths.cafile or paths.capath or True


def _body(response: requests.Response, deadline: float) -> bytes:
    body = bytearray()
    while chunk := response.raw.read1(_CHUNK_BYTES, decode_content=True):
        body += chunk
        if len(body) > LARGEST_ANSWER_BYTES:
            raise SignalError(
                "the answer is larger than 1 MiB, and one number is wanted: put sum(…) around the query"
            )
        if time.monotonic() > deadline:
            raise SignalError("no whole answer within the timeout")
    return bytes(body)


def _check(response: requests.Response, body: bytes, secrets: list[str]) -> None:
    status = response.status_code
    if response.is_redirect or response.is_permanent_redirect:
        raise SignalError(
            f"answers {status} and points to {_place(response)}: name that one as the server, if it is the right one"
        )
    said = _said(body)
    for secret in secrets:
        said = said.replace(secret, "…")
    if status == HTTPStatus.OK:
        if _media_type(response) != "application/json":
            raise SignalError(f"answers {_media_type(response)} and not JSON: is this a Prometheus?")
        if said:
            raise SignalError(f"answers with an error: {one_line(said)}")
        return
    about = f"{status} {response.reason}" if response.reason else str(status)
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        raise SignalError(f"answers {one_line(about)}: does the policy's authorization fit?")
    if said:
        raise SignalError(f"answers {one_line(about)}: {one_line(said)}")
    if status == HTTPStatus.NOT_FOUND:
        raise SignalError(f"answers {one_line(about)}: is there a Prometheus at this path?")
    raise SignalError(f"answers {one_line(about)}, as {_media_type(response)}")


def _said(body: bytes) -> str:
    """Return the error that an answer of Prometheus' own names; empty if it names none."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(answer, dict) or answer.get("status") != "error":
        return ""
    return str(answer.get("error") or answer.get("errorType") or "it doesn't say which")


def _media_type(response: requests.Response) -> str:
    """Return what the answer says that it is."""
    return one_line(response.headers.get("Content-Type", "").split(";")[0].strip().lower(), 80) or "nothing"


def _place(response: requests.Response) -> str:
    """Return where a redirect points, without what may be secret in it."""
    target = urlsplit(response.headers.get("Location", ""))
    host = f"{target.scheme}://{target.netloc.rpartition('@')[2]}" if target.netloc else ""
    return one_line(f"{host}{target.path}") or "nowhere"


def _secrets(request: requests.PreparedRequest) -> list[str]:
    """Return what must not be shown if a server repeats it."""
    scheme, _, credentials = str(request.headers.get("Authorization", "")).partition(" ")
    if not credentials:
        return []
    if scheme == "Basic":
        password = base64.b64decode(credentials).decode().partition(":")[2]
        return [credentials, password]
    return [credentials]

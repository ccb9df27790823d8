"""Requests and answers as data: what is read from them, what is passed on, and errors in OpenAI's style. PURE."""

import json
import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from multidict import CIMultiDict

from scaler.errors import ScalerError
from scaler.gateway.observe import Outcome
from scaler.gateway.routes import Failure

REQUEST_ID_HEADER: Final = "X-Request-Id"
SERVER: Final = "emberpool"
"""What stands in `Server`, whatever an engine says of itself; of software and versions there is nothing to be known."""
EXPECTED_WAIT_HEADER: Final = "X-Emberpool-Expected-Wait"
"""Seconds that a request is expected to wait, where an answer begins before its content."""
RETRY_HEADER: Final = "X-Emberpool-Retry"
"""`never`: the client wants no second attempt after an engine may have worked on the request."""
GUARD_CODES: Final[Mapping[str, Failure]] = {
    "ResidentNotServing": Failure.NOT_SERVING,
    "EngineUnreachable": Failure.NOT_CONNECTED,
}
"""Error codes with which a resident's guard refuses: while the resident doesn't serve, and when nothing listens behind it
(docs/guard.md)."""
MODEL_PATHS: Final = frozenset(
    f"/v1/{path}"
    for path in (
        *(
            "chat/completions",
            "completions",
            "embeddings",
            "responses",
            "messages",
            "rerank",
            "score",
            "pooling",
        ),
        *("classify", "audio/transcriptions", "audio/translations", "audio/speech", "images/generations"),
    )
)
"""Where a request has to name its model."""

_HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""Headers that belong to one connection and not to the message (RFC 9110, section 7.6.1)."""
_NOT_FORWARDED = _HOP_BY_HOP | {"host", "content-length", "expect", RETRY_HEADER.lower()}
"""Request headers that the connection to the engine sets anew, or that are for the gateway."""
_NOT_RETURNED = _HOP_BY_HOP | {"server"}
"""Headers of an engine's answer that clients don't get."""
_NOT_RETURNED_WHOLE = _NOT_RETURNED | {"content-length"}
_HTTP_1_1 = (1, 1)
_PRIORITY = re.compile(r"[+-]?[0-9]{1,6}")
_HIGHEST_PRIORITY = 1000
_PATH = re.compile(r"/v1(?:/[A-Za-z0-9_\-:~]+(?:\.[A-Za-z0-9_\-:~]+)*)+")
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_MODELS_NAMED = 50


class RequestRefused(ScalerError):
    """The gateway itself answers a request with an error.

    Attributes:
        status: HTTP status.
        code: machine-readable reason, as `error.code`.
        param: the field of the request that is wrong, or None.
        allowed: methods that its path has, where it isn't one of those.
        outcome: how the request is counted.
        retry: whether the client may try again soon (the answer carries Retry-After).
        wait_seconds: when that will be worth while; None when nothing tells.
        close: whether the connection is closed afterwards.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        outcome: Outcome = Outcome.INVALID,
        param: str | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.outcome = outcome
        self.allowed: Sequence[str] = ()
        self.retry = status == 503  # noqa: PLR2004 - HTTP
        self.close = close
        self.wait_seconds: float | None = None

    def error(self) -> dict[str, Any]:
        """Return the error, in OpenAI's style."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"  # noqa: PLR2004 - HTTP
        return {"message": str(self), "type": kind, "param": self.param, "code": self.code}

    def body(self) -> bytes:
        """Return the answer's body."""
        return json.dumps({"error": self.error()}).encode()


def check_framing(version: tuple[int, int], encodings: Collection[str]) -> None:
    """Let a request in whose body has an end that everybody on its way sees at the same place (RFC 9112, section 6.1).

    Args:
        version: HTTP's, as the request says it.
        encodings: its Transfer-Encoding headers.

    Raises:
        RequestRefused: it has another transfer coding than `chunked`, any over HTTP/1.0, or an older version.
    """
    if version == _HTTP_1_1 and not encodings:
        return
    if version < (1, 0):
        raise RequestRefused(505, "This gateway speaks HTTP/1.1.", code="http_version", close=True)
    if encodings and version < (1, 1):
        message = "HTTP/1.0 has no Transfer-Encoding; send Content-Length."
        raise RequestRefused(400, message, code="bad_request", close=True)
    named = [coding.strip() for coding in _tokens(",".join(encodings))]
    if encodings and named[-1] != "chunked":
        raise endless()
    if len(named) > 1:
        message = "The only Transfer-Encoding of a request that is taken is `chunked`."
        raise RequestRefused(501, message, code="unknown_transfer_encoding", close=True)


def endless() -> RequestRefused:
    """Return the 400 for a request whose transfer coding doesn't say where its body ends (RFC 9112, section 6.3)."""
    message = "Nobody can tell where the request's body ends: its Transfer-Encoding must be `chunked`."
    return RequestRefused(400, message, code="bad_request", close=True)


def routable(path: str) -> bool:
    """Whether a path (as sent, without its query) may be passed to an engine: plain segments below /v1 only."""
    return _PATH.fullmatch(path) is not None


def not_allowed(method: str, *allowed: str) -> RequestRefused:
    """Return the 405 for a method that a path doesn't have, naming those that it has (RFC 9110, section 15.5.6)."""
    message = f"{method} is not served here; {', '.join(allowed)} may be."
    refused = RequestRefused(405, message, code="method_not_allowed")
    refused.allowed = allowed
    return refused


def unknown_model(model: str, valid: Iterable[str]) -> RequestRefused:
    """Return the 404 for a model that nobody serves, naming those that are."""
    names = list(valid)
    listed = ", ".join(names[:_MODELS_NAMED]) or "none"
    more = ", …" if len(names) > _MODELS_NAMED else ""
    message = f"The model `{model[:200]}` does not exist. Valid models: {listed}{more}."
    return RequestRefused(404, message, code="model_not_found", param="model")


def request_id(headers: Mapping[str, str]) -> str:
    """Return the request's id: the client's where it gave a sane one, else a new one."""
    given = headers.get(REQUEST_ID_HEADER, "")
    return given if given and _REQUEST_ID.fullmatch(given) else f"{random.getrandbits(128):032x}"


def request_headers(headers: Mapping[str, str], identity: str, *, stream: bool) -> CIMultiDict[str]:
    """Return the headers that go to the engine. A stream is asked for uncompressed, so that its events can be seen.

    Trailers are asked for where the client takes them.
    """
    forwarded = _end_to_end(headers, _NOT_FORWARDED)
    if stream:
        forwarded["Accept-Encoding"] = "identity"
    if "trailers" in _tokens(headers.get("TE", "")):
        forwarded["TE"], forwarded["Connection"] = "trailers", "TE"
    forwarded[REQUEST_ID_HEADER] = identity
    return forwarded


def priority(text: str | None) -> int:
    """Read a request's priority; 0 where nobody says.

    Raises:
        RequestRefused: it is no whole number from −1000 to 1000.
    """
    if not text:
        return 0
    if _PRIORITY.fullmatch(text) is None or abs(int(text)) > _HIGHEST_PRIORITY:
        message = f"A priority is a whole number from -{_HIGHEST_PRIORITY} to {_HIGHEST_PRIORITY}."
        raise RequestRefused(400, message, code="invalid_priority")
    return int(text)


def answer_headers(headers: Mapping[str, str], identity: str, *, whole: bool) -> CIMultiDict[str]:
    """Return the headers that go to the client.

    Args:
        headers: the engine's.
        identity: the request's id.
        whole: the body goes on in one piece, whose length is set anew.
    """
    forwarded = _end_to_end(headers, _NOT_RETURNED_WHOLE if whole else _NOT_RETURNED)
    forwarded[REQUEST_ID_HEADER] = identity
    forwarded["Server"] = SERVER
    return forwarded


def _end_to_end(headers: Mapping[str, str], dropped: frozenset[str]) -> CIMultiDict[str]:
    kept = CIMultiDict(headers)
    named = kept.popall("connection", ())
    for name in dropped:
        kept.popall(name, None)
    for value in named:
        for token in _tokens(value):
            kept.popall(token, None)
    return kept


def _tokens(value: str) -> Iterator[str]:
    """Yield the words of a header's list, in lower case."""
    return (token.strip().lower() for token in value.split(","))


def guard_refusal(status: int, body: bytes) -> Failure | None:
    """Return what a guard's own refusal says, or None for any other answer; the engine never saw a request refused so."""
    if status != 503 or not any(code.encode() in body for code in GUARD_CODES):  # noqa: PLR2004 - HTTP
        return None
    error = error_of(body)
    return GUARD_CODES.get(str(error.get("code"))) if error is not None else None


def error_of(body: bytes) -> dict[str, Any] | None:
    """Return the error object of an answer in OpenAI's style, or None."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return None
    error = parsed.get("error") if isinstance(parsed, dict) else None
    return error if isinstance(error, dict) else None

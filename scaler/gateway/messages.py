"""Requests and answers as data: what is read from them, what is passed on, and errors in OpenAI's style. PURE."""

import json
import re
import uuid
from collections.abc import Iterable, Mapping

from multidict import CIMultiDict

from scaler.errors import ScalerError
from scaler.gateway.observe import Outcome

REQUEST_ID_HEADER = "X-Request-Id"
GUARD_CLOSED_CODE = "ResidentNotServing"
"""Error code with which a resident's guard refuses while the resident doesn't serve."""

_HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""Headers that belong to one connection and not to the message (RFC 9110, section 7.6.1)."""
_NOT_FORWARDED = frozenset({"host", "content-length", "expect", "accept-encoding"})
"""Request headers that the connection to the engine sets anew."""
_PATH = re.compile(r"/v1(?:/[A-Za-z0-9_\-:~]+(?:\.[A-Za-z0-9_\-:~]+)*)+")
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_MODELS_NAMED = 50


class RequestRefused(ScalerError):
    """The gateway itself answers a request with an error.

    Attributes:
        status: HTTP status.
        code: machine-readable reason, as `error.code`.
        param: the field of the request that is wrong, or None.
        outcome: how the request is counted.
        retry: whether the client may try again soon (the answer carries Retry-After).
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
        self.retry = status == 503  # noqa: PLR2004 - HTTP
        self.close = close

    def body(self) -> bytes:
        """Return the answer's body, in OpenAI's style."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"  # noqa: PLR2004 - HTTP
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()


def routable(path: str) -> bool:
    """Whether a path (as sent, without its query) may be passed to an engine: plain segments below /v1 only."""
    return _PATH.fullmatch(path) is not None


def model_of(body: bytes) -> str:
    """Return the `model` of a request's body.

    Raises:
        RequestRefused: it is no JSON object, or names no model.
    """
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as error:
        message = f"The request body is not valid JSON: {error}."
        raise RequestRefused(400, message, code="invalid_json") from None
    model = parsed.get("model") if isinstance(parsed, dict) else None
    if not isinstance(model, str) or not model:
        message = "The request body must be a JSON object with a string `model`."
        raise RequestRefused(400, message, code="missing_model", param="model")
    return model


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
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def request_headers(headers: Mapping[str, str], identity: str) -> CIMultiDict[str]:
    """Return the headers that go to the engine. Answers are asked for uncompressed, so that events can be seen."""
    forwarded = _end_to_end(headers, _NOT_FORWARDED)
    forwarded["Accept-Encoding"] = "identity"
    forwarded[REQUEST_ID_HEADER] = identity
    return forwarded


def answer_headers(headers: Mapping[str, str], identity: str, *, whole: bool) -> CIMultiDict[str]:
    """Return the headers that go to the client.

    Args:
        headers: the engine's.
        identity: the request's id.
        whole: the body goes on in one piece, whose length is set anew.
    """
    forwarded = _end_to_end(headers, frozenset({"content-length"} if whole else ()))
    forwarded[REQUEST_ID_HEADER] = identity
    return forwarded


def _end_to_end(headers: Mapping[str, str], dropped: frozenset[str]) -> CIMultiDict[str]:
    named = {
        token.strip().lower()
        for key, value in headers.items()
        if key.lower() == "connection"
        for token in value.split(",")
    }
    kept: CIMultiDict[str] = CIMultiDict()
    for key, value in headers.items():
        lowered = key.lower()
        if lowered not in _HOP_BY_HOP and lowered not in dropped and lowered not in named:
            kept.add(key, value)
    return kept


def guard_closed(status: int, body: bytes) -> bool:
    """Whether an answer is a guard's refusal: the engine never saw the request."""
    if status != 503 or GUARD_CLOSED_CODE.encode() not in body:  # noqa: PLR2004 - HTTP
        return False
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return False
    error = parsed.get("error") if isinstance(parsed, dict) else None
    return isinstance(error, dict) and error.get("code") == GUARD_CLOSED_CODE

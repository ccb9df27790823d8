"""What a refusal means to the caller."""

from typing import Any

import pytest

from scaler.cluster.kube.client import error_of, seconds_of
from scaler.cluster.kube.errors import AlreadyExists, Expired, Forbidden, Rejected, Throttled
from scaler.errors import ClusterError, Conflict, NotFound, Unreachable


@pytest.mark.parametrize(
    ("code", "reason", "retry_after", "meaning"),
    [
        (400, "BadRequest", "", Rejected),
        (401, "Unauthorized", "", Forbidden),
        (403, "Forbidden", "", Forbidden),
        (404, "NotFound", "", NotFound),
        (405, "MethodNotAllowed", "", Rejected),
        (409, "Conflict", "", Conflict),
        (409, "AlreadyExists", "", AlreadyExists),
        (410, "Expired", "", Expired),
        (410, "Gone", "", Expired),
        (415, "UnsupportedMediaType", "", Rejected),
        (422, "Invalid", "", Rejected),
        (429, "TooManyRequests", "1", Throttled),
        (500, "InternalError", "", Unreachable),
        (503, "ServiceUnavailable", "", Unreachable),
        (503, "ServiceUnavailable", "2", Throttled),
        (504, "Timeout", "1", Unreachable),
    ],
)
def test_a_status_means(code: int, reason: str, retry_after: str, meaning: type[ClusterError]) -> None:
    status: dict[str, Any] = {"kind": "Status", "reason": reason, "message": "m", "code": code}
    assert type(error_of(status, code=code, retry_after=retry_after)) is meaning


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("", 1.0), ("3", 3.0), ("0.5", 0.5), ("-1", 0.0), ("Mon, 30 Nov 2026 01:00:00 GMT", 1.0)],
)
def test_retry_after_is_read_as_seconds(header: str, seconds: float) -> None:
    assert seconds_of(header) == seconds

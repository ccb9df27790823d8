"""The port to whoever counts KEDA's calls, so that nothing here knows how."""

from typing import Final, Protocol

from scaler.keda.answers import Code

METHODS: Final = ("IsActive", "GetMetricSpec", "GetMetrics", "StreamIsActive", "StreamMetricSpec")
"""The calls of the external scaler."""
STREAMS: Final = frozenset(method for method in METHODS if method.startswith("Stream"))
OK: Final = "OK"
CANCELLED: Final = "CANCELLED"
"""The caller has gone; most streams end so."""
UNKNOWN: Final = "UNKNOWN"
"""A fault of ours."""
CODES: Final = (
    OK,
    *(str(code) for code in Code),
    "RESOURCE_EXHAUSTED",
    "DEADLINE_EXCEEDED",
    CANCELLED,
    UNKNOWN,
)
"""gRPC's statuses by which calls end here: a closed list."""


class Counting(Protocol):
    """Counts calls. Must be quick and must not raise."""

    def called(self, method: str, code: str, seconds: float) -> None:
        """A call ended; method and code are two of the lists above."""

    def pushed(self, *, active: bool) -> None:
        """A message about activity was sent on a stream."""


class Uncounted:
    """Counts nothing."""

    def called(self, method: str, code: str, seconds: float) -> None:
        """See `Counting.called`."""

    def pushed(self, *, active: bool) -> None:
        """See `Counting.pushed`."""

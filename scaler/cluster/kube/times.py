"""Times as the API writes them. PURE."""

from datetime import UTC, datetime


def seconds_text(at: float) -> str:
    """Write a Unix time to the second: conditions, annotations."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_text(at: float) -> str:
    """Write a Unix time to the microsecond, which leases and events insist on."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

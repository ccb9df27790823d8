"""What a controller can be told about signals; plain values, so that the command line needs none of the runtime for them."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalOptions:
    """Where signals come from that name no server of their own, and who may push.

    Attributes:
        token: bearer token of those who push samples and nothing else; empty: they need the agents' token.
        tokens: file with more of them, each with what its holder may say; None: there is none.
        prometheus: base URL of the Prometheus that signals ask; None: each signal names its own.
        redis: address of the Redis that queues are read from, and samples heard over; None: each signal names its own, and
            samples come over HTTP alone.
        redis_password_file: file with its password; None: it wants none.
        channel: channel over which samples are heard; empty: none.
    """

    token: str = field(default="", repr=False)
    tokens: Path | None = None
    prometheus: str | None = None
    redis: str | None = None
    redis_password_file: Path | None = None
    channel: str = "emberpool:signals"

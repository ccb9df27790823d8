"""What can be set about a gateway."""

from dataclasses import dataclass, field

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Limits and deadlines of one gateway.

    Attributes:
        instance: its name in samples; unique among the live gateways.
        controllers: base URLs to which samples are pushed.
        token: bearer token that controllers want of those who push.
        deadline_seconds: time from a request received whole to its first content, queueing and retries included.
        connect_seconds: time for a connection to an endpoint.
        stream_idle_seconds: silence of an engine in the middle of an answer that counts as a break.
        client_stall_seconds: time in which a client must take what was written to it.
        receive_seconds: time in which a client must have sent its request's body.
        max_body_bytes: size of one request's body.
        max_held_bytes: size of all bodies that are held at once, queued or not.
        max_header_bytes: size of one request header, and of the request line.
        max_headers: number of request headers.
        max_failed_attempts: how often engines may have worked on a request and failed it before the client is told;
            a request that kills engines must not kill them all.
        retry_after_seconds: what 503 answers give as Retry-After.
        keep_alive_seconds: idle time of a connection to an endpoint; below the 5 s after which uvicorn closes it,
            so that no request meets a connection that is just being closed.
    """

    instance: str = "gateway"
    controllers: tuple[str, ...] = ()
    token: str = field(default="", repr=False)
    deadline_seconds: float = 120.0
    connect_seconds: float = 1.0
    stream_idle_seconds: float = 300.0
    client_stall_seconds: float = 300.0
    receive_seconds: float = 60.0
    max_body_bytes: int = 32 * MIB
    max_held_bytes: int = 1024 * MIB
    max_header_bytes: int = 16 * 1024
    max_headers: int = 128
    max_failed_attempts: int = 3
    retry_after_seconds: int = 1
    keep_alive_seconds: float = 4.0

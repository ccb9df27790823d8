"""What can be set about a gateway."""

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from scaler.gateway.routes import QueueLimits

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Limits and deadlines of one gateway.

    Attributes:
        instance: its name in samples; unique among the live gateways.
        controllers: base URLs to which samples are pushed.
        token: bearer token that controllers want of those who push.
        queue: how much of a policy may wait whose routes don't say so.
        default_policy: gets what names no model: requests to other paths than the usual ones, and other methods than POST.
            Empty: such requests are refused.
        priority_header: request header with the request's priority, a whole number; empty: all are equal. Whoever may set it
            may go before others, so what stands in front of the gateway should set it.
        tenant_header: request header that says whose request it is; empty: nobody says. As above.
        deadline_seconds: time from a request for a stream received whole to its first content, queueing and retries included.
        answer_seconds: the same of any other, whose first content is the whole answer: so long as the usual clients wait.
        silence_seconds: an engine that brings nobody a byte for so long is silent, though it has a stream to begin; while another
            one serves it is left alone, and what waits there is tried elsewhere, once. 0: nothing is.
        connect_seconds: time for a connection to an endpoint.
        stream_idle_seconds: silence of an engine in the middle of an answer that counts as a break.
        client_stall_seconds: time in which a client must take what was written to it.
        receive_seconds: time in which a client must have sent its request's body.
        header_seconds: time in which a client must have sent a request's head, and its side of a TLS handshake.
        idle_seconds: how long a client's connection may rest between requests.
        keep_alive_comment_seconds: after how long without content, and then how often, the client of a stream gets a comment; 0:
            never. The answer's status goes out with the first one, so what fails later is told by an error event.
        max_connections: clients' connections at once.
        max_body_bytes: size of one request's body.
        max_held_bytes: size of all bodies that are held at once, queued or not.
        max_header_bytes: size of one request header, and of the request line.
        max_headers: number of request headers.
        max_failed_attempts: how often engines may have worked on a request and failed it before the client is told;
            a request that kills engines must not kill them all.
        retry_after_seconds: the least that 503 answers give as Retry-After.
        max_retry_after_seconds: the most.
        keep_alive_seconds: idle time of a connection to an endpoint; below the 5 s after which uvicorn closes it,
            so that no request meets a connection that is just being closed.
    """

    instance: str = "gateway"
    controllers: tuple[str, ...] = ()
    token: str = field(default="", repr=False)
    queue: QueueLimits = field(default_factory=QueueLimits)
    default_policy: str = ""
    priority_header: str = ""
    tenant_header: str = ""
    deadline_seconds: float = 120.0
    answer_seconds: float = 600.0
    silence_seconds: float = 30.0
    connect_seconds: float = 1.0
    stream_idle_seconds: float = 300.0
    client_stall_seconds: float = 300.0
    receive_seconds: float = 60.0
    header_seconds: float = 10.0
    idle_seconds: float = 75.0
    keep_alive_comment_seconds: float = 0.0
    max_connections: int = 20_000
    max_body_bytes: int = 32 * MIB
    max_held_bytes: int = 1024 * MIB
    max_header_bytes: int = 16 * 1024
    max_headers: int = 128
    max_failed_attempts: int = 3
    retry_after_seconds: int = 1
    max_retry_after_seconds: int = 60
    keep_alive_seconds: float = 4.0

    def shown(self) -> dict[str, Any]:
        """Return everything but secrets, as JSON has it."""
        return {_camel(name): value for name, value in asdict(self).items() if name != "token"} | {
            "queue": {_camel(name): value for name, value in asdict(self.queue).items()}
        }


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)

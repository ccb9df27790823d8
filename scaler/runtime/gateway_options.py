"""What `emberpool gateway` can be told; plain values, so that the command line needs none of the runtime for them."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """Options of one gateway process.

    Attributes:
        controllers: base URLs of all controllers.
        token: bearer token that controllers want of those who push.
        instance: its id among the live gateways; empty: host name and process id.
        host: address that the OpenAI-compatible endpoint listens on.
        port: its port; 0 takes a free one.
        metrics_port: port of /metrics and of the probes for those who operate it, on the same address; 0 takes a free one.
        drain_seconds: how long requests in flight may take after SIGTERM.
    """

    controllers: tuple[str, ...]
    token: str = field(repr=False)
    instance: str = ""
    host: str = "127.0.0.1"
    port: int = 8000
    metrics_port: int = 9082
    drain_seconds: float = 30.0

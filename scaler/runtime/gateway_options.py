"""What `emberpool gateway` can be told; plain values, so that the command line needs none of the runtime for them."""

from dataclasses import dataclass, field
from pathlib import Path

from scaler.gateway.settings import GatewaySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorFiles:
    """Files that say who may come in.

    Attributes:
        keys: file with the keys of which clients must show one; None: whatever they show goes on to the engine.
        tls_certificate: file with the certificate and those that vouch for it; None: no TLS.
        tls_key: file with its private key; None: it is in the same file.
        prefix: what the options that name them begin with, as messages say it.
    """

    keys: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    prefix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOptions:
    """Whose pods a gateway watches.

    Attributes:
        policies: policy files and directories; they say which model is whose, and how much a resident may hold.
        kubeconfig: path of a kubeconfig; empty: as kubectl finds it, or the service account of the pod.
        context: which of its contexts; empty: the current one.
        namespace: instead of the context's.
        peers: labels of the gateways' own pods, in this gateway's own namespace; empty: they aren't watched.
    """

    policies: tuple[Path, ...]
    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    peers: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """Options of one gateway process.

    Attributes:
        controllers: base URLs of all controllers; there may be none for one that watches pods.
        token: bearer token that controllers want of those who push.
        instance: its id among the live gateways; empty: host name and process id.
        host: address that the OpenAI-compatible endpoint listens on.
        port: its port; 0 takes a free one.
        metrics_port: port of /metrics, of the probes and of what the gateway shows of itself, for those who operate it, on the
            same address; 0 takes a free one.
        drain_seconds: how long requests in flight may take after SIGTERM.
        settle_seconds: how long of that new connections are still taken.
        files: who may come in.
        pods: whose pods it watches; None: it knows what controllers say.
        settings: limits and deadlines; who it is and whom it pushes to is said above.
    """

    controllers: tuple[str, ...]
    token: str = field(repr=False)
    instance: str = ""
    host: str = "127.0.0.1"
    port: int = 8000
    metrics_port: int = 9082
    drain_seconds: float = 30.0
    settle_seconds: float = 0.0
    files: DoorFiles = field(default_factory=DoorFiles)
    pods: PodOptions | None = None
    settings: GatewaySettings = field(default_factory=GatewaySettings)

    def assumptions(self) -> dict[str, int]:
        """Return what `emberpool policy lint --assume` wants to know of this gateway, in whole seconds."""
        return assumptions(self.settings, self.drain_seconds)


def assumptions(settings: GatewaySettings, drain_seconds: float) -> dict[str, int]:
    """Return what lint wants to know of a gateway with these settings, which gets so long to finish when it ends."""
    seconds = {
        "gatewayReceiveSeconds": settings.receive_seconds,
        "gatewayQueueSeconds": settings.queue.max_age_seconds,
        "gatewayConnectSeconds": settings.connect_seconds,
        "gatewayDeadlineSeconds": settings.deadline_seconds,
        "gatewayAnswerSeconds": settings.answer_seconds,
        "gatewayIdleSeconds": settings.stream_idle_seconds,
        "gatewayStallSeconds": settings.client_stall_seconds,
        "gatewayDrainSeconds": drain_seconds,
    }
    told = {name: max(1, round(value)) for name, value in seconds.items()}
    return {**told, "gatewayColdSeconds": round(settings.queue.max_cold_seconds)}

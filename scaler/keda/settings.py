"""How the server listens; plain values, so that nobody needs grpc to say them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEFAULT_PORT: Final = 6000
"""The port that the manifests name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Where certificates are, all as PEM.

    Attributes:
        certificate: the server's, with what stands between it and its root.
        key: its private key.
        client_ca: roots of clients' certificates; None: clients need none.
        late_client_ca: where such roots would be, if there were any when the server starts. That they have come is warned of:
            what clients must show is settled with the port.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    late_client_ca: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KedaSettings:
    """How the server listens.

    Attributes:
        host: address.
        port: 0 takes a free one.
        tls: certificates; None: plaintext, for meshes that encrypt themselves.
        streams_specs: whether `StreamMetricSpec` is answered. Operators know it since 2.21.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    tls: TlsFiles | None = None
    streams_specs: bool = False

    @property
    def security(self) -> str:
        """What protects the port, in a word: plaintext, TLS or mTLS."""
        if self.tls is None:
            return "plaintext"
        return "TLS" if self.tls.client_ca is None else "mTLS"

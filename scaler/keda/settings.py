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
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None


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

"""Certificates of the server, from files that may be replaced while it runs.

Handshakes look at them, so a rotation breaks no open stream. A new set counts when it is whole: a certificate that doesn't
belong to its key, as in the middle of a replacement, is looked at again, and the one before stays. Handshakes are rare, and they
run in threads of grpc's own: no call waits for a file.
"""

import math
import os
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
import structlog

from scaler.errors import UserError
from scaler.keda.settings import TlsFiles

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 1.0
"""Between two looks at the files, however many handshakes there are. A kubelet takes up to a minute and more to bring a changed
Secret to its files."""
WARN_SECONDS: Final = 60.0
"""Between two warnings of roots that don't count, for as long as clients come."""


@dataclass(frozen=True, slots=True)
class _Pem:
    certificate: bytes
    key: bytes
    client_ca: bytes | None


class Certificates:
    """The certificates in force.

    Args:
        files: where they are.
        now: monotonic seconds.

    Raises:
        UserError: they can't be read, or don't belong together.
    """

    def __init__(self, files: TlsFiles, now: Callable[[], float]) -> None:
        self._files = files
        self._now = now
        try:
            self._pem = _load(files)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise UserError(
                f"can't use the certificate {files.certificate} with its key {files.key}"
                f"{f' and the roots {files.client_ca}' if files.client_ca else ''}: {_why(error)}",
                hint="PEM files are wanted, and the key must be the certificate's own",
            ) from error
        self._looked_at = now()
        self._warned_at = -math.inf
        self._lock = threading.Lock()

    def credentials(self) -> Any:  # noqa: ANN401 - grpc has no types
        """Return what the server listens with."""
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._pem),
            self.newer,
            require_client_authentication=self._files.client_ca is not None,
        )

    def newer(self) -> Any:  # noqa: ANN401 - grpc has no types
        """Return other certificates for the next handshake; None: those that it has. grpc's threads call it."""
        with self._lock:
            if self._now() < self._looked_at + LOOK_SECONDS:
                return None
            self._looked_at = self._now()
            self._warn_of_late_roots()
            try:
                pem = _load(self._files)
            except (OSError, ssl.SSLError, ValueError) as error:
                log.warning("KEDA's certificates can't be used; the ones before stay", reason=_why(error))
                return None
            if pem == self._pem:
                return None
            self._pem = pem
        log.info("KEDA's certificates were replaced", certificate=str(self._files.certificate))
        return _configuration(pem)

    def _warn_of_late_roots(self) -> None:
        """Say that roots of clients have come after the start: grpc can't ask on a running port for what it hasn't asked for."""
        late = self._files.late_client_ca
        if late is None or self._now() < self._warned_at + WARN_SECONDS or not os.path.lexists(late):
            return
        self._warned_at = self._now()
        log.error(
            "clients of KEDA's port are NOT asked for certificates, for the roots came after the start",
            roots=str(late),
            hint="restart the process",
        )


def _configuration(pem: _Pem) -> Any:  # noqa: ANN401 - grpc has no types
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.client_ca)


def _load(files: TlsFiles) -> _Pem:
    before = _read(files)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(
        files.certificate, files.key, password=""
    )  # an encrypted key must not ask a terminal
    if before.client_ca is not None:
        context.load_verify_locations(cafile=files.client_ca)  # a bundle's comments may be in any language
    if _read(files) != before:
        raise ValueError("they are being replaced")
    return before


def _read(files: TlsFiles) -> _Pem:
    return _Pem(
        certificate=files.certificate.read_bytes(),
        key=files.key.read_bytes(),
        client_ca=None if files.client_ca is None else files.client_ca.read_bytes(),
    )


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return getattr(error, "strerror", None) or str(error)

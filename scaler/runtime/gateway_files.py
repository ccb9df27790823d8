"""The files that say who may come in at a gateway: keys and a certificate, read at the start and again when somebody asks."""

import ssl
from pathlib import Path

import structlog

from scaler.errors import UserError
from scaler.gateway.keys import Keys, parse_keys
from scaler.gateway.proxy import Gateway
from scaler.runtime.gateway_options import DoorFiles

log = structlog.get_logger(__name__)


class GatewayFiles:
    """Reads the files.

    Args:
        files: their names.

    Attributes:
        tls: what the listener uses; None: no TLS. Connections after a reload get the new certificate.
    """

    def __init__(self, files: DoorFiles) -> None:
        self.tls: ssl.SSLContext | None = None
        self._files = files
        self._keys: Keys | None = None
        self._gateway: Gateway | None = None
        self._latest: ssl.SSLContext | None = None

    @property
    def named(self) -> bool:
        """Whether there are any."""
        return self._files.keys is not None or self._files.tls_certificate is not None

    def guard(self, gateway: Gateway) -> None:
        """Let in at a gateway who shows a key of those that were read, now and whenever they are read again."""
        self._gateway = gateway
        gateway.keys = self._keys

    def read(self) -> None:
        """Read all of them.

        Raises:
            UserError: one can't be used; then nothing changes.
        """
        files = self._files
        keys = None if files.keys is None else self._read_keys(files.keys)
        if files.tls_certificate is not None:
            self._latest = self._read_tls(files.tls_certificate)
            if self.tls is None:
                self.tls = self._latest
                self.tls.sni_callback = self._take_latest
        self._keys = keys
        if self._gateway is not None:
            self.guard(self._gateway)

    def read_again(self) -> None:
        """Read all of them, and say what came of it."""
        try:
            self.read()
        except UserError as error:
            log.warning("files can't be used; the last ones hold", error=str(error))
        else:
            log.info("files read again")

    def _take_latest(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _: ssl.SSLContext
    ) -> None:
        """Give a connection the latest certificate: a context in use that is told of a key which doesn't fit loses both."""
        if self._latest is not None:
            connection.context = self._latest

    def _read_keys(self, path: Path) -> Keys:
        option = f"--{self._files.prefix}keys-file"
        try:
            keys = Keys(parse_keys(path.read_text("utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"{option} {path} can't be read: {error}", hint="it has one key a line, as UTF-8"
            ) from error
        if not len(keys):
            raise UserError(f"{option} {path} has no key", hint="leave the option away to let everyone in")
        return keys

    def _read_tls(self, certificate: Path) -> ssl.SSLContext:
        context, option = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), f"--{self._files.prefix}tls"
        try:
            context.load_cert_chain(certificate, self._files.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise UserError(
                f"{option}-certificate {certificate} can't be used: {error}",
                hint=f"certificate, then those that vouch for it, as PEM; {option}-key names its key's file",
            ) from error
        return context

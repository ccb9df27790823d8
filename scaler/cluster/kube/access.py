"""How to reach an API server: its address, its TLS, and credentials that stay valid.

Tokens of service accounts are replaced on disk about once an hour, plug-ins' tokens expire: credentials are read again
each minute, and at once when the server refuses them.

kubernetes_asyncio reads kubeconfigs, and is imported when there is one to read: it takes 70 MB, which a pod with a service
account goes without.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from scaler.errors import UserError

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config.kube_config import KubeConfigLoader

log = structlog.get_logger(__name__)

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token, its namespace and the authority's certificate."""
RENEWAL_SECONDS: Final = 60.0
"""How old credentials may become before they are read again; client-go does it as often."""
_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"


class Credentials(Protocol):
    """What a request shows."""

    async def authorization(self) -> str:
        """Return the value of the Authorization header; empty for none (a client certificate, or nothing)."""

    async def renew(self) -> None:
        """Get new ones: the server has refused these.

        Raises:
            UserError: there are none to be had.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to reach one API server.

    Attributes:
        server: base URL.
        namespace: where things are looked for unless somebody says otherwise.
        credentials: what requests show.
        tls: for https; None for http.
        server_name: the name that the server's certificate must carry, where it isn't the URL's host; else None.
        proxy: URL of the proxy on the way; else None.
        source: where all this was read, in words.
    """

    server: str
    namespace: str
    credentials: Credentials
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    proxy: str | None = None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """What a person said about it; empty means not said.

    Attributes:
        kubeconfig: path of a kubeconfig file, or several as in `KUBECONFIG`.
        context: which of its contexts.
        namespace: instead of the context's.
    """

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""


async def find_access(options: AccessOptions, environ: Mapping[str, str]) -> Access:
    """Find the API server: what was said, `KUBECONFIG`, the pod's service account, `~/.kube/config`, in this order.

    Raises:
        UserError: there is none, or what was found can't be read.
    """
    named = options.kubeconfig or environ.get("KUBECONFIG", "")
    if not named and not options.context and environ.get(_HOST) and (SERVICE_ACCOUNT / "token").exists():
        return in_cluster(options, environ)
    return await from_kubeconfig(named or str(Path.home() / ".kube" / "config"), options)


# ---------------------------------------------------------------- inside a pod


class TokenFile:
    """A token that somebody else replaces on disk.

    Args:
        path: the file.
        clock: monotonic seconds.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._token = path.read_text().strip()
        self._read_at = clock()

    async def authorization(self) -> str:
        """See `Credentials.authorization`; a file that can't be read leaves the last token in use."""
        if self._clock() - self._read_at >= RENEWAL_SECONDS:
            await self.renew()
        return f"Bearer {self._token}"

    async def renew(self) -> None:
        """Read the file again; it is a few hundred bytes in memory."""
        self._read_at = self._clock()
        try:
            token = self._path.read_text().strip()
        except OSError:
            return
        self._token = token or self._token


def in_cluster(
    options: AccessOptions, environ: Mapping[str, str], directory: Path = SERVICE_ACCOUNT
) -> Access:
    """Read the service account of the pod that we are in.

    Raises:
        UserError: we are in none, or it has no service account mounted.
    """
    try:
        host, port = environ[_HOST], environ[_PORT]
        token = TokenFile(directory / "token")
        tls = _tls_context(str(directory / "ca.crt"))
        namespace = (directory / "namespace").read_text().strip()
    except (KeyError, OSError) as error:
        raise UserError(
            f"no service account of a pod: {error}",
            hint="set automountServiceAccountToken, or name a kubeconfig",
        ) from error
    return Access(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=options.namespace or namespace,
        credentials=token,
        tls=tls,
        source=f"service account in {directory}",
    )


def _tls_context(
    authority: str | None, certificate: tuple[str, str | None] | None = None, *, verify: bool = True
) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority)
    # authorities that kubeadm and k3s made lack extensions that Python 3.13 insists on and Go doesn't
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if certificate is not None:
        context.load_cert_chain(*certificate)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


# ---------------------------------------------------------------- kubeconfig


class KubeconfigCredentials:
    """The token of a kubeconfig's user: from the file, a token file, or a plug-in that may take seconds.

    Args:
        paths: the kubeconfig.
        context: which context; None for the current one.
        clock: monotonic seconds.
    """

    def __init__(self, paths: str, context: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._paths = paths
        self._context = context
        self._clock = clock
        self._loaded: tuple[KubeConfigLoader, Configuration] | None = None
        self._read_at = clock()
        self._reading = asyncio.Lock()

    async def load(self) -> "tuple[KubeConfigLoader, Configuration]":
        """Read the kubeconfig from the start, and run its plug-in if it has one.

        Raises:
            UserError: it can't be used.
        """
        from kubernetes_asyncio.client import Configuration  # noqa: PLC0415 - see above
        from kubernetes_asyncio.config import load_kube_config  # noqa: PLC0415

        configuration = Configuration()
        try:
            loader = await load_kube_config(
                config_file=self._paths,
                context=self._context,
                client_configuration=configuration,
                persist_config=False,
            )
        except Exception as error:
            raise UserError(
                f"{self._paths}: not a kubeconfig that can be used: {error}",
                hint="`kubectl config get-contexts` lists what it holds",
            ) from error
        self._loaded = loader, configuration
        self._read_at = self._clock()
        return self._loaded

    async def authorization(self) -> str:
        """See `Credentials.authorization`; a plug-in that fails leaves the last token in use."""
        if self._loaded is None:
            return ""
        if self._clock() - self._read_at >= RENEWAL_SECONDS:
            async with self._reading:
                if self._clock() - self._read_at >= RENEWAL_SECONDS:
                    self._read_at = self._clock()
                    await self._refresh(*self._loaded)
        _, configuration = self._loaded
        return str(configuration.api_key.get("BearerToken", ""))

    async def _refresh(self, loader: "KubeConfigLoader", configuration: "Configuration") -> None:
        try:
            await loader.load_and_set(configuration)
        except Exception as error:  # noqa: BLE001 - as above
            log.warning("credentials can't be read again", kubeconfig=self._paths, error=str(error))

    async def renew(self) -> None:
        """Read everything again; several that ask at once get one answer."""
        shown = self._loaded
        async with self._reading:
            if self._loaded is shown:
                await self.load()


async def from_kubeconfig(paths: str, options: AccessOptions) -> Access:
    """Read a kubeconfig.

    Raises:
        UserError: it isn't there or can't be used.
    """
    if not _exists(paths):
        raise UserError(
            f"{paths}: no such kubeconfig",
            hint="name one with --kubeconfig or KUBECONFIG, or run inside a pod with a service account",
        )
    credentials = KubeconfigCredentials(paths, options.context or None)
    loader, configuration = await credentials.load()
    context = (loader.current_context or {}).get("context") or {}
    server = str(configuration.host)
    return Access(
        server=server,
        namespace=options.namespace or str(context.get("namespace") or "default"),
        credentials=credentials,
        tls=_kubeconfig_tls(configuration) if server.startswith("https") else None,
        server_name=configuration.tls_server_name,
        proxy=configuration.proxy,
        source=f"{paths} ({options.context or 'current context'})",
    )


def _exists(paths: str) -> bool:
    return any(Path(path).expanduser().exists() for path in paths.split(":") if path)


def _kubeconfig_tls(configuration: "Configuration") -> ssl.SSLContext:
    certificate = configuration.cert_file and (configuration.cert_file, configuration.key_file)
    try:
        return _tls_context(
            configuration.ssl_ca_cert, certificate or None, verify=bool(configuration.verify_ssl)
        )
    except OSError as error:
        raise UserError(f"the kubeconfig's certificates can't be used: {error}") from error

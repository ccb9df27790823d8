import subprocess
import time
from pathlib import Path

import pytest

from scaler.errors import UserError
from scaler.keda.client import KedaClient, NotReached, Tls, connected
from scaler.keda.settings import KedaSettings, TlsFiles
from scaler.keda.tls import LOOK_SECONDS, Certificates
from tests.integration.keda.conftest import asker, serving


def openssl(*arguments: str | Path) -> None:
    command = ["openssl", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, timeout=20)


class Authority:
    """Makes certificates of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.root, self._key = folder / f"{name}.crt", folder / f"{name}.key"
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", self._key, "-out", self.root, "-days", "1", "-subj", f"/CN={name}"),
        )

    def issue(self, certificate: Path, key: Path, name: str) -> None:
        asked, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text("subjectAltName=IP:127.0.0.1\n", "ascii")
        openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", key, "-out", asked, "-subj", f"/CN={name}"),
        )
        openssl(
            *("x509", "-req", "-in", asked, "-CA", self.root, "-CAkey", self._key, "-CAcreateserial"),
            *("-out", certificate, "-days", "1", "-extfile", extensions),
        )


class Folder:
    """What a server is started with, and what its clients show."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.first, self.second = Authority(path, "first"), Authority(path, "second")
        self.certificate, self.key = path / "tls.crt", path / "tls.key"
        self.first.issue(self.certificate, self.key, "server")
        self.first.issue(path / "client.crt", path / "client.key", "operator")

    def files(self, *, mutual: bool) -> TlsFiles:
        client_ca = self.first.root if mutual else None
        return TlsFiles(certificate=self.certificate, key=self.key, client_ca=client_ca)

    def client(self, root: Authority, *, shows: bool) -> Tls:
        return Tls(
            root=root.root.read_bytes(),
            certificate=(self.path / "client.crt").read_bytes() if shows else None,
            key=(self.path / "client.key").read_bytes() if shows else None,
        )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def folder(made: Folder, tmp_path: Path) -> Folder:
    """A copy whose certificate may be replaced."""
    made.certificate, made.key = tmp_path / "tls.crt", tmp_path / "tls.key"
    made.first.issue(made.certificate, made.key, "server")
    return made


async def is_reached(port: int, tls: Tls | None) -> bool:
    async with connected(f"127.0.0.1:{port}", tls) as client:
        return await _answers(client)


async def _answers(client: KedaClient) -> bool:
    try:
        await client.reach(1.0)
    except NotReached:
        return False
    return await client.is_active(asker())


async def test_a_client_that_believes_the_servers_root_is_answered(folder: Folder) -> None:
    settings = KedaSettings(port=0, tls=folder.files(mutual=False))
    async with serving(settings, tls=folder.client(folder.first, shows=False)) as desk:
        desk.publish(3)
        assert await desk.client.is_active(asker())


async def test_with_client_roots_only_certificates_of_theirs_get_in_and_are_named(folder: Folder) -> None:
    settings = KedaSettings(port=0, tls=folder.files(mutual=True))
    async with serving(settings, tls=folder.client(folder.first, shows=True)) as desk:
        desk.publish(3)
        assert await desk.client.is_active(asker())
        (entry,) = desk.server.book.as_json()
        assert entry["peer"].endswith("(127.0.0.1)")
        assert not await is_reached(desk.port, folder.client(folder.first, shows=False))


async def test_a_replaced_certificate_is_shown_to_the_next_handshake_and_breaks_no_stream(
    folder: Folder,
) -> None:
    now = time.monotonic()
    settings = KedaSettings(port=0, tls=folder.files(mutual=False))
    async with serving(settings, tls=folder.client(folder.first, shows=False), clock=lambda: now) as desk:
        desk.publish(1)
        async with desk.client.pushed(asker()) as pushed:
            assert await anext(pushed)
            folder.second.issue(folder.certificate, folder.key, "server")
            now += 2 * LOOK_SECONDS
            assert await is_reached(desk.port, folder.client(folder.second, shows=False))
            desk.publish(0)
            assert await anext(pushed) is False


def test_a_certificate_without_its_key_is_refused_at_the_start_and_later_the_one_before_stays(
    folder: Folder,
) -> None:
    now = 0.0
    certificates = Certificates(folder.files(mutual=True), lambda: now)
    folder.second.issue(folder.certificate, folder.path / "other.key", "server")
    now += 2 * LOOK_SECONDS
    assert certificates.newer() is None
    with pytest.raises(UserError, match="can't use the certificate"):
        Certificates(folder.files(mutual=True), lambda: now)
    folder.key.write_bytes((folder.path / "other.key").read_bytes())
    assert certificates.newer() is None, "it has looked a moment ago"
    now += 2 * LOOK_SECONDS
    assert certificates.newer() is not None
    now += 2 * LOOK_SECONDS
    assert certificates.newer() is None, "nothing has changed since"


@pytest.mark.parametrize("content", [None, b"", b"no PEM at all", b"\xff\x00"])
def test_files_that_are_no_certificates_are_refused(folder: Folder, content: bytes | None) -> None:
    if content is None:
        folder.certificate.unlink()
    else:
        folder.certificate.write_bytes(content)
    with pytest.raises(UserError, match="can't use the certificate"):
        Certificates(folder.files(mutual=False), time.monotonic)

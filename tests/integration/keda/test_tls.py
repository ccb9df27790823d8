import asyncio
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from scaler.cli.app import main
from scaler.cli.keda_options import KedaFlags
from scaler.errors import UserError
from scaler.keda.client import KedaClient, NotReached, Tls, connected
from scaler.keda.settings import KedaSettings, TlsFiles
from scaler.keda.tls import LOOK_SECONDS, WARN_SECONDS, Certificates
from scaler.keda.unreached import why
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
        (entry,) = desk.server.book.as_json()["items"]
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


def test_roots_may_have_comments_in_any_language_and_a_file_that_is_gone_is_named(folder: Folder) -> None:
    roots = folder.certificate.parent / "ca.crt"
    roots.write_bytes("# Wurzel für Köln\n".encode() + folder.first.root.read_bytes())
    files = replace(folder.files(mutual=True), client_ca=roots)
    now = 0.0
    certificates = Certificates(files, lambda: now)
    roots.unlink()
    now += 2 * LOOK_SECONDS
    with capture_logs() as logs:
        assert certificates.newer() is None
    assert str(roots) in logs[0]["reason"]


def test_a_folder_with_or_without_roots_is_mtls_or_tls_from_the_start(tmp_path: Path) -> None:
    flags = KedaFlags(port=6000, host="127.0.0.1", tls=tmp_path, streams_specs=False)

    def security(of: KedaFlags) -> str:
        settings = of.settings()
        assert settings is not None
        return settings.security

    assert security(replace(flags, tls=None)) == "plaintext"
    assert security(flags) == "TLS"
    (tmp_path / "ca.crt").symlink_to("nowhere")
    assert security(flags) == "mTLS", "who put a link there meant something by it"


def test_a_folder_that_there_isnt_is_said_to_be_missing(tmp_path: Path) -> None:
    flags = KedaFlags(port=6000, host=None, tls=tmp_path / "nowhere", streams_specs=False)
    with pytest.raises(UserError, match="nowhere doesn't exist"):
        flags.settings()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file is no folder"):
        replace(flags, tls=tmp_path / "file").settings()


@pytest.mark.parametrize(
    "given",
    [{"host": "0.0.0.0"}, {"tls": Path("/tls")}, {"streams_specs": True}],
)
def test_what_is_said_of_a_port_that_isnt_is_refused(given: dict[str, Any]) -> None:
    flags = KedaFlags(**{"port": None, "host": None, "tls": None, "streams_specs": False, **given})
    with pytest.raises(UserError, match="are for --keda-port"):
        flags.settings()


def test_a_port_without_an_address_is_this_machines_alone() -> None:
    assert KedaFlags(port=None, host=None, tls=None, streams_specs=False).settings() is None
    settings = KedaFlags(port=6000, host=None, tls=None, streams_specs=False).settings()
    assert settings is not None
    assert settings.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(["--client-cert", "client.crt"], "--client-cert needs --client-key", id="no-key"),
        pytest.param(
            ["--ca-cert", "first.crt", "--client-cert", "client.crt"],
            "--client-cert needs --client-key",
            id="no-key-beside-roots",
        ),
        pytest.param(["--client-key", "client.key"], "--client-key needs --client-cert", id="no-certificate"),
        pytest.param(
            ["--tls", "--client-key", "client.key"],
            "--client-key needs --client-cert",
            id="no-certificate-with-tls",
        ),
        pytest.param(
            ["--client-cert", "client.crt", "--client-key", "first.key"],
            "first.key: KEY_VALUES_MISMATCH",
            id="another-key",
        ),
        pytest.param(
            ["--client-cert", "client.key", "--client-key", "client.key"],
            "can't use --client-cert",
            id="a-key-as-certificate",
        ),
        pytest.param(["--ca-cert", "client.key"], "client.key holds no certificate", id="a-key-as-roots"),
        pytest.param(["--ca-cert", "empty"], "empty holds no certificate", id="empty-roots"),
        pytest.param(["--ca-cert", "nowhere"], "can't read", id="no-such-file"),
    ],
)
def test_files_that_tls_cant_use_are_named_before_anybody_is_asked(
    made: Folder, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    """gRPC aborts the process where a certificate has no key."""
    (made.path / "empty").touch()
    given = [each if each.startswith("--") else str(made.path / each) for each in options]
    assert main(["keda", "check", "--address", "127.0.0.1:1", "--fleet", "a", *given]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "nobody answers" not in said


def test_roots_that_come_after_the_start_are_warned_of_for_as_long_as_they_dont_count(folder: Folder) -> None:
    late, now = folder.certificate.parent / "ca.crt", 0.0
    certificates = Certificates(replace(folder.files(mutual=False), late_client_ca=late), lambda: now)
    said = []
    for step in ("none yet", "they come", "a moment later", "a minute later"):
        if step == "they come":
            late.write_bytes(folder.first.root.read_bytes())
        now += WARN_SECONDS + LOOK_SECONDS if step == "a minute later" else 2 * LOOK_SECONDS
        with capture_logs() as logs:
            certificates.newer()
        said.append([(each["log_level"], each["roots"]) for each in logs])
    assert said == [[], [("error", str(late))], [], [("error", str(late))]]


@pytest.mark.parametrize(("given", "expected"), [(None, "ERROR"), ("info", "info")])
def test_grpc_writes_no_lines_of_its_own_about_handshakes_unless_somebody_wants_them(
    given: str | None, expected: str
) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "GRPC_VERBOSITY"}
    if given is not None:
        environment["GRPC_VERBOSITY"] = given
    program = "import scaler.keda.settings, os; print(os.environ['GRPC_VERBOSITY'])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.stdout.strip() == expected


NONE, FOREIGN = "none", "of another authority"


@pytest.mark.parametrize(
    ("server", "believes", "shows", "reason", "hint"),
    [
        ("plaintext", "first", NONE, "speaks no TLS", "leave --tls"),
        ("TLS", None, NONE, "speaks TLS, and plaintext was tried", "--ca-cert FILE, or --tls"),
        ("TLS", "second", NONE, "certificate isn't believed", "--ca-cert FILE with the roots"),
        ("TLS", "client.key", NONE, "holds no certificate", "--ca-cert FILE"),
        (
            "mTLS",
            None,
            NONE,
            "speaks TLS with certificates of clients",
            "--client-cert FILE and --client-key",
        ),
        ("mTLS", "first", NONE, "wants a client's certificate", "--client-cert FILE and --client-key"),
        ("mTLS", "first", FOREIGN, "refuses the certificate that is shown", "ca.crt"),
    ],
)
async def test_why_there_is_no_connection_is_told_apart(
    folder: Folder, server: str, believes: str | None, shows: str, reason: str, hint: str
) -> None:
    files = None if server == "plaintext" else folder.files(mutual=server == "mTLS")
    tls = None
    if believes is not None:
        tls = Tls(root=(folder.path / (believes if "." in believes else f"{believes}.crt")).read_bytes())
    if tls is not None and shows == FOREIGN:
        folder.second.issue(folder.path / "foreign.crt", folder.path / "foreign.key", "foreign")
        certificate, key = ((folder.path / f"foreign.{kind}").read_bytes() for kind in ("crt", "key"))
        tls = replace(tls, certificate=certificate, key=key)
    async with serving(KedaSettings(port=0, tls=files)) as desk:
        found = await why(f"127.0.0.1:{desk.port}", tls)
    assert reason in found.reason
    assert hint in found.hint


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:1", "the connection is refused, for nobody listens there"),
        ("[::1]:1", "no"),
        ("127.0.0.1", "'127.0.0.1' is not HOST:PORT"),
        ("127.0.0.1:99999", "is not HOST:PORT"),
        ("nowhere.invalid:6000", "the name nowhere.invalid leads nowhere"),
    ],
)
async def test_where_nobody_listens_that_is_said(address: str, reason: str) -> None:
    assert reason in (await why(address, None)).reason


async def test_who_speaks_something_else_is_told_from_who_doesnt_listen() -> None:
    async def other(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail\r\n")
        writer.close()

    async with await asyncio.start_server(other, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert (await why(f"127.0.0.1:{port}", None)).reason == "somebody listens, and speaks no gRPC"


@pytest.mark.parametrize("content", [None, b"", b"no PEM at all", b"\xff\x00"])
def test_files_that_are_no_certificates_are_refused(folder: Folder, content: bytes | None) -> None:
    if content is None:
        folder.certificate.unlink()
    else:
        folder.certificate.write_bytes(content)
    with pytest.raises(UserError, match="can't use the certificate"):
        Certificates(folder.files(mutual=False), time.monotonic)

"""curl against the gateway, with its own defaults."""

import asyncio
import json
import shutil
import ssl
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from scaler.errors import UserError
from scaler.gateway.keys import Keys
from scaler.gateway.observe import SilentObserver
from scaler.gateway.proxy import Gateway
from scaler.gateway.settings import GatewaySettings
from scaler.runtime.gateway_files import GatewayFiles
from scaler.runtime.gateway_options import DoorFiles
from tests.integration.gateway.rig import rig

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl isn't here")
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl isn't here")


async def run(*command: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


@pytest.mark.parametrize("version", ["--http1.1", "--http1.0"])
async def test_curl_streams(version: str) -> None:
    async with rig() as r:
        _, url = await r.engine()
        r.route(url)
        body = '{"model": "m", "stream": true}'
        code, text = await run("curl", "-sSN", version, f"{r.url}/v1/chat/completions", "-d", body)
        assert code == 0
        assert text.endswith("data: [DONE]\n\n")


async def test_curl_uploads_large_prompts(tmp_path: Path) -> None:
    """It asks with Expect: 100-continue first."""
    async with rig() as r:
        engine, url = await r.engine()
        r.route(url)
        path = tmp_path / "body.json"
        path.write_text(json.dumps({"model": "m", "prompt": "x" * 3_000_000}), "utf-8")
        code, text = await run("curl", "-sSv", f"{r.url}/v1/completions", "--data-binary", f"@{path}")
        assert code == 0
        assert "100 Continue" in text
        assert engine.seen[0].body == path.read_bytes()


async def certified(directory: Path, name: str) -> tuple[Path, Path]:
    """Make a certificate and its key."""
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    code, text = await run(
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", f"/CN={name}"),
        *("-addext", "subjectAltName=IP:127.0.0.1"),
    )
    assert code == 0, text
    return certificate, key


@needs_openssl
async def test_curl_gets_in_over_tls_with_a_key(tmp_path: Path) -> None:
    certificate, key = await certified(tmp_path, "localhost")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    async with rig(tls=tls) as r:
        r.gateway.keys = Keys(["key-1"])
        _, url = await r.engine()
        r.route(url)
        assert r.url.startswith("https://")
        body = '{"model": "m", "stream": true}'
        ask = ("curl", "-sS", "--cacert", str(certificate), f"{r.url}/v1/completions", "-d", body)
        assert '"invalid_api_key"' in (await run(*ask))[1]
        code, text = await run(*ask, "-H", "Authorization: Bearer key-1")
        assert (code, text[-14:]) == (0, "data: [DONE]\n\n")
        code, _ = await run("curl", "-sS", r.url.replace("https", "http") + "/livez")
        assert code != 0


@needs_openssl
async def test_a_certificate_that_is_replaced_holds_from_then_on_and_one_without_its_key_changes_nothing(
    tmp_path: Path,
) -> None:
    old, new = await certified(tmp_path, "old"), await certified(tmp_path, "new")
    certificate, key, keys = (tmp_path / name for name in ("tls.crt", "tls.key", "keys"))

    def install(files: tuple[Path, Path], known: str) -> None:
        certificate.write_bytes(files[0].read_bytes())
        key.write_bytes(files[1].read_bytes())
        keys.write_text(known, "utf-8")

    install(old, "key-1")
    gateway = Gateway(GatewaySettings(), SilentObserver(), CollectorRegistry())
    files = GatewayFiles(DoorFiles(keys=keys, tls_certificate=certificate, tls_key=key))
    files.read()
    files.guard(gateway)

    async def ask(trusted: Path, shown: str, url: str) -> str:
        what = ("-sS", "-o", "-", "-w", "%{http_code}", "--cacert", str(trusted), f"{url}/v1/models")
        code, text = await run("curl", *what, "-H", f"Authorization: Bearer {shown}")
        return text[-3:] if code == 0 else "none"

    async with gateway.serve("127.0.0.1", 0, tls=files.tls) as url:
        assert await ask(old[0], "key-1", url) == "200"
        install((new[0], old[1]), "key-2")
        with pytest.raises(UserError, match="can't be used"):
            files.read()
        assert await ask(old[0], "key-1", url) == "200", "nothing has changed, the keys neither"
        install(new, "key-2")
        files.read()
        assert await ask(new[0], "key-2", url) == "200"
        assert await ask(new[0], "key-1", url) == "401"
        assert await ask(old[0], "key-2", url) == "none"

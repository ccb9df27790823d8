"""The gateway inside `emberpool local` keeps out whom one of its own would keep out."""

import asyncio
import contextlib
import json
import shutil
import signal
import ssl
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.fakes.ports import free_ports
from tests.integration.gateway.test_curl import certified
from tests.integration.processes.rig import Processes
from warmpool.reference.checkpoints import make_checkpoint

BODY = json.dumps({"model": "chat", "prompt": "Once", "max_tokens": 2})


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl isn't here")
@pytest.mark.long
async def test_clients_of_one_machine_show_a_key_over_tls_and_keys_are_read_again(tmp_path: Path) -> None:
    """It takes what a whole machine takes to start, imports included."""
    checkpoint = make_checkpoint(tmp_path / "tiny", "tiny", seed=1)
    certificate, key = await certified(tmp_path, "local")
    keys = tmp_path / "keys"
    keys.write_text("key-1\n", "utf-8")
    controller, gateway = free_ports(2)
    trusted = ssl.create_default_context(cafile=str(certificate))
    async with Processes(tmp_path) as processes, aiohttp.ClientSession() as session:
        await processes.emberpool(
            "local",
            *("local", "--checkpoint", f"chat={checkpoint}", "--device", "cpu", "--max-model-len", "64"),
            *("--controller-port", str(controller), "--gateway-port", str(gateway)),
            *("--gateway-keys-file", str(keys), "--state-dir", str(tmp_path / "state")),
            *("--gateway-tls-certificate", str(certificate), "--gateway-tls-key", str(key)),
        )

        async def ask(shown: str) -> int:
            headers = {"Authorization": f"Bearer {shown}", "Content-Type": "application/json"}
            url = f"https://127.0.0.1:{gateway}/v1/completions"
            with contextlib.suppress(aiohttp.ClientError):
                async with session.post(url, data=BODY, headers=headers, ssl=trusted) as response:
                    return response.status
            return 0

        async def until(wanted: int, shown: str) -> None:
            async with asyncio.timeout(90):
                while await ask(shown) != wanted:
                    await asyncio.sleep(0.1)

        await until(200, "key-1")
        assert await ask("key-2") == 401
        state = json.loads((tmp_path / "state" / "local.json").read_text("utf-8"))
        assert state["gateway"] == f"https://127.0.0.1:{gateway}"
        keys.write_text("key-2\n", "utf-8")
        processes.signal("local", signal.SIGHUP)
        await until(200, "key-2")
        assert await ask("key-1") == 401
        assert "nothing to reload" not in processes.log("local")
        assert await processes.end("local") == 0


async def test_a_file_that_can_t_be_used_is_said_before_anything_starts(tmp_path: Path) -> None:
    command = ("-m", "scaler", "local", "--checkpoint", f"chat={tmp_path}", "--gateway-keys-file", "/nowhere")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        "--dry-run",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 2
    assert "--gateway-keys-file /nowhere can't be read" in output.decode()
    assert "hint: " in output.decode()

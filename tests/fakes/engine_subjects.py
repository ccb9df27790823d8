"""What the contract of the engine port is tried on: adapters with what they speak to, from servers in the test's loop to real engines.

The real vLLM is the one that VLLM_BIN names, on a tiny checkpoint which the project's own writer makes. Its environment is the
test's, so a CPU build wants what it always wants.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.engine_server import FakeEngine
from tests.fakes.generic_server import FakeGeneric
from tests.fakes.ports import free_port
from tests.fakes.sglang_server import FakeSglang
from tests.fakes.vllm_server import FakeVllm
from warmpool.agent.forwarding import ForwardingPort
from warmpool.agent.processes import Ports
from warmpool.engines.kinds import EngineKind, connect
from warmpool.engines.port import Engine

ROOT = Path(__file__).resolve().parents[2]
MODEL = "chat"
VLLM_BIN = "VLLM_BIN"
VLLM_SECONDS = 240.0
FAKES: dict[str, tuple[EngineKind, type[FakeEngine]]] = {
    "recorded vLLM": (EngineKind.VLLM, FakeVllm),
    "SGLang by its source": (EngineKind.SGLANG, FakeSglang),
    "generic": (EngineKind.GENERIC, FakeGeneric),
}


@dataclass(frozen=True, kw_only=True)
class Process:
    """An engine's process and where it listens."""

    kind: EngineKind
    process: subprocess.Popen[bytes]
    ports: Ports
    log: Path


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An adapter under test.

    Attributes:
        kind: its kind.
        engine: the adapter.
        public_url: where clients reach what it speaks to.
        fake: the server behind it, where that lives in the test's loop.
        process: the process behind it, where it is one.
        releases: KV memory can be released there.
    """

    kind: EngineKind
    engine: Engine
    public_url: str
    fake: FakeEngine | None = None
    process: Process | None = None
    releases: bool = True

    @property
    def pauses(self) -> bool:
        return self.kind is not EngineKind.GENERIC


@asynccontextmanager
async def on_fake(name: str, fake: FakeEngine | None = None) -> AsyncIterator[Subject]:
    """Serve one of the servers that live in the test's loop, or the given one, and speak to it."""
    kind, make = FAKES[name]
    front = ("127.0.0.1", free_port())
    async with fake or make() as server:
        engine = connect(kind, server.url, model=MODEL, guard=ForwardingPort(*front, server.url))
        try:
            yield Subject(
                kind=kind,
                engine=engine,
                public_url=f"http://{front[0]}:{front[1]}",
                fake=server,
                releases=kind is not EngineKind.GENERIC,
            )
        finally:
            await engine.close()


@asynccontextmanager
async def on_process(process: Process, *, releases: bool = True) -> AsyncIterator[Subject]:
    """Speak to a process."""
    ports = process.ports
    own = process.kind is EngineKind.REFERENCE
    guard = None if own else ForwardingPort(ports.host, ports.public, ports.control_url)
    engine = connect(process.kind, ports.control_url, model=MODEL, guard=guard)
    try:
        yield Subject(
            kind=process.kind,
            engine=engine,
            public_url=ports.public_url,
            process=process,
            releases=releases,
        )
    finally:
        await engine.close()


# ------------------------------------------------------------------ processes


@contextmanager
def serve(
    kind: EngineKind, command: list[str], log: Path, environment: dict[str, str] | None = None
) -> Iterator[Process]:
    """Run an engine's process."""
    ports = Ports.free("127.0.0.1")
    with log.open("wb") as output:
        process = subprocess.Popen(
            ports.fill_in(command),
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
        try:
            yield Process(kind=kind, process=process, ports=ports, log=log)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def scripted_command(script: dict[str, object]) -> list[str]:
    """The scripted engine, which has a guard of its own."""
    ports = ["--port", "{port}", "--control-port", "{controlPort}"]
    return [sys.executable, "tests/fakes/scripted_engine.py", *ports, "--script", json.dumps(script)]


def reference_command(directory: Path) -> list[str]:
    """The reference engine on a tiny checkpoint."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("the reference engine needs torch")
    make_checkpoint(directory / "model")
    command = [sys.executable, "-m", "warmpool.reference", "serve", "--model", MODEL]
    command += ["--checkpoint", str(directory / "model"), "--host", "{host}", "--port", "{port}"]
    command += ["--control-port", "{controlPort}", "--max-num-seqs", "4", "--max-model-len", "256"]
    return [*command, "--threads", "1", "--guard", "closed", "--die-with-parent"]


def vllm_command(directory: Path) -> list[str]:
    """The vLLM that VLLM_BIN names, on a tiny checkpoint."""
    program = os.environ.get(VLLM_BIN, "")
    if not program:
        pytest.skip(f"{VLLM_BIN} names no vLLM; make test-vllm VLLM_BIN=/path/to/vllm tries a real one")
    make_checkpoint(directory / "model")
    write_byte_tokenizer(directory / "model")
    command = [program, "serve", str(directory / "model"), "--served-model-name", MODEL]
    command += [
        "--host",
        "{host}",
        "--port",
        "{controlPort}",
        "--max-model-len",
        "512",
        "--max-num-seqs",
        "8",
    ]
    return [*command, "--enforce-eager", "--dtype", "bfloat16"]


VLLM_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
    "HF_HUB_OFFLINE": "1",
}


def make_checkpoint(directory: Path) -> None:
    """Write a tiny random checkpoint, in a process of its own, so that torch stays out of this one where it isn't in it yet."""
    if "torch" in sys.modules:  # with it a process takes seconds of computing to start
        from warmpool.reference import checkpoints  # noqa: PLC0415 - as late as torch

        checkpoints.make_checkpoint(directory, shape="tiny", seed=1)
        return
    make = "import sys, pathlib; from warmpool.reference.checkpoints import make_checkpoint as m; "
    make += "m(pathlib.Path(sys.argv[1]), shape='tiny', seed=1)"
    subprocess.run([sys.executable, "-c", make, str(directory)], cwd=ROOT, check=True, timeout=60)


def write_byte_tokenizer(directory: Path) -> None:
    """Write a tokenizer that vLLM can load: one token per byte, and the two special ones that the checkpoint names."""
    special = [
        {"id": 256 + place, "content": content, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for place, content in enumerate(("<s>", "</s>"))
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": special,
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": {char: byte for byte, char in _characters().items()}, "merges": []},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(names))


def _characters() -> dict[int, str]:
    """The printable character that byte-level tokenizers write for each byte: itself if it has one, else one from 256 up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + place) for place, byte in enumerate(others)
    }

"""Servers of our own to read from, and a sink that remembers: what the tests of sources share."""

import asyncio
import contextlib
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from scaler.signals.port import Part, SignalKey, Source
from tests.fakes.ports import free_ports
from warmpool.seats import PolicyName

PATIENCE_SECONDS = 30.0
"""Everything here takes a moment; this is for machines that are busy."""


def key(signal: str = "queue", policy: str = "chat") -> SignalKey:
    return SignalKey(PolicyName(policy), signal)


# ------------------------------------------------------------------ hearing


@dataclass(frozen=True, kw_only=True)
class Word:
    """One thing that a sink was told."""

    key: SignalKey
    parts: Mapping[Part, float] | None = None
    at: float = 0.0
    why: str = ""
    heard: float = field(default_factory=time.monotonic)


class Heard:
    """A sink that remembers, and that can be waited for."""

    def __init__(self) -> None:
        self.words: list[Word] = []
        self._news = asyncio.Event()

    def observed(self, key: SignalKey, parts: Mapping[Part, float], at: float, lacking: str = "") -> None:
        del lacking
        self._add(Word(key=key, parts=dict(parts), at=at))

    def failed(self, key: SignalKey, why: str) -> None:
        self._add(Word(key=key, why=why))

    def _add(self, word: Word) -> None:
        self.words.append(word)
        self._news.set()

    @property
    def failures(self) -> list[str]:
        return [word.why for word in self.words if word.parts is None]

    async def until(self, wanted: Callable[[Word], bool], what: str, *, after: int = 0) -> Word:
        """Return the first word from the one with the number `after` on that is wanted."""
        seen = after
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    self._news.clear()
                    for word in self.words[seen:]:
                        seen += 1
                        if wanted(word):
                            return word
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(
                f"{what}: not within {PATIENCE_SECONDS} s; heard {self.words[-5:]}"
            ) from None

    async def parts(self, parts: Mapping[Part, float], *, signal: str | None = None) -> Word:
        """Wait from now on for a reading of exactly these parts."""
        return await self.until(
            lambda word: word.parts == parts and signal in {None, word.key.signal},
            f"reading {parts}",
            after=len(self.words),
        )

    async def reading(self, *, signal: str | None = None) -> Word:
        """Wait from now on for any reading."""
        return await self.until(
            lambda word: word.parts is not None and signal in {None, word.key.signal},
            "a reading",
            after=len(self.words),
        )

    async def failure(self, text: str = "", *, signal: str | None = None) -> Word:
        """Wait from now on for a failure whose text has `text` in it."""
        return await self.until(
            lambda word: word.parts is None and text in word.why and signal in {None, word.key.signal},
            f"failure {text!r}",
            after=len(self.words),
        )


def open_sockets() -> set[tuple[int, object, object]]:
    """Listeners and connections of this process."""
    found = psutil.Process().net_connections(kind="inet")
    return {(each.fd, each.laddr, each.raddr) for each in found}


@asynccontextmanager
async def running(*sources: Source) -> AsyncIterator[Heard]:
    """Run sources for as long as the block runs, and hear them."""
    heard = Heard()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(source.run(heard)) for source in sources]
        try:
            yield heard
        finally:
            for task in tasks:
                task.cancel()


# ------------------------------------------------------------------ servers


class Process:
    """A server of ours that can be killed, stopped and started again on the same port and data."""

    def __init__(self, command: Sequence[str], port: int, log: Path) -> None:
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        """End it as a machine that loses power does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        while psutil.Process(self._process.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def lives(self) -> None:
        """Fail with its log if it has ended."""
        if self._process is None or self._process.poll() is not None:
            raise AssertionError(self._log.read_text(errors="replace"))


class RedisProcess(Process):
    """A Redis, or a sentinel, or a node of a cluster."""

    def __init__(
        self, folder: Path, *options: str, port: int | None = None, file: Path | None = None
    ) -> None:
        port = free_ports(1)[0] if port is None else port
        command = ["redis-server", *([str(file)] if file else [])]
        command += ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        command += ["--appendonly", "no", *options]
        super().__init__(command, port, folder / f"redis-{port}.log")

    def call(self, *command: str | float, password: str | None = None, options: Sequence[str] = ()) -> str:
        """Run one command by the command line, apart from everything that is tested."""
        secret = ["--no-auth-warning", "-a", password] if password else []
        line = ["redis-cli", "-p", str(self.port), *secret, *options, *(str(word) for word in command)]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=30)
        return (done.stdout + done.stderr).strip()

    def wait(self, wanted: str = "PONG", *command: str, **how: Any) -> None:
        """Wait until a command's answer has something in it."""
        ends = time.monotonic() + PATIENCE_SECONDS
        while wanted not in (answer := self.call(*(command or ("PING",)), **how)):
            self.lives()
            assert time.monotonic() < ends, answer
            time.sleep(0.01)  # between two looks

    def restart(self) -> None:
        self.kill()
        self.start()
        self.wait()


@contextmanager
def redis(folder: Path, *options: str, **how: Any) -> Iterator[RedisProcess]:
    """Run a Redis for as long as the block runs."""
    server = RedisProcess(folder, *options)
    server.start()
    try:
        server.wait(**how)
        yield server
    finally:
        server.kill()


class PrometheusProcess(Process):
    """A Prometheus that scrapes one exporter each second."""

    def __init__(self, folder: Path, exporter: str = "127.0.0.1:1") -> None:
        config = folder / "prometheus.yaml"
        config.write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
            f"scrape_configs: [{{job_name: ours, static_configs: [{{targets: ['{exporter}']}}]}}]\n"
        )
        port = free_ports(1)[0]
        super().__init__(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            port,
            folder / "prometheus.log",
        )

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    async def wait(self) -> None:
        """Wait until it answers queries."""
        async with asyncio.timeout(PATIENCE_SECONDS), aiohttp.ClientSession() as session:
            while True:
                self.lives()
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"{self.url}/-/ready") as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(0.02)  # between two looks


@asynccontextmanager
async def prometheus(folder: Path, exporter: str = "127.0.0.1:1") -> AsyncIterator[PrometheusProcess]:
    """Run a Prometheus for as long as the block runs."""
    server = PrometheusProcess(folder, exporter)
    server.start()
    try:
        await server.wait()
        yield server
    finally:
        server.kill()


# ------------------------------------------------------------------ TLS


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a self-signed certificate of 127.0.0.1; return it and its key."""
    file, secret = folder / "server.pem", folder / "server.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-keyout", str(secret), "-out", str(file), "-days", "1", "-subj", "/CN=test"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return file, secret

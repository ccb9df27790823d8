"""Engine processes that share one device, started one after another and paused with their KV memory given back.

They are driven through the agent's own adapter, so every order is verified as the agent verifies it.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil

from warmpool.engines.deadline import Deadline
from warmpool.engines.port import KvWhenPaused
from warmpool.engines.reference import ReferenceEngine
from warmpool.reference.options import ModelOptions

START_SECONDS = 180.0
STOP_SECONDS = 20.0
ORDER_SECONDS = 30.0
MOVE_SECONDS = 300.0
"""For weights on their way; page-locking memory for them takes long on some machines."""
_POLL_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class Answer:
    """A streamed answer: its tokens, and when each of them came, on `time.perf_counter`'s clock."""

    tokens: list[int]
    at: list[float]

    @property
    def first_at(self) -> float:
        """When the first token came."""
        return self.at[0]


@dataclass(frozen=True, slots=True)
class Resident:
    """One engine process.

    Attributes:
        name: the model's.
        engine: its control surface.
        control: base URL of it.
        public: base URL of what the world may reach.
        process: as the system sees it.
        session: connections to it.
    """

    name: str
    engine: ReferenceEngine
    control: str
    public: str
    process: psutil.Process
    session: aiohttp.ClientSession

    async def pause(self, kv: KvWhenPaused = KvWhenPaused.RELEASE) -> None:
        """Pause it, and unless told otherwise have its KV memory given back."""
        await self.engine.pause(kv, deadline=Deadline.after(ORDER_SECONDS))

    async def resume(self) -> None:
        """Have it take its KV memory, and resume it."""
        await self.engine.resume(KvWhenPaused.RELEASE, deadline=Deadline.after(ORDER_SECONDS))

    async def park(self) -> None:
        """Have its weights moved to host memory."""
        await self.engine.park(deadline=Deadline.after(MOVE_SECONDS))

    async def unpark(self) -> None:
        """Have its weights brought back."""
        await self.engine.unpark(deadline=Deadline.after(MOVE_SECONDS))

    async def answer(self, prompt: Sequence[int], tokens: int) -> Answer:
        """Ask it through its public port, and read the whole stream."""
        body = {
            "model": self.name,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
        answer = Answer([], [])
        async with self.session.post(f"{self.public}/v1/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                data = line.decode().strip().removeprefix("data: ")
                if data and data != "[DONE]":
                    came = json.loads(data)["choices"][0]["token_ids"]
                    answer.tokens.extend(came)
                    answer.at.extend([time.perf_counter()] * len(came))
        return answer

    async def until_whole(self) -> None:
        """Wait until the background has taken all of its KV memory."""
        async with asyncio.timeout(ORDER_SECONDS):
            while True:
                async with self.session.get(f"{self.control}/emberpool/startup") as response:
                    facts = await response.json()
                if facts["kvTakenBytes"] == facts["kvBytes"]:
                    return
                await asyncio.sleep(_POLL_SECONDS)


@asynccontextmanager
async def fleet(names: Sequence[str], options: ModelOptions, logs: Path) -> AsyncIterator[list[Resident]]:
    """Start one engine after another on the same checkpoint; each is paused and has no KV memory when the next one starts.

    Args:
        names: of the models.
        options: what each is told.
        logs: directory for what they say.

    Yields:
        The residents, all of them paused. They are ended on the way out.
    """
    async with AsyncExitStack() as stack:
        residents = []
        for name in names:
            resident = await stack.enter_async_context(_resident(name, options, logs / f"{name}.log"))
            await resident.engine.close_guard(deadline=Deadline.after(ORDER_SECONDS))
            await resident.pause()
            residents.append(resident)
        yield residents


@asynccontextmanager
async def _resident(name: str, options: ModelOptions, log: Path) -> AsyncIterator[Resident]:
    reading, writing = os.pipe()
    with log.open("wb") as said, os.fdopen(reading) as pipe:
        process = await asyncio.create_subprocess_exec(
            *_command(name, options, writing), pass_fds=[writing], stderr=said, stdout=said
        )
        os.close(writing)
        try:
            async with asyncio.timeout(START_SECONDS):
                line = await asyncio.to_thread(pipe.readline)
            if not line:
                raise RuntimeError(f"{name} didn't start; see {log}")
            ready = json.loads(line)
            control, public = (f"http://127.0.0.1:{ready[port]}" for port in ("controlPort", "port"))
            timeout = aiohttp.ClientTimeout(total=ORDER_SECONDS)
            async with (
                ReferenceEngine(control, model=name) as engine,
                aiohttp.ClientSession(timeout=timeout) as session,
            ):
                seen = psutil.Process(process.pid)
                yield Resident(name, engine, control, public, seen, session)
        finally:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _command(name: str, options: ModelOptions, ready_fd: int) -> list[str]:
    told = {
        "--model": name,
        "--checkpoint": options.checkpoint,
        "--device": options.device,
        "--threads": options.threads,
        "--max-num-seqs": options.max_num_seqs,
        "--max-model-len": options.max_model_len,
        "--kv-memory": options.kv_memory,
        "--kernels": options.kernels,
        "--port": 0,
        "--control-port": 0,
        "--ready-fd": ready_fd,
    }
    flags = [str(part) for pair in told.items() for part in pair]
    return [sys.executable, "-m", "warmpool.reference", "serve", *flags, "--die-with-parent"]

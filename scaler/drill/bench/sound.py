"""What a sound engine answers: asked of one that is never paused, switched or killed, and has nothing else to do.

It runs the same kernels on the same device as those that are rehearsed, so its tokens are theirs, also where only rounding
decides; what pausing, KV memory that was given back or a death beside it may have spoilt isn't in them. That the kernels
themselves are right is another record's business, which each resident is proven against (`warmpool.reference expect`).
"""

import asyncio
import json
import os
import random
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from scaler.drill.bench.ending import end
from scaler.drill.bench.streams import Question, ask
from scaler.drill.records import Outcome

_START_SECONDS = 240.0
_ANSWER_SECONDS = 120.0
_STOP_SECONDS = 20.0
_NAME = "sound"
_BEGIN = 256
"""Begin-of-sequence token of the checkpoints that are made here, whose further tokens are bytes."""
_PRINTABLE = range(32, 127)
BLOCK = 64
"""Lengths of sequences are multiples of it, in tokens."""


class NotSound(Exception):
    """The engine can't be asked, or answers the same prompt in two ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShape:
    """How an engine is made.

    Attributes:
        checkpoint: its directory.
        device: `cpu` or `cuda`.
        sequences: sequences at once.
        length: tokens of a sequence.
    """

    checkpoint: Path
    device: str
    sequences: int
    length: int

    def arguments(self) -> list[str]:
        """Render it as the reference engine's arguments."""
        return [
            *("--checkpoint", str(self.checkpoint), "--device", self.device),
            *("--max-num-seqs", str(self.sequences), "--max-model-len", str(self.length)),
        ]


def kv_bytes_of_a_token(checkpoint: Path, device: str) -> int:
    """Return what the keys and values of one token take, in bytes: 16 bits a number on a GPU, 32 on the CPU."""
    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    numbers = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    return int(numbers) * (4 if device == "cpu" else 2)


def length_in(gigabytes: float, sequences: int, checkpoint: Path, device: str) -> int:
    """Return how many tokens each of so many sequences may have in so much KV memory, given in 10^9 bytes."""
    return int(gigabytes * 1e9 / kv_bytes_of_a_token(checkpoint, device) / sequences) // BLOCK * BLOCK


def prompts(count: int, tokens: int, seed: int) -> list[list[int]]:
    """Draw prompts of so many tokens, each unlike the others."""
    choose = random.Random(seed)
    return [[_BEGIN, *(choose.choice(_PRINTABLE) for _ in range(tokens - 1))] for _ in range(count)]


async def sound_answers(
    shape: EngineShape, asked: Sequence[Sequence[int]], tokens: int, log: Path
) -> list[list[int]]:
    """Start an engine, ask it each prompt alone, and end it.

    The first prompt is asked once more at the end.

    Args:
        shape: the engine.
        asked: the prompts.
        tokens: tokens of each answer.
        log: file for what the engine says.

    Raises:
        NotSound: it doesn't start, doesn't answer, or answers the first prompt otherwise the second time.
    """
    timeout = aiohttp.ClientTimeout(total=None)
    async with _engine(shape, log) as base, aiohttp.ClientSession(timeout=timeout) as session:
        answers = []
        for prompt in [*asked, asked[0]]:
            question = Question(model=_NAME, prompt=prompt, tokens=tokens)
            answer = await ask(session, base, question, seconds=_ANSWER_SECONDS)
            if answer.outcome is not Outcome.OK:
                raise NotSound(f"the engine that is held to be sound: {answer.outcome}: {answer.detail}")
            answers.append(answer.tokens)
    if answers[-1] != answers[0]:
        raise NotSound("the engine that is held to be sound answers one prompt in two ways")
    return answers[:-1]


async def proof(checkpoint: Path, device: str) -> dict[str, Any]:
    """Return what residents of a checkpoint are proven against, as an agent's configuration holds it.

    Raises:
        NotSound: it can't be computed.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "warmpool.reference", "expect"),
        *("--checkpoint", str(checkpoint), "--device", device),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_START_SECONDS):
            said, wrong = await process.communicate()
    except TimeoutError as error:
        raise NotSound(f"no record of {checkpoint} within {_START_SECONDS:.0f} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise NotSound(f"no record of {checkpoint}: {wrong.decode(errors='replace')[-500:]}")
    return {"prompts": json.loads(said)["prompts"]}


@asynccontextmanager
async def _engine(shape: EngineShape, log: Path) -> AsyncIterator[str]:
    """Run the engine; yields its base URL."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as pipe, log.open("wb") as said:
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "warmpool.reference", "serve", "--model", _NAME),
                *(*shape.arguments(), "--port", "0", "--control-port", "0"),
                *("--ready-fd", str(writing), "--die-with-parent"),
                pass_fds=[writing],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        finally:
            os.close(writing)
        try:
            async with asyncio.timeout(_START_SECONDS):
                line = await asyncio.to_thread(pipe.readline)
            if not line:
                raise NotSound(f"the engine that is held to be sound didn't start; see {log}")
            yield f"http://127.0.0.1:{json.loads(line)['port']}"
        except TimeoutError as error:
            raise NotSound(f"no sound engine within {_START_SECONDS:.0f} s; see {log}") from error
        finally:
            await end(process, _STOP_SECONDS)

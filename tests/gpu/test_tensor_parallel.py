"""An engine whose layers two GPUs share over NCCL: its tokens, its memory, its end; and weights that come from a sibling GPU."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import psutil
import pytest
import torch

from loader.stage.client import StageClient
from tests.gpu.test_reference_tiers import PROMPT, Engine, engine, say, stage_daemon

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
    pytest.mark.timeout(400),
]

RANKS = ["--tensor-parallel-size", "2", "--max-num-seqs", "4", "--max-model-len", "1024"]
END_SECONDS = 30.0


@asynccontextmanager
async def two_ranks(checkpoint: Path, options: Sequence[str] = ()) -> AsyncIterator[Engine]:
    async with engine(checkpoint, [*RANKS, *options]) as running:
        say(f"two ranks: ready after {running.seconds:.2f} s, weights {await running.weights()}")
        yield running


def other_ranks(running: Engine) -> list[psutil.Process]:
    children = psutil.Process(running.process.pid).children(recursive=True)
    return [each for each in children if "rank" in each.cmdline()]


def expected(checkpoint: Path) -> str:
    """What one rank answers, up to the first token that only rounding decides."""
    from warmpool.reference.expect import answers  # noqa: PLC0415 (collected where there is no device, too)
    from warmpool.reference.options import ModelOptions  # noqa: PLC0415
    from warmpool.reference.tokenizer import open_tokenizer  # noqa: PLC0415

    tokenizer = open_tokenizer(checkpoint)
    options = ModelOptions(checkpoint=checkpoint, device="cuda")
    (tokens,) = answers(options, [[256, *tokenizer.encode(PROMPT)]], 24)
    torch.cuda.empty_cache()
    assert tokens
    decoder = tokenizer.decoder()
    return "".join(decoder.push(token) for token in tokens)


def used_bytes() -> list[int]:
    return [total - free for free, total in map(torch.cuda.mem_get_info, range(2))]


@pytest.mark.parametrize("shape", ["small", "llama-1b"])
async def test_two_ranks_answer_as_one_and_pause_park_and_come_back_together(
    made: Callable[[str], Path], shape: str
) -> None:
    checkpoint = made(shape)
    begins = expected(checkpoint)
    async with two_ranks(checkpoint) as running:
        first = await running.answer()
        assert first.startswith(begins)
        facts = await running.get("/emberpool/startup")
        assert facts["ownership"]["tensorParallelSize"] == 2
        await running.must("/pause?mode=wait")
        full = used_bytes()
        await running.must("/release_kv_cache_memory")
        assert all(
            before - after > facts["kvBytes"] // 4 for before, after in zip(full, used_bytes(), strict=True)
        )
        began = time.monotonic()
        await running.must("/wake_up?tags=kv_cache")
        assert await running.answer() == first
        say(f"paused → answered in {time.monotonic() - began:.3f} s")
        for _ in range(2):
            await running.must("/sleep?level=1&mode=wait")
            memory = await running.get("/emberpool/memory")
            assert (memory["weights"], memory["weightsTakenBytes"]) == ("Parked", 0), memory
            began = time.monotonic()
            await running.must("/wake_up")
            say(f"unparked in {time.monotonic() - began:.3f} s")
            assert await running.answer() == first


async def test_kill_9_of_a_rank_ends_the_engine_and_its_memory_is_back(made: Callable[[str], Path]) -> None:
    before = used_bytes()
    async with two_ranks(made("llama-1b")) as running:
        (rank,) = other_ranks(running)

        async def ask() -> None:
            with suppress(aiohttp.ClientError, AssertionError):  # it is cut off, or told what happened
                while True:
                    await running.answer()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask())
            await running.answer()
            rank.kill()
            began = time.monotonic()
            code = await asyncio.wait_for(asyncio.to_thread(running.process.wait), END_SECONDS)
        say(f"ended with {code} {time.monotonic() - began:.2f} s after a rank was killed")
        assert code == 1
    assert all(abs(now - then) < 64 * 2**20 for now, then in zip(used_bytes(), before, strict=True))


async def test_kill_9_of_rank_0_takes_the_other_along(made: Callable[[str], Path]) -> None:
    async with two_ranks(made("small")) as running:
        ranks = other_ranks(running)
        running.process.kill()
        _, alive = psutil.wait_procs(ranks, timeout=END_SECONDS)
        assert not alive


# ---------------------------------------------------------------- siblings


@pytest.fixture
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="stage-") as directory:  # a socket's path must be short
        yield Path(directory) / "s.sock"


async def test_an_engine_takes_its_weights_from_the_gpu_that_holds_them(
    made: Callable[[str], Path], socket: Path
) -> None:
    """The engine sees its own device alone, as in a pod; the daemon has both."""
    checkpoint = made("llama-1b")
    async with engine(checkpoint, []) as plain:
        answer = await plain.answer()
    with stage_daemon(checkpoint, socket):
        with StageClient(socket) as client:
            client.hold(str(checkpoint), "1")
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        try:
            async with engine(checkpoint, ["--stage", f"unix://{socket}"]) as sibling:
                told = await sibling.weights()
                say(f"sibling: ready after {sibling.seconds:.2f} s, weights {told}")
                rate = told["bytes"] / told["loadSeconds"] / 1e9
                say(f"sibling: {rate:.0f} GB/s of {told['bytes']} bytes, leases and descriptors counted")
                assert told["tier"] == "Sibling", told
                assert [each["code"] for each in told["passedOver"]] == ["NotHeld"], told
                assert await sibling.answer() == answer
        finally:
            if seen is None:
                del os.environ["CUDA_VISIBLE_DEVICES"]
            else:
                os.environ["CUDA_VISIBLE_DEVICES"] = seen


def test_more_ranks_than_devices_are_refused_at_once(made: Callable[[str], Path]) -> None:
    few = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
    command = [sys.executable, "-m", "warmpool.reference", "serve", "--model", "m", "--device", "cuda"]
    command += ["--checkpoint", str(made("small")), "--port", "0", "--control-port", "0", *RANKS]
    found = subprocess.run(command, env=few, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "torch sees 1 CUDA devices" in found.stderr

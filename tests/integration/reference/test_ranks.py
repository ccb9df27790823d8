"""An engine with several ranks, as processes: what it answers, how it pauses, parks and ends, and that nothing of it is left.

Each plain start imports torch in every process: most tests share one engine, and most engines and their ranks are forks. What is told
of processes of their own is told of those that are started plainly.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.integration.reference.conftest import STOP_SECONDS, Client, Served, command, start, stop
from warmpool.agent.processes import descendants
from warmpool.reference.expect import answers, record
from warmpool.reference.options import ModelOptions
from warmpool.standins import VARIABLE, forks_of, stood_for
from warmpool.wire import ownership_to_json

RANKS = ["--tensor-parallel-size", "2", "--max-num-seqs", "4"]
PROMPTS = ["hello", "The quick brown fox", "0123456789" * 4]

pytestmark = pytest.mark.timeout(180)


def other_ranks(pid: int) -> list[psutil.Process]:
    """Those that an engine has started, be it a process of its own or stood for."""
    engine = (*stood_for(pid), pid)[0]
    return [each for each in psutil.Process(engine).children(recursive=True) if "rank" in each.cmdline()]


def of_ranks(pid: int) -> list[psutil.Process]:
    """All processes of an engine's other ranks: those that it has started, and the forks that they stand for."""
    ranks = other_ranks(pid)
    return ranks + [psutil.Process(fork) for rank in ranks for fork in stood_for(rank.pid)]


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=STOP_SECONDS)
    return not alive


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[Served]:
    served = start(checkpoint, RANKS)
    ranks = of_ranks(served.process.pid)
    yield served
    assert stop(served) == 0
    assert gone(ranks)


@pytest.fixture
async def ranked(engine: Served) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield Client(session, engine)


async def texts(client: Client, prompts: list[str], tokens: int = 12) -> list[str]:
    answered = await asyncio.gather(
        *(client.complete(prompt=prompt, max_tokens=tokens) for prompt in prompts)
    )
    assert [status for status, _ in answered] == [200] * len(prompts)
    return [body["choices"][0]["text"] for _, body in answered]


async def test_tokens_are_those_of_one_rank_up_to_the_first_that_rounding_decides(
    ranked: Client, checkpoint: Path
) -> None:
    from warmpool.reference.tokenizer import open_tokenizer  # noqa: PLC0415 (only to compare)

    tokenizer = open_tokenizer(checkpoint)
    options = ModelOptions(checkpoint=checkpoint, device="cpu")
    prompts = [[256, *tokenizer.encode(prompt)] for prompt in PROMPTS]
    expected = answers(options, prompts, 8)
    assert all(len(each) > 1 for each in expected)
    for prompt, tokens in zip(PROMPTS, expected, strict=True):
        status, body = await ranked.complete(prompt=prompt, max_tokens=len(tokens), logprobs=1)
        assert status == 200
        decoder = tokenizer.decoder()
        assert (
            body["choices"][0]["text"] == "".join(decoder.push(token) for token in tokens) + decoder.flush()
        )


async def test_the_group_is_what_a_record_for_several_ranks_belongs_to(
    ranked: Client, checkpoint: Path
) -> None:
    options = ModelOptions(checkpoint=checkpoint, device="cpu", tensor_parallel_size=2)
    facts = await ranked.get("/emberpool/startup")
    assert facts["ownership"] == ownership_to_json(record(options, ["hello"]).ownership)
    assert facts["ownership"]["tensorParallelSize"] == 2


async def test_a_sequence_has_the_same_tokens_alone_as_among_others(ranked: Client) -> None:
    alone = [(await texts(ranked, [prompt]))[0] for prompt in PROMPTS]
    assert await texts(ranked, PROMPTS) == alone


async def test_all_ranks_give_back_their_kv_memory_and_take_it_again(ranked: Client) -> None:
    before = await texts(ranked, PROMPTS)
    facts = await ranked.get("/emberpool/startup")
    assert facts["kvTakenBytes"] == facts["kvBytes"]
    await ranked.order("/pause?mode=wait")
    assert (await ranked.order("/release_kv_cache_memory"))[0] == 200
    assert (await ranked.get("/emberpool/memory"))["kvTakenBytes"] == 0
    assert (await ranked.order("/wake_up?tags=kv_cache"))[0] == 200
    assert (await ranked.get("/emberpool/memory"))["kvTakenBytes"] == facts["kvBytes"]
    assert await texts(ranked, PROMPTS) == before


async def test_all_ranks_park_their_weights_and_bring_them_back(ranked: Client) -> None:
    before = await texts(ranked, PROMPTS)
    held = await ranked.get("/emberpool/memory")
    status, _ = await ranked.order("/sleep?level=1&mode=wait")
    parked = await ranked.get("/emberpool/memory")
    assert status == 200
    assert (parked["weights"], parked["weightsTakenBytes"], parked["kvTakenBytes"]) == ("Parked", 0, 0)
    assert parked["parkedBytes"] == held["weightsTakenBytes"]
    assert (await ranked.order("/wake_up"))[0] == 200
    assert await ranked.get("/emberpool/memory") == held | {"parkedBytes": parked["parkedBytes"]}
    assert await texts(ranked, PROMPTS) == before


async def test_the_start_tells_of_all_ranks_and_the_figures_are_their_sums(ranked: Client) -> None:
    facts = await ranked.get("/emberpool/startup")
    weights = facts["phases"]["weights"]
    assert [each["rank"] for each in weights["ranks"]] == [0, 1]
    assert weights["bytes"] == sum(each["bytes"] for each in weights["ranks"])
    assert facts["phases"]["capture"]["tensorParallelSize"] == 2
    assert facts["phases"]["capture"]["withoutGraphs"]
    async with ranked.session.get(ranked.served.control + "/metrics") as response:
        page = await response.text()
    taken = next(line for line in page.splitlines() if line.startswith("reference:kv_taken_bytes{"))
    assert float(taken.split()[-1]) == facts["kvBytes"]


async def test_a_signal_to_another_rank_alone_ends_nothing(ranked: Client) -> None:
    ranks = of_ranks(ranked.served.process.pid)
    ranks[0].send_signal(signal.SIGTERM)
    assert len(await texts(ranked, PROMPTS)) == len(PROMPTS)
    assert all(each.is_running() and os.getsid(each.pid) == each.pid for each in ranks)


def test_kill_9_of_rank_0_takes_the_other_ranks_along(checkpoint: Path) -> None:
    served = start(checkpoint, RANKS, plain=True)
    ranks = other_ranks(served.process.pid)
    assert len(ranks) == 1
    served.process.kill()
    served.process.wait()
    assert gone(ranks)


async def test_kill_9_of_another_rank_ends_the_engine_and_what_runs_there_is_told_why(
    checkpoint: Path,
) -> None:
    served = await asyncio.to_thread(start, checkpoint, [*RANKS, "--max-tokens-per-second", "20"])
    (rank,) = other_ranks(served.process.pid)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        client = Client(session, served)
        stream = await client.stream(max_tokens=400)
        assert await stream.content.readline()
        of_ranks(served.process.pid)[-1].kill()
        rest = (await stream.content.read()).decode()
    assert f"rank 1 (process {rank.pid}) was ended by signal 9" in rest
    assert "[DONE]" not in rest
    assert await asyncio.to_thread(served.process.wait, STOP_SECONDS) == 1


def test_kill_9_of_another_rank_ends_an_engine_that_is_idle(checkpoint: Path) -> None:
    served = start(checkpoint, RANKS)
    of_ranks(served.process.pid)[-1].kill()
    assert served.process.wait(STOP_SECONDS) == 1


def test_a_rank_that_is_lost_while_it_starts_ends_the_start_with_its_name(checkpoint: Path) -> None:
    process = subprocess.Popen(
        command(checkpoint, *RANKS), stderr=subprocess.PIPE, text=True, env=os.environ | {VARIABLE: ""}
    )
    deadline = time.monotonic() + STOP_SECONDS
    ranks: list[psutil.Process] = []
    while not ranks and time.monotonic() < deadline:
        with suppress(psutil.Error):
            ranks = other_ranks(process.pid)
    ranks[0].kill()
    _, said = process.communicate(timeout=60)
    error, hint = said.splitlines()[-2:]
    assert process.returncode == 2
    assert error == f"error: the engine can't start: rank 1 (process {ranks[0].pid}) was ended by signal 9"
    assert hint.startswith("hint: ")


@pytest.mark.long
def test_ranks_are_forks_of_the_zygote_as_rank_0_is(checkpoint: Path, tmp_path: Path) -> None:
    socket = tmp_path / "z.sock"
    asked = [sys.executable, "-m", "warmpool.reference", "zygote", "--socket", str(socket)]
    with subprocess.Popen([*asked, "--die-with-parent"], stderr=subprocess.PIPE, text=True) as zygote:
        assert zygote.stderr is not None
        while '"zygote": "ready"' not in (line := zygote.stderr.readline()):
            assert line, "the zygote ended"
        served = start(checkpoint, [*RANKS, "--zygote", str(socket)])
        forks = [json.loads(line) for line in _lines(zygote, 2) if '"forked"' in line]
        assert len(forks) == 2
        pids = {int(each["fork"]) for each in forks}
        assert set(forks_of(served.process.pid)) == pids
        assert {each.pid for each in descendants(served.process.pid)} >= pids
        processes: list[Any] = [psutil.Process(each["fork"]) for each in forks]
        assert stop(served) == 0
        assert gone(processes)
        zygote.terminate()


def _lines(process: "subprocess.Popen[str]", forks: int) -> Iterator[str]:
    assert process.stderr is not None
    found = 0
    while found < forks:
        line = process.stderr.readline()
        assert line, "the zygote ended"
        found += '"forked"' in line
        yield line

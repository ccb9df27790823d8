"""The reference engine on a CUDA device: same tokens alone and in a batch, captured or not, memory really given back."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu.rig import WAIT_SECONDS, Batch, build_runner, some_prompts
from warmpool.reference.checkpoints import SHAPES, write_checkpoint
from warmpool.reference.config import RopeScaling
from warmpool.reference.decoding import EagerDecoder
from warmpool.reference.expect import answers
from warmpool.reference.options import ModelOptions
from warmpool.reference.paged import GatheredAttention
from warmpool.reference.rope import Rotary
from warmpool.reference.runner import TorchRunner
from warmpool.reference.scheduler import PauseMode

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

GOLDEN = Path(__file__).parents[1] / "unit" / "warmpool" / "reference" / "golden"


@pytest.fixture(scope="module", params=["tiny", "llama-1b"])
def checkpoint(request: pytest.FixtureRequest, made: Callable[[str], Path]) -> Path:
    return made(request.param)


@pytest.fixture(scope="module")
def runner(checkpoint: Path) -> Iterator[TorchRunner]:
    return build_runner(checkpoint)


@pytest.fixture
def batch(runner: TorchRunner) -> Iterator[Batch]:
    made = Batch(runner)
    yield made
    made.engine.stop()
    assert made.engine.join(WAIT_SECONDS)


def test_tokens_are_the_same_alone_and_in_batches(batch: Batch) -> None:
    prompts, counts = some_prompts(24)
    alone = [batch.tokens([prompt], [count])[0] for prompt, count in zip(prompts, counts, strict=True)]
    for size in (2, 3, 8):
        for start in range(0, len(prompts), size):
            part = slice(start, start + size)
            assert batch.tokens(prompts[part], counts[part]) == alone[part]


def test_first_tokens_depend_on_the_prompt(batch: Batch) -> None:
    prompts, _ = some_prompts(24)
    firsts = {tokens[0] for tokens in batch.tokens(prompts[:8], [1] * 8)}
    assert len(firsts) >= 4


def test_steps_are_captured_over_mapped_memory_with_our_kernels(runner: TorchRunner) -> None:
    assert runner.facts == {"kvMemory": "mapped", "kernels": "fused", "graphs": [8]}


def test_what_is_drawn_and_told_is_the_same_alone_and_in_batches(batch: Batch) -> None:
    prompts, _ = some_prompts(8)
    settings: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "seed": 7, "logprobs": 3}
    together = batch.outputs(prompts, [20] * 8, **settings)
    alone = [batch.outputs([prompt], [20], **settings)[0] for prompt in prompts]
    assert [[output.token for output in part] for part in together] == [
        [output.token for output in part] for part in alone
    ]
    assert [[output.logprobs for output in part] for part in together] == [
        [output.logprobs for output in part] for part in alone
    ]


def test_answers_are_those_computed_without_serving(batch: Batch, checkpoint: Path) -> None:
    prompts, _ = some_prompts(8)
    expected = answers(ModelOptions(checkpoint=checkpoint, device="cuda", max_model_len=2), prompts, 6)
    assert sum(map(len, expected)) >= 16
    served = batch.tokens(prompts, [6] * 8)
    assert [tokens[: len(known)] for tokens, known in zip(served, expected, strict=True)] == expected


@pytest.fixture
def prompted(runner: TorchRunner) -> Iterator[tuple[list[int], list[int]]]:
    """Eight sequences whose prompts are in the KV memory: their newest tokens and their lengths."""
    prompts, _ = some_prompts(8)
    runner.take_kv(lambda: None)
    with torch.inference_mode():
        for place, prompt in enumerate(prompts):
            runner._kv.open(place, len(prompt) + 8)
            runner._prompter.logits(prompt, place)
    yield [65 + place for place in range(8)], [len(prompt) + 1 for prompt in prompts]
    for place in range(8):
        runner.free(place)


def test_a_captured_step_computes_what_an_eager_one_does(
    runner: TorchRunner, prompted: tuple[list[int], list[int]]
) -> None:
    eager = EagerDecoder(runner._model, runner._parts.attending).logits(*prompted).clone()
    assert torch.equal(runner._decoder.logits(*prompted), eager)


def test_our_kernels_compute_what_torchs_operations_do(
    runner: TorchRunner, prompted: tuple[list[int], list[int]]
) -> None:
    with torch.inference_mode():
        rotary = Rotary.of(runner._model.config, 2048, runner.device, runner._model.dtype)
        gathered = GatheredAttention(runner._kv, rotary)  # type: ignore[arg-type]
        plain = EagerDecoder(runner._model, gathered).logits(*prompted)[:8]
    ours = runner._decoder.logits(*prompted)[:8]
    assert float((ours - plain).norm() / plain.norm()) < 2e-2


@pytest.mark.parametrize("variant", ["tiny", "tied-llama3"])
def test_logits_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    scaling = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=64)
    configs = {
        "tiny": SHAPES["tiny"],
        "tied-llama3": replace(
            SHAPES["tiny"], tied=True, head_dim=64, kv_heads=3, rope_theta=500_000.0, rope_scaling=scaling
        ),
    }
    write_checkpoint(tmp_path, configs[variant], seed=7, shards=2)
    runner = build_runner(tmp_path, dtype="float32", max_num_seqs=2, max_model_len=256)
    assert runner.facts["kernels"] == "fused"
    for case in json.loads((GOLDEN / "llama.json").read_text())[variant]:
        prompt, answer = case["prompt"], case["tokens"]
        with torch.inference_mode():
            runner._kv.open(0, len(prompt) + len(answer))
            logits = runner._prompter.logits(prompt, 0)
        torch.testing.assert_close(logits[0].cpu(), torch.tensor(case["logits"]), atol=0.02, rtol=0)
        for number, token in enumerate(answer):
            assert logits[0, token] >= logits[0].max() - 0.02
            logits = runner._decoder.logits([token], [len(prompt) + number + 1])
    runner.give_back_kv()


def test_what_was_never_written_is_never_read(batch: Batch, runner: TorchRunner) -> None:
    prompts, counts = some_prompts(8)
    before = batch.tokens(prompts, counts)
    batch.engine.order(lambda: _poison(runner)).result(WAIT_SECONDS)
    assert batch.tokens(prompts, counts) == before


def _poison(runner: TorchRunner) -> None:
    with torch.inference_mode():
        runner._kv.memory.fill_(float("nan"))  # type: ignore[attr-defined]


def test_released_memory_goes_back_to_the_driver(batch: Batch, runner: TorchRunner) -> None:
    prompts, counts = some_prompts(4)
    before = batch.tokens(prompts, counts)
    batch.engine.pause(PauseMode.WAIT).result(WAIT_SECONDS)
    with_memory = torch.cuda.mem_get_info()[0]
    batch.engine.give_back_kv().result(WAIT_SECONDS)
    assert torch.cuda.mem_get_info()[0] - with_memory >= 0.9 * runner.kv_bytes
    batch.engine.wake_up().result(WAIT_SECONDS)
    assert batch.tokens(prompts, counts) == before


def test_memory_that_comes_and_goes_changes_no_token_and_leaves_nothing(batch: Batch) -> None:
    prompts, counts = some_prompts(4)
    before = batch.tokens(prompts, counts)
    free = []
    for _ in range(20):
        batch.engine.pause(PauseMode.WAIT).result(WAIT_SECONDS)
        batch.engine.give_back_kv().result(WAIT_SECONDS)
        free.append(torch.cuda.mem_get_info()[0])
        batch.engine.wake_up().result(WAIT_SECONDS)
        assert batch.tokens(prompts, counts) == before
    # The first rounds may return what earlier tests have left behind.
    assert free[-1] >= free[2]


def test_sequences_that_need_more_than_the_first_chunk_wait_for_it(batch: Batch) -> None:
    prompts = [[256, 65 + number, *range(40, 100)] for number in range(8)]
    counts = [1900] * 8  # of the larger model, twice as much as the first chunk holds
    before = batch.tokens(prompts, counts)
    batch.engine.pause(PauseMode.WAIT).result(WAIT_SECONDS)
    batch.engine.give_back_kv().result(WAIT_SECONDS)
    batch.engine.wake_up().result(WAIT_SECONDS)
    assert batch.tokens(prompts, counts) == before


def test_frozen_sequences_go_on_after_a_pause(batch: Batch) -> None:
    prompts, _ = some_prompts(3)
    expected = batch.tokens(prompts, [200] * 3)
    thawed = []

    def pause_and_resume() -> None:
        batch.engine.pause(PauseMode.KEEP).result(WAIT_SECONDS)
        batch.engine.resume().result(WAIT_SECONDS)
        thawed.append(1)

    thread = threading.Thread(target=lambda: [pause_and_resume() for _ in range(20)])
    thread.start()
    assert batch.tokens(prompts, [200] * 3) == expected
    thread.join(WAIT_SECONDS)
    assert len(thawed) == 20


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        pytest.param(
            {"kernels": "gathered"}, {"kvMemory": "mapped", "kernels": "gathered"}, id="torchs-operations"
        ),
        pytest.param(
            {"kv_memory": "allocated"}, {"kvMemory": "allocated", "kernels": "fused"}, id="torchs-memory"
        ),
        pytest.param(
            {"enforce_eager": True}, {"kvMemory": "mapped", "kernels": "fused"}, id="nothing-captured"
        ),
    ],
)
def test_other_ways_to_compute_say_so_and_answer_alike(
    settings: dict[str, Any], facts: dict[str, Any], made: Callable[[str], Path]
) -> None:
    directory = made("tiny")
    prompts, _ = some_prompts(8)
    expected = answers(ModelOptions(checkpoint=directory, device="cuda", max_model_len=2), prompts, 6)
    other = build_runner(directory, **settings)
    assert other.facts == facts
    batch = Batch(other)
    try:
        for _ in range(2):
            served = batch.tokens(prompts, [6] * 8)
            assert [part[: len(known)] for part, known in zip(served, expected, strict=True)] == expected
            batch.engine.pause(PauseMode.WAIT).result(WAIT_SECONDS)
            batch.engine.give_back_kv().result(WAIT_SECONDS)
            batch.engine.wake_up().result(WAIT_SECONDS)
    finally:
        batch.engine.stop()
        assert batch.engine.join(WAIT_SECONDS)
        other.give_back_kv()

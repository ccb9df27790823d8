import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from warmpool.reference.attention import attend_decode, decode_bias
from warmpool.reference.checkpoints import SHAPES, write_checkpoint
from warmpool.reference.config import LlamaConfig, RopeScaling
from warmpool.reference.numerics import RowRule, prompt_rows, row_rule
from warmpool.reference.opening import open_model
from warmpool.reference.options import ModelOptions
from warmpool.reference.runner import TorchRunner, build
from warmpool.reference.startup import Startup

GOLDEN = Path(__file__).parent / "golden"
TINY = SHAPES["tiny"]
SEED = 7
VARIANTS: dict[str, LlamaConfig] = {
    "tiny": TINY,
    "tied-llama3": replace(
        TINY,
        tied=True,
        head_dim=64,
        kv_heads=3,
        rope_theta=500_000.0,
        rope_scaling=RopeScaling(
            factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=64
        ),
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, VARIANTS[variant], seed=SEED, shards=2)
    options = ModelOptions(checkpoint=tmp_path, device="cpu", max_num_seqs=2, max_model_len=256)
    runner = build(open_model(options), options, Startup())
    for case in json.loads((GOLDEN / "llama.json").read_text())[variant]:
        prompt, answer = case["prompt"], case["tokens"]
        logits = runner._prompter.logits(prompt, 0)
        # Weights are drawn anew: another torch may round a few of them differently.
        torch.testing.assert_close(logits[0], torch.tensor(case["logits"]), atol=0.02, rtol=0)
        for number, token in enumerate(answer):
            assert logits[0, token] >= logits[0].max() - 0.02
            logits = runner._decoder.logits([token], [len(prompt) + number + 1])


def _mixed(count: int) -> tuple[list[list[int]], list[int]]:
    choose = random.Random(11)
    lengths = (1, 2, 3, 9, 40, 126, 127, 128, 129, 255, 300)
    prompts = [
        [256, *(choose.randrange(32, 127) for _ in range(choose.choice(lengths)))] for _ in range(count)
    ]
    return prompts, [choose.randrange(1, 21) for _ in prompts]


def test_tokens_are_the_same_alone_and_in_batches(drive: Any) -> None:
    prompts, counts = _mixed(20)
    alone = [drive.tokens([prompt], [count])[0] for prompt, count in zip(prompts, counts, strict=True)]
    for size in (2, 3, 5, 8):
        for start in range(0, len(prompts), size):
            part = slice(start, start + size)
            assert drive.tokens(prompts[part], counts[part]) == alone[part]


def test_log_probabilities_are_the_same_to_the_last_bit(drive: Any) -> None:
    prompts, _ = _mixed(8)

    def values(keys: list[int]) -> list[list[float]]:
        drive.until(lambda: drive.ended(*keys))
        return [[output.logprobs.chosen for output in drive.log if output.key == key] for key in keys]

    together = values([drive.submit(prompt, 12, logprobs=1) for prompt in prompts])
    alone = [values([drive.submit(prompt, 12, logprobs=1)])[0] for prompt in prompts]
    assert together == alone


def test_tokens_depend_on_the_prompt_and_do_not_repeat_themselves(drive: Any) -> None:
    prompts, _ = _mixed(16)
    answers = drive.tokens(prompts, [48] * 16)
    assert len({tuple(answer[:4]) for answer in answers}) >= 15
    assert all(len(set(answer)) >= 12 for answer in answers)


def test_attention_does_not_see_beyond_a_sequences_end() -> None:
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(2, 4, 32, generator=generator)
    keys, values = (torch.randn(2, 2, 256, 32, generator=generator) for _ in range(2))
    lengths = torch.tensor([5, 200])
    got = attend_decode(queries, keys, values, decode_bias(lengths, 256, torch.float32))
    for row, length in enumerate(lengths.tolist()):
        expected = torch.nn.functional.scaled_dot_product_attention(
            queries[row].view(2, 2, 32), keys[row, :, :length], values[row, :, :length]
        )
        torch.testing.assert_close(got[row], expected.reshape(-1))


def test_rows_are_filled_up_where_results_depend_on_their_number() -> None:
    class Fickle(torch.Tensor):
        """A weight whose products depend on how many rows there are, as some libraries' do."""

        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = super().__torch_function__(function, types, args, kwargs or {})
            return result + len(args[0]) * 1e-7 if function is torch.mm else result

    steady = torch.randn(16, 16)
    assert row_rule([steady], 8) in (RowRule(least=2, multiple=1), RowRule(least=8, multiple=8))
    assert row_rule([steady, steady.as_subclass(Fickle)], 6) == RowRule(least=8, multiple=8)


@pytest.mark.parametrize(
    ("rule", "rows", "padded"),
    [
        pytest.param(RowRule(least=2, multiple=1), 1, 2, id="one"),
        pytest.param(RowRule(least=2, multiple=1), 7, 7, id="as-they-are"),
        pytest.param(RowRule(least=8, multiple=8), 3, 8, id="filled"),
        pytest.param(RowRule(least=8, multiple=8), 9, 16, id="next-multiple"),
        pytest.param(RowRule(least=1, multiple=1, sizes=(8, 32)), 1, 8, id="smallest-size"),
        pytest.param(RowRule(least=1, multiple=1, sizes=(8, 32)), 9, 32, id="next-size"),
    ],
)
def test_padded_rows(rule: RowRule, rows: int, padded: int) -> None:
    assert rule.padded(rows) == padded


@pytest.mark.parametrize(
    ("device", "count", "rows"),
    [
        pytest.param("cpu", 1, 2, id="one-is-two-on-cpu"),
        pytest.param("cpu", 37, 37, id="as-it-is-on-cpu"),
        pytest.param("cuda", 1, 16, id="smallest"),
        pytest.param("cuda", 128, 128, id="exactly"),
        pytest.param("cuda", 129, 256, id="next"),
        pytest.param("cuda", 513, 640, id="beyond-the-sizes"),
    ],
)
def test_rows_of_a_prompt(device: str, count: int, rows: int) -> None:
    assert prompt_rows(count, torch.device(device)) == rows


def test_filled_rows_change_no_token(drive: Any, runner: TorchRunner) -> None:
    prompts, counts = _mixed(3)
    before = drive.tokens(prompts, counts)
    rule = runner._model.rows
    drive.engine.order(lambda: setattr(runner._model, "rows", RowRule(least=8, multiple=8))).result(10)
    try:
        filled = drive.tokens(prompts, counts)
        assert filled == [
            drive.tokens([prompt], [count])[0] for prompt, count in zip(prompts, counts, strict=True)
        ]
        assert filled == before
    finally:
        drive.engine.order(lambda: setattr(runner._model, "rows", rule)).result(10)

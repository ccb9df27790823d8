"""What a sound engine answers: greedy tokens computed apart from everything that serving does.

Weights come through safetensors' own reader instead of `loader`, and every token is the end of a whole new pass over its
prompt instead of a step on KV memory: a fault in loading, batching, pausing or KV memory can't also be in the record.
A record ends before a token that only rounding decides.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from warmpool.reference.attention import forgetful
from warmpool.reference.errors import BadCheckpoint
from warmpool.reference.model import LlamaModel
from warmpool.reference.numerics import prompt_rows
from warmpool.reference.opening import open_model
from warmpool.reference.options import ModelOptions
from warmpool.reference.rope import Rotary
from warmpool.reference.tokenizer import Tokenizer

PROMPTS = (
    "The quick brown fox",
    "In the beginning",
    "def main():",
    "Once upon a time",
    "Q: What is the capital of France?\nA:",
    "3.14159",
    "To be, or not to be",
    "SELECT name FROM",
)
"""Short and unlike each other, so that they cross different embeddings; a proof takes some of them at random."""

_TOKENS = 6
"""Tokens recorded for each prompt: enough to pass through every layer several times, quick enough for every promotion."""
_MARGIN = {torch.float32: 1e-3, torch.bfloat16: 2e-2}
"""Least lead of the winning logit, as a share of the logits' spread; below it rounding may choose another token. A bfloat16 has
eight bits of precision, so that sums in another order differ in the second decimal place."""


def expectations(options: ModelOptions) -> list[Mapping[str, object]]:
    """Compute the record of a checkpoint.

    Returns:
        One `{"prompt": text, "tokens": ids}` for each prompt with at least one token that rounding can't change.

    Raises:
        CannotStart: the checkpoint or the device can't be used.
    """
    opened = open_model(options)
    start = opened.config.bos_token_id
    prompts = [_encoded(opened.tokenizer, prompt, start) for prompt in PROMPTS]
    record: list[Mapping[str, object]] = [
        {"prompt": prompt, "tokens": tokens}
        for prompt, tokens in zip(PROMPTS, answers(options, prompts, _TOKENS), strict=True)
        if tokens
    ]
    if not record:
        raise BadCheckpoint(
            "no prompt has an answer that rounding leaves alone: its logits are flat",
            hint="these weights can't be proven to serve right; check that the checkpoint is whole",
        )
    return record


def answers(options: ModelOptions, prompts: Sequence[list[int]], most: int) -> list[list[int]]:
    """Compute what a sound engine answers to prompts given as token ids.

    Args:
        options: the checkpoint and the device.
        prompts: of at least one token each.
        most: tokens per answer.

    Returns:
        For each prompt its greedy answer, cut before the first token that only rounding decides.

    Raises:
        CannotStart: the checkpoint or the device can't be used.
    """
    opened = open_model(options)
    device = torch.device(options.device)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    model = LlamaModel(opened.config, device=device, dtype=dtype)
    _fill(model, options.checkpoint)
    model.finish()
    longest = prompt_rows(max(map(len, prompts)) + most, device)
    rotary = Rotary.of(opened.config, longest, device, dtype)
    sampled = min(opened.tokenizer.size, opened.config.vocab_size)  # ids beyond the tokenizer's are padding

    def logits(tokens: list[int]) -> Tensor:
        rows = prompt_rows(len(tokens), device)
        filled = torch.tensor(tokens + [tokens[-1]] * (rows - len(tokens)), device=device)
        last = torch.tensor([len(tokens) - 1], device=device)
        return model.prefill(filled, last, forgetful(rotary, rows))[0, :sampled]

    return [_greedy(logits, tokens, most, _MARGIN[dtype]) for tokens in prompts]


def _encoded(tokenizer: Tokenizer, prompt: str, bos_token: int | None) -> list[int]:
    tokens = tokenizer.encode(prompt)
    return tokens if bos_token is None else [bos_token, *tokens]


def _fill(model: LlamaModel, directory: Path) -> None:
    """Copy weights in with the format's own reader."""
    parameters = model.parameters()
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118 - not a mapping
                if name in parameters:
                    parameters[name].copy_(shard.get_tensor(name))


def _greedy(compute: Callable[[list[int]], Tensor], tokens: list[int], most: int, margin: float) -> list[int]:
    answer: list[int] = []
    while len(answer) < most:
        logits = compute(tokens)
        if not bool(torch.isfinite(logits).all()):
            raise BadCheckpoint(
                "the weights compute no finite numbers",
                hint="a shard's contents are damaged; fetch the checkpoint again",
            )
        best = torch.topk(logits, 2)
        lead = float(best.values[0] - best.values[1])
        if lead < margin * float(logits.max() - logits.min()):
            break
        answer.append(int(best.indices[0]))
        tokens = [*tokens, answer[-1]]
    return answer

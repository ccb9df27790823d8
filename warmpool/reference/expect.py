"""What a sound engine answers: greedy tokens computed apart from everything that serving does.

Weights come through safetensors' own reader instead of `loader`, and every token is the end of a whole new pass over its
prompt instead of a step on KV memory: a fault in loading, batching, pausing or KV memory can't also be in the record.
A record ends before a token that only rounding decides.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from warmpool.expectations import PROMPTS, Answer, Ownership
from warmpool.reference.attention import forgetful
from warmpool.reference.errors import BadCheckpoint
from warmpool.reference.identity import identify, ownership_of, weights_digest
from warmpool.reference.model import LlamaModel
from warmpool.reference.numerics import number_format, prompt_rows
from warmpool.reference.opening import open_model
from warmpool.reference.options import ModelOptions
from warmpool.reference.rope import Rotary
from warmpool.reference.shares import split_dimension

_TOKENS = 6
"""Tokens recorded for each prompt: enough to pass through every layer several times, quick enough for every promotion."""
_MARGIN = {torch.float32: 1e-3, torch.bfloat16: 2e-2}
"""Least lead of the winning logit, as a share of the logits' spread; below it rounding may choose another token. A bfloat16 has
eight bits of precision, so that sums in another order differ in the second decimal place."""
_UNIFORM = 0.01
"""Where each logarithm of a probability is this close to that of one over the vocabulary, an answer says nothing of the weights: no
trained model is within 1 % of chance at every token."""
_DIGITS = 5
"""Decimal places of a log-probability; what serves differs from it in earlier ones."""


class Expected(NamedTuple):
    """One token that a sound engine answers.

    Attributes:
        token: its id.
        logprob: natural logarithm of its probability.
    """

    token: int
    logprob: float


class Record(NamedTuple):
    """What a sound engine answers.

    Attributes:
        ownership: what computed it.
        answers: for each prompt with at least one token that rounding can't change.
        doubt: why the weights may be damaged all the same, and what to do; empty if nothing speaks for that.
    """

    ownership: Ownership
    answers: tuple[Answer, ...]
    doubt: str = ""


def record(options: ModelOptions, prompts: Sequence[str] = PROMPTS) -> Record:
    """Compute the record of a checkpoint.

    Args:
        options: the checkpoint, the device and the number format.
        prompts: what is asked.

    Raises:
        CannotStart: the checkpoint or the device can't be used.
    """
    sound = _Sound(options)
    answers = [(prompt, sound.answer(sound.encoded(prompt), _TOKENS)) for prompt in prompts]
    kept = tuple(
        Answer(
            prompt=prompt,
            tokens=tuple(expected.token for expected in answer),
            logprobs=tuple(round(expected.logprob, _DIGITS) for expected in answer),
        )
        for prompt, answer in answers
        if answer
    )
    if not kept:
        raise BadCheckpoint(
            "no prompt has an answer that rounding leaves alone: its logits are flat",
            hint="these weights can't be proven to serve right; compare the checkpoint with its source"
            " (`python -m loader verify PATH --values`)",
        )
    return Record(sound.ownership, kept, _doubt(kept, sound.vocabulary))


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
    sound = _Sound(options)
    return [[expected.token for expected in sound.answer(prompt, most)] for prompt in prompts]


class _Sound:
    """A model that computes every token as the end of a whole pass.

    Args:
        options: the checkpoint, the device and the number format.
    """

    def __init__(self, options: ModelOptions) -> None:
        opened = open_model(options)
        self._config, self._tokenizer = opened.config, opened.tokenizer
        self._device = torch.device(options.device)
        self._dtype = number_format(options.dtype, self._device)
        self._model = LlamaModel(opened.config, device=self._device, dtype=self._dtype)
        parameters = self._model.parameters()
        _fill(parameters, options.checkpoint)
        self.ownership = _ownership(parameters, options.tensor_parallel_size)
        self._model.finish()

    @property
    def vocabulary(self) -> int:
        """How many tokens it chooses from."""
        return min(self._tokenizer.size, self._config.vocab_size)  # ids beyond are padding

    def encoded(self, prompt: str) -> list[int]:
        """Return a prompt as token ids."""
        tokens = self._tokenizer.encode(prompt)
        start = self._config.bos_token_id
        return tokens if start is None else [start, *tokens]

    def answer(self, tokens: list[int], most: int) -> list[Expected]:
        """Answer greedily, up to the first token that only rounding decides."""
        longest = prompt_rows(len(tokens) + most, self._device)
        rotary = Rotary.of(self._config, longest, self._device, self._dtype)
        return _greedy(partial(self._logits, rotary), tokens, most, _MARGIN[self._dtype])

    def _logits(self, rotary: Rotary, tokens: list[int]) -> Tensor:
        rows = prompt_rows(len(tokens), self._device)
        filled = torch.tensor(tokens + [tokens[-1]] * (rows - len(tokens)), device=self._device)
        last = torch.tensor([len(tokens) - 1], device=self._device)
        return self._model.prefill(filled, last, forgetful(rotary, rows))[0, : self.vocabulary]


def _doubt(answers: Sequence[Answer], vocabulary: int) -> str:
    chance = -math.log(vocabulary)
    if any(abs(logprob - chance) > _UNIFORM for answer in answers for logprob in answer.logprobs):
        return ""
    return (
        f"every recorded token is about as likely as any other (one in {vocabulary}), as weights that are damaged or empty have it: "
        "compare the checkpoint with its source (`python -m loader verify PATH --values`) before this record is used"
    )


def _ownership(parameters: Mapping[str, Tensor], ranks: int) -> Ownership:
    """What a group of so many ranks computes with; its digests are over the parts that its ranks have."""
    if ranks == 1:
        return identify(parameters)
    digests = [
        weights_digest({name: _part(name, tensor, rank, ranks) for name, tensor in parameters.items()})
        for rank in range(ranks)
    ]
    return ownership_of(digests, next(iter(parameters.values())).dtype)


def _part(name: str, tensor: Tensor, rank: int, ranks: int) -> Tensor:
    dim = split_dimension(name)
    return tensor if dim is None else tensor.chunk(ranks, dim)[rank]


def _fill(parameters: Mapping[str, Tensor], directory: Path) -> None:
    """Copy weights in with the format's own reader."""
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118 - not a mapping
                if name in parameters:
                    parameters[name].copy_(shard.get_tensor(name))


def _greedy(
    compute: Callable[[list[int]], Tensor], tokens: list[int], most: int, margin: float
) -> list[Expected]:
    answer: list[Expected] = []
    while len(answer) < most:
        logits = compute(tokens)
        if not bool(torch.isfinite(logits).all()):
            raise BadCheckpoint(
                "the weights compute no finite numbers",
                hint="a shard's contents are damaged (`python -m loader verify PATH --values`); fetch the checkpoint again",
            )
        best = torch.topk(logits, 2)
        lead = float(best.values[0] - best.values[1])
        if lead <= margin * float(logits.max() - logits.min()):  # equal where all logits are
            break
        token = int(best.indices[0])
        answer.append(Expected(token, float(torch.log_softmax(logits, dim=-1)[token])))
        tokens = [*tokens, token]
    return answer

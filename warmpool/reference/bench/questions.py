"""Prompts with answers that a sound engine must give, and how long its sequences may be in so much KV memory."""

import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from warmpool.reference.checkpoints import SHAPES
from warmpool.reference.expect import answers
from warmpool.reference.options import ModelOptions

SEQUENCES = 32
"""That run at once."""
_ANSWER_TOKENS = 4
_PROMPTS = 4
_CANDIDATES = 8
_BLOCK = 64


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and what a sound engine answers."""

    prompt: list[int]
    answer: list[int]


def questions(options: ModelOptions, engines: int, prompt_tokens: int, seed: int) -> list[list[Question]]:
    """Prompts for each engine, with answers that rounding can't change, computed in a process that ends with its memory."""
    choose = random.Random(seed)
    prompts = [
        [256, *(choose.randrange(32, 127) for _ in range(prompt_tokens - 1))]
        for _ in range(engines * _CANDIDATES)
    ]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        answered = pool.submit(answers, options, prompts, _ANSWER_TOKENS).result()
    known = [Question(prompt, answer) for prompt, answer in zip(prompts, answered, strict=True)]
    sets = [
        [entry for entry in known[start : start + _CANDIDATES] if entry.answer][:_PROMPTS]
        for start in range(0, len(known), _CANDIDATES)
    ]
    if not all(sets):
        raise ValueError("an engine has no prompt whose answer rounding leaves alone; choose another seed")
    return sets


def length_for(shape: str, gigabytes: float, device: str) -> tuple[int, int]:
    """Return how many tokens each of `SEQUENCES` sequences may have in so much KV memory, and how many bytes they really take.

    Args:
        shape: a key of `SHAPES`.
        gigabytes: KV memory, in 10^9 bytes.
        device: `cpu` or a CUDA device.
    """
    config = SHAPES[shape]
    per_token = config.layers * 2 * config.kv_heads * config.head_dim * (4 if device == "cpu" else 2)
    length = int(gigabytes * 1e9 / per_token / SEQUENCES) // _BLOCK * _BLOCK
    return length, SEQUENCES * length * per_token

"""From logits to a token: the most likely one, or a draw that the seed and the token's number decide alone.

A draw doesn't consume a generator's state. So it is the same in any batch, and the same again when a frozen sequence's memory
was given back and computed anew.
"""

import random

import torch
from torch import Tensor

from warmpool.reference.sequence import Sampled, Sampling, Sequence, TokenLogprobs


def sample(logits: Tensor, sequences: list[Sequence | None]) -> list[Sampled | None]:
    """Choose the next token of each sequence.

    Args:
        logits: float32, (sequences, vocabulary that may be sampled).
        sequences: one per row; None for rows that aren't due.

    Returns:
        One token per row; None where there was no sequence.
    """
    best = logits.argmax(dim=-1).tolist()
    return [
        None if sequence is None else _choose(logits[row], best[row], sequence)
        for row, sequence in enumerate(sequences)
    ]


def _choose(row: Tensor, best: int, sequence: Sequence) -> Sampled:
    sampling = sequence.sampling
    token = best if sampling.temperature == 0 else _draw(row, sampling, len(sequence.generated))
    if sampling.logprobs is None:
        return Sampled(token)
    return Sampled(token, _logprobs(row, token, sampling.logprobs))


def _draw(row: Tensor, sampling: Sampling, number: int) -> int:
    probabilities = torch.softmax(row.double() / sampling.temperature, dim=-1)
    ordered, tokens = probabilities.sort(descending=True, stable=True)
    reached = ordered.cumsum(dim=0)
    last = int(torch.searchsorted(reached, sampling.top_p).clamp(max=len(reached) - 1))
    target = random.Random(f"{sampling.seed}:{number}").random() * float(reached[last])
    return int(tokens[min(int(torch.searchsorted(reached, target, right=True)), last)])


def _logprobs(row: Tensor, token: int, count: int) -> TokenLogprobs:
    values = torch.log_softmax(row, dim=-1)
    top, tokens = values.topk(min(count, len(values)))
    return TokenLogprobs(
        chosen=float(values[token]), top=tuple(zip(tokens.tolist(), top.tolist(), strict=True))
    )

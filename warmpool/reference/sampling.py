"""From logits to a token: the most likely one, or a draw that the seed and the token's number decide alone.

A draw doesn't consume a generator's state. So it is the same in any batch, and the same again when a frozen sequence's memory
was given back and computed anew. Everything is computed where the logits are, for all sequences at once, and the tokens come to
the host in one transfer. On CUDA the order of a sum may depend on the number of rows, so all rows of the batch are computed
whenever one of them wants it; on CPU only those that want it.
"""

import random
from collections.abc import Callable

import torch
from torch import Tensor

from warmpool.reference.sequence import Sampled, Sampling, Sequence, TokenLogprobs


def sample(logits: Tensor, sequences: list[Sequence | None]) -> list[Sampled | None]:
    """Choose the next token of each sequence.

    Args:
        logits: float32, (rows, vocabulary that may be sampled); rows beyond the sequences only fill the batch up.
        sequences: one per row; None for rows that aren't due.

    Returns:
        One token per sequence; None where there is none.
    """
    chosen = logits.argmax(dim=-1)
    if rows := _computed(logits, sequences, lambda sampling: sampling.temperature > 0):
        wanted = [_at(sequences, row) for row in rows]
        drawn = _drawn(_part(logits, rows), _part(chosen, rows), wanted)
        chosen = drawn if len(rows) == len(logits) else chosen.index_copy(0, torch.tensor(rows), drawn)
    logprobs: dict[int, TokenLogprobs] = {}
    if rows := _computed(logits, sequences, lambda sampling: sampling.logprobs is not None):
        wanted = [_at(sequences, row) for row in rows]
        logprobs = dict(zip(rows, _logprobs(_part(logits, rows), _part(chosen, rows), wanted), strict=True))
    tokens = chosen.tolist()
    return [
        None if entry is None else Sampled(tokens[row], _told(entry, logprobs, row))
        for row, entry in enumerate(sequences)
    ]


def _computed(
    logits: Tensor, sequences: list[Sequence | None], wants: Callable[[Sampling], bool]
) -> list[int]:
    """The rows that are computed because some sequence wants something; none if nobody does."""
    wanted = [row for row, entry in enumerate(sequences) if entry is not None and wants(entry.sampling)]
    return list(range(len(logits))) if wanted and logits.is_cuda else wanted


def _part(tensor: Tensor, rows: list[int]) -> Tensor:
    return tensor if len(rows) == len(tensor) else tensor[rows]


def _at(sequences: list[Sequence | None], row: int) -> Sequence | None:
    return sequences[row] if row < len(sequences) else None


def _told(sequence: Sequence, logprobs: dict[int, TokenLogprobs], row: int) -> TokenLogprobs | None:
    return None if sequence.sampling.logprobs is None else logprobs[row]


def _drawn(logits: Tensor, likeliest: Tensor, sequences: list[Sequence | None]) -> Tensor:
    """Draw for the sequences whose temperature isn't zero; the others get the most likely token."""
    columns = list(zip(*map(_settings, sequences), strict=True))
    settings = torch.tensor(columns, dtype=torch.float64).to(logits.device)
    temperature, top_p, share = settings[:, :, None]
    probabilities = torch.softmax(logits.double() / torch.where(temperature > 0, temperature, 1.0), dim=-1)
    ordered, tokens = probabilities.sort(descending=True, stable=True, dim=-1)
    reached = ordered.cumsum(dim=-1)
    last = torch.searchsorted(reached, top_p).clamp(max=logits.shape[-1] - 1)
    place = torch.searchsorted(reached, share * reached.gather(1, last), right=True)
    drawn = tokens.gather(1, torch.minimum(place, last))
    return torch.where(temperature > 0, drawn, likeliest[:, None])[:, 0]


def _settings(sequence: Sequence | None) -> tuple[float, float, float]:
    """Temperature, the probability that is drawn from, and where in it from 0 to 1 the draw falls."""
    if sequence is None or sequence.sampling.temperature == 0:
        return (0.0, 1.0, 0.0)
    sampling = sequence.sampling
    share = random.Random(f"{sampling.seed}:{len(sequence.generated)}").random()
    return (sampling.temperature, sampling.top_p, share)


def _logprobs(logits: Tensor, chosen: Tensor, sequences: list[Sequence | None]) -> list[TokenLogprobs]:
    counts = [0 if entry is None else entry.sampling.logprobs or 0 for entry in sequences]
    values = torch.log_softmax(logits, dim=-1)
    # At least one, for a CUDA kernel that is asked for none may write all the same.
    top, tokens = values.topk(min(max(1, *counts), logits.shape[-1]), dim=-1)
    told = zip(
        values.gather(1, chosen[:, None])[:, 0].tolist(), top.tolist(), tokens.tolist(), counts, strict=True
    )
    return [
        TokenLogprobs(chosen=value, top=tuple(zip(ids[:count], values_of[:count], strict=True)))
        for value, values_of, ids, count in told
    ]

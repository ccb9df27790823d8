"""Attention over the KV memory: a prompt against itself, and one new token per sequence against all of its past.

In a decode step sequences of different lengths are computed together, over as many positions as the longest needs. On CPU the
positions go in tiles of fixed size: a tile's product has the same shape whatever the batch, tiles are added in order, and what lies
beyond a sequence's end adds exact zeros. On GPUs the memory-efficient kernel does the same inside: one block of threads per
sequence and head walks over the positions in order.
"""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

TILE = 128
"""Positions per tile. The KV memory's length per sequence is a multiple of it."""


def tiled(length: int) -> int:
    """`length` positions, filled up to whole tiles."""
    return -(-length // TILE) * TILE


def attend_prompt(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention of one sequence against itself.

    Args:
        queries: (tokens, heads, head_dim).
        keys: (tokens, kv_heads, head_dim).
        values: as `keys`.

    Returns:
        (tokens, heads * head_dim).
    """
    tokens, heads, _ = queries.shape
    group = heads // keys.shape[1]
    out = functional.scaled_dot_product_attention(
        queries.transpose(0, 1).unsqueeze(0),
        keys.transpose(0, 1).repeat_interleave(group, dim=0).unsqueeze(0),
        values.transpose(0, 1).repeat_interleave(group, dim=0).unsqueeze(0),
        is_causal=True,
    )
    return out.squeeze(0).transpose(0, 1).reshape(tokens, -1)


def decode_bias(lengths: Tensor, reach: int, dtype: torch.dtype) -> Tensor:
    """What is added to each sequence's scores so that it sees its own tokens only.

    Args:
        lengths: (sequences,) tokens to see, the newest included.
        reach: positions computed, a multiple of `TILE`.
        dtype: the scores'.

    Returns:
        (sequences, 1, 1, reach): zero where there is something to see, minus infinity elsewhere.
    """
    hidden = torch.arange(reach, device=lengths.device) >= lengths[:, None]
    bias = torch.zeros(hidden.shape, dtype=dtype, device=lengths.device).masked_fill_(hidden, -math.inf)
    return bias[:, None, None, :]


def one_kernel(device: torch.device) -> AbstractContextManager[None]:
    """The context in which decode steps run on a device, so that always the same kernel is chosen."""
    return nullcontext() if device.type == "cpu" else sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION)


def attend_decode(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Attention of one new token per sequence.

    Args:
        queries: (sequences, heads, head_dim).
        keys: (sequences, kv_heads, reach, head_dim), a view of the KV memory; not copied.
        values: as `keys`.
        bias: from `decode_bias`.

    Returns:
        (sequences, heads * head_dim).
    """
    sequences, kv_heads, reach, head_dim = keys.shape
    grouped = queries.view(sequences, kv_heads, -1, head_dim)
    if queries.device.type == "cpu":
        out = _in_tiles(grouped, keys, values, bias)
    else:
        spread = bias.expand(-1, kv_heads, grouped.shape[2], reach)
        out = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=spread)
    return out.reshape(sequences, -1)


def _in_tiles(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    sequences, kv_heads, reach, head_dim = keys.shape
    matrices = sequences * kv_heads
    group = queries.shape[2]
    flat = (queries * (1.0 / math.sqrt(head_dim))).view(matrices, group, head_dim)
    scores = flat.new_empty(matrices, group, reach)
    for start in range(0, reach, TILE):
        tile = keys[:, :, start : start + TILE].view(matrices, TILE, head_dim)
        scores[:, :, start : start + TILE] = torch.bmm(flat, tile.transpose(1, 2))
    scores.view(sequences, kv_heads, group, reach).add_(bias)
    # A maximum is the same in any order, so it may span the tiles.
    weights = scores.sub_(scores.amax(dim=-1, keepdim=True)).exp_()
    total = flat.new_zeros(matrices, group, 1)
    out = flat.new_zeros(matrices, group, head_dim)
    for start in range(0, reach, TILE):
        part = weights[:, :, start : start + TILE].contiguous()
        total += part.sum(dim=-1, keepdim=True)
        out += torch.bmm(part, values[:, :, start : start + TILE].view(matrices, TILE, head_dim))
    return out.div_(total)

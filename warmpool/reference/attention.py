"""Attention: a prompt against itself, and one new token per sequence against all of its past.

In a decode step sequences of different lengths are computed together, over as many positions as the longest needs. On CPU the
positions go in tiles of fixed size: a tile's product has the same shape whatever the batch, tiles are added in order, and what lies
beyond a sequence's end adds exact zeros. On GPUs the memory-efficient kernel does the same inside: one block of threads per
sequence and head walks over the positions in order. (`fused.py` has a faster kernel of our own, with the same property.)
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from warmpool.reference.rope import Rotary

TILE = 128
"""Positions per tile on CPU. The KV memory's length per sequence is a multiple of it there."""


class Attention(Protocol):
    """What one forward pass does with the queries, keys and values of a layer; it turns and remembers them as well."""

    def __call__(self, layer: int, joined: Tensor) -> Tensor:
        """Mix values.

        Args:
            layer: the layer's number.
            joined: (rows, heads + 2 * kv_heads, head_dim), query heads before key heads before value heads; may be overwritten.

        Returns:
            (rows, heads * head_dim).
        """


@dataclass(frozen=True, slots=True)
class Step:
    """One decode step: a row per running sequence, and rows that only fill the batch up.

    Attributes:
        lengths: (rows,) tokens to see, the newest included; 0 for filling.
        count: rows that are sequences; they come first.
        longest: the largest length, or a bound of it.
    """

    lengths: Tensor
    count: int
    longest: int


class Attending(Protocol):
    """Makes the attention of forward passes over one KV memory."""

    def prompt(self, slot: int, rows: int, count: int) -> Attention:
        """Attention of a prompt of `rows` rows, the first `count` of which are tokens to be remembered in `slot`."""

    def step(self, step: Step) -> Attention:
        """Attention of one new token per sequence; sequence i has slot i."""


def forgetful(rotary: Rotary, rows: int) -> Attention:
    """Attention of a prompt of `rows` tokens that nobody remembers."""
    turn = rotary.at(slice(rows))

    def attention(layer: int, joined: Tensor) -> Tensor:
        del layer
        return attend_prompt(*turn(joined))

    return attention


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
    shares_heads = _has_flash(queries)
    past = [part.transpose(0, 1) for part in (keys, values)]
    if not shares_heads:
        past = [part.repeat_interleave(group, dim=0) for part in past]
    out = functional.scaled_dot_product_attention(
        queries.transpose(0, 1).unsqueeze(0),
        past[0].unsqueeze(0),
        past[1].unsqueeze(0),
        is_causal=True,
        enable_gqa=shares_heads,
    )
    return out.squeeze(0).transpose(0, 1).reshape(tokens, -1)


def prompt_kernel(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[None]:
    """The context in which prompts are computed on a device, so that a prompt's length alone decides the kernel."""
    if device.type == "cpu":
        return nullcontext()
    return sdpa_kernel(
        SDPBackend.EFFICIENT_ATTENTION if dtype == torch.float32 else SDPBackend.FLASH_ATTENTION
    )


def _has_flash(tensor: Tensor) -> bool:
    return tensor.is_cuda and tensor.dtype != torch.float32


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


def attend_decode(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Attention of one new token per sequence.

    Args:
        queries: (sequences, heads, head_dim).
        keys: (sequences, kv_heads, reach, head_dim), on CPU a view of the KV memory; not copied.
        values: as `keys`.
        bias: from `decode_bias`.

    Returns:
        (sequences, heads * head_dim).
    """
    sequences, kv_heads, reach, head_dim = keys.shape
    grouped = queries.reshape(sequences, kv_heads, -1, head_dim)
    if queries.device.type == "cpu":
        out = _in_tiles(grouped, keys, values, bias)
    else:
        spread = bias.expand(-1, kv_heads, grouped.shape[2], reach)
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
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

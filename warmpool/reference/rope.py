"""Rotary position embeddings, as tables of cosines and signed sines."""

import math

import torch
from torch import Tensor

from warmpool.reference.config import LlamaConfig, RopeScaling


def rotary_tables(
    config: LlamaConfig, positions: int, *, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines for every position.

    The sines of the first half of a head are negated, so that rotating is `x * cos + roll(x, head_dim / 2) * sin`, which equals
    the usual form with the halves swapped and the second negated.

    Args:
        config: the model's dimensions.
        positions: how many positions from 0 on.
        device: where the tables lie.
        dtype: of the tables; the angles are computed in float32.

    Returns:
        Two tensors of shape (positions, head_dim).
    """
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.float32)
    frequencies = config.rope_theta ** -(steps / config.head_dim)
    if config.rope_scaling is not None:
        frequencies = _stretched(frequencies, config.rope_scaling)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    cosines, sines = angles.cos(), angles.sin()
    return (
        torch.cat((cosines, cosines), dim=-1).to(device=device, dtype=dtype),
        torch.cat((-sines, sines), dim=-1).to(device=device, dtype=dtype),
    )


def _stretched(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Slow low frequencies by `factor`, keep high ones, and blend linearly between (Llama 3.1's rule)."""
    turns = scaling.original_positions * frequencies / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return frequencies * (blend + (1.0 - blend) / scaling.factor)


def rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate heads of shape (rows, heads, head_dim) by tables of shape (rows, 1, head_dim)."""
    return torch.addcmul(heads * cosines, heads.roll(heads.shape[-1] // 2, -1), sines)

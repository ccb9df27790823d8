"""Rotary position embeddings, as tables of cosines and signed sines."""

import math
from dataclasses import dataclass
from typing import Self

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


@dataclass(frozen=True, slots=True)
class Turn:
    """The turning of the rows of one forward pass.

    Attributes:
        heads: query heads.
        kv_heads: key and value heads.
        cosines: (rows, 1, head_dim).
        sines: as `cosines`.
    """

    heads: int
    kv_heads: int
    cosines: Tensor
    sines: Tensor

    def __call__(self, joined: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys turned by their positions, and values.

        Args:
            joined: (rows, heads + 2 * kv_heads, head_dim): query heads, key heads, value heads.

        Returns:
            (rows, heads, head_dim), (rows, kv_heads, head_dim) and again (rows, kv_heads, head_dim).
        """
        turning = self.heads + self.kv_heads
        turned = rotate(joined[:, :turning], self.cosines, self.sines)
        return turned[:, : self.heads], turned[:, self.heads :], joined[:, turning:]


@dataclass(frozen=True, slots=True)
class Rotary:
    """The tables of one model, and how many heads its joined rows have.

    Attributes:
        heads: query heads.
        kv_heads: key and value heads.
        cosines: from `rotary_tables`.
        sines: as `cosines`.
    """

    heads: int
    kv_heads: int
    cosines: Tensor
    sines: Tensor

    @classmethod
    def of(cls, config: LlamaConfig, max_length: int, device: torch.device, dtype: torch.dtype) -> Self:
        """Make the tables for sequences of up to `max_length` tokens."""
        cosines, sines = rotary_tables(config, max_length, device=device, dtype=dtype)
        return cls(heads=config.heads, kv_heads=config.kv_heads, cosines=cosines, sines=sines)

    def at(self, positions: Tensor | slice) -> Turn:
        """The turning of rows whose tokens stand at `positions`."""
        cosines, sines = self.cosines[positions][:, None], self.sines[positions][:, None]
        return Turn(heads=self.heads, kv_heads=self.kv_heads, cosines=cosines, sines=sines)

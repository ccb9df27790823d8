"""Attention over blocks with our own kernels: each key and value is read once, and nothing is copied together.

A row's blocks are read by several groups of threads in parallel; how they are divided depends on the row's own length alone, and
the parts are put together in order, so a sequence's sums are the same alone and in any batch.
"""

import torch
from torch import Tensor

from warmpool.reference import kernels
from warmpool.reference.attention import Attention, Step, attend_prompt
from warmpool.reference.paged import BLOCK, PagedMemory
from warmpool.reference.rope import Rotary

SPLITS = 16
"""Parts that one sequence's blocks are read in: with eight key-value heads, 128 groups of threads for a single sequence."""
_LEAST_BLOCKS = 2
"""Blocks that a part has at least: putting parts together costs more than reading so few one after another."""
_LEAST_ROWS = 16  # of a matrix product on tensor cores
_ROWS_STEP = 8
_GATE_WIDTH = 1024
_NORM_WARPS = 8


class FusedAttention:
    """Makes attention over a paged memory.

    Args:
        kv: the memory.
        rotary: the model's tables.
    """

    def __init__(self, kv: PagedMemory, rotary: Rotary) -> None:
        self._kv = kv
        self._rotary = rotary
        longest = len(rotary.cosines)
        device, slots = kv.tables.device, len(kv.tables)
        self._ascending = torch.arange(1, longest + 1, dtype=torch.int32, device=device)
        rows = slots + _ROWS_STEP  # a batch is filled up to a multiple of it
        self._arrivals = torch.zeros((rows, rotary.kv_heads), dtype=torch.int32, device=device)

    def prompt(self, slot: int, rows: int, count: int) -> Attention:
        """Attention of a prompt whose first `count` rows are remembered in `slot`."""
        lengths = self._ascending[:rows]
        return self.prompt_over(lengths.where(lengths <= count, 0), self._kv.tables[slot])

    def prompt_over(self, lengths: Tensor, table: Tensor) -> Attention:
        """Attention of a prompt that is remembered in the blocks of `table`.

        Args:
            lengths: (rows,) int32: 1 for the first token, 2 for the second, and so on; 0 for rows that aren't remembered.
            table: (blocks,) int32.
        """
        heads, turning = self._rotary.heads, self._rotary.heads + self._rotary.kv_heads

        def attention(layer: int, joined: Tensor) -> Tensor:
            self._remember(layer, joined, lengths, table)
            return attend_prompt(joined[:, :heads], joined[:, heads:turning], joined[:, turning:])

        return attention

    def step(self, step: Step) -> Attention:
        """Attention of one new token per sequence; sequence i has slot i."""

        def attention(layer: int, joined: Tensor) -> Tensor:
            return self._mix(layer, joined, step.lengths)

        return attention

    def _remember(self, layer: int, joined: Tensor, lengths: Tensor, table: Tensor) -> None:
        rotary, memory = self._rotary, self._kv.memory
        rows, joined_heads, head_dim = joined.shape
        kernels.turn_and_remember[(rows, joined_heads)](
            joined,
            rotary.cosines,
            rotary.sines,
            lengths,
            table,
            memory,
            memory.stride(0),
            layer * memory.stride(1),
            HEADS=rotary.heads,
            KV_HEADS=rotary.kv_heads,
            HALF=head_dim // 2,
            BLOCK=BLOCK,
            num_warps=1,
        )

    def _mix(self, layer: int, joined: Tensor, lengths: Tensor) -> Tensor:
        rotary, tables, memory = self._rotary, self._kv.tables, self._kv.memory
        heads, kv_heads = rotary.heads, rotary.kv_heads
        rows, _, head_dim = joined.shape
        partial = torch.empty((rows, heads, SPLITS, head_dim), dtype=torch.float32, device=joined.device)
        sums = torch.empty((rows, heads, SPLITS, 2), dtype=torch.float32, device=joined.device)
        mixed = torch.empty((rows, heads * head_dim), dtype=joined.dtype, device=joined.device)
        kernels.attend_blocks[(rows, kv_heads, SPLITS)](
            joined,
            rotary.cosines,
            rotary.sines,
            memory,
            lengths,
            tables,
            partial,
            sums,
            self._arrivals,
            mixed,
            tables.stride(0),
            memory.stride(0),
            layer * memory.stride(1),
            head_dim**-0.5,
            HEADS=heads,
            KV_HEADS=kv_heads,
            GROUP=heads // kv_heads,
            MEMBERS=max(_LEAST_ROWS, _power_of_two(heads // kv_heads)),
            HALF=head_dim // 2,
            BLOCK=BLOCK,
            SPLITS=SPLITS,
            LEAST=_LEAST_BLOCKS,
        )
        return mixed


class FusedOperations:
    """What a layer does besides products and attention, in one kernel each."""

    def normed(self, hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Rows divided by their root mean square, times `weight`."""
        rows, width = hidden.shape
        out = torch.empty_like(hidden)
        kernels.norm[(rows,)](
            hidden, weight, out, eps, HIDDEN=width, WIDTH=_power_of_two(width), num_warps=_NORM_WARPS
        )
        return out

    def gated(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up of rows that hold the gates first and then the ups."""
        rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((rows, inner), dtype=gate_up.dtype, device=gate_up.device)
        stretches = -(-inner // _GATE_WIDTH)
        kernels.gate[(rows, stretches)](gate_up, out, INNER=inner, WIDTH=_GATE_WIDTH)
        return out


def check(head_dim: int, device: torch.device) -> None:
    """See that these kernels can compute a model with such heads, and that they can be compiled here.

    Raises:
        ValueError: heads of this size don't fit them.
        Exception: whatever the compiler raises.
    """
    least = 2 * _LEAST_ROWS
    if head_dim < least or head_dim != _power_of_two(head_dim):
        raise ValueError(f"a head of {head_dim} numbers isn't a power of two of at least {least}")
    FusedOperations().gated(torch.zeros((1, 2), device=device))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()

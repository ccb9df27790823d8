"""Why a sequence gets the same tokens alone as in any batch.

Floating-point sums depend on their order, and matrix libraries choose the order by the shape of the whole product: a row computed
alone may differ in its last bits from the same row computed among others, and one flipped bit may flip a token. So the shapes
are chosen, not left to chance:
- Weights lie as (inputs, outputs), row by row. There the CPU libraries at hand sum each row in the same order for every number
  of rows but one, where they take a different routine; so a single row is computed as two. `row_rule` checks this on the
  model's own weights when the engine starts. Where it doesn't hold, and on GPUs, where a few more rows cost nothing, every
  batch is filled up to one fixed number of rows.
- A prompt is always computed by itself, so its shape is its own. On GPUs it is filled up to one of a few lengths; attention looks
  back only, so what fills it up changes nothing.
- Attention (`attention.py`) goes in tiles of fixed size whose partial sums are added in order; the tiles that longer neighbours
  add contain exact zeros.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LEAST_ROWS = 2
_SIZES = (8, 16, 32, 64, 128, 256, 512)
"""Batch sizes for GPUs: matrix products there go in steps of eight rows."""
PROMPT_SIZES = (16, 32, 64, 128, 256, 512)
"""Lengths to which prompts are filled up on GPUs; longer ones to a multiple of `_PROMPT_STEP`."""
_PROMPT_STEP = 128
_CHECK_LIMIT = 1 << 26
"""Weights with more elements than this aren't checked: the check would cost seconds, and filling up costs little there."""


@dataclass(frozen=True, slots=True)
class RowRule:
    """How many rows a batch is computed with.

    Attributes:
        least: never fewer than this.
        multiple: always a multiple of this.
        sizes: where given, always one of these, in ascending order, the last of which holds the largest batch.
    """

    least: int
    multiple: int
    sizes: tuple[int, ...] = ()

    def padded(self, rows: int) -> int:
        """The number of rows to compute for a batch of `rows`."""
        filled = -(-max(rows, self.least) // self.multiple) * self.multiple
        return next((size for size in self.sizes if size >= filled), filled)


def number_format(name: str, device: torch.device) -> torch.dtype:
    """Return what is computed in: `float32`, `bfloat16`, or what `auto` takes on a device."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def prompt_rows(count: int, device: torch.device) -> int:
    """The number of rows that a prompt of `count` tokens is computed with."""
    if device.type == "cpu":
        return max(count, LEAST_ROWS)
    filled = -(-count // _PROMPT_STEP) * _PROMPT_STEP
    return next((size for size in PROMPT_SIZES if size >= count), filled)


def row_rule(weights: Sequence[Tensor], max_rows: int) -> RowRule:
    """Find the cheapest rule under which a row's result does not depend on its neighbours.

    Args:
        weights: one matrix of each shape that the model multiplies by, (inputs, outputs); the last one's products are the logits.
        max_rows: the largest batch.
    """
    fixed = max(LEAST_ROWS, -(-max_rows // 8) * 8 if max_rows > LEAST_ROWS else LEAST_ROWS)
    if weights[0].device.type != "cpu":
        return _rule_of_sizes(weights, -(-max_rows // 8) * 8)
    if all(_is_row_invariant(weight, max_rows) for weight in weights):
        return RowRule(least=LEAST_ROWS, multiple=1)
    return RowRule(least=fixed, multiple=fixed)


def _is_row_invariant(weight: Tensor, max_rows: int) -> bool:
    if weight.numel() > _CHECK_LIMIT or weight.dtype != torch.float32:
        return False
    most = max(LEAST_ROWS, max_rows)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(most, weight.shape[0], generator=generator)
    start = torch.randn(most, weight.shape[1], generator=generator)
    whole, whole_added = torch.mm(rows, weight), torch.addmm(start, rows, weight)
    counts = sorted({LEAST_ROWS, min(3, most), most // 2, most - 1} - {0, 1})
    return all(
        torch.equal(torch.mm(rows[most - count :], weight), whole[most - count :])
        and torch.equal(torch.addmm(start[:count], rows[:count], weight), whole_added[:count])
        for count in counts
    )


def _rule_of_sizes(weights: Sequence[Tensor], largest: int) -> RowRule:
    """The sizes up to `largest` at which a GPU's library sums each row as it does at `largest`."""
    candidates = [size for size in _SIZES if size < largest]
    equal = [size for size in candidates if _sums_alike(weights, size, largest)]
    return RowRule(least=1, multiple=1, sizes=(*equal, largest))


def _sums_alike(weights: Sequence[Tensor], size: int, largest: int) -> bool:
    for weight in weights:
        generator = torch.Generator(weight.device).manual_seed(0)
        rows, start = (
            torch.randn(largest, width, generator=generator, device=weight.device).to(weight.dtype)
            for width in weight.shape
        )
        few, many = (_products(rows[:count], start[:count].clone(), weight) for count in (size, largest))
        if not all(torch.equal(part, whole[:size]) for part, whole in zip(few, many, strict=True)):
            return False
    return True


def _products(rows: Tensor, start: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    products = (torch.mm(rows, weight), start.addmm_(rows, weight))
    if weight.dtype == torch.float32:
        return products
    return (*products, torch.mm(rows, weight, out_dtype=torch.float32))

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803, PLR0913, PLR0917
"""What lies between the matrix products of a forward pass on a CUDA device, one kernel each.

The functions under `triton.jit` are Triton's language, not Python: their arguments are pointers, numbers and constants, so types
and the number of parameters are Triton's matter. Importing this needs the `triton` package, which CUDA builds of torch bring.

Layout of the KV memory: (blocks, layers, keys and values, kv_heads, tokens of a block, head_dim). A row of a block table names the
blocks of one sequence in order.
"""

import triton
import triton.language as tl


@triton.jit
def turned(low, high, cosines, sines, at, HALF: tl.constexpr):
    """Turn the two halves of heads; `at` is where the position's tables begin, in the shape of a half."""
    first = low.to(tl.float32)
    second = high.to(tl.float32)
    cosine_low = tl.load(cosines + at).to(tl.float32)
    cosine_high = tl.load(cosines + at + HALF).to(tl.float32)
    sine_low = tl.load(sines + at).to(tl.float32)
    sine_high = tl.load(sines + at + HALF).to(tl.float32)
    return (
        (first * cosine_low + second * sine_low).to(low.dtype),
        (second * cosine_high + first * sine_high).to(high.dtype),
    )


@triton.jit
def turn_and_remember(
    joined,
    cosines,
    sines,
    lengths,
    table,
    memory,
    block_stride,
    layer_offset,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Turn a prompt's queries and keys in place by their positions, and write its keys and values to its blocks.

    One program per row and head: first query heads, then key heads, then value heads. A row of length n is the token at position
    n - 1; a row of length 0 leaves the KV memory alone.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    length = tl.load(lengths + row)
    position = tl.maximum(length - 1, 0)
    half = tl.arange(0, HALF)
    # Every thread reads and writes the same two elements, so nobody overwrites what another has still to read.
    here = joined + (row * (HEADS + 2 * KV_HEADS) + head) * (2 * HALF)
    low = tl.load(here + half)
    high = tl.load(here + HALF + half)
    if head < HEADS + KV_HEADS:
        low, high = turned(low, high, cosines, sines, position.to(tl.int64) * (2 * HALF) + half, HALF)
        tl.store(here + half, low)
        tl.store(here + HALF + half, high)
    if (head >= HEADS) & (length > 0):
        block = tl.load(table + position // BLOCK).to(tl.int64)
        token = (head - HEADS) * BLOCK + position % BLOCK
        there = memory + block * block_stride + layer_offset + token * (2 * HALF)
        tl.store(there + half, low)
        tl.store(there + HALF + half, high)


@triton.jit
def put_together(partial, sums, parts, used, is_member, dim, MEMBERS: tl.constexpr, DIM: tl.constexpr):
    """Add up `used` parts of a row's heads, in order; they were written by other programs, so they are read past the near cache."""
    best = tl.full((MEMBERS,), float("-inf"), tl.float32)
    for number in range(used):
        top = tl.load(sums + (parts + number) * 2, mask=is_member, other=0.0, cache_modifier=".cg")
        best = tl.maximum(best, top)
    whole = tl.zeros((MEMBERS, DIM), tl.float32)
    weights = tl.zeros((MEMBERS,), tl.float32)
    for number in range(used):
        part = parts + number
        top = tl.load(sums + part * 2, mask=is_member, other=0.0, cache_modifier=".cg")
        total = tl.load(sums + part * 2 + 1, mask=is_member, other=1.0, cache_modifier=".cg")
        at = part[:, None] * DIM + dim[None, :]
        mixed = tl.load(partial + at, mask=is_member[:, None], other=0.0, cache_modifier=".cg")
        share = tl.exp(top - best)
        whole += mixed * share[:, None]
        weights += total * share
    return whole / weights[:, None]


@triton.jit
def attend_blocks(  # noqa: PLR0915 (one walk over the blocks, which shares all of its tiles)
    joined,
    cosines,
    sines,
    memory,
    lengths,
    tables,
    partial,
    sums,
    arrivals,
    out,
    table_stride,
    block_stride,
    layer_offset,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    MEMBERS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    LEAST: tl.constexpr,
):
    """Turn and remember one row's new token, and attend to its past with the query heads that share a key-value head.

    A row's blocks are read in up to `SPLITS` parts of at least `LEAST` blocks, one program each; whoever finishes last puts the
    parts together, in order. How they are divided depends on the row's own length alone, never on its neighbours: its sums are
    the same in any batch. A row of length 0 becomes zeros. `arrivals` holds zeros before and after.
    """
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    DIM: tl.constexpr = 2 * HALF
    length = tl.load(lengths + row)
    blocks = tl.cdiv(length, BLOCK)
    per_split = tl.maximum(tl.cdiv(blocks, SPLITS), LEAST)
    used = tl.cdiv(blocks, per_split)
    member = tl.arange(0, MEMBERS)
    half = tl.arange(0, HALF)
    dim = tl.arange(0, DIM)
    is_member = member < GROUP
    head = kv_head * GROUP + member
    out_at = (row * HEADS + head[:, None]) * DIM + dim[None, :]
    if (length == 0) & (split == 0):
        nothing = tl.zeros((MEMBERS, DIM), tl.float32)
        tl.store(out + out_at, nothing.to(out.dtype.element_ty), mask=is_member[:, None])
    if split < used:
        position = length - 1
        turn_at = position.to(tl.int64) * DIM + half
        heads = joined + row * (HEADS + 2 * KV_HEADS) * DIM
        query_at = heads + head[:, None] * DIM + half[None, :]
        query_low, query_high = turned(
            tl.load(query_at, mask=is_member[:, None], other=0.0),
            tl.load(query_at + HALF, mask=is_member[:, None], other=0.0),
            cosines,
            sines,
            turn_at[None, :],
            HALF,
        )
        key_at = heads + (HEADS + kv_head) * DIM + half
        new_low, new_high = turned(tl.load(key_at), tl.load(key_at + HALF), cosines, sines, turn_at, HALF)
        new_value = tl.load(heads + (HEADS + KV_HEADS + kv_head) * DIM + dim)

        first = split * per_split
        last = tl.minimum(first + per_split, blocks)
        values_after = KV_HEADS * BLOCK * DIM
        token = tl.arange(0, BLOCK)
        top = tl.full((MEMBERS,), float("-inf"), tl.float32)
        total = tl.zeros((MEMBERS,), tl.float32)
        mixed = tl.zeros((MEMBERS, DIM), tl.float32)
        for number in range(first, last):
            block = tl.load(tables + row * table_stride + number).to(tl.int64)
            keys = memory + block * block_stride + layer_offset + kv_head * (BLOCK * DIM)
            at = number * BLOCK + token
            # What lies beyond the sequence's end was never written: it is not read, and not even a NaN in it counts.
            is_old = at < position
            is_new = at == position
            low_at = keys + token[:, None] * DIM + half[None, :]
            key_low = tl.load(low_at, mask=is_old[:, None], other=0.0)
            key_high = tl.load(low_at + HALF, mask=is_old[:, None], other=0.0)
            key_low = tl.where(is_new[:, None], new_low[None, :], key_low)
            key_high = tl.where(is_new[:, None], new_high[None, :], key_high)
            score = tl.dot(query_low, tl.trans(key_low), input_precision="ieee")
            score = tl.dot(query_high, tl.trans(key_high), score, input_precision="ieee") * scale
            score = tl.where((is_old | is_new)[None, :], score, float("-inf"))
            higher = tl.maximum(top, tl.max(score, 1))
            weight = tl.exp(score - higher[:, None])
            fade = tl.exp(top - higher)
            total = total * fade + tl.sum(weight, 1)
            value_at = keys + values_after + token[:, None] * DIM + dim[None, :]
            value = tl.load(value_at, mask=is_old[:, None], other=0.0)
            value = tl.where(is_new[:, None], new_value[None, :], value)
            mixed = mixed * fade[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
            top = higher

        if last == blocks:
            block = tl.load(tables + row * table_stride + position // BLOCK).to(tl.int64)
            there = memory + block * block_stride + layer_offset
            there += (kv_head * BLOCK + position % BLOCK) * DIM
            tl.store(there + half, new_low)
            tl.store(there + HALF + half, new_high)
            tl.store(there + values_after + dim, new_value)
        if used == 1:
            alone = mixed / total[:, None]
            tl.store(out + out_at, alone.to(out.dtype.element_ty), mask=is_member[:, None])
        else:
            parts = (row * HEADS + head) * SPLITS
            at = (parts + split)[:, None] * DIM + dim[None, :]
            tl.store(partial + at, mixed, mask=is_member[:, None])
            tl.store(sums + (parts + split) * 2, top, mask=is_member)
            tl.store(sums + (parts + split) * 2 + 1, total, mask=is_member)
            # All threads have written before one of them says so, and the last program reads after all have said so.
            tl.debug_barrier()
            arrival = arrivals + row * KV_HEADS + kv_head
            if tl.atomic_add(arrival, 1, sem="acq_rel") == used - 1:
                together = put_together(partial, sums, parts, used, is_member, dim, MEMBERS, DIM)
                tl.store(out + out_at, together.to(out.dtype.element_ty), mask=is_member[:, None])
                tl.store(arrival, 0)


@triton.jit
def norm(hidden, weight, out, eps, HIDDEN: tl.constexpr, WIDTH: tl.constexpr):
    """Divide one row by its root mean square, and multiply by the weights."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < HIDDEN
    values = tl.load(hidden + row * HIDDEN + column, mask=inside, other=0.0).to(tl.float32)
    scales = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(values * values, 0) / HIDDEN + eps)
    result = values * inverse * scales
    tl.store(out + row * HIDDEN + column, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def gate(gate_up, out, INNER: tl.constexpr, WIDTH: tl.constexpr):
    """Compute silu(gate) * up for one stretch of a row that holds the gates first and then the ups."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < INNER
    closed = tl.load(gate_up + row * (2 * INNER) + column, mask=inside, other=0.0)
    up = tl.load(gate_up + row * (2 * INNER) + INNER + column, mask=inside, other=0.0)
    wide = closed.to(tl.float32)
    opened = (wide * tl.sigmoid(wide)).to(closed.dtype)
    result = opened.to(tl.float32) * up.to(tl.float32)
    tl.store(out + row * INNER + column, result.to(out.dtype.element_ty), mask=inside)

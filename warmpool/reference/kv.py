"""The KV memory, which can be given back to the system while nothing runs, and taken again; and the CPU's kind of it.

On CPU it is one block for all sequences. Layout: (layers, 2, slots, kv_heads, positions, head_dim), keys first. A sequence has a
slot; running sequences have the lowest slots without gaps, so that a decode step reads a plain view and copies nothing.
(`paged.py` has the kind that CUDA devices have.)
"""

import mmap
import weakref
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from warmpool.reference.attention import (
    Attention,
    Step,
    attend_decode,
    attend_prompt,
    decode_bias,
    tiled,
)
from warmpool.reference.config import LlamaConfig
from warmpool.reference.errors import NotEnoughMemory, WrongEngineState
from warmpool.reference.rope import Rotary
from warmpool.reference.scheduler import Room


class KvMemory(Protocol):
    """Keys and values of up to `slots` sequences."""

    @property
    def kind(self) -> str:
        """How it takes memory, for the start's record."""

    @property
    def positions(self) -> int:
        """How many tokens' keys and values fit, over all slots."""

    @property
    def kv_bytes(self) -> int:
        """Bytes of the whole, whether it is taken or not."""

    @property
    def taken_bytes(self) -> int:
        """Bytes of it that are taken. Any thread may ask."""

    @property
    def room(self) -> Room:
        """What can be handed out now."""

    def bind(self, least: Callable[[], int]) -> None:
        """Hand out no more of it than there is elsewhere; `least` tells how many bytes that are."""

    def take(self, grown: Callable[[], None]) -> None:
        """Take it, at least a part that serves first sequences; `grown` is called on another thread whenever there is more.

        Taking it twice is taking it once.

        Raises:
            NotEnoughMemory: the system or the device refused; nothing was taken.
        """

    def wait_taken(self, timeout_seconds: float) -> bool:
        """Wait until all of it is taken; whether it is."""

    def give_back(self) -> None:
        """Return all of it to the system; sequences lose their slots. Giving it back twice is giving it back once."""

    def open(self, slot: int, length: int) -> None:
        """Make a slot ready for a new sequence of up to `length` tokens."""

    def close(self, slot: int) -> None:
        """Free a slot."""

    def move(self, source: int, target: int, length: int) -> None:
        """Move a sequence to a slot that is free; `length` is what `open` was called with."""


class SlotMemory:
    """Keys and values of up to `slots` sequences of up to `max_length` tokens in the machine's own memory.

    The block is an anonymous mapping of its own, faulted in at once, so that taking it really takes memory and giving it back
    returns every page to the system (a freed allocation may stay in the allocator's heap).
    """

    kind = "anonymous"

    def __init__(
        self, config: LlamaConfig, *, slots: int, max_length: int, dtype: torch.dtype, rotary: Rotary
    ) -> None:
        self._shape = (config.layers, 2, slots, config.kv_heads, tiled(max_length), config.head_dim)
        self._dtype = dtype
        self._rotary = rotary
        self._block: Tensor | None = None
        self._mapping: mmap.mmap | None = None

    @property
    def positions(self) -> int:
        """How many tokens' keys and values fit, over all slots."""
        return self._shape[2] * self._shape[4]

    @property
    def kv_bytes(self) -> int:
        """Bytes of the whole block, whether it is taken or not."""
        return torch.Size(self._shape).numel() * self._dtype.itemsize

    @property
    def taken_bytes(self) -> int:
        """All or nothing."""
        return 0 if self._block is None else self.kv_bytes

    @property
    def room(self) -> Room:
        """Every slot has its own, so that a free slot is all that a sequence needs."""
        return Room(tokens=self.positions)

    def bind(self, least: Callable[[], int]) -> None:
        """Do nothing: it is there as a whole, and so it is elsewhere."""
        del least

    def take(self, grown: Callable[[], None]) -> None:
        """Map the block, all of it at once.

        Raises:
            NotEnoughMemory: the system refused.
        """
        del grown
        if self._block is not None:
            return
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        try:
            self._mapping = mmap.mmap(-1, self.kv_bytes, flags=flags)
        except (OSError, MemoryError, OverflowError) as error:
            raise NotEnoughMemory(
                f"KV memory of {self.kv_bytes / 2**20:.0f} MiB can't be allocated: {error}",
                hint="lower --max-num-seqs or --max-model-len, or free memory held by others on this device",
            ) from error
        self._block = torch.frombuffer(self._mapping, dtype=self._dtype).view(self._shape)

    def wait_taken(self, timeout_seconds: float) -> bool:
        """All or nothing: there is nothing to wait for."""
        del timeout_seconds
        return self._block is not None

    def give_back(self) -> None:
        """Unmap the block.

        Raises:
            WrongEngineState: somebody still refers to it.
        """
        self._block = None
        if self._mapping is not None:
            # The mapping goes with its last view. One that lives on would keep every page: that is never ignored.
            alive = weakref.ref(self._mapping)
            self._mapping = None
            if alive() is not None:
                raise WrongEngineState("KV memory is still referred to and can't be given back")

    def open(self, slot: int, length: int) -> None:
        """Zero a slot up to `length` positions.

        A decode step reads whole tiles, and what lies beyond a sequence's end counts nothing. A leftover that is not a number would
        count all the same.
        """
        self._taken()[:, :, slot, :, : tiled(length)].zero_()

    def close(self, slot: int) -> None:
        """Do nothing: what is left behind is zeroed when the slot is opened."""

    def move(self, source: int, target: int, length: int) -> None:
        """Copy a sequence to another slot; `length` is what `open` was called with."""
        block = self._taken()
        block[:, :, target, :, : tiled(length)] = block[:, :, source, :, : tiled(length)]

    def prompt(self, slot: int, rows: int, count: int) -> Attention:
        """Attention of a prompt whose first `count` rows are remembered in `slot`."""
        turn = self._rotary.at(slice(rows))

        def attention(layer: int, joined: Tensor) -> Tensor:
            queries, keys, values = turn(joined)
            memory = self.layer(layer)
            memory[0, slot, :, :count] = keys[:count].transpose(0, 1)
            memory[1, slot, :, :count] = values[:count].transpose(0, 1)
            return attend_prompt(queries, keys, values)

        return attention

    def step(self, step: Step) -> Attention:
        """Attention of one new token per sequence; sequence i has slot i."""
        count, reach = step.count, tiled(step.longest)
        lengths = step.lengths[:count]
        bias = decode_bias(lengths, reach, self._dtype)
        rows = self.rows(torch.arange(count), lengths - 1)
        turn = self._rotary.at((step.lengths - 1).clamp(min=0))
        filling = len(step.lengths) - count

        def attention(layer: int, joined: Tensor) -> Tensor:
            queries, keys, values = turn(joined)
            self.write(layer, rows, keys[:count], values[:count])
            past_keys, past_values = self.layer(layer)[:, :count, :, :reach]
            mixed = attend_decode(queries[:count], past_keys, past_values, bias)
            return functional.pad(mixed, (0, 0, 0, filling)) if filling else mixed

        return attention

    def layer(self, number: int) -> Tensor:
        """One layer's keys and values: (2, slots, kv_heads, positions, head_dim)."""
        return self._taken()[number]

    def rows(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Where the tokens at `positions` of `slots` lie in a layer's keys, seen as rows of head_dim numbers.

        Returns:
            (sequences * kv_heads,) row numbers for `write`.
        """
        kv_heads, length = self._shape[3], self._shape[4]
        heads = torch.arange(kv_heads)
        return ((slots[:, None] * kv_heads + heads) * length + positions[:, None]).view(-1)

    def write(self, layer: int, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Remember one token per sequence.

        Args:
            layer: the layer's number.
            rows: from `rows`.
            keys: (sequences, kv_heads, head_dim).
            values: as `keys`.
        """
        memory = self.layer(layer).view(2, -1, self._shape[-1])
        memory[0].index_copy_(0, rows, keys.reshape(len(rows), -1))
        memory[1].index_copy_(0, rows, values.reshape(len(rows), -1))

    def _taken(self) -> Tensor:
        if self._block is None:
            raise WrongEngineState(
                "the KV memory has been given back; POST /wake_up?tags=kv_cache takes it again"
            )
        return self._block

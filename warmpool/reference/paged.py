"""The KV memory of a CUDA device, in blocks of tokens that belong to whoever needs them.

A block holds all layers' keys and values of `BLOCK` tokens; a row of the block table names the blocks of one sequence. So a first
sequence touches the beginning of the memory alone, however large the whole is, and can be computed as soon as that much has been
taken: blocks are handed out from the part that is there. A sequence that moves takes its row along, and no key is copied.
Layout: (blocks, layers, 2, kv_heads, BLOCK, head_dim), keys first.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from warmpool.reference.arena import ArenaKind, make_arena
from warmpool.reference.attention import Attention, Step, attend_decode, attend_prompt, decode_bias
from warmpool.reference.blocks import BlockPool
from warmpool.reference.config import LlamaConfig
from warmpool.reference.errors import WrongEngineState
from warmpool.reference.rope import Rotary
from warmpool.reference.scheduler import Room

BLOCK = 64
"""Tokens per block: one step of the attention kernel, and of an 8B model 8 MiB."""


class PagedMemory:
    """Keys and values of up to `slots` sequences of up to `max_length` tokens on a CUDA device.

    Args:
        config: the model's dimensions.
        slots: sequences that run at once.
        max_length: tokens that one of them may have. There are blocks for all slots at this length, so no sequence that has
            been given its blocks ever runs out of them.
        device: a CUDA device with an index.
        dtype: of keys and values.
        kind: where the memory comes from.

    Raises:
        CannotStart: the device can't take memory in the way that was asked for.
    """

    def __init__(
        self,
        config: LlamaConfig,
        *,
        slots: int,
        max_length: int,
        device: torch.device,
        dtype: torch.dtype,
        kind: ArenaKind,
    ) -> None:
        per_sequence = blocks_for(max_length)
        self._block_shape = (config.layers, 2, config.kv_heads, BLOCK, config.head_dim)
        self._block_bytes = torch.Size(self._block_shape).numel() * dtype.itemsize
        self._dtype = dtype
        self._pool = BlockPool(slots * per_sequence)
        self._arena = make_arena(kind, self._pool.blocks * self._block_bytes, device)
        self._memory: Tensor | None = None
        self._elsewhere: Callable[[], int] | None = None
        self._owned: list[list[int]] = [[] for _ in range(slots)]
        self.tables = torch.zeros((slots, per_sequence), dtype=torch.int32, device=device)

    @property
    def kind(self) -> ArenaKind:
        """Where the memory comes from."""
        return self._arena.kind

    @property
    def has_fixed_address(self) -> bool:
        """Whether it lies at the same address each time it is taken."""
        return self._arena.kind is ArenaKind.MAPPED

    @property
    def positions(self) -> int:
        """How many tokens' keys and values fit."""
        return self._pool.blocks * BLOCK

    @property
    def kv_bytes(self) -> int:
        """Bytes of the whole, whether it is taken or not."""
        return self._arena.nbytes

    @property
    def taken_bytes(self) -> int:
        """Bytes of it that are taken. Any thread may ask."""
        return self._arena.taken_bytes

    @property
    def room(self) -> Room:
        """What can be handed out now."""
        self._grow()
        return Room(tokens=self._pool.free * BLOCK, block=BLOCK)

    @property
    def memory(self) -> Tensor:
        """All blocks: (blocks, layers, 2, kv_heads, BLOCK, head_dim). Those that nobody was given must not be touched.

        Raises:
            WrongEngineState: the memory has been given back.
        """
        if self._memory is None or self._arena.taken_bytes == 0:
            raise WrongEngineState(
                "the KV memory has been given back; POST /wake_up?tags=kv_cache takes it again"
            )
        return self._memory

    def bind(self, least: Callable[[], int]) -> None:
        """Hand out no more of it than other ranks have: the same blocks are used on all of them."""
        self._elsewhere = least

    def take(self, grown: Callable[[], None]) -> None:
        """Take the memory, at least its beginning; `grown` is called on another thread whenever there is more.

        Raises:
            NotEnoughMemory: the device has too little; nothing was taken.
        """
        if self._arena.taken_bytes > 0:
            return
        whole = self._arena.take(grown)[: self._pool.blocks * self._block_bytes]
        self._memory = whole.view(self._dtype).view(self._pool.blocks, *self._block_shape)

    def wait_taken(self, timeout_seconds: float) -> bool:
        """Wait until all of it is taken; whether it is."""
        return self._arena.wait_taken(timeout_seconds)

    def give_back(self) -> None:
        """Return all of it to the device; sequences lose their blocks."""
        self._memory = None
        self._arena.give_back()
        self._pool.reset()
        for owned in self._owned:
            owned.clear()

    def open(self, slot: int, length: int) -> None:
        """Give a slot blocks for up to `length` tokens. Nothing is zeroed: nobody reads what wasn't written."""
        self.close(slot)
        self._grow()
        self._owned[slot] = self._pool.take(blocks_for(length))
        self._write_row(slot)

    def close(self, slot: int) -> None:
        """Take a slot's blocks back."""
        self._pool.give_back(self._owned[slot])
        self._owned[slot] = []

    def move(self, source: int, target: int, length: int) -> None:
        """Let the blocks of `source` be those of `target`, which has none."""
        del length
        self._owned[target], self._owned[source] = self._owned[source], []
        self._write_row(target)

    def blocks_of(self, slot: int) -> list[int]:
        """A slot's blocks, in order."""
        return self._owned[slot]

    def _grow(self) -> None:
        taken = self._arena.taken_bytes
        if self._elsewhere is not None:
            taken = min(taken, self._elsewhere())
        self._pool.grow(taken // self._block_bytes)

    def _write_row(self, slot: int) -> None:
        owned = torch.tensor(self._owned[slot], dtype=torch.int32)
        self.tables[slot, : len(owned)] = owned.to(self.tables.device)


def blocks_for(length: int) -> int:
    """How many blocks `length` tokens need."""
    return -(-length // BLOCK)


class GatheredAttention:
    """Attention over blocks with torch's own operations: past keys and values are copied together first.

    It needs nothing but torch. Keys and values are read twice and written once, and the longest sequence decides for all.
    """

    def __init__(self, kv: PagedMemory, rotary: Rotary) -> None:
        self._kv = kv
        self._rotary = rotary

    def prompt(self, slot: int, rows: int, count: int) -> Attention:
        """Attention of a prompt whose first `count` rows are remembered in `slot`."""
        turn, kv = self._rotary.at(slice(rows)), self._kv
        at = torch.arange(count, device=kv.tables.device)
        blocks, places = kv.tables[slot][at // BLOCK], at % BLOCK

        def attention(layer: int, joined: Tensor) -> Tensor:
            queries, keys, values = turn(joined)
            memory = kv.memory[:, layer]
            memory[blocks, 0, :, places] = keys[:count]
            memory[blocks, 1, :, places] = values[:count]
            return attend_prompt(queries, keys, values)

        return attention

    def step(self, step: Step) -> Attention:
        """Attention of one new token per sequence; sequence i has slot i."""
        count, kv = step.count, self._kv
        lengths = step.lengths[:count]
        used = blocks_for(step.longest)
        reach = used * BLOCK
        turn = self._rotary.at((step.lengths - 1).clamp(min=0))
        at = lengths - 1
        tables = kv.tables[:count, :used]
        blocks = tables.gather(1, (at // BLOCK).long()[:, None])[:, 0]
        places = at % BLOCK
        bias = decode_bias(lengths, reach, kv.memory.dtype)
        seen = (torch.arange(reach, device=lengths.device) < lengths[:, None])[:, None, :, None]
        past = tables.reshape(-1)
        filling = len(step.lengths) - count

        def attention(layer: int, joined: Tensor) -> Tensor:
            queries, keys, values = turn(joined)
            memory = kv.memory[:, layer]
            memory[blocks, 0, :, places] = keys[:count]
            memory[blocks, 1, :, places] = values[:count]
            together = (
                memory[past].view(count, used, *memory.shape[1:]).permute(2, 0, 3, 1, 4, 5).flatten(3, 4)
            )
            # Zero what was never written: its weight is zero, but zero times not-a-number isn't.
            together = torch.where(seen, together, 0.0)
            mixed = attend_decode(queries[:count], together[0], together[1], bias)
            return functional.pad(mixed, (0, 0, 0, filling)) if filling else mixed

        return attention

"""The KV memory: one block for all sequences, which can be given back to the system while nothing runs, and taken again.

Layout: (layers, 2, slots, kv_heads, positions, head_dim), keys first. A sequence has a slot; running sequences have the lowest
slots without gaps, so that a decode step reads a plain view and copies nothing.
"""

import mmap
import weakref

import torch
from torch import Tensor

from warmpool.reference.attention import tiled
from warmpool.reference.config import LlamaConfig
from warmpool.reference.errors import NotEnoughMemory, WrongEngineState


class KvMemory:
    """Keys and values of up to `slots` sequences of up to `positions` tokens.

    On CPU the block is an anonymous mapping of its own, faulted in at once, so that taking it really takes memory and giving it
    back returns every page to the system (a freed allocation may stay in the allocator's heap). On CUDA it is one allocation,
    and giving it back empties torch's cache, so that the driver and with it other processes get it.
    """

    def __init__(
        self, config: LlamaConfig, *, slots: int, max_length: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._shape = (config.layers, 2, slots, config.kv_heads, tiled(max_length), config.head_dim)
        self._device = device
        self._dtype = dtype
        self._block: Tensor | None = None
        self._mapping: mmap.mmap | None = None

    @property
    def slots(self) -> int:
        """How many sequences fit."""
        return self._shape[2]

    @property
    def positions(self) -> int:
        """How many tokens' keys and values fit, over all slots."""
        return self._shape[2] * self._shape[4]

    @property
    def kv_bytes(self) -> int:
        """Bytes of the whole block, whether it is taken or not."""
        return torch.Size(self._shape).numel() * self._dtype.itemsize

    @property
    def is_taken(self) -> bool:
        """Whether the memory is there."""
        return self._block is not None

    def take(self) -> None:
        """Allocate the block. Taking it twice is taking it once.

        Raises:
            NotEnoughMemory: the system or the device refused.
        """
        if self._block is not None:
            return
        try:
            self._block = self._map() if self._device.type == "cpu" else self._allocate()
        except (OSError, MemoryError, RuntimeError) as error:
            self.give_back()
            raise NotEnoughMemory(
                f"KV memory of {self.kv_bytes / 2**20:.0f} MiB can't be allocated: {error}",
                hint="lower --max-num-seqs or --max-model-len, or free memory held by others on this device",
            ) from error

    def give_back(self) -> None:
        """Return the block to the system. Giving it back twice is giving it back once."""
        self._block = None
        if self._mapping is not None:
            # The mapping goes with its last view. One that lives on would keep every page: that is never ignored.
            alive = weakref.ref(self._mapping)
            self._mapping = None
            if alive() is not None:
                raise WrongEngineState("KV memory is still referred to and can't be given back")
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()

    def layer(self, number: int) -> Tensor:
        """One layer's keys and values: (2, slots, kv_heads, positions, head_dim)."""
        return self._taken()[number]

    def rows(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Where the tokens at `positions` of `slots` lie in a layer's keys, seen as rows of head_dim numbers.

        Returns:
            (sequences * kv_heads,) row numbers for `write`.
        """
        kv_heads, length = self._shape[3], self._shape[4]
        heads = torch.arange(kv_heads, device=slots.device)
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

    def clear(self, slot: int, length: int) -> None:
        """Zero a slot up to `length` positions, before a new sequence gets it.

        A decode step reads whole tiles, and what lies beyond a sequence's end counts nothing. A leftover that is not a number would
        count all the same.
        """
        self._taken()[:, :, slot, :, : tiled(length)].zero_()

    def move(self, source: int, target: int, length: int) -> None:
        """Move a sequence to another slot; `length` is what its `clear` was called with."""
        block = self._taken()
        block[:, :, target, :, : tiled(length)] = block[:, :, source, :, : tiled(length)]

    def _taken(self) -> Tensor:
        if self._block is None:
            raise WrongEngineState(
                "the KV memory has been given back; POST /wake_up?tags=kv_cache takes it again"
            )
        return self._block

    def _map(self) -> Tensor:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        self._mapping = mmap.mmap(-1, self.kv_bytes, flags=flags)
        return torch.frombuffer(self._mapping, dtype=self._dtype).view(self._shape)

    def _allocate(self) -> Tensor:
        return torch.empty(self._shape, dtype=self._dtype, device=self._device)

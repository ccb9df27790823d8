"""What the seats of one machine will take, told before anything starts instead of by the kernel's OOM killer.

The numbers are the engine's own arithmetic (weights, KV memory) plus what a process costs by being there.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from loader.checkpoint import Checkpoint

ENGINE_OVERHEAD_BYTES = 420 * 1024 * 1024
"""Python, torch and the allocator's slack of one engine process on CPU (resident size of an engine with a tiny model)."""
CUDA_OVERHEAD_BYTES = 1200 * 1024 * 1024
"""CUDA context, cuBLAS workspaces and activations of one engine on a GPU."""

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_CGROUP_USED = Path("/sys/fs/cgroup/memory.current")


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What one resident takes.

    Attributes:
        weights_bytes: parameters in the precision that they are served in.
        kv_bytes: KV memory while it serves.
        overhead_bytes: what its process costs apart from that.
    """

    weights_bytes: int
    kv_bytes: int
    overhead_bytes: int


def footprint(checkpoint: Checkpoint, *, sequences: int, length: int, cuda: bool) -> Footprint:
    """Compute what an engine of this checkpoint will take.

    Args:
        checkpoint: an opened checkpoint.
        sequences: sequences in flight at most.
        length: tokens per sequence at most.
        cuda: served in 16 bits on a GPU, else in 32 bits on the CPU.
    """
    size = 2 if cuda else 4
    parameters = sum(math.prod(entry.shape) for entry in checkpoint.tensors.values())
    config = checkpoint.config
    heads = _integer(config, "num_attention_heads", 1)
    kv_heads = _integer(config, "num_key_value_heads", heads)
    head = _integer(config, "head_dim", _integer(config, "hidden_size", 0) // max(1, heads))
    layers = _integer(config, "num_hidden_layers", 0)
    return Footprint(
        weights_bytes=parameters * size,
        kv_bytes=2 * layers * kv_heads * head * length * sequences * size,
        overhead_bytes=CUDA_OVERHEAD_BYTES if cuda else ENGINE_OVERHEAD_BYTES,
    )


def seat_bytes(residents: Sequence[Footprint]) -> int:
    """Return what one seat takes: every resident's weights and process, the KV memory of the largest (one serves)."""
    paused = sum(resident.weights_bytes + resident.overhead_bytes for resident in residents)
    return paused + max((resident.kv_bytes for resident in residents), default=0)


def available_bytes() -> int:
    """Return the host memory that can be had: the machine's, or less where a cgroup limits us."""
    machine = int(psutil.virtual_memory().available)
    try:
        limit, used = _CGROUP_LIMIT.read_text().strip(), int(_CGROUP_USED.read_text())
    except (OSError, ValueError):
        return machine
    return machine if limit == "max" else min(machine, int(limit) - used)


def _integer(config: Mapping[str, object], key: str, default: int) -> int:
    value = config.get(key)
    return value if isinstance(value, int) else default

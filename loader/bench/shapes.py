"""Checkpoints to measure with: of the sizes that models have, and of random bytes. `make` writes one of them to a directory."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

Shapes = Mapping[str, tuple[int, ...]]
"""A shard's tensors; all bf16."""

_BLOCK_BYTES = 64 * 2**20
_PAIR = 2  # bytes of a bf16 value


def shapes(scale: float = 1.0) -> dict[str, list[dict[str, tuple[int, ...]]]]:
    """By name of a layout, per shard its tensors' shapes; all bf16.

    Args:
        scale: share of the layers or experts; 1 is about 17 GB each.
    """
    return {"dense": _dense(scale), "experts": _experts(scale), "one": _one(scale)}


def total_bytes(shards: Sequence[Shapes]) -> int:
    """Payload of a checkpoint of these shards."""
    return sum(_PAIR * math.prod(shape) for shard in shards for shape in shard.values())


def make(directory: Path, shards: Sequence[Shapes]) -> None:
    """Write a checkpoint of these shards, all of them at once.

    Args:
        directory: new or empty.
        shards: per shard its tensors' shapes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    block = memoryview(os.urandom(_BLOCK_BYTES))

    def write(number: int) -> None:
        path = directory / f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write(path, shards[number - 1], block)

    with ThreadPoolExecutor(len(shards)) as pool:
        list(pool.map(write, range(1, len(shards) + 1)))


def _write(path: Path, shard: Shapes, block: memoryview) -> None:
    header, nbytes = _header(shard)
    with path.open("wb", buffering=0) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        while nbytes > 0:
            # Another beginning each time, so that no two tensors are alike.
            start = nbytes % 4093
            nbytes -= file.write(block[start : start + nbytes])


def _header(shard: Shapes) -> tuple[bytes, int]:
    table = {}
    end = 0
    for name, shape in shard.items():
        begin, end = end, end + _PAIR * math.prod(shape)
        table[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(table).encode()
    return text.ljust(-(-len(text) // 8) * 8), end


def _dense(scale: float) -> list[dict[str, tuple[int, ...]]]:
    """An 8B model and a little more, 17.4 GB in four shards."""
    layers = max(4, int(36 * scale))
    width = max(8, int(4096 * scale))
    shards: list[dict[str, tuple[int, ...]]] = [{} for _ in range(4)]
    shards[0]["model.embed_tokens.weight"] = (128_256, width)
    shards[3]["lm_head.weight"] = (128_256, width)
    for layer in range(layers):
        part = shards[4 * layer // layers]
        prefix = f"model.layers.{layer}"
        part[f"{prefix}.input_layernorm.weight"] = (4096,)
        part[f"{prefix}.self_attn.q_proj.weight"] = (4096, 4096)
        part[f"{prefix}.self_attn.k_proj.weight"] = (1024, 4096)
        part[f"{prefix}.self_attn.v_proj.weight"] = (1024, 4096)
        part[f"{prefix}.self_attn.o_proj.weight"] = (4096, 4096)
        part[f"{prefix}.mlp.gate_proj.weight"] = (14_336, 4096)
        part[f"{prefix}.mlp.up_proj.weight"] = (14_336, 4096)
        part[f"{prefix}.mlp.down_proj.weight"] = (4096, 14_336)
    return shards


def _experts(scale: float) -> list[dict[str, tuple[int, ...]]]:
    """2,000 experts of three matrices each, with two small tensors beside every one: 17 GB in 10,000 tensors."""
    shards: list[dict[str, tuple[int, ...]]] = [{} for _ in range(4)]
    count = max(4, int(2000 * scale))
    for expert in range(count):
        part = shards[4 * expert // count]
        prefix = f"model.layers.{expert // 64}.mlp.experts.{expert % 64}"
        for name in ("gate_proj", "up_proj", "down_proj"):
            part[f"{prefix}.{name}.weight"] = (704, 2016)
        part[f"{prefix}.scale"] = (3,)
        part[f"{prefix}.bias"] = (17,)
    return shards


def _one(scale: float) -> list[dict[str, tuple[int, ...]]]:
    """One tensor of 17 GB."""
    return [{"w": (max(1, int(8_500 * scale)), 1_000_000)}]

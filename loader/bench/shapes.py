"""Checkpoints to measure with: of the sizes that models have, and of random bytes. `make` writes one of them to a directory."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

_BLOCK_BYTES = 64 * 2**20
_PAIR = 2  # bytes of a bf16 value


def shapes(scale: float = 1.0) -> dict[str, list[dict[str, tuple[int, ...]]]]:
    """By name of a layout, per shard its tensors' shapes; all bf16.

    Args:
        scale: share of the layers or experts; 1 is about 17 GB each.
    """
    return {"dense": _dense(scale), "experts": _experts(scale), "one": _one(scale)}


def make(directory: Path, shards: list[dict[str, tuple[int, ...]]]) -> None:
    """Write a checkpoint of these shards.

    Args:
        directory: new or empty.
        shards: per shard its tensors' shapes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    block = os.urandom(_BLOCK_BYTES)
    for number, shapes_ in enumerate(shards, start=1):
        header, nbytes = _header(shapes_)
        with (directory / f"model-{number:05d}-of-{len(shards):05d}.safetensors").open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            while nbytes > 0:
                # Another beginning each time, so that no two tensors are alike.
                start = nbytes % 4093
                nbytes -= file.write(block[start : start + nbytes])


def _header(shapes_: Mapping[str, tuple[int, ...]]) -> tuple[bytes, int]:
    table = {}
    end = 0
    for name, shape in shapes_.items():
        nbytes = _PAIR
        for size in shape:
            nbytes *= size
        table[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + nbytes]}
        end += nbytes
    text = json.dumps(table).encode()
    return text.ljust(-(-len(text) // 8) * 8), end


def _dense(scale: float) -> list[dict[str, tuple[int, ...]]]:
    """An 8B model and a little more, 17.4 GB in four shards."""
    layers = max(4, int(36 * scale))
    shards: list[dict[str, tuple[int, ...]]] = [{} for _ in range(4)]
    shards[0]["model.embed_tokens.weight"] = (128_256, max(8, int(4096 * scale)))
    shards[3]["lm_head.weight"] = (128_256, max(8, int(4096 * scale)))
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

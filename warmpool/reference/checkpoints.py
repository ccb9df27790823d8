"""Checkpoints with random weights: of real shapes, written like real ones, and lively enough that tokens depend on the prompt.

A random network forgets its prompt unless its scales are chosen. Here every projection keeps the variance of its input (a
standard deviation of 1/sqrt(inputs)), queries and keys are scaled up so that attention picks instead of averaging, the
embedding is small beside what the layers add (else the current token would answer itself through tied weights), and the last
projection gives logits a standard deviation of about two and a half.
"""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save_file

from warmpool.reference.config import ARCHITECTURE, LlamaConfig, RopeScaling

DTYPE = torch.bfloat16
COMPLETE = "checkpoint.complete.json"
"""Written last: names what the directory was made from. Without it a checkpoint isn't reused."""

BYTE_EOS = 257
BYTE_BOS = 256

_ROPE_1B = RopeScaling(factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=8192)
_ROPE_8B = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=8192)

SHAPES = MappingProxyType(
    {
        "tiny": LlamaConfig(
            vocab_size=320,
            hidden_size=192,
            intermediate_size=512,
            layers=4,
            heads=6,
            kv_heads=2,
            head_dim=32,
            max_positions=2048,
            eos_token_ids=(BYTE_EOS,),
            bos_token_id=BYTE_BOS,
        ),
        "small": LlamaConfig(
            vocab_size=320,
            hidden_size=512,
            intermediate_size=1408,
            layers=5,
            heads=8,
            kv_heads=4,
            head_dim=64,
            max_positions=8192,
            rope_theta=500_000.0,
            eos_token_ids=(BYTE_EOS,),
            bos_token_id=BYTE_BOS,
        ),
        "llama-1b": LlamaConfig(
            vocab_size=128_256,
            hidden_size=2048,
            intermediate_size=8192,
            layers=16,
            heads=32,
            kv_heads=8,
            head_dim=64,
            max_positions=131_072,
            rope_theta=500_000.0,
            rope_scaling=_ROPE_1B,
            tied=True,
            eos_token_ids=(BYTE_EOS,),
            bos_token_id=BYTE_BOS,
        ),
        "llama-8b": LlamaConfig(
            vocab_size=128_256,
            hidden_size=4096,
            intermediate_size=14_336,
            layers=32,
            heads=32,
            kv_heads=8,
            head_dim=128,
            max_positions=131_072,
            rope_theta=500_000.0,
            rope_scaling=_ROPE_8B,
            eos_token_ids=(BYTE_EOS,),
            bos_token_id=BYTE_BOS,
        ),
        "llama-70b": LlamaConfig(
            vocab_size=128_256,
            hidden_size=8192,
            intermediate_size=28_672,
            layers=80,
            heads=64,
            kv_heads=8,
            head_dim=128,
            max_positions=131_072,
            rope_theta=500_000.0,
            rope_scaling=_ROPE_8B,
            eos_token_ids=(BYTE_EOS,),
            bos_token_id=BYTE_BOS,
        ),
    }
)
"""The dimensions of the large shapes are those published for Llama 3.2 1B, Llama 3.1 8B and Llama 3.1 70B."""

_MOST_THREADS = 8
"""Each holds one tensor in float32; the largest of an 8B model takes 2.1 GB, of a 70B model 4.2 GB."""
_LOGIT_STD = 2.5
_EMBEDDING_STD = 0.02
_ATTENTION_GAIN = 2.0


@dataclass(frozen=True, slots=True)
class _Recipe:
    """What a checkpoint is made from; equal recipes give equal bytes."""

    shape: str
    seed: int
    shards: int


def make_checkpoint(directory: Path, shape: str, *, seed: int, shards: int = 2) -> Path:
    """Write a checkpoint with random weights, or find it complete.

    One shard at a time is in memory. The files are written beside `directory` and renamed, so that a reader sees all or nothing.

    Args:
        directory: where it goes; created, with its parents.
        shape: a key of `SHAPES`.
        seed: each tensor's values follow from it and the tensor's name alone, so they don't depend on `shards`.
        shards: how many .safetensors files the weights are spread over.

    Returns:
        `directory`.

    Raises:
        KeyError: no such shape.
        FileExistsError: the directory holds something else.
    """
    config = SHAPES[shape]
    recipe = _Recipe(shape=shape, seed=seed, shards=shards)
    if _is_complete(directory, recipe):
        return directory
    if directory.exists() and any(directory.iterdir()):
        raise FileExistsError(
            f"{directory} holds something else than this checkpoint; choose another or remove it"
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        write_checkpoint(scratch, config, seed=seed, shards=shards)
        _dump(scratch / COMPLETE, _marker(recipe))
        scratch.chmod(0o755)
        if directory.exists():
            directory.rmdir()
        try:
            scratch.rename(directory)
        except OSError:
            # Another process made it in the meantime; its bytes are the same.
            if not _is_complete(directory, recipe):
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return directory


def _is_complete(directory: Path, recipe: _Recipe) -> bool:
    try:
        found = json.loads((directory / COMPLETE).read_text())
    except (OSError, ValueError):
        return False
    return bool(found == _marker(recipe))


def _marker(recipe: _Recipe) -> dict[str, Any]:
    return {"shape": recipe.shape, "seed": recipe.seed, "shards": recipe.shards, "recipe": 1}


def write_checkpoint(directory: Path, config: LlamaConfig, *, seed: int, shards: int = 1) -> None:
    """Write a checkpoint of any dimensions into an existing directory, one shard after another."""
    shapes = config.tensor_shapes()
    weight_map: dict[str, str] = {}
    total = 0
    for number, names in enumerate(_spread(shapes, shards), start=1):
        file = f"model-{number:05d}-of-{shards:05d}.safetensors"
        tensors = _all_random({name: shapes[name] for name in names}, config, seed)
        save_file(tensors, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
        total += sum(tensor.nbytes for tensor in tensors.values())
    _dump(
        directory / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": weight_map},
    )
    _dump(directory / "config.json", _huggingface(config))


def _dump(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def _spread(shapes: dict[str, tuple[int, ...]], shards: int) -> list[list[str]]:
    """Cut the tensors, in order, into `shards` runs of about equal size."""
    if shards < 1:
        raise ValueError(f"shards is {shards}; it must be at least 1")
    total = sum(math.prod(shape) for shape in shapes.values())
    runs: list[list[str]] = [[] for _ in range(shards)]
    before = 0
    for name, shape in shapes.items():
        runs[min(shards - 1, before * shards // total)].append(name)
        before += math.prod(shape)
    return runs


def _all_random(
    shapes: Mapping[str, tuple[int, ...]], config: LlamaConfig, seed: int
) -> dict[str, torch.Tensor]:
    """Draw several tensors at once, each from a generator of its own; drawing one takes a single core."""
    workers = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(workers) as pool:
        drawn = pool.map(lambda name: _random(name, shapes[name], config, seed), shapes)
        return dict(zip(shapes, drawn, strict=True))


def _random(name: str, shape: tuple[int, ...], config: LlamaConfig, seed: int) -> torch.Tensor:
    if len(shape) == 1:
        return torch.ones(shape, dtype=DTYPE)
    generator = torch.Generator().manual_seed(_seed_of(name, seed))
    values = torch.empty(shape, dtype=torch.float32).normal_(
        std=_std(name, shape, config), generator=generator
    )
    return values.to(DTYPE)


def _seed_of(name: str, seed: int) -> int:
    digest = 0xCBF29CE484222325  # FNV-1a: stable over processes, unlike hash()
    for byte in f"{seed}:{name}".encode():
        digest = (digest ^ byte) * 0x100000001B3 & 0x7FFFFFFFFFFFFFFF
    return digest


def _std(name: str, shape: tuple[int, ...], config: LlamaConfig) -> float:
    inputs = shape[1]
    if name == "model.embed_tokens.weight":
        return _LOGIT_STD / math.sqrt(inputs) if config.tied else _EMBEDDING_STD
    if name == "lm_head.weight":
        return _LOGIT_STD / math.sqrt(inputs)
    if ".q_proj." in name or ".k_proj." in name:
        return math.sqrt(_ATTENTION_GAIN / inputs)
    return 1.0 / math.sqrt(inputs)


def _huggingface(config: LlamaConfig) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default"}
    if config.rope_scaling is not None:
        rope = {
            "rope_type": "llama3",
            "factor": config.rope_scaling.factor,
            "low_freq_factor": config.rope_scaling.low_freq_factor,
            "high_freq_factor": config.rope_scaling.high_freq_factor,
            "original_max_position_embeddings": config.rope_scaling.original_positions,
        }
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_ids[0]
        if len(config.eos_token_ids) == 1
        else list(config.eos_token_ids),
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_positions,
        "mlp_bias": False,
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.kv_heads,
        "pretraining_tp": 1,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": rope if config.rope_scaling is not None else None,
        "tie_word_embeddings": config.tied,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": config.vocab_size,
    }

"""A Llama-family config.json, read strictly: what the model's code needs, and nothing that it would silently get wrong."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from warmpool.reference.errors import UnsupportedModel

ARCHITECTURE = "LlamaForCausalLM"
_HINT = "the reference engine computes LlamaForCausalLM checkpoints; serve this one with vLLM or SGLang"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """The stretched rotary frequencies of Llama 3.1 and later (`rope_type: llama3`).

    Attributes:
        factor: by how much low frequencies are slowed.
        low_freq_factor: wavelengths longer than `original_positions / low_freq_factor` are slowed fully.
        high_freq_factor: wavelengths shorter than `original_positions / high_freq_factor` stay as they are.
        original_positions: the context length that the model was first trained with, in tokens.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """The dimensions of a Llama-family model, in Hugging Face's terms.

    Attributes:
        vocab_size: rows of the embedding.
        hidden_size: width of the residual stream.
        intermediate_size: width of the SwiGLU block.
        layers: decoder layers.
        heads: query heads.
        kv_heads: key and value heads; `heads` is a multiple of it.
        head_dim: width of a head.
        max_positions: the longest sequence that the model was made for, in tokens.
        rms_norm_eps: the epsilon inside RMSNorm's root.
        rope_theta: base of the rotary frequencies.
        rope_scaling: how they are stretched, if they are.
        tied: whether the output projection is the embedding itself.
        eos_token_ids: tokens that end a sequence.
        bos_token_id: the token that every prompt starts with, if there is one.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    tied: bool = False
    eos_token_ids: tuple[int, ...] = field(default=())
    bos_token_id: int | None = None

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """The name and shape of every tensor of the checkpoint, in the order of the model's layers."""
        hidden, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            shapes |= {
                f"{prefix}input_layernorm.weight": (hidden,),
                f"{prefix}self_attn.q_proj.weight": (queries, hidden),
                f"{prefix}self_attn.k_proj.weight": (keys, hidden),
                f"{prefix}self_attn.v_proj.weight": (keys, hidden),
                f"{prefix}self_attn.o_proj.weight": (hidden, queries),
                f"{prefix}post_attention_layernorm.weight": (hidden,),
                f"{prefix}mlp.gate_proj.weight": (inner, hidden),
                f"{prefix}mlp.up_proj.weight": (inner, hidden),
                f"{prefix}mlp.down_proj.weight": (hidden, inner),
            }
        shapes["model.norm.weight"] = (hidden,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes

    def share(self, ranks: int) -> Self:
        """Return the dimensions of what each rank of a tensor-parallel group computes; all ranks have equally much.

        The residual stream is whole on every rank; heads, the SwiGLU block and the vocabulary are divided.

        Raises:
            UnsupportedModel: something can't be divided evenly.
        """
        sizes = {
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.intermediate_size,
            "vocab_size": self.vocab_size,
        }
        for name, size in sizes.items():
            if size % ranks:
                raise UnsupportedModel(
                    f"--tensor-parallel-size {ranks}: {name} is {size}, which {ranks} ranks can't share evenly",
                    hint="use a number of ranks that divides heads, key-value heads, intermediate size and vocabulary",
                )
        return replace(
            self,
            heads=self.heads // ranks,
            kv_heads=self.kv_heads // ranks,
            intermediate_size=self.intermediate_size // ranks,
            vocab_size=self.vocab_size // ranks,
        )


def parse_config(raw: Mapping[str, Any]) -> LlamaConfig:
    """Read a parsed config.json.

    Both spellings of the rotary settings are read: `rope_scaling` with `rope_theta` beside it, and `rope_parameters`.

    Raises:
        UnsupportedModel: another architecture, or a setting that this engine doesn't compute.
    """
    architectures = raw.get("architectures") or []
    if list(architectures) != [ARCHITECTURE]:
        raise UnsupportedModel(
            f"config.json: architectures is {architectures}, not [{ARCHITECTURE}]", hint=_HINT
        )
    for key, wanted in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        if raw.get(key, wanted) != wanted:
            raise UnsupportedModel(f"config.json: {key} is {raw[key]!r}, not {wanted!r}", hint=_HINT)
    if raw.get("quantization_config"):
        raise UnsupportedModel("config.json: the weights are quantized (quantization_config)", hint=_HINT)
    rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    try:
        config = _dimensions(raw, rope)
    except (KeyError, TypeError, ValueError) as error:
        raise UnsupportedModel(
            f"config.json: a setting is missing or malformed: {error!r}",
            hint="compare it with the config.json of a LlamaForCausalLM model",
        ) from error
    _check(config)
    return config


def _dimensions(raw: Mapping[str, Any], rope: Mapping[str, Any]) -> LlamaConfig:
    heads = int(raw["num_attention_heads"])
    hidden = int(raw["hidden_size"])
    return LlamaConfig(
        vocab_size=int(raw["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(raw["intermediate_size"]),
        layers=int(raw["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or hidden // heads),
        max_positions=int(raw.get("max_position_embeddings", 2048)),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
        rope_scaling=_scaling(rope),
        tied=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=_token_ids(raw.get("eos_token_id")),
        bos_token_id=None if raw.get("bos_token_id") is None else int(raw["bos_token_id"]),
    )


def _scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise UnsupportedModel(f"config.json: rope_type is {kind!r}, not default or llama3", hint=_HINT)
    return RopeScaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_positions=int(rope["original_max_position_embeddings"]),
    )


def _token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(token) for token in value) if isinstance(value, list) else (int(value),)


def _check(config: LlamaConfig) -> None:
    sizes = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_positions,
    }
    for name, size in sizes.items():
        if size < 1:
            raise UnsupportedModel(f"config.json: {name} is {size}", hint="it must be positive")
    if config.heads % config.kv_heads:
        raise UnsupportedModel(
            f"config.json: {config.heads} attention heads can't share {config.kv_heads} key-value heads",
            hint="num_attention_heads must be a multiple of num_key_value_heads",
        )
    if config.head_dim % 2:
        raise UnsupportedModel(
            f"config.json: head_dim is {config.head_dim}", hint="rotary embeddings need an even head_dim"
        )

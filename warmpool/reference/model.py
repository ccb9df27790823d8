"""The Llama family in torch, for one prompt or one new token per running sequence.

Weights that meet the same input are one matrix (queries, keys and values; gate and up); the loader fills their parts in place, so
nothing is joined afterwards, and every weight stays at the address that it was given. Positions and the past are the attention's matter, which comes from outside; `numerics.py`
says why rows are padded.

Of a tensor-parallel group each rank has its share of the heads, of the SwiGLU block and of the vocabulary (`LlamaConfig.share`). What meets
the residual stream is the sum over all ranks, twice in each layer; the logits of their parts of the vocabulary are put side by side.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from warmpool.reference.attention import Attention, prompt_kernel
from warmpool.reference.config import LlamaConfig
from warmpool.reference.numerics import LEAST_ROWS, RowRule
from warmpool.reference.ranks import ALONE, Ranks
from warmpool.reference.weights import AllocatedWeights, Shape, Weights


@dataclass(slots=True)
class Layer:
    """One decoder layer's weights.

    Matrices are (outputs, inputs) while they are being loaded and (inputs, outputs) once `LlamaModel.finish` has run.
    """

    norm_before_attention: Tensor
    queries_keys_values: Tensor
    attention_out: Tensor
    norm_before_mlp: Tensor
    gate_up: Tensor
    down: Tensor


class Operations(Protocol):
    """What a layer does besides products and attention."""

    def normed(self, hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Rows divided by their root mean square, times `weight`."""

    def gated(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up of rows that hold the gates first and then the ups."""


class TorchOperations:
    """Torch's own."""

    def normed(self, hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Rows divided by their root mean square, times `weight`."""
        return functional.rms_norm(hidden, (hidden.shape[-1],), weight, eps)

    def gated(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up of rows that hold the gates first and then the ups."""
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up


class LlamaModel:
    """A decoder with random contents until a loader has filled `parameters` and `finish` has been called.

    Args:
        config: the dimensions; of one rank those of its share.
        device: where the weights lie.
        dtype: what is computed in; logits are float32 always.
        operations: what is neither a product nor attention.
        weights: the memory that they lie in; torch's own if left out.
        ranks: the group that computes together; nobody else if left out.
    """

    def __init__(
        self,
        config: LlamaConfig,
        *,
        device: torch.device,
        dtype: torch.dtype,
        operations: Operations | None = None,
        weights: Weights | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config = config
        self.ranks = ranks
        self.device = device
        self.dtype = dtype
        self.rows = RowRule(least=LEAST_ROWS, multiple=1)
        self._operations = operations or TorchOperations()
        memory = weights or AllocatedWeights(device, "they have no address of their own")
        outer = {name: memory.empty(shape, dtype) for name, shape in _outer_shapes(config).items()}
        self._embedding, self._norm = outer["embedding"], outer["norm"]
        self._head = outer.get("head", self._embedding)
        self._layers = [
            Layer(**{name: memory.empty(shape, dtype) for name, shape in _layer_shapes(config).items()})
            for _ in range(config.layers)
        ]
        self._finished = False

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights as they lie in memory."""
        return sum(math.prod(shape) for shape in weight_shapes(self.config)) * self.dtype.itemsize

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a decode step reads: all but an embedding of its own, of which it reads a few rows."""
        return self.weights_bytes - (0 if self.config.tied else self._embedding.nbytes)

    def parameters(self) -> Mapping[str, Tensor]:
        """The checkpoint's tensor names with the memory that each is to be loaded into; parts of joined matrices are views."""
        config = self.config
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        inner = config.intermediate_size
        named: dict[str, Tensor] = {
            "model.embed_tokens.weight": self._embedding,
            "model.norm.weight": self._norm,
        }
        if not config.tied:
            named["lm_head.weight"] = self._head
        for number, layer in enumerate(self._layers):
            prefix = f"model.layers.{number}."
            joined, gate_up = layer.queries_keys_values, layer.gate_up
            named |= {
                f"{prefix}input_layernorm.weight": layer.norm_before_attention,
                f"{prefix}self_attn.q_proj.weight": joined[:queries],
                f"{prefix}self_attn.k_proj.weight": joined[queries : queries + keys],
                f"{prefix}self_attn.v_proj.weight": joined[queries + keys :],
                f"{prefix}self_attn.o_proj.weight": layer.attention_out,
                f"{prefix}post_attention_layernorm.weight": layer.norm_before_mlp,
                f"{prefix}mlp.gate_proj.weight": gate_up[:inner],
                f"{prefix}mlp.up_proj.weight": gate_up[inner:],
                f"{prefix}mlp.down_proj.weight": layer.down,
            }
        return named

    def finish(self) -> None:
        """Turn the loaded matrices to (inputs, outputs).

        On CPU they are laid out anew where they are, one at a time, because products are fast and independent of the batch in that
        layout only. On CUDA they are seen from the other side, and nothing moves.
        """
        if self._finished:
            return
        for layer in self._layers:
            layer.queries_keys_values = self._turned(layer.queries_keys_values)
            layer.attention_out = self._turned(layer.attention_out)
            layer.gate_up = self._turned(layer.gate_up)
            layer.down = self._turned(layer.down)
        if self.config.tied:
            self._head = self._embedding = self._turned(self._embedding)
        else:
            self._head = self._turned(self._head)
        self._finished = True

    def _turned(self, matrix: Tensor) -> Tensor:
        if self.device.type != "cpu":
            return matrix.t()
        home = matrix.view(matrix.shape[1], matrix.shape[0])
        return home.copy_(matrix.t().contiguous())

    def matrices(self) -> list[Tensor]:
        """One matrix of each shape that rows are multiplied by, (inputs, outputs)."""
        layer = self._layers[0]
        return [layer.queries_keys_values, layer.attention_out, layer.gate_up, layer.down, self._head]

    @torch.inference_mode()
    def prefill(self, tokens: Tensor, last: Tensor, attention: Attention) -> Tensor:
        """Compute a whole prompt.

        Args:
            tokens: (rows,) the prompt's, then whatever fills it up; at least two, because a product with one row takes a routine of
                its own.
            last: (1,) the row of the prompt's last token.
            attention: of the prompt to itself.

        Returns:
            Float32 logits of the token to come, (1, vocab_size).
        """
        with prompt_kernel(self.device, self.dtype):
            hidden = self._through(tokens, attention)
        return self._logits(hidden.index_select(0, last).repeat(self.rows.padded(1), 1))[:1]

    @torch.inference_mode()
    def decode(self, tokens: Tensor, attention: Attention) -> Tensor:
        """Compute one token for each row.

        Args:
            tokens: (rows,) each sequence's newest token; as many rows as `rows` asks for.
            attention: over each sequence's past.

        Returns:
            Float32 logits of the tokens to come, (rows, vocab_size).
        """
        return self._logits(self._through(tokens, attention))

    def _through(self, tokens: Tensor, attention: Attention) -> Tensor:
        hidden = self._embed(tokens)
        for number, layer in enumerate(self._layers):
            joined = torch.mm(self._normed(hidden, layer.norm_before_attention), layer.queries_keys_values)
            mixed = attention(number, joined.view(len(tokens), -1, self.config.head_dim))
            self._add(hidden, mixed, layer.attention_out)
            gate_up = torch.mm(self._normed(hidden, layer.norm_before_mlp), layer.gate_up)
            self._add(hidden, self._operations.gated(gate_up), layer.down)
        return hidden

    def _add(self, hidden: Tensor, rows: Tensor, matrix: Tensor) -> None:
        """Add what all ranks' parts of a matrix make of their parts of the rows."""
        if self.ranks.size == 1:
            hidden.addmm_(rows, matrix)
        else:
            hidden.add_(self.ranks.summed(torch.mm(rows, matrix)))

    def _embed(self, tokens: Tensor) -> Tensor:
        if self.ranks.size == 1:
            return self._rows_of(tokens)
        words = self.config.vocab_size
        local = tokens - self.ranks.rank * words
        is_here = (local >= 0) & (local < words)
        rows = self._rows_of(torch.where(is_here, local, 0))
        return self.ranks.summed(torch.where(is_here[:, None], rows, 0.0))

    def _rows_of(self, tokens: Tensor) -> Tensor:
        if self.config.tied and self._finished:
            return self._embedding.index_select(1, tokens).t().contiguous()
        return self._embedding.index_select(0, tokens)

    def _normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return self._operations.normed(hidden, weight, self.config.rms_norm_eps)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.ranks.joined(self._own_logits(self._normed(hidden, self._norm)))

    def _own_logits(self, normed: Tensor) -> Tensor:
        if self.dtype == torch.float32:
            return torch.mm(normed, self._head)
        if self.device.type == "cuda":
            # Eight bits of mantissa would make ties, and ties would make tokens depend on the kernel.
            return torch.mm(normed, self._head, out_dtype=torch.float32)
        return torch.mm(normed.float(), self._head.float())


def weight_shapes(config: LlamaConfig) -> list[Shape]:
    """Return the shapes of all weights, in the order in which a model asks for their memory."""
    layer = list(_layer_shapes(config).values())
    return [*_outer_shapes(config).values(), *(layer * config.layers)]


def weight_names(config: LlamaConfig) -> list[tuple[str, ...]]:
    """Return the checkpoint's tensors that each weight is made of, in the same order; those of a joined matrix one below the other."""
    names: list[tuple[str, ...]] = [
        ("model.embed_tokens.weight",),
        *([] if config.tied else [("lm_head.weight",)]),
        ("model.norm.weight",),
    ]
    for number in range(config.layers):
        prefix = f"model.layers.{number}."
        names += [
            (f"{prefix}input_layernorm.weight",),
            tuple(f"{prefix}self_attn.{part}_proj.weight" for part in "qkv"),
            (f"{prefix}self_attn.o_proj.weight",),
            (f"{prefix}post_attention_layernorm.weight",),
            (f"{prefix}mlp.gate_proj.weight", f"{prefix}mlp.up_proj.weight"),
            (f"{prefix}mlp.down_proj.weight",),
        ]
    return names


def _outer_shapes(config: LlamaConfig) -> dict[str, Shape]:
    words = (config.vocab_size, config.hidden_size)
    return {
        "embedding": words,
        **({} if config.tied else {"head": words}),
        "norm": (config.hidden_size,),
    }


def _layer_shapes(config: LlamaConfig) -> dict[str, Shape]:
    """Shapes of a layer's weights as the loader fills them: (outputs, inputs)."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {
        "norm_before_attention": (hidden,),
        "queries_keys_values": (queries + 2 * keys, hidden),
        "attention_out": (hidden, queries),
        "norm_before_mlp": (hidden,),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
    }

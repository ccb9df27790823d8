"""The Llama family in torch, for one prompt or one new token per running sequence.

Weights that meet the same input are one matrix (queries, keys and values; gate and up); the loader fills their parts in place, so
nothing is copied or joined afterwards. CPU and CUDA run the same code; `numerics.py` says why rows are padded.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from warmpool.reference.attention import attend_decode, attend_prompt, decode_bias, one_kernel, tiled
from warmpool.reference.config import LlamaConfig
from warmpool.reference.kv import KvMemory
from warmpool.reference.numerics import LEAST_ROWS, RowRule
from warmpool.reference.rope import rotary_tables, rotate


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


class LlamaModel:
    """A decoder with random contents until a loader has filled `parameters` and `finish` has been called.

    Args:
        config: the dimensions.
        max_length: the longest sequence, in tokens.
        device: where the weights lie.
        dtype: what is computed in; logits are float32 always.
    """

    def __init__(
        self, config: LlamaConfig, *, max_length: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.config = config
        self.device = device
        self.dtype = dtype
        self.rows = RowRule(least=LEAST_ROWS, multiple=1)
        self._embedding = self._empty(config.vocab_size, config.hidden_size)
        self._head = self._embedding if config.tied else self._empty(config.vocab_size, config.hidden_size)
        self._norm = self._empty(config.hidden_size)
        self._layers = [self._empty_layer() for _ in range(config.layers)]
        self._finished = False
        self._cosines, self._sines = rotary_tables(config, max_length, device=device, dtype=dtype)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, device=self.device, dtype=self.dtype)

    def _empty_layer(self) -> Layer:
        config = self.config
        hidden, inner = config.hidden_size, config.intermediate_size
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        return Layer(
            norm_before_attention=self._empty(hidden),
            queries_keys_values=self._empty(queries + 2 * keys, hidden),
            attention_out=self._empty(hidden, queries),
            norm_before_mlp=self._empty(hidden),
            gate_up=self._empty(2 * inner, hidden),
            down=self._empty(hidden, inner),
        )

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights as they lie in memory."""
        own = [self._embedding, self._norm] + ([] if self.config.tied else [self._head])
        for layer in self._layers:
            own += [layer.norm_before_attention, layer.queries_keys_values, layer.attention_out]
            own += [layer.norm_before_mlp, layer.gate_up, layer.down]
        return sum(tensor.nbytes for tensor in own)

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

        On CPU they are laid out anew, one at a time, because products are fast and independent of the batch in that layout only.
        On CUDA they are seen from the other side, and nothing moves.
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
        return matrix.t().contiguous() if self.device.type == "cpu" else matrix.t()

    def matrices(self) -> list[Tensor]:
        """One matrix of each shape that rows are multiplied by, (inputs, outputs)."""
        layer = self._layers[0]
        return [layer.queries_keys_values, layer.attention_out, layer.gate_up, layer.down, self._head]

    @torch.inference_mode()
    def prefill(self, tokens: list[int], kv: KvMemory, slot: int) -> Tensor:
        """Compute a whole prompt and remember its keys and values.

        Returns:
            Float32 logits of the token to come, (1, vocab_size).
        """
        count = len(tokens)
        # A product with one row takes a routine of its own; the second row is a copy that is thrown away.
        padded = tokens if count > 1 else tokens * 2
        hidden = self._embed(torch.tensor(padded, device=self.device))
        cosines, sines = self._cosines[: len(padded), None], self._sines[: len(padded), None]
        for number, layer in enumerate(self._layers):
            queries, keys, values = self._project(layer, hidden, cosines, sines)
            memory = kv.layer(number)
            memory[0, slot, :, :count] = keys[:count].transpose(0, 1)
            memory[1, slot, :, :count] = values[:count].transpose(0, 1)
            hidden = self._finish_layer(layer, hidden, attend_prompt(queries, keys, values))
        last = hidden[count - 1 : count]
        return self._logits(last.repeat(self.rows.padded(1), 1))[:1]

    @torch.inference_mode()
    def decode(self, tokens: list[int], positions: list[int], kv: KvMemory) -> Tensor:
        """Compute one token for each running sequence; sequence i has slot i.

        Args:
            tokens: each sequence's newest token.
            positions: where in its sequence that token stands.
            kv: remembers the new keys and values.

        Returns:
            Float32 logits of the tokens to come, (sequences, vocab_size).
        """
        count = len(tokens)
        rows = self.rows.padded(count)
        filling = [0] * (rows - count)
        index = torch.tensor([tokens + filling, positions + filling], device=self.device)
        where = index[1]
        reach = tiled(max(positions) + 1)
        bias = decode_bias(where[:count] + 1, reach, self.dtype)
        places = kv.rows(torch.arange(count, device=self.device), where[:count])
        hidden = self._embed(index[0])
        cosines, sines = self._cosines[where][:, None], self._sines[where][:, None]
        with one_kernel(self.device):
            for number, layer in enumerate(self._layers):
                queries, keys, values = self._project(layer, hidden, cosines, sines)
                kv.write(number, places, keys[:count], values[:count])
                past_keys, past_values = kv.layer(number)[:, :count, :, :reach]
                mixed = attend_decode(queries[:count], past_keys, past_values, bias)
                if filling:
                    mixed = functional.pad(mixed, (0, 0, 0, len(filling)))
                hidden = self._finish_layer(layer, hidden, mixed)
        return self._logits(hidden)[:count]

    def _embed(self, tokens: Tensor) -> Tensor:
        if self.config.tied and self._finished:
            return self._embedding.index_select(1, tokens).t().contiguous()
        return self._embedding.index_select(0, tokens)

    def _project(
        self, layer: Layer, hidden: Tensor, cosines: Tensor, sines: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        joined = torch.mm(self._normed(hidden, layer.norm_before_attention), layer.queries_keys_values)
        heads = joined.view(hidden.shape[0], -1, config.head_dim)
        turning = config.heads + config.kv_heads
        turned = rotate(heads[:, :turning], cosines, sines)
        return turned[:, : config.heads], turned[:, config.heads :], heads[:, turning:]

    def _finish_layer(self, layer: Layer, hidden: Tensor, mixed: Tensor) -> Tensor:
        hidden = torch.addmm(hidden, mixed, layer.attention_out)
        gate_up = torch.mm(self._normed(hidden, layer.norm_before_mlp), layer.gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.addmm(hidden, functional.silu(gate) * up, layer.down)

    def _normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(hidden, (self.config.hidden_size,), weight, self.config.rms_norm_eps)

    def _logits(self, hidden: Tensor) -> Tensor:
        normed = self._normed(hidden, self._norm)
        if self.dtype == torch.float32:
            return torch.mm(normed, self._head)
        if self.device.type == "cuda":
            # Eight bits of mantissa would make ties, and ties would make tokens depend on the kernel.
            return torch.mm(normed, self._head, out_dtype=torch.float32)
        return torch.mm(normed.float(), self._head.float())

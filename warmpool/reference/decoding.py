"""How forward passes are put on the device: operation by operation, or as CUDA graphs captured at the start.

A pass through a large model is hundreds of small kernels, and starting them one by one takes longer than they run. A graph is
started as a whole. It has fixed addresses: tokens and lengths are written into buffers that it reads, the block tables and the KV
memory lie where they lay when it was captured, also after the memory was given back and taken again. Its operations and shapes
are those of the eager way, and so are its results.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from warmpool.reference.attention import Attending, Attention, Step
from warmpool.reference.model import LlamaModel
from warmpool.reference.numerics import PROMPT_SIZES, prompt_rows
from warmpool.reference.paged import PagedMemory


class Decoder(Protocol):
    """Computes decode steps."""

    def logits(self, tokens: list[int], lengths: list[int]) -> Tensor:
        """Compute one token for each running sequence; sequence i has slot i.

        Args:
            tokens: each sequence's newest token.
            lengths: tokens that each sequence has, the newest included.

        Returns:
            Float32 logits of the tokens to come, at least one row per sequence, (rows, vocab_size). They hold until the next step.
        """


class Prompter(Protocol):
    """Computes prompts."""

    def logits(self, tokens: list[int], slot: int) -> Tensor:
        """Compute a whole prompt and remember it in a slot that has been opened for it.

        Returns:
            Float32 logits of the token to come, (1, vocab_size). They hold until the next prompt.
        """


class EagerPrompter:
    """Operation by operation.

    Args:
        model: computes.
        attending: over its KV memory.
    """

    def __init__(self, model: LlamaModel, attending: Attending) -> None:
        self._model = model
        self._attending = attending

    @torch.inference_mode()
    def logits(self, tokens: list[int], slot: int) -> Tensor:
        """Compute a whole prompt."""
        count, device = len(tokens), self._model.device
        rows = prompt_rows(count, device)
        filled = torch.tensor(tokens + [tokens[-1]] * (rows - count), device=device)
        last = torch.tensor([count - 1], device=device)
        return self._model.prefill(filled, last, self._attending.prompt(slot, rows, count))


class EagerDecoder:
    """Operation by operation.

    Args:
        model: computes.
        attending: over its KV memory.
    """

    def __init__(self, model: LlamaModel, attending: Attending) -> None:
        self._model = model
        self._attending = attending
        self._index = torch.int64 if model.device.type == "cpu" else torch.int32

    @torch.inference_mode()
    def logits(self, tokens: list[int], lengths: list[int]) -> Tensor:
        """Compute one token for each running sequence."""
        count = len(tokens)
        filling = [0] * (self._model.rows.padded(count) - count)
        rows = torch.tensor(
            [tokens + filling, lengths + filling], dtype=self._index, device=self._model.device
        )
        step = Step(lengths=rows[1], count=count, longest=max(lengths))
        return self._model.decode(rows[0], self._attending.step(step))


class Captured(Attending, Protocol):
    """Attention that can be captured: nothing of it depends on numbers that the host alone knows."""

    def prompt_over(self, lengths: Tensor, table: Tensor) -> Attention:
        """Attention of a prompt that is remembered in the blocks of `table`."""


class Capture:
    """Captures graphs one after another; they share the memory of their intermediate results.

    Everything has to be warm: a first run of an operation allocates and compiles, which a capture doesn't allow. Larger ones come
    first, so that smaller ones find room in the memory that they left.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = None

    def capture(self, work: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Capture what `work` does.

        Returns:
            The graph, and where its result lies once it has been replayed, until the next replay of any of these graphs.
        """
        current = torch.cuda.current_stream(self._device)
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            work()
        current.wait_stream(self._side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local"):
            result = work()
        self._pool = graph.pool()
        return graph, result


class GraphPrompter:
    """One CUDA graph for each length that short prompts are filled up to; longer ones are computed eagerly.

    Args:
        model: computes.
        attending: over its KV memory.
        kv: that memory; all of it must be there.
        longest: the longest prompt, in tokens.
        capture: captures.
    """

    def __init__(
        self, model: LlamaModel, attending: Captured, kv: PagedMemory, longest: int, capture: Capture
    ) -> None:
        self._eager = EagerPrompter(model, attending)
        self._computing = (model, attending, prompt_rows(longest, model.device), capture)
        self._kv = kv
        largest = PROMPT_SIZES[-1]
        self._device = model.device
        # Tokens, then what each of them sees, then the last token's row.
        self._inputs = torch.zeros(2 * largest + 1, dtype=torch.int32, device=model.device)
        self._staged = torch.zeros(2 * largest + 1, dtype=torch.int32, pin_memory=True)
        self._table = torch.zeros_like(kv.tables[0])
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def capture(self) -> Iterator[None]:
        """Capture one graph after the other; until it has one, a length is computed eagerly."""
        model, attending, most, capture = self._computing
        for size in sorted(PROMPT_SIZES, reverse=True):
            if size <= most:
                self._graphs[size] = capture.capture(partial(self._compute, model, attending, size))
                yield

    @torch.inference_mode()
    def logits(self, tokens: list[int], slot: int) -> Tensor:
        """Compute a whole prompt."""
        count = len(tokens)
        captured = self._graphs.get(prompt_rows(count, self._device))
        if captured is None:
            return self._eager.logits(tokens, slot)
        graph, logits = captured
        largest = PROMPT_SIZES[-1]
        # The last prompt's copy is over: its token has been read since.
        staged = self._staged
        staged.zero_()
        staged[:count] = torch.tensor(tokens, dtype=torch.int32)
        staged[largest : largest + count] = torch.arange(1, count + 1, dtype=torch.int32)
        staged[-1] = count - 1
        self._inputs.copy_(staged, non_blocking=True)
        self._table.copy_(self._kv.tables[slot])
        graph.replay()
        return logits

    def _compute(self, model: LlamaModel, attending: Captured, size: int) -> Tensor:
        largest = PROMPT_SIZES[-1]
        attention = attending.prompt_over(self._inputs[largest : largest + size], self._table)
        return model.prefill(self._inputs[:size], self._inputs[-1:], attention)


class GraphDecoder:
    """One CUDA graph for each size of batch that the model's row rule knows.

    Args:
        model: computes.
        attending: over its KV memory, all of which must be there.
        max_sequences: the largest batch.
        max_length: the longest sequence, in tokens.
        capture: captures.
    """

    def __init__(
        self,
        model: LlamaModel,
        attending: Captured,
        max_sequences: int,
        max_length: int,
        capture: Capture,
    ) -> None:
        self._rule = model.rows
        self._eager = EagerDecoder(model, attending)
        self._computing = (model, attending, max_length, capture)
        most = self._rule.padded(max_sequences)
        self._rows = torch.zeros((2, most), dtype=torch.int32, device=model.device)
        self._staged = torch.zeros((2, most), dtype=torch.int32, pin_memory=True)
        self._wanted = {self._rule.padded(count) for count in range(1, max_sequences + 1)}
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def capture(self) -> Iterator[None]:
        """Capture one graph after the other; until it has one, a batch is computed eagerly."""
        model, attending, longest, capture = self._computing
        for size in sorted(self._wanted, reverse=True):
            step = Step(lengths=self._rows[1, :size], count=size, longest=longest)
            self._graphs[size] = capture.capture(partial(self._compute, model, attending, step))
            yield

    @property
    def sizes(self) -> list[int]:
        """The batch sizes that were captured, in ascending order."""
        return sorted(self._graphs)

    @torch.inference_mode()
    def logits(self, tokens: list[int], lengths: list[int]) -> Tensor:
        """Compute one token for each running sequence."""
        count = len(tokens)
        captured = self._graphs.get(self._rule.padded(count))
        if captured is None:
            return self._eager.logits(tokens, lengths)
        graph, logits = captured
        # The last step's copy is over: its tokens have been read since.
        self._staged.zero_()
        self._staged[:, :count] = torch.tensor([tokens, lengths], dtype=torch.int32)
        self._rows.copy_(self._staged, non_blocking=True)
        graph.replay()
        return logits

    def _compute(self, model: LlamaModel, attending: Captured, step: Step) -> Tensor:
        return model.decode(self._rows[0, : len(step.lengths)], attending.step(step))

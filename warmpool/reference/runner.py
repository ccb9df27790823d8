"""What computes: model, KV memory and sampler put together from a checkpoint. The one place that imports torch on the way to serving."""

import os
from pathlib import Path

import psutil
import torch

import loader
from loader.errors import LoaderError
from warmpool.reference.config import LlamaConfig
from warmpool.reference.errors import CannotStart, NotEnoughMemory
from warmpool.reference.kv import KvMemory
from warmpool.reference.model import LlamaModel
from warmpool.reference.numerics import row_rule
from warmpool.reference.opening import OpenedModel, bad_checkpoint
from warmpool.reference.options import ModelOptions
from warmpool.reference.sampling import sample
from warmpool.reference.scheduler import Move
from warmpool.reference.sequence import Sampled, Sequence
from warmpool.reference.startup import Phase, Startup
from warmpool.reference.tokenizer import Tokenizer

_WARM_LENGTHS = (8, 32, 128, 512, 2048)
"""Prompt lengths for which GPU libraries choose, and load, kernels of their own. On CPU the first two will do."""


class TorchRunner:
    """The `Runner` that real engines use."""

    def __init__(self, model: LlamaModel, kv: KvMemory, tokenizer: Tokenizer) -> None:
        self._model = model
        self._kv = kv
        self._sampled_vocabulary = min(tokenizer.size, model.config.vocab_size)
        self.tokenizer = tokenizer
        self.bos_token = model.config.bos_token_id
        self.eos_tokens = frozenset(model.config.eos_token_ids)
        self.weights_bytes = model.weights_bytes
        self.kv_bytes = kv.kv_bytes
        self.kv_positions = kv.positions

    @property
    def kv_is_taken(self) -> bool:
        """Whether the KV memory is there."""
        return self._kv.is_taken

    @torch.inference_mode()
    def prefill(self, sequence: Sequence, place: int) -> Sampled:
        """Compute all tokens of a sequence and choose the next one."""
        self._kv.clear(place, sequence.most)
        logits = self._model.prefill(sequence.tokens, self._kv, place)
        sampled = sample(logits[:, : self._sampled_vocabulary], [sequence])[0]
        assert sampled is not None
        return sampled

    @torch.inference_mode()
    def decode(self, sequences: list[Sequence], due: set[int]) -> list[Sampled | None]:
        """Compute one more token for the sequences at the places in `due`.

        The others among `sequences` are computed along and thrown away: their turn will write the same keys and values again.
        """
        tokens = [sequence.generated[-1] for sequence in sequences]
        positions = [sequence.length - 1 for sequence in sequences]
        logits = self._model.decode(tokens, positions, self._kv)
        wanted = [sequence if place in due else None for place, sequence in enumerate(sequences)]
        return sample(logits[:, : self._sampled_vocabulary], wanted)

    @torch.inference_mode()
    def move(self, move: Move) -> None:
        """Let a sequence's KV memory follow it to another place."""
        self._kv.move(move.source, move.target, move.length)

    def take_kv(self) -> None:
        """Take the KV memory."""
        self._kv.take()

    def give_back_kv(self) -> None:
        """Return the KV memory to the system."""
        self._kv.give_back()

    @torch.inference_mode()
    def warm(self, max_num_seqs: int, max_model_len: int) -> None:
        """Compute once what serving will compute, so that the first request doesn't pay for it; find the rule for rows."""
        self._kv.take()
        self._model.rows = row_rule(self._model.matrices(), max_num_seqs)
        longest = max_model_len - 1
        for tokens in sorted({1, *(length for length in _WARM_LENGTHS if length < longest), longest}):
            if self._model.device.type == "cpu" and tokens > _WARM_LENGTHS[1]:
                break
            self._kv.clear(0, tokens)
            self._model.prefill([1] * tokens, self._kv, 0).argmax(dim=-1).tolist()
        for count in {1, max_num_seqs}:
            for place in range(count):
                self._kv.clear(place, longest)
            for position in {min(_WARM_LENGTHS[0], longest), longest}:
                self._model.decode([1] * count, [position] * count, self._kv).argmax(dim=-1).tolist()


def build(opened: OpenedModel, options: ModelOptions, startup: Startup) -> TorchRunner:
    """Load an opened checkpoint and warm up.

    Raises:
        CannotStart: the device or the memory doesn't allow it, or the files changed; the error says what to change.
    """
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    device = _device(options.device)
    dtype = _dtype(options.dtype, device)
    startup.done(Phase.IMPORT, torch=torch.__version__)
    config = opened.config
    slots, length = options.max_num_seqs, options.max_model_len
    kv = KvMemory(config, slots=slots, max_length=length, device=device, dtype=dtype)
    _check_memory(config, kv, device, dtype)
    try:
        model = LlamaModel(config, max_length=length, device=device, dtype=dtype)
        result = _load(opened.checkpoint, model)
        model.finish()
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise NotEnoughMemory(
            f"the weights don't fit: {error}", hint="free memory on this device first"
        ) from error
    startup.done(
        Phase.WEIGHTS,
        bytes=result.nbytes,
        tier=str(result.tier),
        loadSeconds=round(result.seconds, 4),
        steps={str(step): round(seconds, 4) for step, seconds in result.seconds_by_step.items()},
    )
    runner = TorchRunner(model, kv, opened.tokenizer)
    runner.warm(slots, length)
    startup.done(Phase.WARM, kvBytes=kv.kv_bytes)
    return runner


def _load(checkpoint: loader.Checkpoint, model: LlamaModel) -> loader.LoadResult:
    parameters = model.parameters()
    try:
        # Names that the model doesn't know (precomputed frequencies, an untied copy of a tied head) stay on disk.
        return loader.load(checkpoint.only(parameters.keys()), into=parameters, convert=True)
    except LoaderError as error:
        raise bad_checkpoint(error) from error


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise CannotStart(f"--device {name}: no such device", hint="use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise CannotStart(
            f"--device {name}: torch sees {torch.cuda.device_count()} CUDA devices",
            hint="check the driver and CUDA_VISIBLE_DEVICES, or use --device cpu",
        )
    return torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else device


def _check_memory(config: LlamaConfig, kv: KvMemory, device: torch.device, dtype: torch.dtype) -> None:
    weights = sum(torch.Size(shape).numel() for shape in config.tensor_shapes().values()) * dtype.itemsize
    free = _free_bytes(device)
    if weights + kv.kv_bytes > free:
        raise NotEnoughMemory(
            f"{weights / 2**20:.0f} MiB of weights and {kv.kv_bytes / 2**20:.0f} MiB of KV memory don't fit"
            f" into {free / 2**20:.0f} MiB that are free on {device}",
            hint="lower --max-num-seqs or --max-model-len, or choose a smaller model",
        )


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(int(psutil.virtual_memory().available), _control_group_bytes())


def _control_group_bytes() -> int:
    """What the process's control group may still take (cgroup v2), as seen inside a container."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return (1 << 62) if limit == "max" else max(0, int(limit) - used)

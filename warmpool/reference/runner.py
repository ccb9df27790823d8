"""What computes: model, KV memory and sampler put together from a checkpoint. The one place that imports torch on the way to serving."""

import importlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final, Protocol, cast

import torch
from torch import Tensor

from loader.errors import LoaderError
from warmpool.expectations import Ownership
from warmpool.reference import host_memory
from warmpool.reference.arena import ArenaKind, MappedArena
from warmpool.reference.attached import AttachedWeights, attachable_bytes
from warmpool.reference.attention import Attending
from warmpool.reference.config import LlamaConfig
from warmpool.reference.copies import FileCopy
from warmpool.reference.decoding import (
    Capture,
    Captured,
    Decoder,
    EagerDecoder,
    EagerPrompter,
    GraphDecoder,
    GraphPrompter,
    Prompter,
)
from warmpool.reference.driver import CudaDriver
from warmpool.reference.errors import CannotStart, NotEnoughMemory
from warmpool.reference.graphs import Graphs
from warmpool.reference.handed import SharingMapper
from warmpool.reference.identity import ownership_of, weights_digest
from warmpool.reference.kv import KvMemory, SlotMemory
from warmpool.reference.model import LlamaModel, Operations, TorchOperations, weight_names, weight_shapes
from warmpool.reference.numerics import PROMPT_SIZES, RowRule, number_format, prompt_rows, row_rule
from warmpool.reference.opening import OpenedModel, bad_checkpoint
from warmpool.reference.options import ModelOptions
from warmpool.reference.paged import GatheredAttention, PagedMemory
from warmpool.reference.pinned import CudaLink, PinnedCopy
from warmpool.reference.place import Place
from warmpool.reference.rank_wire import Figures, Member
from warmpool.reference.ranks import ALONE, Group, Ranks, join
from warmpool.reference.rope import Rotary
from warmpool.reference.sampling import sample
from warmpool.reference.scheduler import Move, Room
from warmpool.reference.sequence import Sampled, Sequence
from warmpool.reference.shares import take_share
from warmpool.reference.startup import Phase
from warmpool.reference.supply import Supplied, Supply
from warmpool.reference.tokenizer import Tokenizer
from warmpool.reference.weights import (
    AllocatedWeights,
    AnonymousMemory,
    FixedWeights,
    Weights,
    bytes_for,
)

_log = logging.getLogger(__name__)
_WEIGHTS_CHUNK_BYTES: Final = 1 << 30
"""Weights are of no use in part, and whoever fills them for this engine is asked once for each chunk: 256 MiB took 8 ms, of them 5 to copy."""

_WARM_LENGTHS = (8, 32, 128, 512, 2048)
"""Prompt lengths for which libraries choose, and load, routines of their own. On CPU the first two will do."""
_WARM_LENGTHS_CUDA = (*PROMPT_SIZES, 640, 768, 1024, 1536, 2048)
"""On CUDA a routine that is loaded only when a prompt comes costs that prompt milliseconds."""
_TAKE_SECONDS = 60.0
"""How long the whole KV memory may take to be there at the start."""
_NO_GRAPHS = "steps wait for other ranks, and a graph that waits for a rank that has ended can't be given up"


@dataclass(frozen=True, slots=True)
class Parts:
    """What one runner computes with.

    Attributes:
        model: the network.
        weights: the memory of its weights.
        kv: the KV memory.
        attending: attention over it.
        kernels: the kind of attention, for the start's record.
    """

    model: LlamaModel
    weights: Weights
    kv: KvMemory
    attending: Attending
    kernels: str


class TorchRunner:
    """The `Runner` that real engines use.

    Attributes:
        step_bytes: bytes of weights that a decode step reads.
        device: where it computes.
        ownership: what it computes with.
    """

    def __init__(self, parts: Parts, tokenizer: Tokenizer, ownership: Ownership) -> None:
        model, kv = parts.model, parts.kv
        self._parts = parts
        self._model = model
        self._weights = parts.weights
        self._kv = kv
        self._prompter: Prompter = EagerPrompter(model, parts.attending)
        self._decoder: Decoder = EagerDecoder(model, parts.attending)
        self._sampled_vocabulary = min(tokenizer.size, model.config.vocab_size * model.ranks.size)
        self._reserved_bytes = 0
        self._capturing: Iterator[None] | None = None
        self.tokenizer = tokenizer
        self.ownership = ownership
        self.bos_token = model.config.bos_token_id
        self.eos_tokens = frozenset(model.config.eos_token_ids)
        self.weights_bytes = model.weights_bytes - parts.weights.attached_bytes
        self.step_bytes = model.step_bytes
        self.device = model.device
        self.kv_bytes = kv.kv_bytes
        self.kv_positions = kv.positions
        self.kv_kind = str(kv.kind)

    @property
    def kv_is_taken(self) -> bool:
        """Whether the KV memory is there."""
        return self._kv.taken_bytes > 0

    @property
    def kv_taken_bytes(self) -> int:
        """Bytes of the KV memory that are there now. Any thread may ask."""
        return self._kv.taken_bytes

    @property
    def kv_room(self) -> Room:
        """KV memory that new sequences can have now."""
        return self._kv.room

    @property
    def weights_place(self) -> Place:
        """Where the weights are. Any thread may ask."""
        return self._weights.place

    @property
    def weights_taken_bytes(self) -> int:
        """Device memory that the weights take now. Any thread may ask."""
        return self._weights.taken_bytes

    @property
    def parked_bytes(self) -> int:
        """Host memory that a copy of the weights takes, parked or not. Any thread may ask."""
        return self._weights.parked_bytes

    @property
    def cannot_park(self) -> str:
        """Why the weights can't be parked; empty if they can."""
        return self._weights.cannot_park

    @property
    def facts(self) -> dict[str, object]:
        """How it computes, for the start's record."""
        facts: dict[str, object] = {"kvMemory": self.kv_kind, "kernels": self._parts.kernels}
        if isinstance(self._decoder, GraphDecoder):
            facts["graphs"] = self._decoder.sizes
        if self._capturing is not None:
            facts["deferred"] = True
        if self._model.ranks.size > 1:
            facts |= {"tensorParallelSize": self._model.ranks.size, "withoutGraphs": _NO_GRAPHS}
        return facts

    def abort(self) -> None:
        """Give up what is going on with other ranks. Any thread may call it."""
        ranks = self._model.ranks
        if isinstance(ranks, Group) and self.device.type == "cuda":  # on CPU a rank's end is seen at once
            ranks.abort()

    @property
    def figures(self) -> Figures:
        """What it takes now. Any thread may ask."""
        return Figures(
            kv_taken_bytes=self.kv_taken_bytes,
            weights_taken_bytes=self.weights_taken_bytes,
            parked_bytes=self.parked_bytes,
        )

    def bind_kv(self, least: Callable[[], int]) -> None:
        """Hand out no more KV memory than every other rank has, too.

        Args:
            least: how many bytes of theirs have been taken by the one that has fewest.
        """
        self._kv.bind(least)

    @torch.inference_mode()
    def prefill(self, sequence: Sequence, place: int) -> Sampled:
        """Compute all tokens of a sequence and choose the next one."""
        logits = self.prompt_logits(sequence.tokens, sequence.most, place)
        sampled = sample(logits[:, : self._sampled_vocabulary], [sequence])[0]
        assert sampled is not None
        return sampled

    @torch.inference_mode()
    def decode(self, sequences: list[Sequence], due: set[int]) -> list[Sampled | None]:
        """Compute one more token for the sequences at the places in `due`.

        The others among `sequences` are computed along and thrown away: their turn will write the same keys and values again.
        """
        tokens = [sequence.generated[-1] for sequence in sequences]
        logits = self.step_logits(tokens, [sequence.length for sequence in sequences])
        wanted = [sequence if place in due else None for place, sequence in enumerate(sequences)]
        return sample(logits[:, : self._sampled_vocabulary], wanted)

    @torch.inference_mode()
    def prompt_logits(self, tokens: list[int], most: int, place: int) -> Tensor:
        """Compute a whole prompt of a sequence that may come to have `most` tokens; the logits of the next one."""
        self._kv.open(place, most)
        return self._prompter.logits(tokens, place)

    @torch.inference_mode()
    def step_logits(self, tokens: list[int], lengths: list[int]) -> Tensor:
        """Compute one more token for each running sequence; the logits of the next ones."""
        return self._decoder.logits(tokens, lengths)

    def close(self) -> None:
        """Nothing outlives the process."""

    @torch.inference_mode()
    def free(self, place: int) -> None:
        """Take back the KV memory of the sequence at a place, which has ended."""
        self._kv.close(place)

    @torch.inference_mode()
    def move(self, move: Move) -> None:
        """Let a sequence's KV memory follow it to another place, which is free."""
        self._kv.move(move.source, move.target, move.length)

    def take_kv(self, grown: Callable[[], None]) -> None:
        """Take the KV memory, or as much as first sequences need; `grown` is called on another thread when there is more."""
        self._kv.take(grown)

    @torch.inference_mode()
    def give_back_kv(self) -> None:
        """Return the KV memory to the system, and what long prompts have left behind."""
        self._kv.give_back()
        self._give_back_leftovers()

    @torch.inference_mode()
    def park(self) -> None:
        """Move the weights to host memory. Nothing may be computed until they are back."""
        self._weights.park()
        self._give_back_leftovers()

    @torch.inference_mode()
    def unpark(self) -> None:
        """Bring the weights back to where they were."""
        self._weights.unpark()

    def _give_back_leftovers(self) -> None:
        if self._model.device.type == "cuda" and self._reserved() > self._reserved_bytes:
            torch.cuda.empty_cache()

    @torch.inference_mode()
    def row_rule(self, options: ModelOptions) -> RowRule:
        """Find the rule for rows that these weights allow."""
        return row_rule(self._model.matrices(), options.max_num_seqs)

    @torch.inference_mode()
    def warm(self, options: ModelOptions, rule: RowRule) -> None:
        """Compute once what serving will compute, so that the first request doesn't pay for it.

        Args:
            options: how long sequences may be, and how many.
            rule: how many rows a batch is computed with, the same on all ranks.

        Raises:
            NotEnoughMemory: the KV memory isn't there in time.
        """
        kv, model = self._kv, self._model
        kv.take(_look_away)
        self._wait_for_kv()
        model.rows = rule
        self._warm_prompts(options)
        if (
            model.device.type == "cpu"
        ):  # elsewhere they are computed once more when all is there, and once will do
            self._warm_steps(options)
        self._weights.rehearse()

    @torch.inference_mode()
    def capture(self, options: ModelOptions) -> None:
        """Capture what serving computes as graphs, where the device can and nobody has asked for none, and try them.

        Where that is to be done later it is only made ready: `capture_next` does it.
        """
        if self._can_capture(options):
            self._capturing = self._capture(options)
        if self._capturing is None or options.defer_capture:
            self._settle(options)
            return
        while self.capture_next():  # the last of them settles
            pass

    def _settle(self, options: ModelOptions) -> None:
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()
            self._warm_steps(options)
            self._reserved_bytes = self._reserved()

    @property
    def graphs(self) -> Graphs:
        """Whether graphs are captured. Any thread may ask."""
        if self._capturing is not None:
            return Graphs.PENDING
        return Graphs.CAPTURED if isinstance(self._decoder, GraphDecoder) else Graphs.NONE

    @torch.inference_mode()
    def capture_next(self) -> bool:
        """Capture one more graph, while nothing else is computed and the KV memory is there; return whether there are more.

        Raises:
            NotEnoughMemory: the device has none for it; what has been captured stays.
        """
        if self._capturing is None:
            return False
        self._wait_for_kv()
        try:
            next(self._capturing)
        except StopIteration:
            self._capturing = None
        except torch.OutOfMemoryError as error:
            raise NotEnoughMemory(
                f"the graphs don't fit: {error}", hint="free memory on this device first"
            ) from error
        return self._capturing is not None

    def _wait_for_kv(self) -> None:
        """Wait until all of the KV memory is there.

        Raises:
            NotEnoughMemory: it isn't there in time.
        """
        kv = self._kv
        if not kv.wait_taken(_TAKE_SECONDS):
            raise NotEnoughMemory(
                f"{kv.taken_bytes / 2**20:.0f} of {kv.kv_bytes / 2**20:.0f} MiB of KV memory could be taken",
                hint="free memory held by others on this device",
            )

    def _warm_prompts(self, options: ModelOptions) -> None:
        longest = options.max_model_len - 1
        on_cpu = self._model.device.type == "cpu"
        lengths = _WARM_LENGTHS[:2] if on_cpu else _WARM_LENGTHS_CUDA
        within = {1, *(length for length in lengths if length < longest)}
        counts = within | (set() if on_cpu and longest > lengths[-1] else {longest})
        # One of each number of rows, without those that are computed as they are captured.
        by_rows = {prompt_rows(count, self._model.device): count for count in sorted(counts)}
        captured = PROMPT_SIZES if self._can_capture(options) and not options.defer_capture else ()
        for count in [count for rows, count in by_rows.items() if rows not in captured]:
            self._kv.open(0, count)
            self._prompter.logits([1] * count, 0).argmax(dim=-1).tolist()
            self._kv.close(0)

    def _warm_steps(self, options: ModelOptions) -> None:
        longest = options.max_model_len
        for count in sorted({1, options.max_num_seqs}):
            for place in range(count):
                self._kv.open(place, longest)
            for length in sorted({min(_WARM_LENGTHS[0], longest), longest}):
                self._decoder.logits([1] * count, [length] * count).argmax(dim=-1).tolist()
            for place in range(count):
                self._kv.close(place)

    def _capture(self, options: ModelOptions) -> Iterator[None]:
        """Make what is captured what computes, and return the captures themselves, one after the other."""
        kv, longest = cast("PagedMemory", self._kv), options.max_model_len
        attending = cast("Captured", self._parts.attending)
        capture = Capture(self._model.device)
        prompter = GraphPrompter(self._model, attending, kv, longest - 1, capture)
        decoder = GraphDecoder(self._model, attending, options.max_num_seqs, longest, capture)
        self._prompter, self._decoder = prompter, decoder
        return chain(prompter.capture(), decoder.capture(), self._tried(options))

    def _tried(self, options: ModelOptions) -> Iterator[None]:
        """Compute with what has been captured, as the last part of capturing."""
        self._settle(options)
        yield

    def _can_capture(self, options: ModelOptions) -> bool:
        kv = self._kv
        is_fixed = isinstance(kv, PagedMemory) and kv.has_fixed_address and self._model.ranks.size == 1
        return is_fixed and self._parts.kernels == FUSED and not options.enforce_eager

    def _reserved(self) -> int:
        return int(torch.cuda.memory_reserved(self._model.device))


def _look_away() -> None:
    """Nobody waits yet for more memory."""


class Steps(Protocol):
    """Takes notice of the phases of a start."""

    def done(self, phase: Phase, **facts: object) -> None:
        """A phase is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model with its weights.

    Attributes:
        parts: what computes.
        digest: of this rank's weights.
        dtype: what is computed in.
        facts: how the weights came, for the start's record.
    """

    parts: Parts
    digest: str
    dtype: torch.dtype
    facts: dict[str, Any]


def build(opened: OpenedModel, options: ModelOptions, startup: Steps) -> TorchRunner:
    """Load an opened checkpoint and warm up.

    Raises:
        CannotStart: the device or the memory doesn't allow it, or the files changed; the error says what to change.
    """
    loaded = load(opened, options, prepare(options, startup), startup)
    startup.done(Phase.WEIGHTS, **loaded.facts)
    ownership = ownership_of([loaded.digest], loaded.dtype)
    runner = TorchRunner(loaded.parts, opened.tokenizer, ownership)
    runner.warm(options, runner.row_rule(options))
    startup.done(Phase.COMPILE, kvBytes=runner.kv_bytes)
    runner.capture(options)
    startup.done(Phase.CAPTURE, **runner.facts)
    return runner


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Where one rank computes.

    Attributes:
        device: the device, which is initialised.
        dtype: what is computed in.
        member: the rank's place in its group; None where there is no group.
    """

    device: torch.device
    dtype: torch.dtype
    member: Member | None


def prepare(options: ModelOptions, startup: Steps, member: Member | None = None) -> Ground:
    """Initialise the device.

    Args:
        options: which one.
        startup: is told when the imports are done.
        member: this rank's place in its group; None where there is no group.

    Raises:
        CannotStart: it isn't there; the error says what to change.
    """
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    startup.done(Phase.IMPORT, torch=torch.__version__)
    device = _device(options.device, member)
    dtype = number_format(options.dtype, device)
    _make_context(device)
    return Ground(device=device, dtype=dtype, member=member)


def load(opened: OpenedModel, options: ModelOptions, ground: Ground, startup: Steps) -> Loaded:
    """Load an opened checkpoint, or one rank's parts of it.

    Args:
        opened: the checkpoint.
        options: how to load it.
        ground: where.
        startup: is told when the device is initialised and the ranks have met.

    Raises:
        CannotStart: the device or the memory doesn't allow it, or the files changed; the error says what to change.
    """
    device, dtype, member = ground.device, ground.dtype, ground.member
    ranks: Ranks = ALONE if member is None else _join(member, device)
    startup.done(Phase.CONTEXT, device=str(device))
    # Names that the model doesn't know (precomputed frequencies, an untied copy of a tied head) stay on disk.
    wanted = opened.checkpoint.only([name for names in weight_names(opened.config) for name in names])
    cap = options.load_bytes_per_second
    supply = Supply(
        take_share(wanted, opened.config, ranks.rank, ranks.size),
        options.stage,
        bytes_per_second=cap / ranks.size if cap is not None else None,
    )
    parts = _parts(opened.config.share(ranks.size), options, _Place(device, dtype, ranks), supply)
    try:
        supplied = _load(supply, parts)
        began = time.monotonic()
        digest = weights_digest(parts.model.parameters())
        digest_seconds = time.monotonic() - began
        parts.model.finish()
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise NotEnoughMemory(
            f"the weights don't fit: {error}", hint="free memory on this device first"
        ) from error
    facts = {
        "bytes": supplied.nbytes,
        "tier": supplied.tier,
        "passedOver": [each.as_json() for each in supply.passed],
        "loadSeconds": round(supplied.seconds, 4),
        "digestSeconds": round(digest_seconds, 4),
        "steps": {step: round(seconds, 4) for step, seconds in supplied.steps.items()},
    }
    return Loaded(parts=parts, digest=digest, dtype=dtype, facts=facts)


def _join(member: Member, device: torch.device) -> Ranks:
    try:
        return join(member.meeting, member.rank, member.size, device)
    except RuntimeError as error:  # torch has no kind of its own for what its backends say
        raise CannotStart(
            f"the ranks can't reach each other: {' '.join(str(error).split())}",
            hint="see that the loopback interface is up, and that each rank has a device of its own",
        ) from error


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one rank computes, in what, and with whom."""

    device: torch.device
    dtype: torch.dtype
    ranks: Ranks


TILED, FUSED, GATHERED = "tiled", "fused", "gathered"
"""Kinds of attention: `attention.py`'s on CPU, `fused.py`'s and torch's own on CUDA."""


class _Fused(Protocol):
    """The part of `fused.py` that is used; it is imported on CUDA alone, because Triton is there only."""

    def FusedAttention(self, kv: PagedMemory, rotary: Rotary) -> Attending: ...  # noqa: N802 (a class's name)

    def FusedOperations(self) -> Operations: ...  # noqa: N802 (likewise)

    def check(self, head_dim: int, device: torch.device) -> None: ...


def _parts(config: LlamaConfig, options: ModelOptions, place: _Place, supply: Supply) -> Parts:
    """Choose how to compute, and make an empty model with its KV memory.

    Args:
        config: of this rank's share.
        options: how it was asked for.
        place: where it computes.
        supply: of its weights.

    Raises:
        CannotStart: the device can't do what was asked for.
    """
    slots, length = options.max_num_seqs, options.max_model_len
    device, dtype = place.device, place.dtype
    attachment = supply.attach(device, dtype)
    rotary = Rotary.of(config, prompt_rows(length, device), device, dtype)
    if device.type == "cpu":
        _refuse_cuda_options(options)
        slot_memory = SlotMemory(config, slots=slots, max_length=length, dtype=dtype, rotary=rotary)
        _check_memory(_weights_bytes(config, dtype), slot_memory, device)
        in_place = FixedWeights(AnonymousMemory(bytes_for(weight_shapes(config), dtype)), FileCopy)
        model = _empty_model(config, place, TorchOperations(), in_place)
        return Parts(model, in_place, slot_memory, slot_memory, TILED)
    fused = _fused(options.kernels, config.head_dim, device)
    kind = ArenaKind(options.kv_memory)
    kv = PagedMemory(config, slots=slots, max_length=length, device=device, dtype=dtype, kind=kind)
    matrices = weight_names(config)
    attached = 0 if attachment is None else attachable_bytes(attachment, matrices)
    _check_memory(_weights_bytes(config, dtype) - attached, kv, device)
    own = partial(_device_weights, kv, device, supply)
    if attachment is None:
        weights = own(bytes_for(weight_shapes(config), dtype))
    else:
        weights = AttachedWeights(attachment, matrices, own)
    if fused is None:
        model = _empty_model(config, place, TorchOperations(), weights)
        return Parts(model, weights, kv, GatheredAttention(kv, rotary), GATHERED)
    model = _empty_model(config, place, fused.FusedOperations(), weights)
    return Parts(model, weights, kv, fused.FusedAttention(kv, rotary), FUSED)


def _device_weights(kv: PagedMemory, device: torch.device, supply: Supply, nbytes: int) -> Weights:
    """Take a CUDA device's memory for the weights, in the way in which it gives KV memory."""
    if not kv.has_fixed_address:
        return AllocatedWeights(device, "they lie in torch's allocations, which have no fixed address")
    driver = CudaDriver(device.index or 0)
    mapper = None
    if supply.hands_over:
        mapper = supply.lender = SharingMapper(driver)
    home = MappedArena(nbytes, device, "weights", mapper, _WEIGHTS_CHUNK_BYTES)
    link = CudaLink(device, driver)
    return FixedWeights(home, partial(PinnedCopy, link=link))


def _empty_model(config: LlamaConfig, place: _Place, operations: Operations, weights: Weights) -> LlamaModel:
    try:
        return LlamaModel(
            config,
            device=place.device,
            dtype=place.dtype,
            operations=operations,
            weights=weights,
            ranks=place.ranks,
        )
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise NotEnoughMemory(
            f"the weights don't fit: {error}", hint="free memory on this device first"
        ) from error


def _refuse_cuda_options(options: ModelOptions) -> None:
    for flag, value in (("--kernels", options.kernels), ("--kv-memory", options.kv_memory)):
        if value != "auto":
            raise CannotStart(f"{flag} {value} needs a CUDA device", hint=f"leave {flag} out on CPU")


def _fused(kernels: str, head_dim: int, device: torch.device) -> _Fused | None:
    """Our own kernels, or None where torch's operations are to be used.

    Raises:
        CannotStart: our own were asked for and can't be had.
    """
    if kernels == GATHERED:
        return None
    try:
        module: _Fused = cast("_Fused", importlib.import_module("warmpool.reference.fused"))
        module.check(head_dim, device)
    except Exception as error:  # a compiler that fails raises whatever it likes
        if kernels == FUSED:
            raise CannotStart(
                f"--kernels fused: {error}",
                hint="use --kernels auto or gathered, or install triton and a C compiler",
            ) from error
        _log.warning("attention takes torch's own operations, and no CUDA graphs are captured: %s", error)
        return None
    return module


def _load(supply: Supply, parts: Parts) -> Supplied:
    if isinstance(parts.weights, AttachedWeights):
        return supply.adopt(parts.weights)
    try:
        return supply.load(parts.model.parameters())
    except LoaderError as error:
        raise bad_checkpoint(error) from error


def _device(name: str, member: Member | None) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if member is not None and name.startswith("cuda"):
        if name != "cuda":
            raise CannotStart(
                f"--device {name} is one device, and there are {member.size} ranks",
                hint="use --device cuda, and CUDA_VISIBLE_DEVICES to choose which",
            )
        if member.size > torch.cuda.device_count():
            raise CannotStart(
                f"--tensor-parallel-size {member.size}: torch sees {torch.cuda.device_count()} CUDA devices",
                hint="check CUDA_VISIBLE_DEVICES, or use fewer ranks",
            )
        name = f"cuda:{member.rank}"
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


def _make_context(device: torch.device) -> None:
    """Initialise the device, which nothing before has touched."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
        torch.cuda.synchronize(device)


def _weights_bytes(config: LlamaConfig, dtype: torch.dtype) -> int:
    return sum(torch.Size(shape).numel() for shape in config.tensor_shapes().values()) * dtype.itemsize


def _check_memory(weights: int, kv: KvMemory, device: torch.device) -> None:
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
    return host_memory.available().nbytes

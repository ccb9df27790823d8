"""Tensors to load into: their dtypes, their allocation, and whether the caller's own ones fit."""

import ctypes
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import torch

from loader.checkpoint import Checkpoint, TensorEntry
from loader.errors import DestinationMismatch, DtypeUnsupported, OutOfMemory, shown, some
from loader.header import Dtype
from loader.plan import Chunk

TORCH_DTYPES: Mapping[Dtype, torch.dtype] = {
    Dtype.BOOL: torch.bool,
    Dtype.F4: torch.float4_e2m1fn_x2,
    Dtype.U8: torch.uint8,
    Dtype.I8: torch.int8,
    Dtype.F8_E5M2: torch.float8_e5m2,
    Dtype.F8_E4M3: torch.float8_e4m3fn,
    Dtype.F8_E8M0: torch.float8_e8m0fnu,
    Dtype.F8_E4M3FNUZ: torch.float8_e4m3fnuz,
    Dtype.F8_E5M2FNUZ: torch.float8_e5m2fnuz,
    Dtype.I16: torch.int16,
    Dtype.U16: torch.uint16,
    Dtype.F16: torch.float16,
    Dtype.BF16: torch.bfloat16,
    Dtype.I32: torch.int32,
    Dtype.U32: torch.uint32,
    Dtype.F32: torch.float32,
    Dtype.C64: torch.complex64,
    Dtype.F64: torch.float64,
    Dtype.I64: torch.int64,
    Dtype.U64: torch.uint64,
}
"""All but the 6-bit types, for which torch has none."""
_ALIGNMENT = 16  # bytes; a multiple of every element's size
_TORCH_GRANULE = 512  # bytes that torch's allocator rounds up to
_TORCH_SMALL = 2**20  # tensors up to this size are handed out from elsewhere
_WORTH_ONE_PIECE = 2 * 2**30
_LEFT_FREE = 2**28
_NEVER_CUTS = "max_split_size"


class Destination(NamedTuple):
    """One tensor to fill.

    Attributes:
        tensor: contiguous; it may require a gradient.
        source_dtype: the dtype of the bytes in the file; other than the tensor's where they are converted.
    """

    tensor: torch.Tensor
    source_dtype: torch.dtype

    @property
    def data(self) -> torch.Tensor:
        """The tensor's memory as bytes; writing to it fills the tensor."""
        return bytes_of(self.tensor)

    @property
    def converts(self) -> bool:
        """Whether bytes pass through a conversion instead of landing as they are."""
        return self.tensor.dtype != self.source_dtype

    def convert(self, data: torch.Tensor, offset: int) -> None:
        """Fill a run of the tensor with values of another dtype.

        Args:
            data: the file's bytes, whole elements.
            offset: where in the file's tensor they start, in bytes.
        """
        values = data.view(self.source_dtype)
        first = offset // self.source_dtype.itemsize
        self.tensor.detach().reshape(-1)[first : first + values.numel()].copy_(values)


_new_destination: Callable[[Iterable[object]], Destination] = partial(tuple.__new__, Destination)
"""From values in the order of the fields; `Destination._make` does the same at three times the cost."""


class Addresses(dict[str, int]):
    """Where the memory of destinations begins, by tensor; looked up when one is first asked for, as it may not be there before.

    Args:
        destinations: by tensor.
    """

    def __init__(self, destinations: Mapping[str, Destination]) -> None:
        super().__init__()
        self._destinations = destinations

    def __missing__(self, name: str) -> int:
        address = self[name] = self._destinations[name].tensor.data_ptr()
        return address


def converted(destinations: Mapping[str, Destination]) -> frozenset[str]:
    """Names of the tensors that are converted."""
    return frozenset(name for name, (tensor, dtype) in destinations.items() if tensor.dtype != dtype)


def converted_bytes(chunk: Chunk, names: Collection[str]) -> int:
    """Buffer that a chunk's pieces of converted tensors take, each on a boundary of its elements.

    Args:
        chunk: what is read.
        names: of all tensors that are converted.
    """
    return sum(aligned(piece.nbytes) for piece in chunk.pieces if piece.tensor in names) if names else 0


def aligned(nbytes: int) -> int:
    """Filled up so that elements of whatever size may follow."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def torch_layout(entry: TensorEntry) -> tuple[torch.dtype, tuple[int, ...]]:
    """The torch dtype and shape that hold a tensor's bytes unchanged.

    torch packs two F4 values into one element, so the last dimension halves there.

    Raises:
        DtypeUnsupported: torch has no such dtype, or can't pack this shape.
    """
    dtype = TORCH_DTYPES.get(entry.dtype)
    if dtype is None:
        raise DtypeUnsupported(
            f"tensor {shown(entry.name)}: torch has no dtype for {entry.dtype}",
            file=entry.file,
            tensor=entry.name,
            hint="leave it out: load(checkpoint.only(names))",
        )
    if entry.dtype is not Dtype.F4:
        return dtype, entry.shape
    *outer, last = entry.shape
    if last % 2:
        raise DtypeUnsupported(
            f"tensor {shown(entry.name)}: torch packs pairs of {entry.dtype} values and its last dimension is {last}",
            file=entry.file,
            tensor=entry.name,
            hint="leave it out: load(checkpoint.only(names))",
        )
    return dtype, (*outer, last // 2)


def allocate(checkpoint: Checkpoint, device: torch.device) -> dict[str, torch.Tensor]:
    """Uninitialised memory for every tensor of a checkpoint.

    Raises:
        DtypeUnsupported: torch has no dtype for one of them.
        OutOfMemory: the device has no room for all of them; what was taken is given back.
    """
    with memory_errors(checkpoint.root), Allocation(checkpoint, device) as allocation:
        return dict(allocation.complete())


class Filling(Protocol):
    """The tensors that a load fills. A context manager, entered once it is known that the machine can carry the load."""

    @property
    def destinations(self) -> Mapping[str, Destination]:
        """Those that are there, by tensor."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def prepare(self, chunk: Chunk) -> bool:
        """Have the destinations of a chunk be there; whether that took memory."""
        ...

    def complete(self) -> Mapping[str, torch.Tensor]:
        """All tensors, once every chunk was prepared."""
        ...


class Given:
    """The caller's own tensors, all of them there.

    Args:
        checkpoint: its names must be exactly those of tensors; `Checkpoint.only` takes a part.
        tensors: by name.
        convert: whether a floating-point dtype other than the file's is fine.

    Raises:
        DestinationMismatch: they don't fit.
        DtypeUnsupported: torch has no dtype for one of the tensors.
    """

    def __init__(self, checkpoint: Checkpoint, tensors: Mapping[str, torch.Tensor], *, convert: bool) -> None:
        self._tensors = tensors
        self.destinations = match(checkpoint, tensors, convert=convert)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing: the tensors are the caller's."""

    def prepare(self, chunk: Chunk) -> bool:
        """They are there."""
        del chunk
        return False

    def complete(self) -> Mapping[str, torch.Tensor]:
        """The very mapping that the caller gave."""
        return self._tensors


class Allocation:
    """Uninitialised memory for the tensors of a checkpoint, taken as they come up: the first are filled while others are allocated.

    A context manager: where its block fails, all memory is given back, whoever still holds the error.

    Args:
        checkpoint: whose tensors.
        device: with its index.

    Raises:
        DtypeUnsupported: torch has no dtype for one of them.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        self._entries = checkpoint.tensors
        self._device = device
        self._alike: dict[tuple[Dtype, tuple[int, ...]], Destination] = {}
        self.destinations: dict[str, Destination] = {}
        """Those that are there, by tensor."""
        if not _is_as_in_file(self._entries.values()):
            for entry in self._entries.values():
                torch_layout(entry)

    def __enter__(self) -> Self:
        if self._device.type == "cuda":
            _take_in_one_piece(self._entries.values(), self._device)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._alike.clear()
        if kind is not None:
            self.destinations.clear()

    def prepare(self, chunk: Chunk) -> bool:
        """Take memory for the tensors of a chunk that have none yet; whether there were any."""
        before = len(self.destinations)
        for piece in chunk.pieces:
            if piece.tensor not in self.destinations:
                self._take(self._entries[piece.tensor])
        return len(self.destinations) > before

    def complete(self) -> Mapping[str, torch.Tensor]:
        """All tensors in the checkpoint's order; takes memory for those that no chunk has a piece of."""
        for name in self._entries.keys() - self.destinations.keys():
            self._take(self._entries[name])
        return {name: self.destinations[name].tensor for name in self._entries}

    def _take(self, entry: TensorEntry) -> None:
        alike = self._alike.get((entry.dtype, entry.shape))
        if alike is not None:
            # Half the price of reading dtype, shape and device again.
            destination = Destination(torch.empty_like(alike.tensor), alike.source_dtype)
        else:
            dtype, shape = torch_layout(entry)
            destination = Destination(torch.empty(shape, dtype=dtype, device=self._device), dtype)
            self._alike[entry.dtype, entry.shape] = destination
        self.destinations[entry.name] = destination


def _is_as_in_file(entries: Iterable[TensorEntry]) -> bool:
    """Whether torch has all dtypes, and packs none."""
    dtypes = set(map(attrgetter("dtype"), entries))
    return dtypes <= TORCH_DTYPES.keys() and Dtype.F4 not in dtypes


def _take_in_one_piece(entries: Iterable[TensorEntry], device: torch.device) -> None:
    """Have torch take memory for large tensors from the driver at once, for it to hand out piece by piece.

    Hundreds of calls of the driver take as long as a fifth of the copying. Only where the device has that much free: else torch
    would first give up what it has kept, which it may have use for; and only where torch may cut large pieces.
    """
    if any(
        _NEVER_CUTS in os.environ.get(name, "") for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    ):
        return
    nbytes = sum(
        -(-nbytes // _TORCH_GRANULE) * _TORCH_GRANULE
        for nbytes in map(attrgetter("nbytes"), entries)
        if nbytes > _TORCH_SMALL
    )
    if nbytes >= _WORTH_ONE_PIECE and nbytes + _LEFT_FREE <= torch.cuda.mem_get_info(device)[0]:
        torch.empty(nbytes, dtype=torch.uint8, device=device)  # kept by torch when it goes, at once


@contextmanager
def memory_errors(file: str) -> Iterator[None]:
    """Make what torch raises when memory runs out one typed error.

    Args:
        file: what is loaded, for messages.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        # On the CPU torch raises a plain RuntimeError, which only its text tells from others.
        if type(error) is RuntimeError and "allocate memory" not in str(error):
            raise
        what = str(error).splitlines()[0] if str(error) else "out of memory"
        raise OutOfMemory(
            f"no memory for the tensors: {what}",
            file=file,
            hint="free memory, or load a part: checkpoint.only(names)",
        ) from None


def match(
    checkpoint: Checkpoint, tensors: Mapping[str, torch.Tensor], *, convert: bool
) -> dict[str, Destination]:
    """Pair each tensor of a checkpoint with the one to fill.

    Args:
        checkpoint: its names must be exactly those of tensors; `Checkpoint.only` takes a part.
        tensors: by name.
        convert: whether a floating-point dtype other than the file's is fine.

    Raises:
        DestinationMismatch: names, shapes, dtypes or memory layout differ.
        DtypeUnsupported: torch has no dtype for one of the tensors.
    """
    _check_names(checkpoint, tensors)
    entries = list(checkpoint.tensors.values())
    given = [tensors[name] for name in checkpoint.tensors]
    if _all_fit(entries, given):
        dtypes = [TORCH_DTYPES[entry.dtype] for entry in entries]
    else:
        dtypes = [
            _fitting_dtype(entry, tensor, convert=convert)
            for entry, tensor in zip(entries, given, strict=True)
        ]
    pairs = map(_new_destination, zip(given, dtypes, strict=True))
    return dict(zip(checkpoint.tensors, pairs, strict=True))


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, writable. The caller keeps the tensor alive."""
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * nbytes).from_address(tensor.data_ptr())).cast("B")


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's memory as bytes, on whatever device it is."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def holds_bytes_of(tensor: torch.Tensor, entry: TensorEntry) -> bool:
    """Whether a tensor that was loaded from an entry has the file's bytes unchanged: the same dtype and shape."""
    try:
        dtype, shape = torch_layout(entry)
    except DtypeUnsupported:
        return False
    return tensor.dtype == dtype and tuple(tensor.shape) == shape


def target_device(device: str | int | torch.device, into: Mapping[str, torch.Tensor] | None) -> torch.device:
    """The device to load to: that of the tensors to fill, else the one asked for (an int is a CUDA device).

    Raises:
        DestinationMismatch: the tensors to fill are on several devices.
    """
    if not into:
        return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    devices = {device for device in set(map(attrgetter("device"), into.values())) if device.type != "meta"}
    if len(devices) > 1:
        raise DestinationMismatch(
            f"the tensors to load into are on several devices: {', '.join(sorted(map(str, devices)))}",
            hint="load once per device: load(checkpoint.only(names), into=…)",
        )
    # Tensors without memory are refused by name later.
    return devices.pop() if devices else torch.device("cpu")


def _check_names(checkpoint: Checkpoint, tensors: Mapping[str, torch.Tensor]) -> None:
    if tensors.keys() == checkpoint.tensors.keys():
        return
    unfilled = sorted(tensors.keys() - checkpoint.tensors.keys())
    if unfilled:
        raise DestinationMismatch(
            f"the checkpoint has no tensor {some(unfilled)}, which it should fill",
            file=checkpoint.root,
            tensor=unfilled[0],
            hint="tie or initialise these yourself and leave them out of `into`",
        )
    unplaced = sorted(checkpoint.tensors.keys() - tensors.keys())
    if unplaced:
        raise DestinationMismatch(
            f"the checkpoint's tensor {some(unplaced)} has no place in `into`",
            file=checkpoint.root,
            tensor=unplaced[0],
            hint="if that is meant, say so: load(checkpoint.only(into.keys()), into=into)",
        )


def _all_fit(entries: Sequence[TensorEntry], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all bytes go as they are into all tensors; a third of the time that `_fitting_dtype` takes for each."""
    if not _is_as_in_file(entries):
        return False
    # All of one tensor before the next: that each has to be brought into the processor's cache takes longer than the rest.
    found = [
        (tensor.dtype, tensor.shape, tensor.layout, tensor.is_meta, tensor.is_contiguous())
        for tensor in tensors
    ]
    return found == [
        (TORCH_DTYPES[entry.dtype], entry.shape, torch.strided, False, True) for entry in entries
    ]


def _fitting_dtype(entry: TensorEntry, tensor: torch.Tensor, *, convert: bool) -> torch.dtype:
    """The dtype of an entry's bytes, once it is known that the tensor can be filled with them."""
    dtype, shape = torch_layout(entry)
    unusable = _unusable(entry, tensor, shape)
    if unusable is not None:
        raise unusable
    if tensor.dtype != dtype:
        _check_conversion(entry, tensor, dtype, allowed=convert)
    return dtype


def _unusable(entry: TensorEntry, tensor: torch.Tensor, shape: tuple[int, ...]) -> DestinationMismatch | None:
    """Why a tensor can't be filled, whatever its dtype; None where it can."""
    if tensor.shape != shape:
        what = f"the file holds shape {list(shape)} and the destination has {list(tensor.shape)}"
        hint = "check that config and weights are of the same model"
    elif tensor.is_meta or tensor.layout != torch.strided:
        what = "the destination has no memory of its own"
        hint = "materialise it first: module.to_empty(device=…)"
    elif not tensor.is_contiguous():
        what = "the destination is not contiguous"
        hint = "pass contiguous memory, or copy from one that is"
    else:
        return None
    return DestinationMismatch(
        f"tensor {shown(entry.name)}: {what}", file=entry.file, tensor=entry.name, hint=hint
    )


def _check_conversion(entry: TensorEntry, tensor: torch.Tensor, dtype: torch.dtype, *, allowed: bool) -> None:
    what = f"tensor {shown(entry.name)}: the file holds {dtype} and the destination is {tensor.dtype}"
    # Only between floating-point types: integers would wrap silently, and torch can't convert packed F4.
    possible = dtype.is_floating_point and tensor.dtype.is_floating_point
    if not possible or torch.float4_e2m1fn_x2 in {dtype, tensor.dtype}:
        raise DestinationMismatch(
            f"{what}, and there is no safe conversion",
            file=entry.file,
            tensor=entry.name,
            hint=f"make it {dtype}",
        )
    if not allowed:
        raise DestinationMismatch(
            what, file=entry.file, tensor=entry.name, hint=f"make it {dtype}, or pass convert=True"
        )

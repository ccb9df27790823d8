"""The memory of a model's weights: at addresses that never change, from where it can be parked in host memory and come back.

Captured graphs know addresses, so weights have to come back to where they were. They don't change while an engine lives: the copy
in host memory that the first parking makes stays, and later parkings only give device memory back. What comes back is compared
by its sums (`sums.py`) with what left.
"""

import math
import mmap
import threading
from collections.abc import Iterable
from functools import partial
from typing import Final, Protocol

import torch
from torch import Tensor

from warmpool.reference.copies import CopyMaker, HostCopy
from warmpool.reference.errors import NotEnoughMemory, WeightsDamaged, WrongEngineState
from warmpool.reference.place import Place
from warmpool.reference.sums import BLOCK_BYTES, block_sums, first_difference
from warmpool.reference.vmm import Growth

Shape = tuple[int, ...]

_ALIGNMENT: Final = 512
"""Where torch's own allocator puts tensors on CUDA; kernels choose their loads by it."""
_STALL_SECONDS: Final = 1.0
"""Device memory that hasn't grown for so long is not waited for: 16 GB are mapped in milliseconds, unless others have taken them."""
_REHEARSED_BYTES: Final = 256 << 20


class Weights(Protocol):
    """Memory for weights. Its figures may be read by any thread, the rest is the compute thread's."""

    @property
    def place(self) -> Place:
        """Where they are."""

    @property
    def taken_bytes(self) -> int:
        """Device memory that they take now."""

    @property
    def parked_bytes(self) -> int:
        """Host memory that a copy of them takes, parked or not."""

    @property
    def cannot_park(self) -> str:
        """Why they can't be parked; empty if they can."""

    @property
    def attached_bytes(self) -> int:
        """How many of them lie in memory of somebody else's, who accounts for it."""

    def empty(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Return the next piece, for one tensor."""

    def rehearse(self) -> None:
        """Do once what each unparking does, so that the first one doesn't pay for it."""

    def park(self) -> None:
        """Move them to host memory, and give their device memory back. Parking them twice is parking them once.

        Raises:
            NotEnoughHostMemory: the host can't take them; nothing has changed.
            WrongEngineState: they can't be parked.
        """

    def unpark(self) -> None:
        """Take device memory and bring them back to where they were. Unparking them twice is unparking them once.

        Raises:
            NotEnoughMemory: the device has too little; they stay parked.
            WeightsDamaged: what came back is not what left; they stay parked.
        """


class AllocatedWeights:
    """One allocation of torch's for each tensor.

    Args:
        device: where.
        cannot_park: why they can't be parked.
    """

    place = Place.HELD
    parked_bytes = 0
    attached_bytes = 0

    def __init__(self, device: torch.device, cannot_park: str) -> None:
        self._device = device
        self.cannot_park = cannot_park
        self.taken_bytes = 0

    def empty(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Allocate it."""
        tensor = torch.empty(shape, dtype=dtype, device=self._device)
        self.taken_bytes += tensor.nbytes
        return tensor

    def rehearse(self) -> None:
        """Do nothing: there is no unparking."""

    def park(self) -> None:
        """Refuse."""
        raise WrongEngineState(f"the weights can't be parked: {self.cannot_park}")

    def unpark(self) -> None:
        """Do nothing: they are never parked."""


class Home(Protocol):
    """Device memory at a fixed address (a `MappedArena`, or the like on CPU)."""

    @property
    def nbytes(self) -> int:
        """Its size once all of it is taken."""

    @property
    def taken_bytes(self) -> int:
        """How much of its beginning can be used now."""

    def take(self, grown: Growth) -> Tensor:
        """Take it, at least its beginning; `grown` is called on another thread whenever more can be used.

        Raises:
            NotEnoughMemory: there is too little; nothing was taken.
        """

    def give_back(self) -> None:
        """Return all of it. Nothing may be using it."""


class FixedWeights:
    """Tensors side by side in memory that keeps its address.

    Args:
        home: the memory, at least `bytes_for` the tensors; it is taken at once.
        copy: makes a copy in host memory.

    Raises:
        NotEnoughMemory: the device has too little.
    """

    cannot_park = ""
    attached_bytes = 0

    def __init__(self, home: Home, copy: CopyMaker) -> None:
        self._home = home
        self._make_copy = copy
        self._copy: HostCopy | None = None
        self._sums: Tensor | None = None
        self._grown = threading.Condition()
        self._used = 0
        self._whole = home.take(self._notify)
        self._reach(home.nbytes)
        self.place = Place.HELD

    @property
    def taken_bytes(self) -> int:
        """Device memory that they take now."""
        return self._home.taken_bytes

    @property
    def parked_bytes(self) -> int:
        """Host memory that the copy takes."""
        return 0 if self._copy is None else self._copy.nbytes

    def empty(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Return the next piece of the memory."""
        nbytes = math.prod(shape) * dtype.itemsize
        begin, self._used = self._used, self._used + _aligned(nbytes)
        if self._used > self._home.nbytes:
            raise AssertionError("more weights than memory was reserved for")
        return self._whole[begin : begin + nbytes].view(dtype).view(shape)

    def rehearse(self) -> None:
        """Sum a part of them: a routine that is loaded only when it is needed costs a wake-up milliseconds."""
        block_sums(self._whole[: min(_REHEARSED_BYTES, self._home.nbytes)])

    def park(self) -> None:
        """Copy them to host memory the first time, and give the device's memory back."""
        if self.place is Place.PARKED:
            return
        self.place = Place.PARKING
        try:
            if self._copy is None:
                self._sums = block_sums(self._whole)
                self._copy = self._make_copy(self._whole)
            self._home.give_back()
        except BaseException:
            self.place = Place.HELD
            raise
        self.place = Place.PARKED

    def unpark(self) -> None:
        """Take the device's memory, bring them back, and compare their sums."""
        if self.place is not Place.PARKED:
            return
        assert self._copy is not None
        self.place = Place.UNPARKING
        try:
            self._home.take(self._notify)
            self._compare(self._copy.fetch(self._whole, self._reach))
        except BaseException as error:
            self._home.give_back()
            self.place = Place.PARKED
            if isinstance(error, torch.OutOfMemoryError):
                raise _not_enough(self._home.nbytes, str(error)) from error
            raise
        self.place = Place.HELD

    def _compare(self, sums: Tensor) -> None:
        assert self._sums is not None
        begin = first_difference(self._sums, sums)
        if begin is not None:
            raise WeightsDamaged(
                f"the weights that came back differ from those that were parked, first within {BLOCK_BYTES >> 10} KiB from byte {begin};"
                " end this process, which loads them again"
            )

    def _notify(self) -> None:
        with self._grown:
            self._grown.notify_all()

    def _reach(self, nbytes: int) -> None:
        """Wait until there is memory behind the first `nbytes`.

        Raises:
            NotEnoughMemory: it doesn't come.
        """
        while (taken := self._home.taken_bytes) < nbytes:
            with self._grown:
                if not self._grown.wait_for(partial(self._has_grown, taken), _STALL_SECONDS):
                    raise _not_enough(self._home.nbytes, f"{taken / 2**20:.0f} MiB could be taken")

    def _has_grown(self, before: int) -> bool:
        return self._home.taken_bytes > before


class AnonymousMemory:
    """The CPU's kind of memory at a fixed address: a mapping of its own, whose pages the system gets back while it is parked.

    Args:
        nbytes: the size, filled up to whole blocks.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES
        self.taken_bytes = 0
        self._mapping: mmap.mmap | None = None

    def take(self, grown: Growth) -> Tensor:
        """Map it. Its pages come, zeroed, when they are first written to.

        Raises:
            NotEnoughMemory: the system refused.
        """
        del grown
        if self._mapping is None:
            try:
                self._mapping = mmap.mmap(-1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            except (OSError, MemoryError) as error:
                raise _not_enough(self.nbytes, str(error)) from error
        self.taken_bytes = self.nbytes
        return torch.frombuffer(self._mapping, dtype=torch.uint8)

    def give_back(self) -> None:
        """Return its pages to the system; the addresses stay."""
        if self._mapping is not None and self.taken_bytes:
            self._mapping.madvise(mmap.MADV_DONTNEED)
            self.taken_bytes = 0


def bytes_for(shapes: Iterable[Shape], dtype: torch.dtype) -> int:
    """Return the memory that tensors of these shapes take side by side, in bytes."""
    return sum(_aligned(math.prod(shape) * dtype.itemsize) for shape in shapes)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _not_enough(nbytes: int, why: str) -> NotEnoughMemory:
    return NotEnoughMemory(
        f"{nbytes / 2**20:.0f} MiB for the weights can't be taken: {why}",
        hint="park or end other residents on this device first",
    )

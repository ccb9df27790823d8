"""Weights that are the stage daemon's own copy in device memory: shared with other engines on the device, and read-only.

Matrices that the model multiplies as one, and that the files keep apart, and parts of matrices whose rows lie apart are this engine's own and copied once from the daemon's on the device,
so that an attached engine computes exactly what another one does. What is attached always lies at the same address, since captured graphs
know it. Parking lets go of it, which gives the device nothing back but lets the daemon release its copy, and unparking attaches anew: what
comes back then is compared with what was let go of. The daemon's death takes nothing away from who is attached.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from loader.checkpoint import Checkpoint
from loader.copiers.destinations import torch_layout
from loader.cuda.driver import Driver
from loader.cuda.port import Device, Mapped
from loader.errors import DeviceUnavailable, DtypeUnsupported, LoaderError
from loader.stage.client import HeldCopy, StageClient
from loader.stage.layout import contiguous_strides
from warmpool.reference.arena import DeviceBytes
from warmpool.reference.errors import WeightsDamaged
from warmpool.reference.identity import digests_of
from warmpool.reference.place import Place
from warmpool.reference.weights import Shape, Weights, bytes_for

STEP_SECONDS: Final = 5.0
"""How long the stage daemon may take for each step of an answer that costs it no work."""

Names = Sequence[str]
"""Tensors that are one matrix of the model, in the order in which they lie in it."""


class FixedDevice(Driver):
    """A CUDA device that puts one piece of shared memory always at the same address.

    Its tensors don't keep the mapping: whoever unmaps it sees that nothing computes with them meanwhile.
    """

    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        self._range: tuple[int, int] | None = None

    def map(self, handle: int, nbytes: int, *, writable: bool = True) -> int:
        """Put memory behind the addresses, which are reserved the first time; the first. The handle is used up."""
        if writable:
            raise AssertionError("shared weights are never written to")
        try:
            address = self._reserved(nbytes)
            self.call("cuMemMap", address, nbytes, 0, handle, 0)
        finally:
            self.release(handle)
        try:
            self.protect(address, nbytes)
        except LoaderError:
            self.unmap(address, nbytes)
            raise
        return address

    def unmap(self, address: int, nbytes: int) -> None:
        """Take the memory away; the addresses stay reserved."""
        self.call("cuMemUnmap", address, nbytes)

    def tensor(self, memory: Mapped) -> Tensor:
        """The bytes of memory that is mapped."""
        return torch.as_tensor(DeviceBytes(memory.address, memory.nbytes), device=self._place)

    def _reserved(self, nbytes: int) -> int:
        if self._range is None:
            address = ctypes.c_ulonglong()
            self.call("cuMemAddressReserve", ctypes.byref(address), nbytes, 0, 0, 0)
            self._range = (address.value, nbytes)
        begin, size = self._range
        if size != nbytes:
            raise DeviceUnavailable(f"{nbytes} bytes don't fit the addresses of {size}")
        return begin


class Attachment:
    """A copy that the stage daemon holds, attached to from the start; let go of and attached to again by one thread.

    Args:
        checkpoint: with the tensors that are wanted.
        device: which maps shared memory always at the same address.
        socket: the daemon's.

    Raises:
        LoaderError: it can't be attached to.

    Attributes:
        tensors: by name; to be touched only while it is attached.
        nbytes: device memory that it is.
    """

    def __init__(self, checkpoint: Checkpoint, device: Device, socket: Path) -> None:
        self._checkpoint = checkpoint
        self._device = device
        self._socket = socket
        copy = self._copied()
        self.nbytes = copy.nbytes
        self.tensors: Mapping[str, Tensor] = copy.tensors()
        self._copy: HeldCopy | None = copy

    @property
    def is_there(self) -> bool:
        """Whether it is attached."""
        return self._copy is not None

    def attach(self) -> None:
        """Attach to it again.

        Raises:
            LoaderError: the daemon is gone, or holds it no more.
        """
        if self._copy is None:
            self._copy = self._copied()

    def detach(self) -> None:
        """Let go of it, once nothing computes with it any more."""
        self._copy = None  # with its last reference it is unmapped, and the daemon told so

    def _copied(self) -> HeldCopy:
        client = StageClient(self._socket, timeout_seconds=STEP_SECONDS)
        return HeldCopy(self._checkpoint, self._device, client)


class AttachedWeights:
    """A model's weights as far as possible in an attached copy, and the rest in memory of their own.

    Args:
        attachment: the copy.
        matrices: which tensors each matrix of the model consists of, in the order in which the model asks for memory.
        own: takes memory for so many bytes.
    """

    def __init__(
        self, attachment: Attachment, matrices: Sequence[Names], own: Callable[[int], Weights]
    ) -> None:
        self._attachment = attachment
        held = attachment.tensors
        self._matrices = [[held[name] for name in names] for names in matrices]
        apart = [tensors for tensors in self._matrices if not _adjoin(tensors)]
        shapes = [(sum(tensor.numel() for tensor in tensors),) for tensors in apart]
        dtype = next(iter(held.values())).dtype
        self._own = own(bytes_for(shapes, dtype)) if apart else None
        self._next = 0
        self._copied: list[tuple[Tensor, Sequence[Tensor]]] = []
        self._digests: Mapping[str, str] | None = None
        self.attached_bytes = attachable_bytes(attachment, matrices)

    @property
    def place(self) -> Place:
        """Where they are."""
        if self._own is not None and self._own.place is not Place.HELD:
            return self._own.place
        return Place.HELD if self._attachment.is_there else Place.PARKED

    @property
    def taken_bytes(self) -> int:
        """Device memory that they take beside the daemon's copy, which is the daemon's."""
        return 0 if self._own is None else self._own.taken_bytes

    @property
    def parked_bytes(self) -> int:
        """Host memory that a copy of their own part takes."""
        return 0 if self._own is None else self._own.parked_bytes

    @property
    def cannot_park(self) -> str:
        """Why they can't be parked; empty if they can."""
        return "" if self._own is None else self._own.cannot_park

    def empty(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Return the next matrix: attached, or memory of its own, which `fill` fills."""
        tensors = self._matrices[self._next]
        self._next += 1
        if _adjoin(tensors):
            return torch.as_strided(tensors[0], shape, contiguous_strides(shape))
        assert self._own is not None
        matrix = self._own.empty(shape, dtype)
        self._copied.append((matrix, tensors))
        return matrix

    def fill(self) -> int:
        """Copy from the daemon's what isn't used there; the bytes copied."""
        for matrix, tensors in self._copied:
            torch.cat([tensor.flatten() for tensor in tensors], out=matrix.flatten())
            if matrix.is_cuda:
                torch.cuda.synchronize(matrix.device)
        return sum(matrix.nbytes for matrix, _ in self._copied)

    def rehearse(self) -> None:
        """Do once what each unparking does."""
        if self._own is not None:
            self._own.rehearse()

    def park(self) -> None:
        """Park what is their own, and let go of the daemon's copy."""
        if self.place is Place.PARKED:
            return
        if self._digests is None:
            self._digests = digests_of(self._attachment.tensors)
        if self._own is not None:
            self._own.park()
        self._attachment.detach()

    def unpark(self) -> None:
        """Bring back what is their own, attach to the daemon's copy, and compare its digests."""
        if self.place is Place.HELD:
            return
        if self._own is not None:
            self._own.unpark()
        try:
            self._attachment.attach()
            found = digests_of(self._attachment.tensors)
        except LoaderError as error:
            self._park_again()
            raise WeightsDamaged(
                f"the weights can't be attached to again: {error.what}; end this process, which loads them in another way"
            ) from error
        if found != self._digests:
            self._park_again()
            raise WeightsDamaged(
                "the stage daemon's copy differs from the one that was let go of; have it verified, and end this process"
            )

    def _park_again(self) -> None:
        self._attachment.detach()
        if self._own is not None:
            self._own.park()


def attachable_bytes(attachment: Attachment, matrices: Sequence[Names]) -> int:
    """Return how many bytes of a model's weights can be used where they lie."""
    found = ([attachment.tensors[name] for name in names] for names in matrices)
    return sum(tensor.nbytes for tensors in found if _adjoin(tensors) for tensor in tensors)


def require_dtype(checkpoint: Checkpoint, dtype: torch.dtype) -> None:
    """See that tensors can be computed with as they lie in the files.

    Raises:
        DtypeUnsupported: one of them would have to be converted.
    """
    for name, entry in checkpoint.tensors.items():
        found, _ = torch_layout(entry)
        if found is not dtype:
            raise DtypeUnsupported(f"{name} is {found}, and {dtype} is computed with")


def _adjoin(tensors: Sequence[Tensor]) -> bool:
    """Whether tensors follow each other in memory without a gap, and have none inside."""
    if not all(tensor.is_contiguous() for tensor in tensors):
        return False
    ends = (tensor.data_ptr() + tensor.nbytes for tensor in tensors)
    return all(end == tensor.data_ptr() for end, tensor in zip(ends, tensors[1:], strict=False))

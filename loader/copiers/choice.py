"""Which copier fills which device."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from loader.admission import Needs
from loader.copiers import gds, host, pinned
from loader.copiers.job import Copy, Readers
from loader.errors import DeviceUnavailable
from loader.plan import Chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Copier:
    """A way to fill one device.

    Attributes:
        device: with its index.
        chunk_bytes: what a thread takes at once from afar, and the most that it reads at once.
        near_chunk_bytes: what is taken at once from memory.
        threads: how many it uses by default.
        copy: the work.
    """

    device: torch.device
    chunk_bytes: int
    near_chunk_bytes: int
    threads: int
    copy: Copy

    def needs(
        self, chunks: Sequence[Chunk], converted: frozenset[str], readers: Readers, tensor_bytes: int
    ) -> Needs:
        """The memory that a load takes.

        Args:
            chunks: what is read.
            converted: names of tensors that are converted.
            readers: how many read at once.
            tensor_bytes: size of the tensors that it allocates.
        """
        threads = readers.most
        if self.device.type == "cpu":
            return Needs(host=tensor_bytes + host.needs(chunks, converted, threads))
        staging = host.needs(chunks, converted, threads) if converted else 0
        locked = pinned.needs(chunks, self.device, readers, converted)
        return Needs(pinned=locked, device=tensor_bytes + staging)

    def ready_bytes(self, readers: Readers) -> int:
        """Bytes that `get_ready` page-locks; 0: there is nothing to get ready."""
        is_own = self.device.type == "cuda" and self.copy is pinned.copy
        return pinned.ready_bytes(self.device, readers) if is_own else 0

    def get_ready(self, readers: Readers) -> None:
        """Begin with what a large load of bytes as they lie in their files needs, while it is planned.

        Raises:
            DeviceUnavailable: the device can't be used.
            OutOfMemory: the host has no room.
        """
        pinned.get_ready(self.device, readers)

    def free_bytes(self) -> int | None:
        """Free memory of the device, with what torch keeps for itself; None for the CPU."""
        if self.device.type == "cpu":
            return None
        free, _ = torch.cuda.mem_get_info(self.device)
        kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return free + kept


def choose(device: torch.device, *, use_gds: bool = False) -> Copier:
    """The copier for a device.

    Args:
        device: to fill.
        use_gds: whether to read past the host's memory where that can be done; of no use on the CPU.

    Raises:
        DeviceUnavailable: there is none, or the device can't be used in this process.
    """
    match device.type:
        case "cpu":
            return Copier(
                device=device,
                chunk_bytes=host.CHUNK_BYTES,
                near_chunk_bytes=host.CHUNK_BYTES,
                threads=host.default_threads(),
                copy=host.copy,
            )
        case "cuda":
            return Copier(
                device=pinned.prepare(device),
                chunk_bytes=pinned.CHUNK_BYTES,
                near_chunk_bytes=pinned.NEAR_CHUNK_BYTES,
                threads=pinned.DEFAULT_THREADS,
                copy=gds.copy if use_gds else pinned.copy,
            )
        case other:
            raise DeviceUnavailable(
                f"loading to {other} is not supported", hint="load with device='cpu' and move the tensors"
            )

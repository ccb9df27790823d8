"""Which copier fills which device."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from loader.copiers import host, pinned
from loader.copiers.destinations import Destination
from loader.errors import DeviceUnavailable
from loader.plan import Chunk
from loader.sources.files import ShardReader


class Copy(Protocol):
    """What `host.copy` and `pinned.copy` have in common."""

    def __call__(
        self,
        reader: ShardReader,
        chunks: Sequence[Chunk],
        destinations: Mapping[str, Destination],
        *,
        threads: int,
        report: Callable[[Chunk], None],
    ) -> int:
        """Fill the destinations; the bytes of buffers that this took besides them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Copier:
    """A way to fill one device.

    Attributes:
        device: with its index.
        chunk_bytes: upper bound of its reads.
        threads: how many it uses by default.
        copy: the work.
    """

    device: torch.device
    chunk_bytes: int
    threads: int
    copy: Copy


def choose(device: torch.device) -> Copier:
    """The copier for a device.

    Raises:
        DeviceUnavailable: there is none, or the device can't be used in this process.
    """
    match device.type:
        case "cpu":
            return Copier(
                device=device, chunk_bytes=host.CHUNK_BYTES, threads=host.default_threads(), copy=host.copy
            )
        case "cuda":
            return Copier(
                device=pinned.prepare(device),
                chunk_bytes=pinned.CHUNK_BYTES,
                threads=pinned.DEFAULT_THREADS,
                copy=pinned.copy,
            )
        case other:
            raise DeviceUnavailable(
                f"loading to {other} is not supported", hint="load with device='cpu' and move the tensors"
            )

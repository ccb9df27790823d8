"""Devices of this host that hold a checkpoint already, as a source: its tensors are copied from there, and no byte is read.

    source = SiblingSource([Resident(checkpoint, tensors_on_cuda_0)], device="cuda:1")
    loader.load(checkpoint, device="cuda:1", run=Run(source=source)).tier   # Sibling

The tensors may be this process's own, or memory of the stage daemon that is attached. Those that no sibling holds, or not in the
file's form, come from the files.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from loader.checkpoint import Checkpoint, TensorEntry
from loader.siblings import Holding, Link, choose, version_of
from loader.sources.files import ShardReader
from loader.sources.port import Fallback, Nearness, Tier

if TYPE_CHECKING:
    import torch


class Resident:
    """A checkpoint whose tensors a device holds. They must be complete, and stay unchanged while they are copied from.

    Args:
        checkpoint: what they were loaded from.
        tensors: by name, all on one device; those that are no whole tensors of the checkpoint are left alone.
    """

    def __init__(self, checkpoint: Checkpoint, tensors: "Mapping[str, torch.Tensor]") -> None:
        from loader.copiers.destinations import holds_bytes_of  # noqa: PLC0415 - the rest works without torch

        devices = {str(tensor.device) for tensor in tensors.values()}
        if len(devices) > 1:
            raise ValueError(f"resident tensors are on several devices: {', '.join(sorted(devices))}")
        self.checkpoint = checkpoint
        self.tensors = {
            name: tensor
            for name, tensor in tensors.items()
            if name in checkpoint.tensors
            and checkpoint.tensors[name].runs is None
            and tensor.is_contiguous()
            and holds_bytes_of(tensor, checkpoint.tensors[name])
        }
        self.device = devices.pop() if devices else ""
        self._copies = 0
        self._lock = Lock()

    def holding(self) -> Holding:
        """What can be chosen by."""
        return Holding(
            device=self.device,
            version=version_of(self.checkpoint),
            names=frozenset(self.tensors),
            copies=self._copies,
        )

    @contextmanager
    def copied_from(self) -> Iterator[None]:
        """Count as busy until the end of the block."""
        with self._lock:
            self._copies += 1
        try:
            yield
        finally:
            with self._lock:
                self._copies -= 1


class SiblingSource:
    """Residents as a source of loads to one device.

    Args:
        residents: those of this host.
        device: where the tensors are wanted.
    """

    def __init__(self, residents: Sequence[Resident], *, device: "str | torch.device") -> None:
        self._residents = residents
        self._device = str(device)

    @contextmanager
    def open(self, checkpoint: Checkpoint) -> Iterator[ShardReader]:
        """Open the files, for what no sibling holds and as proof that they are still those that it was loaded from.

        Raises:
            LoadError: a file can't be opened or isn't what it was.
        """
        holdings = [resident.holding() for resident in self._residents]
        chosen = choose(checkpoint, holdings, self._links())
        if chosen is None:
            with _SiblingReader(checkpoint, {}) as reader:
                yield reader
            return
        resident = self._residents[next(i for i, holding in enumerate(holdings) if holding is chosen)]
        with resident.copied_from(), _SiblingReader(checkpoint, _views(resident, checkpoint)) as reader:
            yield reader

    def _links(self) -> dict[str, Link]:
        return {resident.device: link(self._device, resident.device) for resident in self._residents}


def link(target: str, holder: str) -> Link:
    """How one device reaches another's memory."""
    import torch  # noqa: PLC0415 - the rest works without torch

    to, of = torch.device(target), torch.device(holder or "meta")
    if to == of:
        return Link.SAME
    if to.type != "cuda" or of.type != "cuda":
        return Link.NONE
    if _ordinal(to) == _ordinal(of):
        return Link.SAME
    return Link.PEER if torch.cuda.can_device_access_peer(_ordinal(to), _ordinal(of)) else Link.NONE


def _ordinal(device: "torch.device") -> int:
    import torch  # noqa: PLC0415 - as above

    index = cast("int | None", device.index)
    return torch.cuda.current_device() if index is None else index


def _views(resident: Resident, wanted: Checkpoint) -> "dict[str, torch.Tensor]":
    return {
        name: _bytes(resident.checkpoint.tensors[name], resident.tensors[name], entry)
        for name, entry in wanted.tensors.items()
        if name in resident.tensors and entry.nbytes
    }


def _bytes(held: TensorEntry, tensor: "torch.Tensor", wanted: TensorEntry) -> "torch.Tensor":
    """The bytes of a tensor or of a part of it, where the whole tensor lies: one dimension, or a row per run."""
    from loader.copiers.destinations import bytes_of  # noqa: PLC0415 - the rest works without torch

    data = bytes_of(tensor)
    first = wanted.begin - held.begin
    if wanted.runs is None:
        return data[first : first + wanted.nbytes]
    shape, strides = (wanted.runs.count, wanted.runs.nbytes), (wanted.runs.pitch, 1)
    return data.as_strided(shape, strides, data.storage_offset() + first)


class _SiblingReader(ShardReader):
    """The files, with what needn't be read of them."""

    def __init__(self, checkpoint: Checkpoint, resident: "Mapping[str, torch.Tensor]") -> None:
        super().__init__(checkpoint)
        self._wanted = checkpoint
        self._resident = resident

    @property
    def resident(self) -> "Mapping[str, torch.Tensor]":
        """Bytes that a device holds already, by tensor."""
        return MappingProxyType(self._resident)

    @property
    def fallbacks(self) -> frozenset[Fallback]:
        """Slower ways that were taken so far."""
        missing = not self._has_all()
        return super().fallbacks | ({Fallback.SIBLING_MISSING} if missing else set())

    def nearness(self, ranges: Iterable[tuple[str, int, int]]) -> Nearness:
        """A device's memory, or how near the files are where that doesn't hold everything."""
        if self._has_all():
            return Nearness(tier=Tier.SIBLING, cached_share=1.0)
        return super().nearness(ranges)

    def _has_all(self) -> bool:
        return all(name in self._resident for name, entry in self._wanted.tensors.items() if entry.nbytes)

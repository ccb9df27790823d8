"""Weights from safetensors files into memory: checked strictly, moved once, accounted for honestly.

    checkpoint = loader.open_checkpoint("/models/llama-8b")
    result = loader.load(checkpoint, device="cuda", into=dict(model.named_parameters()))

    result.tier, result.seconds_by_step      # where the bytes came from, and where the time went

Belongs here: parsing and checking checkpoints, planning reads, moving bytes to where they are used, and the errors of
all that. Must not: anything about engines, seats or scaling; formats that run code when opened. It imports neither
`warmpool` nor `scaler`; both may import it, and so may projects that want nothing but fast weights.

`header`, `checkpoint` and `plan` are pure: no I/O, no torch, no clock. `sources` reads files, `copiers` moves bytes.
Importing this package doesn't import torch; loading does.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from loader.admission import Needs, Reason
from loader.checkpoint import Checkpoint, TensorEntry
from loader.control import Control, Priority
from loader.errors import (
    CheckpointError,
    CheckpointNotFound,
    ConfigInvalid,
    DestinationMismatch,
    DeviceUnavailable,
    DigestMismatch,
    DtypeUnsupported,
    Fault,
    FileChanged,
    FormatUnsupported,
    HeaderInvalid,
    IndexInvalid,
    LayoutInvalid,
    LoadCancelled,
    LoaderError,
    LoadError,
    LoadRefused,
    ManifestInvalid,
    OutOfMemory,
    ReadFailed,
    ShardMissing,
    ShardOutside,
    ShardTruncated,
    ShortRead,
    SliceInvalid,
    TensorDuplicated,
    TensorMissing,
    TensorUnlisted,
)
from loader.header import Dtype
from loader.loading import LoadResult, Progress, Run, Step, footprint, load
from loader.manifest import MANIFEST_FILE, Manifest
from loader.slicing import Part, rank_part, take_parts
from loader.sources.files import open_checkpoint, read_manifest
from loader.sources.port import Fallback, Tier
from loader.sources.sibling import Resident, SiblingSource

if TYPE_CHECKING:
    from loader.proof import Proof, digest_source, verify_resident
    from loader.streaming import aload, arrivals

__all__ = [
    "MANIFEST_FILE",
    "Checkpoint",
    "CheckpointError",
    "CheckpointNotFound",
    "ConfigInvalid",
    "Control",
    "DestinationMismatch",
    "DeviceUnavailable",
    "DigestMismatch",
    "Dtype",
    "DtypeUnsupported",
    "Fallback",
    "Fault",
    "FileChanged",
    "FormatUnsupported",
    "HeaderInvalid",
    "IndexInvalid",
    "LayoutInvalid",
    "LoadCancelled",
    "LoadError",
    "LoadRefused",
    "LoadResult",
    "LoaderError",
    "Manifest",
    "ManifestInvalid",
    "Needs",
    "OutOfMemory",
    "Part",
    "Priority",
    "Progress",
    "Proof",
    "ReadFailed",
    "Reason",
    "Resident",
    "Run",
    "ShardMissing",
    "ShardOutside",
    "ShardTruncated",
    "ShortRead",
    "SiblingSource",
    "SliceInvalid",
    "Step",
    "TensorDuplicated",
    "TensorEntry",
    "TensorMissing",
    "TensorUnlisted",
    "Tier",
    "aload",
    "arrivals",
    "digest_source",
    "footprint",
    "load",
    "open_checkpoint",
    "rank_part",
    "read_manifest",
    "take_parts",
    "verify_resident",
]

_WITH_TORCH = {
    "Proof": "loader.proof",
    "aload": "loader.streaming",
    "arrivals": "loader.streaming",
    "digest_source": "loader.proof",
    "verify_resident": "loader.proof",
}


def __getattr__(name: str) -> object:
    """Import what needs torch when it is asked for."""
    module = _WITH_TORCH.get(name)
    if module is None:
        raise AttributeError(f"module 'loader' has no attribute {name!r}")
    return getattr(import_module(module), name)

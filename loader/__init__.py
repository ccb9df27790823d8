"""Weights from safetensors files into memory: checked strictly, moved once, accounted for honestly.

    checkpoint = loader.open_checkpoint("/models/llama-8b")
    result = loader.load(checkpoint, device="cuda", into=dict(model.named_parameters()))

Belongs here: parsing and checking checkpoints, planning reads, moving bytes to where they are used, and the errors of
all that. Must not: anything about engines, seats or scaling; formats that run code when opened. It imports neither
`warmpool` nor `scaler`; both may import it, and so may projects that want nothing but fast weights.

`header`, `checkpoint` and `plan` are pure: no I/O, no torch, no clock. `sources` reads files, `copiers` moves bytes.
Importing this package doesn't import torch; loading does.
"""

from loader.checkpoint import Checkpoint, TensorEntry
from loader.errors import (
    CheckpointError,
    CheckpointNotFound,
    ConfigInvalid,
    DestinationMismatch,
    DeviceUnavailable,
    DtypeUnsupported,
    FileChanged,
    FormatUnsupported,
    HeaderInvalid,
    IndexInvalid,
    LayoutInvalid,
    LoaderError,
    LoadError,
    ReadFailed,
    ShardMissing,
    ShardTruncated,
    ShortRead,
    TensorDuplicated,
    TensorMissing,
    TensorUnlisted,
)
from loader.header import Dtype
from loader.loading import LoadResult, Progress, Step, load
from loader.sources.files import open_checkpoint
from loader.sources.tier import Tier

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointNotFound",
    "ConfigInvalid",
    "DestinationMismatch",
    "DeviceUnavailable",
    "Dtype",
    "DtypeUnsupported",
    "FileChanged",
    "FormatUnsupported",
    "HeaderInvalid",
    "IndexInvalid",
    "LayoutInvalid",
    "LoadError",
    "LoadResult",
    "LoaderError",
    "Progress",
    "ReadFailed",
    "ShardMissing",
    "ShardTruncated",
    "ShortRead",
    "Step",
    "TensorDuplicated",
    "TensorEntry",
    "TensorMissing",
    "TensorUnlisted",
    "Tier",
    "load",
    "open_checkpoint",
]

"""One tree of errors, split by what the caller can do about each.

`CheckpointError`: the input is wrong; fetch or convert it again, or point at another one.
`LoadError`: the input was right but the machine did not deliver it; trying again may help.
`DestinationMismatch`: the caller's own tensors don't fit what the checkpoint holds.

Text of an error: ``file: what is wrong``, an empty line, ``hint: what to do``.
"""

from enum import StrEnum

NAMES_SHOWN = 5
_NAME_CHARACTERS = 120


def shown(name: str) -> str:
    """A name from untrusted input, quoted, without control characters and of bounded length."""
    return repr(name if len(name) <= _NAME_CHARACTERS else name[:_NAME_CHARACTERS] + "…")


def some(names: list[str]) -> str:
    """The first few of these names, and how many more there are."""
    listed = ", ".join(shown(name) for name in names[:NAMES_SHOWN])
    rest = len(names) - NAMES_SHOWN
    return f"{listed} and {rest} more" if rest > 0 else listed


class Fault(StrEnum):
    """What exactly is wrong with a safetensors header: one code for each rule that it can break."""

    NOT_SAFETENSORS = "NotSafetensors"
    """Shorter than the 8 bytes of the header's length, or something else altogether."""
    HEADER_TOO_LONG = "HeaderTooLong"
    NOT_UTF8 = "NotUtf8"
    NOT_JSON = "NotJson"
    NOT_AN_OBJECT = "NotAnObject"
    NESTED_TOO_DEEPLY = "NestedTooDeeply"
    TOO_MANY_TENSORS = "TooManyTensors"
    DUPLICATE_KEY = "DuplicateKey"
    NUMBER_INVALID = "NumberInvalid"
    METADATA_INVALID = "MetadataInvalid"
    NAME_INVALID = "NameInvalid"
    ENTRY_INVALID = "EntryInvalid"
    FIELD_MISSING = "FieldMissing"
    FIELD_UNKNOWN = "FieldUnknown"
    DTYPE_UNKNOWN = "DtypeUnknown"
    SHAPE_INVALID = "ShapeInvalid"
    OFFSETS_INVALID = "OffsetsInvalid"
    SHAPE_OVERFLOW = "ShapeOverflow"
    PARTIAL_BYTE = "PartialByte"
    SIZE_MISMATCH = "SizeMismatch"
    HOLE = "Hole"
    OVERLAP = "Overlap"
    TRAILING_BYTES = "TrailingBytes"


class LoaderError(Exception):
    """Any failure that this package reports.

    Attributes:
        what: what is wrong, in one sentence.
        file: the file or directory that it concerns; empty where none does.
        tensor: the tensor's name, where one is concerned.
        offset: where in the file, in bytes from its start, where that is known.
        hint: what to do about it; empty where there is nothing useful to say.
    """

    def __init__(
        self,
        what: str,
        *,
        file: str = "",
        tensor: str | None = None,
        offset: int | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(what)
        self.what = what
        self.file = file
        self.tensor = tensor
        self.offset = offset
        self.hint = hint

    def __str__(self) -> str:
        place = f"{self.file}: " if self.file else ""
        where = f" (at byte {self.offset})" if self.offset is not None else ""
        mend = f"\n\nhint: {self.hint}" if self.hint else ""
        return f"{place}{self.what}{where}{mend}"


class CheckpointError(LoaderError):
    """The checkpoint is not usable as it is."""


class CheckpointNotFound(CheckpointError):
    """There is no checkpoint at this path."""


class FormatUnsupported(CheckpointError):
    """The weights are in a format that this loader refuses, such as pickle."""


class _RuleBroken(CheckpointError):
    """A header breaks a rule of the format.

    Attributes:
        fault: which one.
    """

    def __init__(
        self,
        what: str,
        fault: Fault,
        *,
        file: str = "",
        tensor: str | None = None,
        offset: int | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(what, file=file, tensor=tensor, offset=offset, hint=hint)
        self.fault = fault


class HeaderInvalid(_RuleBroken):
    """A file's header breaks the rules of the safetensors format."""


class LayoutInvalid(_RuleBroken):
    """A header's byte ranges don't tile the payload exactly."""


class DtypeUnsupported(CheckpointError):
    """The file is valid, but torch has no dtype for one of its tensors."""


class IndexInvalid(CheckpointError):
    """The index of a sharded checkpoint is malformed or names files it must not."""


class ConfigInvalid(CheckpointError):
    """The checkpoint's config.json is not a JSON object."""


class ShardMissing(CheckpointError):
    """A shard that the checkpoint consists of is not there."""


class ShardTruncated(CheckpointError):
    """A shard is shorter than its header says.

    Attributes:
        expected_bytes: how long the file must be, at least.
        actual_bytes: how long it is.
    """

    def __init__(self, what: str, *, file: str, expected_bytes: int, actual_bytes: int) -> None:
        super().__init__(
            what, file=file, offset=actual_bytes, hint="the download was cut short: fetch this file again"
        )
        self.expected_bytes = expected_bytes
        self.actual_bytes = actual_bytes


class TensorMissing(CheckpointError):
    """A tensor that should be in the checkpoint is not."""


class SliceInvalid(CheckpointError):
    """A part of a tensor was asked for that it doesn't have, or that begins inside a byte."""


class ShardOutside(CheckpointError):
    """A file of the checkpoint is a link that leads out of it."""


class ManifestInvalid(CheckpointError):
    """A manifest is malformed, or is not of this checkpoint."""


class DigestMismatch(CheckpointError):
    """Bytes are not those that the manifest was written for.

    Attributes:
        tensors: names of all tensors that differ.
    """

    def __init__(self, what: str, *, file: str, tensors: tuple[str, ...], hint: str) -> None:
        super().__init__(what, file=file, tensor=tensors[0] if tensors else None, hint=hint)
        self.tensors = tensors


class TensorUnlisted(CheckpointError):
    """A shard holds a tensor that the index doesn't place there."""


class TensorDuplicated(CheckpointError):
    """Two shards hold a tensor of the same name."""


class LoadError(LoaderError):
    """Reading or copying failed although the checkpoint was valid when it was opened."""


class ReadFailed(LoadError):
    """The operating system refused to open or read a file."""


class ShortRead(LoadError):
    """A file ended before the bytes that its header promises."""


class FileChanged(LoadError):
    """A file is not the one whose header was read: replaced, rewritten or cut in between."""


class DeviceUnavailable(LoadError):
    """The device asked for can't be used in this process."""


class LoadCancelled(LoadError):
    """Somebody called the load off."""


class OutOfMemory(LoadError):
    """The host or the device has no memory for the tensors; what the load had taken was given back."""


class LoadRefused(LoadError):
    """The machine can't carry this load, which was found out before the first byte was read.

    Attributes:
        reasons: codes of `loader.admission.Reason`, the least memory first.
    """

    def __init__(self, what: str, *, file: str, reasons: tuple[str, ...], hint: str) -> None:
        super().__init__(what, file=file, hint=hint)
        self.reasons = reasons


class StageFull(LoadError):
    """The stage daemon's budget has no room for a checkpoint: it is too large, or the rest is in use."""


class NotHeld(LoadError):
    """The stage daemon holds no copy of this checkpoint in the device's memory."""


class HeldInUse(LoadError):
    """A copy in device memory can't be given up, or made anew, while engines are attached to it."""


class StageUnreachable(LoadError):
    """There is no stage daemon at the socket, it refuses this user, or the connection broke."""


class DestinationMismatch(LoaderError):
    """The tensors to load into don't fit the checkpoint: names, shapes, dtypes or memory layout."""

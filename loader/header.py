"""The safetensors header, parsed strictly: whatever is accepted here has exactly one meaning.

Format: 8 bytes little-endian header length N, N bytes of JSON (tensor name to dtype, shape and byte range), then the
payload, which the ranges tile without hole or overlap. This parser is stricter than the reference implementation: it
also refuses duplicate keys at any depth, unknown fields and overflowing shapes, because two readers that understand
such a file differently can be made to load different weights. Time and memory are linear in N; nothing is allocated
before N is checked against the cap and the file's length.

Works on bytes and does no I/O.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from loader.errors import Fault, HeaderInvalid, LayoutInvalid, ShardTruncated, shown

PREFIX_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The reference implementation's cap on N (decimal, not 100 MiB)."""
MAX_TENSORS = 1_000_000
"""Bounds the memory that a hostile header can make us use; the largest public checkpoints hold about 100,000."""
MAX_RANK = 16
"""A bound that no weight comes near, far below the 64 that torch and numpy can index."""
MAX_INTEGER = 2**63 - 1
"""Sizes and offsets must fit a signed 64-bit integer, which is what file systems and torch count in."""

_METADATA_KEY = "__metadata__"
_ENTRY_FIELDS = frozenset({"dtype", "shape", "data_offsets"})
_LFS_POINTER = b"version "
_DAMAGED = "the file is damaged or was written by a broken tool: fetch or convert it again"


class Dtype(StrEnum):
    """The element types of safetensors 0.8, by their names in the header."""

    BOOL = "BOOL"
    F4 = "F4"
    F6_E2M3 = "F6_E2M3"
    F6_E3M2 = "F6_E3M2"
    U8 = "U8"
    I8 = "I8"
    F8_E5M2 = "F8_E5M2"
    F8_E4M3 = "F8_E4M3"
    F8_E8M0 = "F8_E8M0"
    F8_E4M3FNUZ = "F8_E4M3FNUZ"
    F8_E5M2FNUZ = "F8_E5M2FNUZ"
    I16 = "I16"
    U16 = "U16"
    F16 = "F16"
    BF16 = "BF16"
    I32 = "I32"
    U32 = "U32"
    F32 = "F32"
    C64 = "C64"
    F64 = "F64"
    I64 = "I64"
    U64 = "U64"

    __hash__ = str.__hash__  # the enum's own is written in Python, and every tensor asks for it several times

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return _BITS[self]

    @property
    def element_bytes(self) -> int:
        """Bytes of one element; 1 for types of less than a byte."""
        return max(1, self.bits // 8)


_BITS: Mapping[Dtype, int] = {
    Dtype.F4: 4,
    Dtype.F6_E2M3: 6,
    Dtype.F6_E3M2: 6,
    **dict.fromkeys((Dtype.BOOL, Dtype.U8, Dtype.I8), 8),
    **dict.fromkeys((Dtype.F8_E5M2, Dtype.F8_E4M3, Dtype.F8_E8M0, Dtype.F8_E4M3FNUZ, Dtype.F8_E5M2FNUZ), 8),
    **dict.fromkeys((Dtype.I16, Dtype.U16, Dtype.F16, Dtype.BF16), 16),
    **dict.fromkeys((Dtype.I32, Dtype.U32, Dtype.F32), 32),
    **dict.fromkeys((Dtype.C64, Dtype.F64, Dtype.I64, Dtype.U64), 64),
}
_DTYPES: Mapping[object, Dtype] = {dtype.value: dtype for dtype in Dtype}


class TensorSpec(NamedTuple):
    """One tensor as its header describes it.

    Attributes:
        name: any string, the empty one included. A key, never a path.
        dtype: element type.
        shape: dimensions in elements; for F4 and F6 they count values, not bytes.
        begin: first byte, from the start of the payload.
        end: byte after the last.
    """

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    begin: int
    end: int


_new_spec: Callable[[Iterable[object]], TensorSpec] = partial(tuple.__new__, TensorSpec)
"""From values in the order of the fields; `TensorSpec._make` does the same at three times the cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A whole header that passed every check.

    Attributes:
        tensors: in the order of their bytes.
        metadata: the free text that the writer left.
        payload_begin: where the payload starts, in bytes from the start of the file.
    """

    tensors: tuple[TensorSpec, ...]
    metadata: Mapping[str, str]
    payload_begin: int


def header_length(prefix: bytes, *, file_bytes: int, file: str) -> int:
    """The header's length N in bytes, from the file's first 8 bytes.

    Args:
        prefix: the first 8 bytes of the file, or all of it where it is shorter.
        file_bytes: how long the file is.
        file: the file's name, for messages.

    Raises:
        HeaderInvalid: no safetensors file, or N is over the cap.
        ShardTruncated: the file ends inside its header.
    """
    if len(prefix) < PREFIX_BYTES:
        raise HeaderInvalid(
            f"no safetensors file: {file_bytes} bytes, and the header's length alone takes {PREFIX_BYTES}",
            Fault.NOT_SAFETENSORS,
            file=file,
            hint="the file is empty or cut short: fetch it again",
        )
    if prefix[:PREFIX_BYTES] == _LFS_POINTER:
        raise HeaderInvalid(
            "a Git LFS pointer, not the weights themselves",
            Fault.NOT_SAFETENSORS,
            file=file,
            hint="run `git lfs pull` in the checkpoint",
        )
    length = int.from_bytes(prefix[:PREFIX_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise HeaderInvalid(
            f"header length {length} is over the cap of {MAX_HEADER_BYTES} bytes",
            Fault.HEADER_TOO_LONG,
            file=file,
            offset=0,
            hint="this is probably no safetensors file",
        )
    if length > file_bytes - PREFIX_BYTES:
        raise ShardTruncated(
            f"the header alone takes {PREFIX_BYTES + length} bytes and the file has {file_bytes}",
            file=file,
            expected_bytes=PREFIX_BYTES + length,
            actual_bytes=file_bytes,
        )
    return length


def parse_header(raw: bytes, *, file_bytes: int, file: str) -> Header:
    """Parse and check a header.

    Args:
        raw: the N bytes after the length.
        file_bytes: how long the file is; its payload must end exactly there.
        file: the file's name, for messages.

    Raises:
        HeaderInvalid: the JSON or one of its values breaks the format.
        LayoutInvalid: the byte ranges don't tile the payload, or don't fit dtype and shape.
        ShardTruncated: the payload is shorter than the ranges need.
    """
    table = _decode(raw, file)
    metadata = _metadata(table.pop(_METADATA_KEY, {}), file)
    if len(table) > MAX_TENSORS:
        raise HeaderInvalid(
            f"{len(table)} tensors are more than the {MAX_TENSORS} allowed", Fault.TOO_MANY_TENSORS, file=file
        )
    try:
        tensors = _specs(table, file)
    except (HeaderInvalid, LayoutInvalid) as error:
        error.offset = _place(error.tensor, raw)
        raise
    payload_begin = PREFIX_BYTES + len(raw)
    if not _follow_each_other(tensors):
        tensors.sort(key=lambda spec: (spec.begin, spec.end))
        _check_tiling(tensors, payload_begin, file)
    _check_end(payload_begin + (tensors[-1].end if tensors else 0), file_bytes, file)
    return Header(tensors=tuple(tensors), metadata=MappingProxyType(metadata), payload_begin=payload_begin)


class _DuplicateKey(ValueError):
    """Two members of one JSON object have the same name."""


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise _DuplicateKey(f"duplicate key {shown(twice)}")
    return members


def _integer(text: str) -> int:
    if text == "-0":
        raise ValueError("-0 is no whole number here")
    return int(text)


def _decode(raw: bytes, file: str) -> dict[str, object]:
    # Every tensor costs one object and two lists. Counting brackets first keeps a header of nothing but "[],[],…"
    # from growing to twenty times its size in memory.
    if raw.count(b"[") + raw.count(b"{") > 4 * MAX_TENSORS:
        raise HeaderInvalid(
            f"more lists and objects than {MAX_TENSORS} tensors need",
            Fault.TOO_MANY_TENSORS,
            file=file,
            hint=_DAMAGED,
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise HeaderInvalid(
            "the header is not UTF-8",
            Fault.NOT_UTF8,
            file=file,
            offset=PREFIX_BYTES + error.start,
            hint=_DAMAGED,
        ) from None
    plain = _decode_plain(text)
    if plain is not None:
        return plain
    # Python takes -0 for 0. Looking for it in each number takes as long as parsing does, so only where it may be.
    parse_int = _integer if "-0" in text else None
    try:
        table = json.loads(text, object_pairs_hook=_unique, parse_int=parse_int)
    except json.JSONDecodeError as error:
        offset = PREFIX_BYTES + len(text[: error.pos].encode())
        raise HeaderInvalid(
            f"the header is not JSON: {error.msg}", Fault.NOT_JSON, file=file, offset=offset, hint=_DAMAGED
        ) from None
    except RecursionError:
        raise HeaderInvalid(
            "the header is nested too deeply", Fault.NESTED_TOO_DEEPLY, file=file, hint=_DAMAGED
        ) from None
    except _DuplicateKey as error:
        hint = "readers would disagree on what this file holds: write it again from its source"
        raise HeaderInvalid(
            f"the header is ambiguous: {error}", Fault.DUPLICATE_KEY, file=file, hint=hint
        ) from None
    except ValueError as error:
        raise HeaderInvalid(
            f"the header is wrong: {error}", Fault.NUMBER_INVALID, file=file, hint=_DAMAGED
        ) from None
    if type(table) is not dict:
        raise HeaderInvalid(
            f"the header is a JSON {type(table).__name__}, not an object",
            Fault.NOT_AN_OBJECT,
            file=file,
            hint=_DAMAGED,
        )
    return table


def _decode_plain(text: str) -> dict[str, object] | None:
    """The table, where it is plain that no key stands twice in it; else None.

    A hook that looks at every object takes as long as all the rest. But each member of an object has one colon outside of strings, and
    a member that was dropped for another of the same name leaves its colon behind in the text. So all colons are counted. Escapes could
    spell more of them.
    """
    if "\\" in text or "-0" in text:
        return None
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return table if type(table) is dict and text.count(":") == _colons(table) else None


def _colons(table: Mapping[str, object]) -> int:
    """How many colons the table was written with: all of them, where it has no more than a header should have."""
    objects = [value for value in table.values() if type(value) is dict]
    metadata = table.get(_METADATA_KEY)
    texts = [*table]
    if type(metadata) is dict:
        texts += metadata
        texts += [text for text in metadata.values() if type(text) is str]
    return len(table) + sum(map(len, objects)) + "".join(texts).count(":")


def _place(name: str | None, raw: bytes) -> int | None:
    """Where in the file a tensor's entry begins; None where its name is spelled in an unusual way."""
    for ascii_only in (False, True):
        key = json.dumps(name, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        position = raw.find(key)
        if position >= 0:
            return PREFIX_BYTES + position
    return None


def _is_text(value: object) -> bool:
    """Whether this is a string that UTF-8 can carry: JSON escapes can spell surrogates, which it can't."""
    if type(value) is not str:
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _metadata(value: object, file: str) -> dict[str, str]:
    if type(value) is not dict:
        raise HeaderInvalid(f"{_METADATA_KEY} is no object", Fault.METADATA_INVALID, file=file, hint=_DAMAGED)
    for key, text in value.items():
        if not _is_text(key) or not _is_text(text):
            raise HeaderInvalid(
                f"{_METADATA_KEY} {shown(key)} is no string",
                Fault.METADATA_INVALID,
                file=file,
                hint=_DAMAGED,
            )
    return value


def _specs(table: Mapping[str, Any], file: str) -> list[TensorSpec]:
    """All tensors, in the table's order.

    Whether one is right is seen here, in a third of the time that `_spec` takes; what is wrong with it is for that to say.
    """
    specs: list[TensorSpec] = []
    sizes: dict[tuple[object, ...], _Sized] = {}  # few tensors have a dtype and a shape that no other has
    for name, fields in table.items():
        try:
            shape, (begin, end) = fields["shape"], fields["data_offsets"]
            for number in (begin, end, *shape):
                if type(number) is not int:  # True is equal to 1
                    raise TypeError
            kind = (fields["dtype"], *shape)
            sized = sizes.get(kind)
            if sized is None:
                sized = sizes[kind] = _sized(*kind)
            of, dims, nbytes = sized
            if (
                end - begin == nbytes
                and begin >= 0
                and end <= MAX_INTEGER
                and len(fields) == len(_ENTRY_FIELDS)
                and type(shape) is list
                and (name.isascii() or _is_text(name))
            ):
                specs.append(_new_spec((name, of, dims, begin, end)))
                continue
        except (TypeError, ValueError, KeyError):
            pass
        specs.append(_spec(name, fields, file))
    return specs


class _Sized(NamedTuple):
    """A dtype and a shape, and the bytes that they come to; None where the shape is wrong, or they aren't whole."""

    dtype: Dtype
    shape: tuple[int, ...]
    nbytes: int | None


def _sized(dtype: str, *shape: int) -> _Sized:
    of = _DTYPES[dtype]
    bits = None if len(shape) > MAX_RANK or min(shape, default=0) < 0 else _bits(of, shape)
    return _Sized(of, shape, None if bits is None or bits % 8 else bits // 8)


def _spec(name: str, fields: object, file: str) -> TensorSpec:
    if not _is_text(name):
        raise _wrong(name, file, Fault.NAME_INVALID, "its name is not valid Unicode")
    if type(fields) is not dict:
        raise _wrong(name, file, Fault.ENTRY_INVALID, "its entry is no object")
    if fields.keys() != _ENTRY_FIELDS:
        raise _wrong(name, file, *_fields_fault(fields))
    if type(fields["dtype"]) is not str or (dtype := _DTYPES.get(fields["dtype"])) is None:
        what = f"unknown dtype {shown(str(fields['dtype']))}"
        raise _wrong(name, file, Fault.DTYPE_UNKNOWN, what)
    shape = _natural_numbers(fields["shape"])
    if shape is None or len(shape) > MAX_RANK:
        what = f"its shape is no list of at most {MAX_RANK} whole numbers from 0 to 2^63-1"
        raise _wrong(name, file, Fault.SHAPE_INVALID, what)
    offsets = _natural_numbers(fields["data_offsets"])
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:  # noqa: PLR2004 - begin and end
        what = "its data_offsets are no two whole numbers, begin then end"
        raise _wrong(name, file, Fault.OFFSETS_INVALID, what)
    spec = TensorSpec(name=name, dtype=dtype, shape=shape, begin=offsets[0], end=offsets[1])
    _check_size(spec, file)
    return spec


def _wrong(name: str, file: str, fault: Fault, what: str) -> HeaderInvalid:
    return HeaderInvalid(f"tensor {shown(name)}: {what}", fault, file=file, tensor=name, hint=_DAMAGED)


def _fields_fault(fields: Mapping[str, object]) -> tuple[Fault, str]:
    missing = sorted(_ENTRY_FIELDS - fields.keys())
    if missing:
        return Fault.FIELD_MISSING, f"its entry lacks {', '.join(missing)}"
    unknown = next(key for key in fields if key not in _ENTRY_FIELDS)
    return Fault.FIELD_UNKNOWN, f"its entry has an unknown field {shown(unknown)}"


def _natural_numbers(value: object) -> tuple[int, ...] | None:
    """The list as a tuple, or None where it is anything but a list of sizes. A bool is no number here."""
    if type(value) is not list:
        return None
    for item in value:  # no any(): a generator for each of a million lists takes as long as all the rest
        if type(item) is not int or not 0 <= item <= MAX_INTEGER:
            return None
    return tuple(value)


def _bits(dtype: Dtype, shape: tuple[int, ...]) -> int | None:
    """Bits of a tensor; None where the number of elements of its shape overflows."""
    # The product leaves zeros out, so that a zero dimension can't hide one that overflows in another reader.
    elements = 1
    for dim in shape:
        elements *= dim or 1
        if elements > MAX_INTEGER:
            return None
    return 0 if 0 in shape else elements * dtype.bits


def _check_size(spec: TensorSpec, file: str) -> None:
    bits = _bits(spec.dtype, spec.shape)
    if bits is None:
        raise LayoutInvalid(
            f"tensor {shown(spec.name)}: the number of elements of its shape overflows 63 bits",
            Fault.SHAPE_OVERFLOW,
            file=file,
            tensor=spec.name,
            hint=_DAMAGED,
        )
    if bits != 8 * (spec.end - spec.begin):
        need = f"{bits // 8} bytes" if bits % 8 == 0 else f"{bits} bits, no whole number of bytes"
        raise LayoutInvalid(
            f"tensor {shown(spec.name)}: {spec.dtype} of shape {list(spec.shape)} takes {need}, "
            f"and its range has {spec.end - spec.begin} bytes",
            Fault.PARTIAL_BYTE if bits % 8 else Fault.SIZE_MISMATCH,
            file=file,
            tensor=spec.name,
            hint=_DAMAGED,
        )


def _follow_each_other(tensors: Sequence[TensorSpec]) -> bool:
    """Whether the tensors are in the order of their bytes already, with no hole and no overlap."""
    ends = [spec.end for spec in tensors]
    return [spec.begin for spec in tensors] == [0, *ends][: len(ends)]


def _check_tiling(tensors: Sequence[TensorSpec], payload_begin: int, file: str) -> None:
    cursor = 0
    for spec in tensors:
        if spec.begin != cursor:
            fault = (
                f"a hole of {spec.begin - cursor} bytes before"
                if spec.begin > cursor
                else f"{cursor - spec.begin} bytes of another tensor inside"
            )
            raise LayoutInvalid(
                f"{fault} tensor {shown(spec.name)}",
                Fault.HOLE if spec.begin > cursor else Fault.OVERLAP,
                file=file,
                tensor=spec.name,
                offset=payload_begin + min(cursor, spec.begin),
                hint=_DAMAGED,
            )
        cursor = spec.end


def _check_end(expected_bytes: int, file_bytes: int, file: str) -> None:
    if expected_bytes > file_bytes:
        raise ShardTruncated(
            f"the tensors end at byte {expected_bytes} and the file has {file_bytes}",
            file=file,
            expected_bytes=expected_bytes,
            actual_bytes=file_bytes,
        )
    if expected_bytes < file_bytes:
        raise LayoutInvalid(
            f"{file_bytes - expected_bytes} bytes after the last tensor",
            Fault.TRAILING_BYTES,
            file=file,
            offset=expected_bytes,
            hint="bytes that no tensor owns can hide another file: write the checkpoint again from its source",
        )

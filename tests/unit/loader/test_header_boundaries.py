"""Sizes at the edges of what is allowed, each rule at least once, and the reference's verdict beside ours."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors

from loader import open_checkpoint
from loader.errors import CheckpointError, Fault, HeaderInvalid, LayoutInvalid, ShardTruncated
from loader.header import MAX_HEADER_BYTES, MAX_TENSORS, Header, header_length, parse_header


def framed(raw: bytes, payload: bytes = b"") -> bytes:
    return len(raw).to_bytes(8, "little") + raw + payload


def parse(data: bytes) -> Header:
    length = header_length(data[:8], file_bytes=len(data), file="f")
    return parse_header(data[8 : 8 + length], file_bytes=len(data), file="f")


def fault_of(data: bytes) -> Fault | None:
    """The code of what is wrong; None where nothing is."""
    try:
        parse(data)
    except (HeaderInvalid, LayoutInvalid) as error:
        return error.fault
    return None


def reference_accepts(data: bytes) -> bool:
    try:
        safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError:
        return False
    return True


def test_the_longest_header_is_read() -> None:
    raw = b'{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    assert (
        len(parse_header(raw.ljust(MAX_HEADER_BYTES), file_bytes=8 + MAX_HEADER_BYTES + 1, file="f").tensors)
        == 1
    )


def test_a_header_of_one_more_byte_is_refused_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes((MAX_HEADER_BYTES + 1).to_bytes(8, "little"))
    os.truncate(path, 8 + MAX_HEADER_BYTES + 1)  # a hole: reading it would find no JSON
    with pytest.raises(HeaderInvalid) as caught:
        open_checkpoint(path)
    assert caught.value.fault is Fault.HEADER_TOO_LONG


@pytest.mark.parametrize("length", [2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1])
def test_a_length_that_would_wrap_around(length: int) -> None:
    with pytest.raises(HeaderInvalid):
        header_length(length.to_bytes(8, "little"), file_bytes=100, file="f")


def test_a_header_that_ends_with_the_file() -> None:
    assert parse(framed(b"{}")).tensors == ()
    with pytest.raises(ShardTruncated):
        parse(framed(b"{}")[:-1])


@pytest.mark.parametrize("count", [1, 1000])
def test_many_tensors(count: int) -> None:
    entries = ",".join(
        f'"{number}":{{"dtype":"U8","shape":[1],"data_offsets":[{number},{number + 1}]}}'
        for number in range(count)
    )
    assert len(parse(framed(f"{{{entries}}}".encode(), bytes(count))).tensors) == count


def test_more_tensors_than_allowed_are_refused_without_an_entry_each() -> None:
    raw = b'{"a":{}' + b',"":{}' * (4 * MAX_TENSORS) + b"}"
    assert fault_of(framed(raw)) is Fault.TOO_MANY_TENSORS


def entry(dtype: str, shape: str, offsets: str, more: str = "") -> bytes:
    return f'{{"x":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}{more}}}}}'.encode()


MAX = 2**63 - 1
ONE = bytes(1)
CASES = {
    "seven bytes": (b"1234567", Fault.NOT_SAFETENSORS),
    "a pointer of Git LFS": (b"version https://git-lfs", Fault.NOT_SAFETENSORS),
    "not UTF-8": (framed(b'{"\xff":1}'), Fault.NOT_UTF8),
    "UTF-8 of a surrogate": (framed(b'{"\xed\xa0\x80":1}'), Fault.NOT_UTF8),
    "NUL padding": (framed(b"{}\0\0"), Fault.NOT_JSON),
    "a byte order mark": (framed(b"\xef\xbb\xbf{}"), Fault.NOT_JSON),
    "a list": (framed(b"[]"), Fault.NOT_AN_OBJECT),
    "a number": (framed(b"1"), Fault.NOT_AN_OBJECT),
    "NaN alone": (framed(b"NaN"), Fault.NOT_AN_OBJECT),
    "deep nesting": (framed(b"[" * 100_000), Fault.NESTED_TOO_DEEPLY),
    "nesting of five": (
        framed(b'{"x":{"dtype":[[[[]]]],"shape":[],"data_offsets":[0,1]}}', ONE),
        Fault.DTYPE_UNKNOWN,
    ),
    "a name twice": (framed(b'{"x":1,"x":1}'), Fault.DUPLICATE_KEY),
    "the same name, escaped": (framed(b'{"x":1,"\\u0078":1}'), Fault.DUPLICATE_KEY),
    "a field twice": (framed(entry("U8", "[1]", "[0,1]", ',"dtype":"I8"'), ONE), Fault.DUPLICATE_KEY),
    "negative zero": (framed(entry("U8", "[-0]", "[0,0]")), Fault.NUMBER_INVALID),
    "endless digits": (framed(entry("U8", f"[{'1' * 5000}]", "[0,1]"), ONE), Fault.NUMBER_INVALID),
    "metadata no object": (framed(b'{"__metadata__":[]}'), Fault.METADATA_INVALID),
    "metadata NaN": (framed(b'{"__metadata__":{"a":NaN}}'), Fault.METADATA_INVALID),
    "a name that is no text": (framed(b'{"\\ud800":{}}'), Fault.NAME_INVALID),
    "an entry that is no object": (framed(b'{"x":[]}'), Fault.ENTRY_INVALID),
    "a field less": (framed(b'{"x":{"dtype":"U8","shape":[1]}}', ONE), Fault.FIELD_MISSING),
    "a field more": (framed(entry("U8", "[1]", "[0,1]", ',"y":1'), ONE), Fault.FIELD_UNKNOWN),
    "an unknown dtype": (framed(entry("F3", "[1]", "[0,1]"), ONE), Fault.DTYPE_UNKNOWN),
    "a bool as dimension": (framed(entry("U8", "[true]", "[0,1]"), ONE), Fault.SHAPE_INVALID),
    "a float as dimension": (framed(entry("U8", "[1.0]", "[0,1]"), ONE), Fault.SHAPE_INVALID),
    "an infinite dimension": (framed(entry("U8", "[Infinity]", "[0,1]"), ONE), Fault.SHAPE_INVALID),
    "2^63 as dimension": (framed(entry("U8", f"[{MAX + 1}]", "[0,1]"), ONE), Fault.SHAPE_INVALID),
    "17 dimensions": (framed(entry("U8", str([1] * 17), "[0,1]"), ONE), Fault.SHAPE_INVALID),
    "one offset": (framed(entry("U8", "[1]", "[1]"), ONE), Fault.OFFSETS_INVALID),
    "three offsets": (framed(entry("U8", "[1]", "[0,1,1]"), ONE), Fault.OFFSETS_INVALID),
    "offsets backwards": (framed(entry("U8", "[1]", "[1,0]"), ONE), Fault.OFFSETS_INVALID),
    "a negative offset": (framed(entry("U8", "[1]", "[-1,0]"), ONE), Fault.OFFSETS_INVALID),
    "2^63 elements": (framed(entry("U8", f"[{2**62},2]", "[0,0]")), Fault.SHAPE_OVERFLOW),
    "2^63 elements times zero": (framed(entry("U8", f"[{2**62},2,0]", "[0,0]")), Fault.SHAPE_OVERFLOW),
    "2^64 times zero, the other way": (framed(entry("U8", f"[0,{2**62},4]", "[0,0]")), Fault.SHAPE_OVERFLOW),
    "half a byte": (framed(entry("F4", "[3]", "[0,1]"), ONE), Fault.PARTIAL_BYTE),
    "a quarter of a byte": (framed(entry("F6_E3M2", "[1]", "[0,1]"), ONE), Fault.PARTIAL_BYTE),
    "a range too short": (framed(entry("U8", "[2]", "[0,1]"), ONE), Fault.SIZE_MISMATCH),
    "a range too long": (framed(entry("U8", "[0]", "[0,1]"), ONE), Fault.SIZE_MISMATCH),
    "a hole at the start": (framed(entry("U8", "[1]", "[1,2]"), bytes(2)), Fault.HOLE),
    "bytes after the last": (framed(entry("U8", "[1]", "[0,1]"), bytes(2)), Fault.TRAILING_BYTES),
    "an overlap": (
        framed(
            b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}',
            bytes(3),
        ),
        Fault.OVERLAP,
    ),
    "16 dimensions": (framed(entry("U8", str([1] * 16), "[0,1]"), ONE), None),
    "leading and trailing space": (framed(b" \t\r\n{} \n"), None),
    "an unaligned tensor": (
        framed(
            b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F64","shape":[1],"data_offsets":[1,9]}}',
            bytes(9),
        ),
        None,
    ),
    "an empty tensor listed behind the one that it begins with": (
        framed(
            b'{"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
            ONE,
        ),
        None,
    ),
    "names that look like paths": (
        framed(
            b'{"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"../x":{"dtype":"U8","shape":[],"data_offsets":[1,2]}}',
            bytes(2),
        ),
        None,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_rule(case: str) -> None:
    data, fault = CASES[case]
    assert fault_of(data) == fault
    if fault is None:
        assert reference_accepts(data)


def test_every_code_has_its_case() -> None:
    others = {Fault.HEADER_TOO_LONG, Fault.TOO_MANY_TENSORS}
    assert {fault for _, fault in CASES.values() if fault} | others == set(Fault)


@pytest.mark.parametrize("size", [100_000, 200_000])
def test_refusing_a_duplicate_among_many_is_linear(size: int) -> None:
    raw = ("{" + ",".join(f'"{number}":1' for number in range(size)) + ',"5":1}').encode()
    assert fault_of(framed(raw)) is Fault.DUPLICATE_KEY


def test_an_error_tells_file_tensor_and_place() -> None:
    with pytest.raises(CheckpointError) as caught:
        parse(framed(b'{"a\\"b":{"dtype":"U8","shape":[1]}}', ONE))
    assert (caught.value.file, caught.value.tensor, caught.value.offset) == ("f", 'a"b', 8 + 1)


def test_names_are_never_paths(tmp_path: Path) -> None:
    data, _ = CASES["names that look like paths"]
    (tmp_path / "m.safetensors").write_bytes(data)
    before = sorted(path.name for path in tmp_path.parent.iterdir())
    assert list(open_checkpoint(tmp_path).tensors) == ["", "../x"]
    assert sorted(path.name for path in tmp_path.parent.iterdir()) == before


Change = Callable[[Path], object]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda path: path.write_bytes(path.read_bytes() + b"x"), id="grown"),
        pytest.param(lambda path: os.truncate(path, 60), id="cut"),
        pytest.param(lambda path: path.write_bytes(bytes(path.stat().st_size)), id="overwritten"),
    ],
)
def test_a_file_that_changes_is_refused_when_it_is_opened_again(tmp_path: Path, change: Change) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(framed(entry("U8", "[1]", "[0,1]"), ONE))
    open_checkpoint(path)
    change(path)
    with pytest.raises(CheckpointError):
        open_checkpoint(path)

"""The header parser against the reference implementation: strict, total, and never more permissive."""

import json
import math

import numpy as np
import safetensors
import safetensors.numpy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from loader.errors import CheckpointError
from loader.header import Dtype, Header, header_length, parse_header

UNTIMED = settings(deadline=None)  # a busy machine is no failure
NUMPY_DTYPES = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "F16": np.float16,
    "U32": np.uint32,
    "I32": np.int32,
    "F32": np.float32,
    "U64": np.uint64,
    "I64": np.int64,
    "F64": np.float64,
    "C64": np.complex64,
}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = TEXTS.filter(lambda name: name != "__metadata__")


def parse(data: bytes) -> Header:
    length = header_length(data[:8], file_bytes=len(data), file="f")
    return parse_header(data[8 : 8 + length], file_bytes=len(data), file="f")


def framed(header: bytes, payload: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + payload


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = np.dtype(NUMPY_DTYPES[draw(st.sampled_from(sorted(NUMPY_DTYPES)))])
    shape = draw(npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    return np.full(shape, draw(npst.from_dtype(dtype)), dtype)


@UNTIMED
@given(
    tensors=st.dictionaries(NAMES, arrays(), max_size=6),
    # Not empty: without tensors the reference then writes a header that is no JSON.
    metadata=st.none() | st.dictionaries(NAMES, TEXTS, min_size=1, max_size=3),
)
def test_what_the_reference_writes_is_read_back(
    tensors: dict[str, np.ndarray], metadata: dict[str, str] | None
) -> None:
    data = safetensors.numpy.save(tensors, metadata=metadata)
    header = parse(data)
    assert {spec.name for spec in header.tensors} == tensors.keys()
    assert header.metadata == (metadata or {})
    for spec in header.tensors:
        array = tensors[spec.name]
        assert spec.shape == array.shape
        assert NUMPY_DTYPES[spec.dtype] == array.dtype
        assert data[header.payload_begin + spec.begin : header.payload_begin + spec.end] == array.tobytes()


def check_against_reference(data: bytes) -> bool:
    """Whether we accept it. No other exception than ours, and the reference reads what we accept as we do."""
    try:
        header = parse(data)
    except CheckpointError:
        return False
    reference = dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
    assert reference.keys() == {spec.name for spec in header.tensors}
    for spec in header.tensors:
        assert reference[spec.name]["dtype"] == spec.dtype
        assert reference[spec.name]["shape"] == list(spec.shape)
        begin = header.payload_begin + spec.begin
        assert bytes(reference[spec.name]["data"]) == data[begin : begin + spec.end - spec.begin]
    return True


VALID = json.dumps(
    {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "F4", "shape": [8], "data_offsets": [24, 28]},
        "e": {"dtype": "U8", "shape": [0], "data_offsets": [24, 24]},
        "é": {"dtype": "F8_E8M0", "shape": [], "data_offsets": [28, 29]},
    },
    ensure_ascii=False,
).encode()
PAYLOAD = bytes(range(29))
JSON_PARTS = (
    rb'[ ] { } , : " \ 0 - -0 1 .0 e0 99999999999999999999 null true NaN "a" "dtype" "x":1, \u0000 \ud800'
)
NOT_JSON = [b"\0", b"\xff", b"\xef\xbb\xbf"]
FRAGMENTS = st.sampled_from([b"", b" ", b"\n", *JSON_PARTS.split(), *NOT_JSON]) | st.binary(max_size=3)


def test_the_unmutated_header_is_accepted() -> None:
    assert check_against_reference(framed(VALID, PAYLOAD))


@UNTIMED
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(VALID)), st.integers(0, 4), FRAGMENTS), min_size=1, max_size=3
    ),
    grown=st.integers(-2, 2),
)
def test_mutated_bytes(edits: list[tuple[int, int, bytes]], grown: int) -> None:
    header = VALID
    for position, removed, inserted in edits:
        header = header[:position] + inserted + header[position + removed :]
    payload = PAYLOAD[:grown] if grown < 0 else PAYLOAD + bytes(grown)
    check_against_reference(framed(header, payload))


SIZES = st.sampled_from([0, 1, 2, 3, 4, 8, 2**31, 2**62, 2**63 - 1, 2**63, 2**64, -1, 1.0, True, None, "1"])
SMALL = st.integers(0, 8)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*Dtype, "F3", "f32", 1]),
        "shape": st.lists(SMALL | SIZES, max_size=3),
        "data_offsets": st.lists(SMALL | SIZES, min_size=1, max_size=3),
    }
)


@UNTIMED
@given(
    table=st.dictionaries(st.sampled_from(["a", "b", ""]), ENTRIES, max_size=3),
    payload=st.binary(max_size=16),
)
@example(table={"a": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}, payload=b"abc")
def test_odd_values(table: dict[str, object], payload: bytes) -> None:
    check_against_reference(framed(json.dumps(table).encode(), payload))


@st.composite
def tilings(draw: st.DrawFn) -> tuple[dict[str, object], bytes]:
    """Tables whose ranges tile the payload, in any order, of any dtype, unaligned and empty ones among them."""
    table: dict[str, object] = {}
    end = 0
    for position in range(draw(st.integers(0, 5))):
        dtype = draw(st.sampled_from(Dtype))
        shape = draw(st.lists(st.integers(0, 3), max_size=2))
        bits = math.prod(shape) * dtype.bits
        if bits % 8:
            shape.append(4)
            bits *= 4
        table[f"t{position}"] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + bits // 8]}
        end += bits // 8
    order = draw(st.permutations(list(table)))
    return {name: table[name] for name in order}, bytes(position % 251 for position in range(end))


@UNTIMED
@given(tilings())
def test_every_valid_tiling_is_accepted(case: tuple[dict[str, object], bytes]) -> None:
    table, payload = case
    assert check_against_reference(framed(json.dumps(table).encode(), payload))


@UNTIMED
@given(st.binary(max_size=64))
def test_any_bytes_at_all(data: bytes) -> None:
    check_against_reference(data)

"""Random headers, by our parser and by the reference: whatever we accept it accepts and reads alike, and what it accepts and
we don't is on the list.

`pytest -m long tests/property/test_loader_fuzz.py` tries a hundred times as many.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator

import pytest
import safetensors

from loader.errors import CheckpointError, Fault, HeaderInvalid, LayoutInvalid
from loader.header import Dtype, Header, header_length, parse_header

STRICTER = {
    Fault.DUPLICATE_KEY,
    Fault.FIELD_UNKNOWN,
    Fault.SHAPE_INVALID,  # more than 16 dimensions
}
"""What we refuse and the reference accepts."""

PAYLOAD = bytes(range(64))
PIECES = (
    b"", b" ", b"\n", b"\t", b"\0", b"\xff", b"\xef\xbb\xbf", b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\",
    b"0", b"1", b"-0", b"-1", b"00", b"1.0", b"1e2", b"1e400", b"99999999999999999999", b"9223372036854775807",
    b"9223372036854775808", b"18446744073709551616", b"NaN", b"Infinity", b"null", b"true", b"false", b"[]", b"{}",
    b'"a"', b'"dtype":"U8",', b'"shape":[1],', b'"data_offsets":[0,1],', b'"x":1,', b'"__metadata__":{"a":"b"},',
    b'"__metadata__":{},', b"\\u0000", b"\\ud800", b"\\udc00", b"\\ud83d\\ude00", "é".encode(), b"U8", b"F4", b"F6_E2M3",
    b"BF16", b"F64", b"BOOL",
)  # fmt: skip


def valid_table(choose: random.Random) -> dict[str, object]:
    """Tensors that tile the payload or nearly, in any order."""
    table: dict[str, object] = {}
    end = 0
    for number in range(choose.randrange(6)):
        dtype = choose.choice(list(Dtype))
        shape = [choose.randrange(4) for _ in range(choose.randrange(3))]
        bits = dtype.bits
        for size in shape:
            bits *= size
        if bits % 8:
            shape.append(4)
            bits *= 4
        table[f"t{number}"] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + bits // 8]}
        end += bits // 8
    if choose.random() < 0.3:
        table["__metadata__"] = {"format": "pt"}
    items = list(table.items())
    choose.shuffle(items)
    return dict(items)


def payload_bytes(table: dict[str, object]) -> int:
    return max(
        (fields["data_offsets"][1] for name, fields in table.items() if name != "__metadata__"),  # type: ignore[index]
        default=0,
    )


def written(table: dict[str, object], choose: random.Random) -> bytes:
    """The table as text, sometimes with an entry twice, a field more, or a dimension too many."""
    text = json.dumps(table)
    name = choose.choice(list(table) or [""])
    match choose.randrange(12):
        case 0 if table:
            text = f"{text[:-1]}, {json.dumps({name: table[name]})[1:]}"
        case 1:
            text = text.replace('{"dtype"', '{"more": 1, "dtype"', 1)
        case 2:
            text = text.replace('"shape": []', f'"shape": {[1] * 17}', 1)
    return text.encode()


def mutated(raw: bytes, choose: random.Random) -> bytes:
    for _ in range(choose.randrange(4)):
        at = choose.randrange(len(raw) + 1)
        match choose.randrange(4):
            case 0:
                raw = raw[:at] + choose.choice(PIECES) + raw[at:]
            case 1:
                raw = raw[:at] + choose.choice(PIECES) + raw[at + choose.randrange(4) :]
            case 2:
                raw = raw[:at] + raw[at + choose.randrange(6) :]
            case _:
                start = choose.randrange(len(raw) + 1)
                raw = raw[:at] + raw[start : start + choose.randrange(40)] + raw[at:]
    return raw


def headers(count: int) -> Iterator[tuple[bytes, int]]:
    """Headers, each with the number of payload bytes that follow it."""
    choose = random.Random(20)
    for _ in range(count):
        table = valid_table(choose)
        nbytes = payload_bytes(table) + choose.choice((0, 0, 0, 0, 0, 0, 1, -1))
        yield mutated(written(table, choose), choose), max(0, nbytes)


def ours(data: bytes) -> Header | CheckpointError:
    try:
        length = header_length(data[:8], file_bytes=len(data), file="f")
        return parse_header(data[8 : 8 + length], file_bytes=len(data), file="f")
    except CheckpointError as error:
        return error


def reference(data: bytes) -> dict[str, dict[str, object]] | None:
    try:
        return dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError:
        return None


def check_alike(header: Header, expected: dict[str, dict[str, object]], data: bytes) -> None:
    assert {spec.name for spec in header.tensors} == expected.keys()
    for spec in header.tensors:
        fields = expected[spec.name]
        assert (spec.dtype, list(spec.shape)) == (fields["dtype"], fields["shape"])
        begin = header.payload_begin + spec.begin
        assert bytes(fields["data"]) == data[begin : begin + spec.end - spec.begin]  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "count", [2000, pytest.param(200_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_what_we_accept_the_reference_accepts_and_reads_alike(count: int) -> None:
    verdicts: Counter[str] = Counter()
    for raw, nbytes in headers(count):
        data = len(raw).to_bytes(8, "little") + raw + (PAYLOAD * 4)[:nbytes]
        found, expected = ours(data), reference(data)
        if isinstance(found, Header):
            assert expected is not None, raw
            check_alike(found, expected, data)
            verdicts["accepted"] += 1
        elif expected is not None:
            assert isinstance(found, (HeaderInvalid, LayoutInvalid)), raw
            assert found.fault in STRICTER, (found.fault, raw)
            verdicts["stricter"] += 1
        else:
            verdicts["refused"] += 1
    print(f"{count} headers: {dict(verdicts)}")  # noqa: T201 - shown with pytest -s
    # The generator reaches all three, or the rest proves nothing.
    assert min(verdicts[name] for name in ("accepted", "stricter", "refused")) >= count // 500, verdicts

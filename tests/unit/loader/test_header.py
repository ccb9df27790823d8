import json
from pathlib import Path

import pytest

from loader.errors import CheckpointError, HeaderInvalid, LayoutInvalid, ShardTruncated
from loader.header import MAX_HEADER_BYTES, Dtype, Header, header_length, parse_header

CORPUS = Path(__file__).parent / "corpus"
VERDICTS = json.loads((CORPUS / "expected.json").read_text())


def parse_file(data: bytes) -> Header:
    length = header_length(data[:8], file_bytes=len(data), file="f")
    return parse_header(data[8 : 8 + length], file_bytes=len(data), file="f")


def parse(text: str, payload_bytes: int) -> Header:
    raw = text.encode()
    return parse_header(raw, file_bytes=8 + len(raw) + payload_bytes, file="f")


@pytest.mark.parametrize("file", sorted(path.name for path in CORPUS.glob("*.safetensors")))
def test_verdict_on_corpus(file: str) -> None:
    try:
        parse_file((CORPUS / file).read_bytes())
    except CheckpointError:
        verdict = "reject"
    else:
        verdict = "accept"
    assert verdict == VERDICTS[file]


def test_corpus_is_whole() -> None:
    assert {path.name for path in CORPUS.glob("*.safetensors")} == VERDICTS.keys()
    assert len(VERDICTS) == 34


def entry(dtype: str = "F32", shape: str = "[1]", offsets: str = "[0,4]", more: str = "") -> str:
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}{more}}}'


@pytest.mark.parametrize(
    ("text", "error", "what"),
    [
        pytest.param("", HeaderInvalid, "not JSON", id="empty"),
        pytest.param("[]", HeaderInvalid, "not an object", id="list"),
        pytest.param("null", HeaderInvalid, "not an object", id="null"),
        pytest.param("\ufeff{}", HeaderInvalid, "not JSON", id="byte order mark"),
        pytest.param("{}\0", HeaderInvalid, "not JSON", id="NUL padding"),
        pytest.param("{}{}", HeaderInvalid, "not JSON", id="two documents"),
        pytest.param('{"a":1}', HeaderInvalid, "'a': its entry is no object", id="entry no object"),
        pytest.param(f'{{"a":{entry()},"a":{entry()}}}', HeaderInvalid, "duplicate key 'a'", id="name twice"),
        pytest.param(
            f'{{"a":{entry(more=chr(44) + chr(34) + "dtype" + chr(34) + ":" + chr(34) + "I32" + chr(34))}}}',
            HeaderInvalid,
            "duplicate key 'dtype'",
            id="field twice",
        ),
        pytest.param(
            f'{{"__metadata__":{{}},"a":{entry()},"__metadata__":{{}}}}',
            HeaderInvalid,
            "duplicate key '__metadata__'",
            id="metadata twice",
        ),
        pytest.param(
            '{"__metadata__":{"a":"1","a":"2"}}', HeaderInvalid, "duplicate key 'a'", id="metadata key twice"
        ),
        pytest.param('{"__metadata__":null}', HeaderInvalid, "__metadata__ is no object", id="metadata null"),
        pytest.param('{"__metadata__":{"a":1}}', HeaderInvalid, "'a' is no string", id="metadata number"),
        pytest.param('{"__metadata__":{"a":NaN}}', HeaderInvalid, "'a' is no string", id="metadata NaN"),
        pytest.param(
            '{"__metadata__":{"a":"\\ud800"}}', HeaderInvalid, "'a' is no string", id="metadata surrogate"
        ),
        pytest.param(f'{{"\\udc00":{entry()}}}', HeaderInvalid, "not valid Unicode", id="name surrogate"),
        pytest.param(f'{{"a":{entry(dtype="F3")}}}', HeaderInvalid, "unknown dtype 'F3'", id="unknown dtype"),
        pytest.param(
            f'{{"a":{entry(dtype="f32")}}}', HeaderInvalid, "unknown dtype 'f32'", id="dtype lower case"
        ),
        pytest.param(
            '{"a":{"dtype":[],"shape":[],"data_offsets":[0,4]}}',
            HeaderInvalid,
            "unknown dtype",
            id="dtype list",
        ),
        pytest.param(
            '{"a":{"dtype":"F32","shape":[1]}}', HeaderInvalid, "lacks data_offsets", id="no offsets"
        ),
        pytest.param(
            f'{{"a":{entry(more=chr(44) + chr(34) + "x" + chr(34) + ":1")}}}',
            HeaderInvalid,
            "unknown field 'x'",
            id="more",
        ),
        pytest.param(f'{{"a":{entry(shape="[true]")}}}', HeaderInvalid, "its shape", id="bool dimension"),
        pytest.param(f'{{"a":{entry(shape="[1.0]")}}}', HeaderInvalid, "its shape", id="float dimension"),
        pytest.param(f'{{"a":{entry(shape="[1e0]")}}}', HeaderInvalid, "its shape", id="exponent dimension"),
        pytest.param(f'{{"a":{entry(shape="[-1]")}}}', HeaderInvalid, "its shape", id="negative dimension"),
        pytest.param(f'{{"a":{entry(shape="[-0,1]")}}}', HeaderInvalid, "-0", id="negative zero"),
        pytest.param(f'{{"a":{entry(shape="[NaN]")}}}', HeaderInvalid, "its shape", id="NaN dimension"),
        pytest.param(f'{{"a":{entry(shape="1")}}}', HeaderInvalid, "its shape", id="shape no list"),
        pytest.param(
            f'{{"a":{entry(shape="[9223372036854775808]")}}}', HeaderInvalid, "its shape", id="dimension 2^63"
        ),
        pytest.param(
            f'{{"a":{entry(shape="[" + "9" * 5000 + "]")}}}', HeaderInvalid, "digit", id="endless digits"
        ),
        pytest.param(f'{{"a":{entry(shape=str([1] * 17))}}}', HeaderInvalid, "its shape", id="rank 17"),
        pytest.param(f'{{"a":{entry(offsets="[0]")}}}', HeaderInvalid, "data_offsets", id="one offset"),
        pytest.param(
            f'{{"a":{entry(offsets="[4,0]")}}}', HeaderInvalid, "data_offsets", id="offsets swapped"
        ),
        pytest.param(f'{{"a":{entry(offsets="[0,4.0]")}}}', HeaderInvalid, "data_offsets", id="float offset"),
        pytest.param(
            f'{{"a":{entry(shape="[2]")}}}', LayoutInvalid, "takes 8 bytes", id="shape larger than range"
        ),
        pytest.param(
            f'{{"a":{entry(shape="[4611686018427387904,4]", offsets="[0,0]")}}}',
            LayoutInvalid,
            "overflows",
            id="product 2^64",
        ),
        pytest.param(
            f'{{"a":{entry(shape="[4611686018427387904,4,0]", offsets="[0,0]")}}}',
            LayoutInvalid,
            "overflows",
            id="overflow hidden by zero",
        ),
        pytest.param(
            f'{{"a":{entry(dtype="F6_E2M3", shape="[3]", offsets="[0,2]")}}}',
            LayoutInvalid,
            "18 bits",
            id="half a byte",
        ),
        pytest.param(
            f'{{"a":{entry()},"b":{entry(shape="[0]", offsets="[2,2]")}}}',
            LayoutInvalid,
            "inside tensor 'b'",
            id="empty inside",
        ),
        pytest.param(
            f'{{"a":{entry(shape="[2]", offsets="[0,8]")}}}', ShardTruncated, "the file has", id="cut"
        ),
        pytest.param("{}", LayoutInvalid, "4 bytes after the last tensor", id="payload of nobody"),
    ],
)
def test_fault_is_named(text: str, error: type[CheckpointError], what: str) -> None:
    with pytest.raises(error) as caught:
        parse(text, payload_bytes=4)
    assert type(caught.value) is error
    assert what in caught.value.what
    assert caught.value.file == "f"


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"a":['], ids=["lists", "objects", "both"])
def test_deep_nesting_is_a_typed_error(opening: str) -> None:
    with pytest.raises(HeaderInvalid, match="nested too deeply"):
        parse(opening * 100_000, payload_bytes=0)


def test_header_of_nothing_but_lists_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(HeaderInvalid, match="more lists and objects"):
        parse('{"a":[' + "[]," * 4_000_001 + "[]]}", payload_bytes=0)


def test_json_error_tells_the_byte_not_the_character() -> None:
    with pytest.raises(HeaderInvalid) as caught:
        parse('{"äöü": x}', payload_bytes=0)
    assert caught.value.offset == 8 + len('{"äöü": '.encode())


def test_bad_utf8_tells_the_byte() -> None:
    with pytest.raises(HeaderInvalid, match="not UTF-8") as caught:
        parse_header(b'{"\xff":1}', file_bytes=100, file="f")
    assert caught.value.offset == 8 + 2


@pytest.mark.parametrize(
    ("prefix", "file_bytes", "error"),
    [
        pytest.param(b"", 0, HeaderInvalid, id="empty file"),
        pytest.param(b"1234567", 7, HeaderInvalid, id="seven bytes"),
        pytest.param(
            (MAX_HEADER_BYTES + 1).to_bytes(8, "little"), 2**40, HeaderInvalid, id="one over the cap"
        ),
        pytest.param(b"\xff" * 8, 2**40, HeaderInvalid, id="2^64 - 1"),
        pytest.param((93).to_bytes(8, "little"), 100, ShardTruncated, id="one byte short"),
    ],
)
def test_length_is_checked_first(prefix: bytes, file_bytes: int, error: type[CheckpointError]) -> None:
    with pytest.raises(error):
        header_length(prefix, file_bytes=file_bytes, file="f")


def test_longest_header_that_fits() -> None:
    assert header_length((92).to_bytes(8, "little"), file_bytes=100, file="f") == 92
    assert (
        header_length(MAX_HEADER_BYTES.to_bytes(8, "little"), file_bytes=2**40, file="f") == MAX_HEADER_BYTES
    )


def test_git_lfs_pointer_is_recognised() -> None:
    with pytest.raises(HeaderInvalid, match="Git LFS pointer") as caught:
        header_length(b"version https://"[:8], file_bytes=130, file="f")
    assert "git lfs pull" in str(caught.value)


def test_truncation_tells_both_lengths() -> None:
    with pytest.raises(ShardTruncated) as caught:
        parse(f'{{"a":{entry()}}}', payload_bytes=3)
    assert caught.value.expected_bytes - caught.value.actual_bytes == 1


def test_tensors_come_in_the_order_of_their_bytes() -> None:
    header = parse(
        f'{{"b":{entry(offsets="[4,8]")},"e":{entry(shape="[0]", offsets="[4,4]")},"a":{entry()}}}',
        payload_bytes=8,
    )
    assert [spec.name for spec in header.tensors] == ["a", "e", "b"]


def test_scalar_and_whitespace_and_metadata() -> None:
    header = parse(f' \n{{"__metadata__":{{"format":"pt"}},"s":{entry(shape="[]")}}}\t\r ', payload_bytes=4)
    assert header.tensors[0].shape == ()
    assert header.metadata == {"format": "pt"}


def test_hostile_name_is_shortened_and_escaped_in_messages() -> None:
    name = "\\u001b[31m" + "x" * 10_000
    with pytest.raises(HeaderInvalid) as caught:
        parse(f'{{"{name}":1}}', payload_bytes=0)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("dtype", list(Dtype))
def test_every_dtype_has_its_size(dtype: Dtype) -> None:
    nbytes = dtype.bits  # of eight elements
    header = parse(
        f'{{"a":{entry(dtype=dtype, shape="[8]", offsets=f"[0,{nbytes}]")}}}', payload_bytes=nbytes
    )
    assert header.tensors[0].dtype is dtype


@pytest.mark.parametrize(
    "shape", ["[true]", "[1.0]", '["1"]', "[[1]]", "[1,true]", "1", '{"1":1}', '""', "{}"]
)
def test_a_shape_that_is_like_the_one_before_must_be_of_numbers_too(shape: str) -> None:
    second = entry(shape=shape, offsets="[4,8]")
    with pytest.raises(HeaderInvalid, match="'b': its shape"):
        parse(f'{{"a":{entry()},"s":{entry(shape="[]", offsets="[8,12]")},"b":{second}}}', payload_bytes=12)


@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        ('{"format":"pt"}', "model:layers::0"),
        ('{"a:b":"::","c":""}', "a"),
        ('{"colons ::: in":"text: of \\u003a all \\" kinds"}', ":"),
        ("{}", "-0"),
    ],
)
def test_colons_and_escapes_in_text_are_text(metadata: str, name: str) -> None:
    header = parse(f'{{"__metadata__":{metadata},"{name}":{entry()}}}', payload_bytes=4)
    assert header.metadata == json.loads(metadata)
    assert [spec.name for spec in header.tensors] == [name]


@pytest.mark.parametrize(
    "text",
    [
        f'{{":":{entry()},":":{entry()}}}',
        f'{{"__metadata__":{{"::":"","::":":"}},"a":{entry()}}}',
        f'{{"__metadata__":{{"a":"\\u003a","a":""}},"b":{entry()}}}',
        f'{{"\\u003a\\u003a":{entry()},"a":{{"shape":[],"shape":[]}}}}',
        '{"a":{"b":{"c":1,"c":2}}}',
        '{"a":[{"c":1,"c":2}]}',
    ],
)
def test_a_key_that_stands_twice_is_seen_whatever_colons_there_are(text: str) -> None:
    with pytest.raises(HeaderInvalid, match="duplicate key"):
        parse(text, payload_bytes=4)

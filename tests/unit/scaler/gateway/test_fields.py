"""What a body is routed by is found without parsing it, however it comes in pieces."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.gateway.fields import MOST_MARKS, BodyRejected, Fields, multipart_model, read_whole

WANTED = ("model", "stream")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def read(body: bytes, sizes: tuple[int, ...] = (1 << 16,)) -> dict[str, object]:
    fields, at, turn = Fields(WANTED), 0, 0
    while at < len(body):
        size = sizes[turn % len(sizes)]
        fields.feed(body[at : at + size])
        while fields.more():
            pass
        at, turn = at + size, turn + 1
    fields.end()
    return fields.values


def flat(value: object) -> object:
    """What is kept of a value: nothing of an array or an object."""
    return None if isinstance(value, list | dict) else value


@given(
    body=st.dictionaries(st.text(max_size=8) | st.sampled_from(WANTED), JSON, max_size=6),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    ascii_only=st.booleans(),
    indent=st.none() | st.integers(0, 3),
)
def test_it_finds_what_a_parser_finds(
    body: dict[str, Any],
    sizes: list[int],
    ascii_only: bool,  # noqa: FBT001 - Hypothesis draws it
    indent: int | None,
) -> None:
    raw = json.dumps(body, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    expected = {key: flat(value) for key, value in body.items() if key in WANTED}
    assert read(raw, tuple(sizes)) == expected
    try:
        assert read_whole(raw, WANTED) == expected
    except BodyRejected:  # half of a pair of surrogates, which is no UTF-8
        assert not ascii_only


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("body", "model"),
    [
        pytest.param(b'{"model": "a", "model": "b"}', "b", id="the last of two counts"),
        pytest.param(b'{"mod\\u0065l": "a"}', "a", id="a key with an escape"),
        pytest.param(b'{"x": {"model": "a"}, "model": "b"}', "b", id="not one deeper inside"),
        pytest.param(b'{"x": "\\"model\\": \\"a\\"", "model": "b"}', "b", id="not one in a text"),
        pytest.param(b'{"x": "\\\\", "model": "b"}', "b", id="a backslash at a text's end"),
        pytest.param(b'{"x": [["}", {"]": "{"}]], "model": "b"}', "b", id="brackets in texts"),
        pytest.param(b' \n{ "model" :\t"b" } \n', "b", id="spaces"),
        pytest.param(b'{"model": "\\u00fc/\\n"}', "ü/\n", id="escapes"),
        pytest.param('{"model": "ü"}'.encode(), "ü", id="UTF-8"),
        pytest.param(b'{"x": "\xff\xfe", "model": "b"}', "b", id="no UTF-8 elsewhere: the engine's affair"),
        pytest.param(b'{"x":' + b'"' + b"z" * 9000 + b'", "model": "b"}', "b", id="a long text"),
        pytest.param(b'{"' + b"k" * 9000 + b'": 1, "model": "b"}', "b", id="a long key"),
    ],
)
def test_the_model_is_found(body: bytes, model: str, size: int) -> None:
    assert read(body, (size,)) == {"model": model}


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[]", id="a list"),
        pytest.param(b"x", id="a word"),
        pytest.param(b"\xff\xfe{", id="another encoding"),
        pytest.param(b"{model: 1}", id="a bare key"),
        pytest.param(b'{"model" "a"}', id="no colon"),
        pytest.param(b'{"model": "a" "b"}', id="no comma"),
        pytest.param(b'{"model": "a"} {}', id="something after it"),
        pytest.param(b'{"model": "\xff"}', id="a model that is no text"),
        pytest.param(b'{"model": "\\x"}', id="a model with a wrong escape"),
        pytest.param(b'{"model": nope}', id="a model that is a word"),
        pytest.param(b'{"model": "' + b"m" * 5000 + b'"}', id="a model too long"),
        pytest.param(b'{"x": ' + b"[" * 1000, id="too deep"),
    ],
)
def test_what_is_no_object_is_refused(body: bytes, size: int) -> None:
    with pytest.raises(BodyRejected):
        read(body, (size,))


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"x", b"[" * 100_000, b'{"model": "\xff"}', b"\xff\xfe{\x00}\x00"]
)
def test_a_small_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(BodyRejected):
        read_whole(body, WANTED)


@given(st.data())
def test_a_part_of_an_object_is_none(data: st.DataObject) -> None:
    body = b'{"model": "a\\n", "x": [1, {"y": "z"}], "stream": true}'
    with pytest.raises(BodyRejected):
        read(body[: data.draw(st.integers(1, len(body) - 1))], (3,))


def test_a_long_piece_is_looked_at_in_turns() -> None:
    fields = Fields(WANTED)
    fields.feed(b'{"x": [' + b"[]," * 3 * MOST_MARKS + b'0], "model": "a"}')
    turns = 0
    while fields.more():
        turns += 1
    fields.end()
    assert turns == 6
    assert fields.values == {"model": "a"}


FORM = (
    b'--xx\r\nContent-Disposition: form-data; name="file"; filename="model"\r\nContent-Type: audio/wav\r\n\r\n'
    b'RIFF name="model"\r\n\r\n--x\r\n--xx\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--xx--\r\n'
)


@pytest.mark.parametrize(
    ("content_type", "form", "model"),
    [
        pytest.param("multipart/form-data; boundary=xx", FORM, "whisper", id="after a file"),
        pytest.param('multipart/form-data; boundary="xx"', FORM, "whisper", id="a boundary in quotes"),
        pytest.param("multipart/form-data", FORM, None, id="no boundary"),
        pytest.param("multipart/form-data; boundary=xx", FORM[:150], None, id="no such field"),
        pytest.param(
            "multipart/form-data; boundary=xx", FORM.replace(b"whisper", b"\xff"), None, id="no text"
        ),
    ],
)
def test_a_forms_model_is_found(content_type: str, form: bytes, model: str | None) -> None:
    assert multipart_model(content_type, form) == model

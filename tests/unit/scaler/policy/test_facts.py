"""The few words in which schemas and the reference page speak of a value."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.policy.base import EXPECTS
from scaler.policy.document import parse_documents
from scaler.policy.facts import as_yaml, default_in_words, values_in_words


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"type": "integer"}, "integer"),
        ({"type": "integer", "minimum": 0}, "integer, at least 0"),
        ({"type": "integer", "maximum": 9}, "integer, at most 9"),
        ({"type": ["integer", "null"], "minimum": 1, "maximum": 9}, "integer, 1 to 9"),
        ({"type": ["integer", "null"], "minimum": 1, "default": 25}, "integer, at least 1, or `null`"),
        ({"type": "boolean"}, "true or false"),
        ({"type": "string", "pattern": "^a$", EXPECTS: "an a"}, "text, an a"),
        ({"const": "Fleet", "type": "string"}, "`Fleet`"),
        ({"type": ["string", "null"], "enum": ["A", "B", None]}, "`A`, `B`"),
        ({"type": "array", "items": {"type": "string"}}, "list of text"),
        ({"type": "array", "items": {"type": "object"}, "minItems": 1}, "list of mappings, at least 1"),
        (
            {"type": "array", "maxItems": 3, "items": {"type": "integer", "minimum": 1, "maximum": 9}},
            "list of integers, at most 3; each 1 to 9",
        ),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "mapping to integer"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "integer or text"),
        ({}, "anything"),
    ],
    ids=str,
)
def test_what_may_stand_there(node: dict[str, Any], words: str) -> None:
    assert values_in_words(node) == words


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"default": 0}, "`0`"),
        ({"default": False}, "`false`"),
        ({"default": "Enforce"}, "`Enforce`"),
        ({"default": ""}, '`""`'),
        ({"default": "true"}, '`"true"`'),
        ({"default": [{"name": "gateway"}]}, "`[{name: gateway}]`"),
        ({}, ""),
    ],
    ids=str,
)
def test_a_default_stands_as_in_the_file(node: dict[str, Any], words: str) -> None:
    assert default_in_words(node) == words


keys = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**16), 10**16) | keys,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_what_is_written_is_read_again_as_the_same(value: object) -> None:
    (document,) = parse_documents(f"{{value: {as_yaml(value)}}}", "f.yaml")
    assert document.data == {"value": value}

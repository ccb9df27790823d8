"""Edits of a YAML text: what is set is set, and nothing else changes."""

import io
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from scaler.policy.document import Path, parse_documents
from scaler.policy.edit import Edit, EditRefused, Value, edited


def test_an_entry_goes_behind_the_last_one_with_its_indentation() -> None:
    before = """\
# labels of the pods
labels:
    app: chat   # as the Service selects

    # whose they are
    team: 'search'

other: 1
"""
    assert edited(before, 0, [Edit(path=("labels", "fleet"), value="own")]) == before.replace(
        "    team: 'search'\n", "    team: 'search'\n    fleet: own\n"
    )


@pytest.mark.parametrize(
    ("before", "path", "value", "after"),
    [
        pytest.param("a: {b: c}\n", ("a", "d"), "e", "a: {b: c, d: e}\n", id="flow-mapping"),
        pytest.param("a: {}\n", ("a", "d"), "e", "a: {d: e}\n", id="empty-flow-mapping"),
        pytest.param("a: { b: c } # x\n", ("a", "d"), "e", "a: { b: c, d: e } # x\n", id="flow-with-room"),
        pytest.param(
            "a: {\n  b: c,\n}\n", ("a", "d"), "e", "a: {\n  b: c,\n  d: e,\n}\n", id="flow-over-several-lines"
        ),
        pytest.param("a: [b]\n", ("a", 1), "c", "a: [b, c]\n", id="flow-list"),
        pytest.param("a: []\n", ("a", 0), {"b": "c"}, "a: [{b: c}]\n", id="empty-flow-list"),
        pytest.param("a:\n- b\n", ("a", 1), "c", "a:\n- b\n- c\n", id="block-list"),
        pytest.param(
            "a:\n  - b: c\n    d: e\n",
            ("a", 1),
            {"b": "f", "d": "g"},
            "a:\n  - b: c\n    d: e\n  - b: f\n    d: g\n",
            id="list-of-mappings",
        ),
        pytest.param(
            "a: # none yet\nb: c\n", ("a", "d"), "e", "a: # none yet\n  d: e\nb: c\n", id="no-value"
        ),
        pytest.param("a: ~\n", ("a", "d"), "e", "a: {d: e}\n", id="null"),
        pytest.param(
            "x: {a: , b: c}\n", ("x", "a", "d"), "e", "x: {a: {d: e} , b: c}\n", id="no-value-in-flow"
        ),
        pytest.param(
            "a:\n   b:\n      c: d\n",
            ("a", "e", "f"),
            "g",
            "a:\n   b:\n      c: d\n   e:\n      f: g\n",
            id="missing",
        ),
        pytest.param(
            "a:\n- b\nc:\n  d: e\n",
            ("c", "f", 0),
            "g",
            "a:\n- b\nc:\n  d: e\n  f:\n  - g\n",
            id="lists-as-indented",
        ),
        pytest.param(
            "a:\n    - b\nc: {}\nd: e\n",
            ("f", 0),
            "g",
            "a:\n    - b\nc: {}\nd: e\nf:\n    - g\n",
            id="deep-lists",
        ),
        pytest.param("a: b", ("c",), "d", "a: b\nc: d", id="no-line-break-at-the-end"),
        pytest.param("a: b\r\nc: d\r\n", ("e",), "f", "a: b\r\nc: d\r\ne: f\r\n", id="carriage-returns"),
        pytest.param(
            "a: |\n  text\n\n\n# end\n",
            ("b",),
            "c",
            "a: |\n  text\nb: c\n\n\n# end\n",
            id="behind-a-literal-block",
        ),
        pytest.param(
            "a: |+\n  text\n\n", ("b",), "c", "a: |+\n  text\n\nb: c\n", id="behind-kept-line-breaks"
        ),
        pytest.param("a: 'b' # c\n", ("a",), "d", "a: d # c\n", id="replaced"),
        pytest.param("a:\nb: c\n", ("a",), "d", "a: d\nb: c\n", id="replaced-nothing"),
        pytest.param(
            "a: b # c\nd: e\n", ("a",), "f\ng", "a: |- # c\n  f\n  g\nd: e\n", id="replaced-by-several-lines"
        ),
        pytest.param(
            "a: >- # c\n  b\n  d\n\ne: f\n",
            ("a",),
            "g\nh",
            "a: |- # c\n  g\n  h\n\ne: f\n",
            id="replaced-block",
        ),
        pytest.param("a: |\n  b\nc: d\n", ("a",), "e", "a: e\nc: d\n", id="replaced-block-by-one-line"),
        pytest.param("a: {b: c}\n", ("a", "b"), "d\ne", 'a: {b: "d\\ne"}\n', id="several-lines-in-flow"),
        pytest.param(
            "a: b\n---\na: c\n", ("d",), "e", "a: b\nd: e\n---\na: c\n", id="first-of-two-documents"
        ),
        pytest.param('{"a": {"b": 1}}', ("a", "c"), "d", '{"a": {"b": 1, "c": "d"}}', id="json"),
        pytest.param(
            '{\n  "a": 1\n}\n',
            ("b", 0),
            {"c": "d"},
            '{\n  "a": 1,\n  "b": [{"c": "d"}]\n}\n',
            id="json-over-lines",
        ),
        pytest.param('{"a": "b"}', ("a",), "c", '{"a": "c"}', id="json-replaced"),
        pytest.param("a: &x {b: c}\n", ("a", "d"), "e", "a: &x {b: c, d: e}\n", id="anchor-that-nobody-uses"),
        pytest.param("a: &x b\nc: *x # d\n", ("e",), "f", "a: &x b\nc: *x # d\ne: f\n", id="behind-an-alias"),
    ],
)
def test_only_what_is_new_is_new(before: str, path: Path, value: Value, after: str) -> None:
    assert edited(before, 0, [Edit(path=path, value=value)]) == after


@pytest.mark.parametrize(
    "value",
    ["true", "No", "1", "1e3", "0x1f", "null", "~", "it's", "a: b", "#", "- x", "", "é", "a\nb", "[\n {}\n]"],
)
def test_text_stays_text_for_every_reader(value: str) -> None:
    after = edited("a: {}\nb:\n", 0, [Edit(path=("a", "k"), value=value), Edit(path=("b", "k"), value=value)])
    for version in ("1.1", "1.2"):
        reader = YAML(typ="safe", pure=True)
        reader.version = version
        assert reader.load(after) == {"a": {"k": value}, "b": {"k": value}}


@pytest.mark.parametrize(
    ("before", "path", "place", "message", "hint"),
    [
        pytest.param(
            "a: &x {b: c}\nd: *x\n",
            ("d", "e"),
            ("d",),
            "is an alias of what stands elsewhere",
            "write d out here",
            id="alias",
        ),
        pytest.param(
            "a: &x {b: c}\nd: *x\n",
            ("a", "e"),
            ("a", "e"),
            "can't be written here without changing something else: is it shared through an anchor?",
            "write the mappings above it out, one key a line",
            id="anchor",
        ),
        pytest.param(
            "a: &x b\nd: *x\n",
            ("a",),
            ("a",),
            "can't be written here without changing something else: is it shared through an anchor?",
            "write the mappings above it out, one key a line",
            id="anchored-text",
        ),
        pytest.param(
            "a: b\n",
            ("a", "c"),
            ("a",),
            "must be a mapping",
            "write it as Kubernetes documents it",
            id="text",
        ),
        pytest.param(
            "a: {}\n", ("a", 0), ("a",), "must be a list", "write it as Kubernetes documents it", id="no-list"
        ),
        pytest.param(
            "a: [b]\n", ("a",), ("a",), "is not a text", "remove it, and run this again", id="list-for-text"
        ),
    ],
)
def test_what_would_change_more_is_refused(
    before: str, path: Path, place: Path, message: str, hint: str
) -> None:
    with pytest.raises(EditRefused) as raised:
        edited(before, 0, [Edit(path=path, value="v")])
    assert (raised.value.path, str(raised.value), raised.value.hint) == (place, message, hint)


KEYS = st.text("abcxyz", min_size=1, max_size=3)
TEXTS = st.text(
    st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs"), exclude_characters="?"), max_size=8
)  # ruamel.yaml writes `{a: ?b}`, which it can't read
TREES = st.dictionaries(
    KEYS,
    st.recursive(
        TEXTS | st.integers(-9, 9) | st.booleans() | st.none() | st.just("one\ntwo\n"),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=8,
    ),
    min_size=1,
    max_size=4,
)
FORMS = st.builds(
    dict,
    mapping=st.sampled_from([2, 4]),
    offset=st.sampled_from([0, 2]),
    flow=st.sampled_from([True, False, None]),
)


def dumped(tree: Any, form: dict[str, Any]) -> str:
    yaml = YAML(typ="rt", pure=True)
    yaml.indent(mapping=form["mapping"], sequence=form["offset"] + 2, offset=form["offset"])
    yaml.default_flow_style = form["flow"]
    stream = io.StringIO()
    yaml.dump(tree, stream)
    return stream.getvalue()


def takes(tree: Any, keys: list[str]) -> bool:
    """Whether text can stand at the path: mappings or nothing on the way, and text or nothing at its end."""
    for key in keys:
        if tree is None:
            return True
        if not isinstance(tree, dict):
            return False
        tree = tree.get(key)
    return not isinstance(tree, dict | list)


@given(tree=TREES, form=FORMS, keys=st.lists(KEYS, min_size=1, max_size=3))
def test_an_edit_can_be_made_in_every_form_and_repeats_itself(
    tree: dict[str, Any], form: dict[str, Any], keys: list[str]
) -> None:
    assume(takes(tree, keys))
    text = "# first\n" + dumped(tree, form) + "# last\n"
    edit = Edit(path=tuple(keys), value="new")
    after = edited(text, 0, [edit])
    (document,) = parse_documents(after, "after")
    here: Any = document.data
    for key in keys:
        here = here[key]
    assert here == "new"
    assert (after[:8], after[-7:]) == ("# first\n", "# last\n")
    assert edited(after, 0, [edit]) == after

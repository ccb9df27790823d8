"""Reading YAML: what is refused, what stays text, and where everything stands."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from scaler.errors import PolicyError
from scaler.policy.document import MAX_FAULTS, Document, dotted, parse, parse_documents, show

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)


def one(text: str) -> Document:
    (document,) = parse_documents(text, "f.yaml")
    return document


def hints(text: str) -> list[str]:
    with pytest.raises(PolicyError) as raised:
        parse_documents(text, "f.yaml")
    return [fault.hint for fault in raised.value.faults]


def faults(text: str) -> list[str]:
    with pytest.raises(PolicyError) as raised:
        parse_documents(text, "f.yaml")
    return [f"{fault.line}:{fault.column}: {fault.message}" for fault in raised.value.faults]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("on", "on", id="on-is-no-truth"),
        pytest.param("yes", "yes", id="yes-is-no-truth"),
        pytest.param("Off", "Off", id="off-is-no-truth"),
        pytest.param("true", True, id="true"),
        pytest.param("1:30", "1:30", id="no-sexagesimal"),
        pytest.param("010", 10, id="no-old-octal"),
        pytest.param("0o10", 8, id="octal"),
        pytest.param("0x1F", 31, id="hexadecimal"),
        pytest.param("1_000", "1_000", id="no-underscores"),
        pytest.param("2026-01-02", "2026-01-02", id="no-dates"),
        pytest.param("1e3", 1000.0, id="exponent"),
        pytest.param(".5", 0.5, id="bare-fraction"),
        pytest.param("-.inf", float("-inf"), id="infinity"),
        pytest.param("~", None, id="tilde"),
        pytest.param("", None, id="nothing"),
        pytest.param("'3'", "3", id="quoted-number"),
        pytest.param("! 3", "3", id="non-specific-tag"),
        pytest.param("=", "=", id="equals-sign"),
        pytest.param("NO", "NO", id="norway"),
    ],
)
def test_scalars_follow_the_core_schema(text: str, expected: object) -> None:
    value = one(f"key: {text}").data["key"]
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", ["1:1: the file holds no document"], id="empty"),
        pytest.param("# only a comment\n", ["1:1: the file holds no document"], id="comments-only"),
        pytest.param("---\n---\n", ["1:1: the file holds no document"], id="empty-documents"),
        pytest.param(
            "- 1",
            ["1:1: a document must be a mapping with apiVersion, kind, metadata and spec, is a list"],
            id="list",
        ),
        pytest.param(
            "a: 1\n---\ntext",
            ["3:1: a document must be a mapping with apiVersion, kind, metadata and spec, is a single value"],
            id="scalar",
        ),
        pytest.param(
            "a: 1\nb: {c: 1, c: 2}\na: 2",
            [
                '2:11: the key "c" appears twice, first in line 2',
                '3:1: the key "a" appears twice, first in line 1',
            ],
            id="all-duplicate-keys",
        ),
        pytest.param("a:\n\tb: 1", ["2:1: a tab can't be used for indentation"], id="tab"),
        pytest.param("a:\n \tb: 1", ["2:2: a tab can't be used for indentation"], id="tab-behind-a-space"),
        pytest.param("a:\t1", ["1:3: a tab can't stand here"], id="tab-behind-a-colon"),
        pytest.param(
            'a: 1\n"a": 2', ['2:1: the key "a" appears twice, first in line 1'], id="duplicate-in-quotes"
        ),
        pytest.param("a: b\u2028c: d", ["1:5: holds the invisible character U+2028"], id="line-separator"),
        pytest.param("a: 1\u200b", ["1:5: holds the invisible character U+200B"], id="zero-width-space"),
        pytest.param("a\u00ad: 1", ["1:2: holds the invisible character U+00AD"], id="soft-hyphen-in-a-key"),
        pytest.param(
            "a: 1 # \u202e", ["1:8: holds the invisible character U+202E"], id="turns-a-comment-round"
        ),
        pytest.param("a: '\u2066x'", ["1:5: holds the invisible character U+2066"], id="isolate"),
        pytest.param(
            "a:\n \u00a0b: 1", ["2:2: the indentation holds the no-break space U+00A0"], id="indentation"
        ),
        pytest.param("a:\u00a01", ["1:3: holds the no-break space U+00A0"], id="no-break-space"),
        pytest.param("a: 1\u3000", ["1:5: holds the space U+3000, which is no plain one"], id="wide-space"),
        pytest.param("a: '# \u00a0'", ["1:7: holds the no-break space U+00A0"], id="no-comment-in-quotes"),
        pytest.param("a: \ufeffb", ["1:4: holds the invisible character U+FEFF"], id="mark-inside"),
        pytest.param(
            "a: *",
            [
                "1:4: is not valid YAML: expected alphabetic or numeric character, but found the end of the file"
            ],
            id="the-parsers-sign-for-the-end",
        ),
        pytest.param(
            "a: 1\nb: [\n\n",
            ["3:1: is not valid YAML: expected the node content, but found the end of the file"],
            id="end",
        ),
        pytest.param("1: a", ["1:1: a key must be text, is 1"], id="number-as-key"),
        pytest.param("true: a", ["1:1: a key must be text, is true"], id="boolean-as-key"),
        pytest.param("? [a]\n: b", ["1:3: a key must be text, is a list"], id="list-as-key"),
        pytest.param("<<: {a: 1}", ["1:1: merge keys (<<) are no part of YAML 1.2"], id="merge-key"),
        pytest.param("a: !foo 3", ["1:4: the tag !foo is not understood"], id="own-tag"),
        pytest.param(
            "a: !!python/name:os.system x",
            ["1:4: the tag tag:yaml.org,2002:python/name:os.system is not understood"],
            id="python-tag",
        ),
        pytest.param("%YAML 1.1\n---\na: on", ["2:1: YAML 1.1 is not read here"], id="yaml-1.1"),
        pytest.param("a: *b", ["1:4: the alias *b has no anchor &b before it"], id="unknown-alias"),
        pytest.param("a: &a [*a]", ["1:8: the alias *a stands inside what it names"], id="endless-alias"),
        pytest.param(BOMB, ["5:5: its aliases expand to more than 100,000 values"], id="alias-bomb"),
        pytest.param("a: " + "[" * 60, ["1:53: is nested deeper than 50 levels"], id="deep-nesting"),
        pytest.param("a: " + "9" * 5000, ["1:4: the number has more than 18 digits"], id="endless-number"),
        pytest.param('a: "\\ud800"', ["1:4: holds half of a surrogate pair"], id="surrogate"),
        pytest.param("a: \x00", ["1:4: the character U+0000 is not allowed in YAML"], id="nul"),
        pytest.param("a: 'x", ["1:4: a quote is not closed"], id="open-quote"),
        pytest.param(
            "a: b: c", ["1:5: is not valid YAML: mapping values are not allowed here"], id="two-colons"
        ),
        pytest.param(
            "k: 1\na: [1, 2",
            ["2:4: is not valid YAML: expected ',' or ']', but got the end of the file"],
            id="open-bracket",
        ),
    ],
)
def test_what_would_mislead_is_refused(text: str, expected: list[str]) -> None:
    assert faults(text) == expected


FIRST = "apiVersion: e/v1\nkind: Fleet\nmetadata: {name: a}\nspec: {}\n"
FIRST_DATA = {"apiVersion": "e/v1", "kind": "Fleet", "metadata": {"name": "a"}, "spec": {}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            FIRST * 3,
            [
                "5:1: a second document begins inside the one of line 1: apiVersion appears twice",
                "9:1: a second document begins inside the one of line 1: apiVersion appears twice",
            ],
            id="two-of-three",
        ),
        pytest.param(
            FIRST + "kind: Fleet\napiVersion: e/v1\nspec: {}\n",
            ["5:1: a second document begins inside the one of line 2: kind appears twice"],
            id="kind-first",
        ),
        pytest.param(
            FIRST + "spec: {}\n", ['5:1: the key "spec" appears twice, first in line 4'], id="one-key-alone"
        ),
        pytest.param(
            "a: {kind: 1, kind: 2}",
            ['1:14: the key "kind" appears twice, first in line 1'],
            id="further-inside",
        ),
    ],
)
def test_a_forgotten_line_of_dashes_is_one_fault_for_each_document(text: str, expected: list[str]) -> None:
    assert faults(text) == expected


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        pytest.param(FIRST * 2, "is a line with --- missing before it?", id="two-documents"),
        pytest.param(
            "start: */5 8 * * *",
            'a text that begins with * must be in quotes: "*/5 8 * * *"',
            id="cron-with-a-step",
        ),
        pytest.param(
            "{start: */5,30 8 * * *, end: 3}  # all of it",
            'a text that begins with * must be in quotes: "*/5,30 8 * * *"',
            id="cron-in-braces",
        ),
        pytest.param("start: *x # why", 'a text that begins with * must be in quotes: "*x"', id="comment"),
        pytest.param(
            "start: * 8 * * *", "a text that begins with * or & must be in quotes", id="cron-with-a-star"
        ),
        pytest.param("start: @daily", "a text that begins with this character must be in quotes", id="at"),
        pytest.param(
            "a: {{ .Values.max }}",
            "is this a template? Render it first, as `helm template` does",
            id="template",
        ),
        pytest.param(
            "a: 1\n{{- end }}",
            "is this a template? Render it first, as `helm template` does",
            id="template-end",
        ),
        pytest.param("~: 3", "write a name before the colon", id="no-key"),
        pytest.param("1: 3", "put the key into quotes", id="number-as-key"),
        pytest.param("{[a]: 3}", "a key is a single word", id="list-as-key"),
    ],
)
def test_the_hint_is_for_what_was_written(text: str, hint: str) -> None:
    assert hints(text) == [hint]


# ------------------------------------------------------------------ reading on


def read(text: str) -> tuple[list[str], list[Any], bool]:
    """Return the faults of a text, what its documents say as far as they can be read, and whether that is all."""
    found = parse(text, "f.yaml")
    told = [f"{fault.line}:{fault.column}" for fault in found.faults]
    return told, [document.data for document in found.documents], found.whole


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a: 1\n---\nb: [\n---\nc: 3\n", (["4:1"], [{"a": 1}, {"c": 3}], False), id="bracket"),
        pytest.param("b: 'x\n--- # next\nc: 3\n", (["2:1"], [{"c": 3}], False), id="quote"),
        pytest.param(
            "b: |\n  ---\n---\nc: 3\n", ([], [{"b": "---\n"}, {"c": 3}], True), id="dashes-in-a-text"
        ),
        pytest.param(
            "a: b: c\n---\n\tx: 1\n---\nc: 3\n---\nd: {\n",
            (["1:5", "3:1", "7:5"], [{"c": 3}], False),
            id="three",
        ),
        pytest.param("a: b: c\r\n---\r\nd: 1\r\n", (["1:5"], [{"d": 1}], False), id="windows"),
        pytest.param(
            "a: 1\n---\na: *x\nb: 2\n", (["3:4"], [{"a": 1}, {"a": None, "b": 2}], True), id="alias"
        ),
        pytest.param(
            "a: */5 8 * * *\nb: @x\nc: [1, & z]\n",
            (["1:4", "2:4", "3:8"], [{"a": "*/5 8 * * *", "b": "@x", "c": [1, "& z"]}], True),
            id="no-quotes",
        ),
        pytest.param("@a: 1\n---\nb: 1\n", (["1:1"], [{"b": 1}], False), id="a-key-without-quotes"),
        pytest.param("a: 1\n---\n- 2\n---\nb: 3\n", (["3:1"], [{"a": 1}, {"b": 3}], True), id="list"),
        pytest.param("- {kind: Fleet}\n---\nb: 3\n", (["1:1"], [{"b": 3}], False), id="documents-in-a-list"),
        pytest.param(
            FIRST + "kind: Fleet\n", (["5:1"], [FIRST_DATA], True), id="a-head-again-is-no-document"
        ),
        pytest.param(FIRST * 2, (["5:1"], [FIRST_DATA, FIRST_DATA], True), id="no-line-of-dashes"),
    ],
)
def test_what_can_be_read_beside_a_fault_is_read(
    text: str, expected: tuple[list[str], list[Any], bool]
) -> None:
    assert read(text) == expected


def test_all_characters_that_keep_a_file_from_being_read_are_told() -> None:
    assert read("a: \u2028\nb: \ufeff\nc: \x07\n") == (["1:4", "2:4", "3:4"], [], False)


@pytest.mark.wall_clock
@pytest.mark.parametrize(
    "text",
    [
        lambda size: "a: *x y\n" * size,
        lambda size: "- *x y\n" + "- 1\n" * size + "- *x y\n",
        lambda size: "a: [\n---\n" * size,
    ],
    ids=["faults", "values", "documents"],
)
def test_reading_on_after_faults_takes_time_by_length_alone(text: Callable[[int], str]) -> None:
    def seconds(size: int) -> float:
        written = text(size)
        began = time.process_time()
        assert parse(written, "f.yaml").faults
        return time.process_time() - began

    assert seconds(8_000) < 8 * min(seconds(2_000) for _ in range(3))


def test_what_something_was_said_of_is_known() -> None:
    (document,) = parse("a: {b: !own 3, c: 1}\nd: {<<: {e: 1}}\nf: 1\nf: 2\n", "f.yaml").documents
    assert not document.clean
    assert document.doubtful("a", "b")
    assert not document.doubtful("a", "c")
    assert document.doubtful("d", "missing"), "a merge key may bring it"
    assert not document.doubtful("f"), "the first of two is as it is written"
    assert document.root.value["f"].repeated


def test_deep_nesting_through_aliases_is_refused() -> None:
    deep = "[" * 30 + "]" * 30
    assert faults(f"a: &a {deep}\nb: {'[' * 30}*a{']' * 30}") == ["2:34: is nested deeper than 50 levels"]


def test_too_many_values_are_refused_before_they_cost_minutes() -> None:
    text = "a:\n" + "-\n" * 100_001
    assert faults(text) == ["99999:2: the file holds more than 100,000 values"]


@pytest.mark.wall_clock
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(BOMB, "its aliases expand to more than 100,000 values", id="alias-bomb"),
        pytest.param("a: " + "[" * 20_000, "is nested deeper than 50 levels", id="brackets"),
        pytest.param("- " * 500_000, "the line is longer than 131,072 characters", id="dashes-in-a-line"),
        pytest.param("a: " + "!" * 1_000_000, "the line is longer than 131,072 characters", id="tags"),
        pytest.param("\t" * 100_000, "a tab can't be used for indentation", id="tabs"),
        pytest.param("a: '" + "x" * 100_000, "a quote is not closed", id="open-quote"),
        pytest.param("---\n" * 10_000, "the file holds no document", id="empty-documents"),
        pytest.param("a: 1\n" * 200_000, 'the key "a" appears twice, first in line 1', id="one-key"),
        pytest.param("? " * 60_000, "is nested deeper than 50 levels", id="keys-of-keys"),
    ],
)
def test_what_grows_out_of_hand_is_refused_within_a_second(text: str, expected: str) -> None:
    began = time.process_time()
    with pytest.raises(PolicyError) as raised:
        parse_documents(text, "f.yaml")
    assert time.process_time() - began < 1.0
    assert raised.value.faults[0].message == expected


def test_faults_without_end_are_cut_off() -> None:
    found = faults("a: 1\n" * 1000)
    assert len(found) == MAX_FAULTS + 1
    assert found[-1] == "101:1: and at least 1 more, which are told once these are mended"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param("a: 1\r\nb: 2\r\n\t", 3, id="windows"),
        pytest.param("a: 1\rb: 2\r\t", 3, id="old-mac"),
        pytest.param("a: 1\n\nb: [\n\n\n", 5, id="end-of-file"),
    ],
)
def test_lines_are_counted_as_editors_do(text: str, lines: int) -> None:
    assert faults(text)[0].partition(":")[0] == str(lines)


def test_a_position_at_the_end_is_behind_the_last_line_and_not_in_one_that_is_not_there() -> None:
    (found,) = faults("a: 1\nbc\n")
    assert found.startswith("2:3: ")


def test_numbers_are_known_as_they_were_written() -> None:
    document = one("a: [010, 0x1F, ~, 'x', {b: 1}]\nc: True")
    assert [document.written(("a", index)) for index in range(5)] == ["010", "0x1F", "~", "", ""]
    assert document.written(("c",)) == "True"
    assert document.written(("nothing", "here")) == ""


def test_an_alias_repeats_its_value_and_its_place() -> None:
    document = one("a: &x {b: 1}\nc: *x")
    assert document.data == {"a": {"b": 1}, "c": {"b": 1}}
    assert document.position(("c", "b")) == (1, 11)


def test_documents_keep_their_number_when_empty_ones_are_skipped() -> None:
    documents = parse_documents("a: 1\n---\n---\nb: 2", "f.yaml")
    assert [(document.index, document.data) for document in documents] == [(0, {"a": 1}), (2, {"b": 2})]


TEXT = """\
# a comment
spec:
  fleets:
    - {name: a, targetInFlight: 3}
    - name: b
      targetInFlight: 4
  serving:
    min: 1
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param((), (2, 1), id="document"),
        pytest.param(("spec", "serving", "min"), (8, 10), id="scalar-by-its-value"),
        pytest.param(("spec", "serving"), (7, 3), id="mapping-by-its-key"),
        pytest.param(("spec", "fleets", 0, "targetInFlight"), (4, 33), id="inside-braces"),
        pytest.param(("spec", "fleets", 1), (5, 7), id="list-entry"),
        pytest.param(("spec", "serving", "max"), (7, 3), id="missing-key-at-its-parent"),
        pytest.param(("spec", "fleets", 7, "name"), (3, 3), id="missing-entry-at-its-list"),
        pytest.param(("nothing", "here"), (2, 1), id="missing-at-the-root"),
    ],
)
def test_positions(path: tuple[str | int, ...], expected: tuple[int, int]) -> None:
    assert one(TEXT).position(path) == expected


def test_key_positions() -> None:
    document = one(TEXT)
    assert document.key_position(("spec", "serving", "min")) == (8, 5)
    assert document.key_position(("spec", "fleets", 0, "targetInFlight")) == (4, 17)
    assert document.key_position(("spec", "fleets", 1)) == (5, 7)
    assert document.key_position(("spec", "nothing", "here")) == (2, 1)


def test_a_part_is_a_document_with_its_places() -> None:
    part = one(TEXT).part(("spec", "fleets", 1))
    assert part.data == {"name": "b", "targetInFlight": 4}
    assert part.position(("targetInFlight",)) == (6, 23)
    fault = part.fault(("targetInFlight",), "is too low")
    assert (fault.line, fault.path) == (6, "spec.fleets[1].targetInFlight")
    with pytest.raises(KeyError, match=r"spec\.fleets\[9\]"):
        one(TEXT).part(("spec", "fleets", 9))
    with pytest.raises(KeyError, match=r"spec\.serving\.min"):
        one(TEXT).part(("spec", "serving", "min"))


def test_paths_are_written_as_people_do() -> None:
    assert dotted(("spec", "fleets", 0, "targetInFlight")) == "spec.fleets[0].targetInFlight"
    assert dotted(()) == ""


def test_values_are_shown_as_their_author_wrote_them() -> None:
    assert [show(v) for v in (None, True, "a\nb", 1.5, {}, [])] == [
        "empty",
        "true",
        '"a\\nb"',
        "1.5",
        "an empty mapping",
        "an empty list",
    ]
    assert show("x" * 100) == '"' + "x" * 57 + '…"'

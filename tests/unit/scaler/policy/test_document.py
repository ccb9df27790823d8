"""Reading YAML: what is refused, what stays text, and where everything stands."""

from pathlib import Path

import pytest

from scaler.errors import PolicyError
from scaler.policy.document import MAX_BYTES, Document, dotted, load_documents, parse_documents, show

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)


def one(text: str) -> Document:
    (document,) = parse_documents(text, "f.yaml")
    return document


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
        pytest.param(BOMB, ["5:5: its aliases expand to more than 50,000 values"], id="alias-bomb"),
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
            ["2:4: is not valid YAML: expected ',' or ']', but got '<stream end>'"],
            id="open-bracket",
        ),
    ],
)
def test_what_would_mislead_is_refused(text: str, expected: list[str]) -> None:
    assert faults(text) == expected


def test_deep_nesting_through_aliases_is_refused() -> None:
    deep = "[" * 30 + "]" * 30
    assert faults(f"a: &a {deep}\nb: {'[' * 30}*a{']' * 30}") == ["2:34: is nested deeper than 50 levels"]


def test_too_many_values_are_refused_before_they_cost_minutes() -> None:
    text = "a: [" + "1," * 50_001 + "]"
    assert faults(text) == ["1:99999: the file holds more than 50,000 values"]


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


# ------------------------------------------------------------------ files


def test_a_directory_gives_its_yaml_files_in_order_and_each_once(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("b: 1", encoding="utf-8")
    (tmp_path / "a.yml").write_text("a: 1", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("not: yaml: at all", encoding="utf-8")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "c.yaml").write_text("c: 1", encoding="utf-8")
    documents = load_documents([tmp_path, tmp_path / "b.yaml"])
    assert [document.data for document in documents] == [{"a": 1}, {"b": 1}]


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    file = tmp_path / "bom.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1")
    assert load_documents([file])[0].data == {"a": 1}


def test_all_unusable_files_are_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes("a: 1\nname: Zoë".encode("latin-1"))
    (tmp_path / "large.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn.yaml").write_text("a: [", encoding="utf-8")
    names = ["latin.yaml", "large.yaml", "missing.yaml", "empty", "torn.yaml"]
    with pytest.raises(PolicyError) as raised:
        load_documents([tmp_path / name for name in names])
    assert [
        (Path(fault.file).name, fault.line, fault.column, fault.message) for fault in raised.value.faults
    ] == [
        ("latin.yaml", 2, 9, "is not UTF-8: byte 0xeb can't be decoded"),
        ("large.yaml", 1, 1, "is larger than 1024 KiB"),
        ("missing.yaml", 1, 1, "no such file"),
        ("empty", 1, 1, "the directory holds no *.yaml file"),
        ("torn.yaml", 1, 5, "is not valid YAML: expected the node content, but found '<stream end>'"),
    ]

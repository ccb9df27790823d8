"""Whatever becomes of a policy file: a usable set, or faults with places inside the file, within two seconds.

The examples in `policies/` are mutated in two ways: as trees, by dropping, renaming, doubling and replacing keys and
values, and as bytes. A hundred and fifty of each run by default, always the same ones; EMBERPOOL_MUTATIONS=10000 runs as many in
all.

And no fault hides another: of two that are made at different places each is told as if it were the only one.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaler.errors import PolicyError
from scaler.policy.compile import PolicySet, compile_contents
from scaler.policy.document import Contents, contents_of, parse_documents

LONGEST_SECONDS = 2.0
EACH = int(os.environ.get("EMBERPOOL_MUTATIONS", "300")) // 2
EXAMPLES = [file.read_bytes() for file in sorted((Path(__file__).parents[2] / "policies").glob("*.yaml"))]

many = settings(
    max_examples=EACH,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def judged(raw: bytes) -> PolicySet | None:
    """Compile; None when it was refused as it should be: soon, and with places that are in the file."""
    began = time.process_time()
    try:
        return compile_contents([contents_of(raw, "f.yaml")])
    except PolicyError as error:
        faults = error.faults
    finally:
        assert time.process_time() - began < LONGEST_SECONDS
    lines = re.split(r"\r\n|\r|\n", raw.decode("utf-8-sig", "replace"))
    if len(lines) > 1 and not lines[-1]:
        lines.pop()
    assert faults
    for fault in faults:
        assert fault.file == "f.yaml"
        assert fault.message
        assert 1 <= fault.line <= len(lines), fault
        assert 1 <= fault.column <= len(lines[fault.line - 1]) + 1, fault
        assert str(fault).startswith(f"f.yaml:{fault.line}:{fault.column}: ")
    return None


# ------------------------------------------------------------------ trees


class Mapping(list[tuple[str, Any]]):
    """A mapping that may have a key twice."""


def tree(value: Any) -> Any:
    """Copy plain data, with mappings as lists of pairs."""
    match value:
        case dict():
            return Mapping((key, tree(inner)) for key, inner in value.items())
        case list():
            return [tree(inner) for inner in value]
        case _:
            return value


def places(node: Any) -> Iterator[tuple[list[Any], int]]:
    """Go through everything that stands in something: its container and its index there."""
    for index, item in enumerate(node):
        yield node, index
        inner = item[1] if isinstance(node, Mapping) else item
        if isinstance(inner, list):
            yield from places(inner)


def written(node: Any, indent: str = "") -> str:
    """Write a tree as YAML in block style; scalars as JSON, which YAML reads alike, but for words that stand bare."""
    match node:
        case Mapping() if node:
            return "".join(f"\n{indent}{scalar(key)}:{written(inner, indent + '  ')}" for key, inner in node)
        case list() if node and not isinstance(node, Mapping):
            return "".join(f"\n{indent}-{written(inner, indent + '  ')}" for inner in node)
        case list():
            return " {}" if isinstance(node, Mapping) else " []"
        case _:
            return f" {scalar(node)}"


def scalar(value: Any) -> str:
    bare = isinstance(value, Bare) or (isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w/-]*", value))
    return str(value) if bare else json.dumps(value)


class Bare(str):
    """Text that is written without quotes, whatever it is read as."""

    __slots__ = ()


TREES = [[tree(document.data) for document in parse_documents(raw.decode(), "f.yaml")] for raw in EXAMPLES]
STRANGE = [
    *(
        None,
        True,
        -1,
        0,
        1,
        2**31,
        10**17,
        -(10**17),
        0.5,
        -0.0,
        1e300,
        "",
        " ",
        "x" * 5000,
        "chat",
        "Ä",
        "\u0000",
    ),
    *map(
        Bare,
        ["on", "1:30", "010", "0x10", "1_000", ".inf", ".nan", "~", "30s", "50%", "2026-01-02", "0o9", "<<"],
    ),
    *map(
        Bare,
        ["&a 1", "*a", "!!int 3", "! 3", "|", ">", "- a", "? a", "[", "{", "}", "'", '"', "@", "a: b", "#"],
    ),
    [],
    [[]],
    Mapping(),
    Mapping([("", None)]),
    Mapping([("name", "a"), ("name", "a")]),
    Mapping([("type", "Pushed"), ("name", 3)]),
    [Mapping([("name", "shared")])] * 3,
    ["* * * * *", "0 0 30 2 *", "*/0 * * * *"],
]
KEYS = ["", "Name", "name", "spec", "min", "max", "target_in_flight", "<<", "a b", "x" * 300, "kind", "type"]


@st.composite
def mutated_trees(draw: st.DrawFn) -> bytes:
    documents = [tree_copy(each) for each in draw(st.sampled_from(TREES))]
    for _ in range(draw(st.integers(1, 3))):
        if not (everywhere := list(places(documents))):
            break
        container, index = everywhere[draw(st.integers(0, len(everywhere) - 1))]
        mutate(draw, container, index)
    return ("\n---".join(written(each) for each in documents) + "\n").encode("utf-8", "surrogatepass")


def tree_copy(node: Any) -> Any:
    match node:
        case Mapping():
            return Mapping((key, tree_copy(inner)) for key, inner in node)
        case list():
            return [tree_copy(inner) for inner in node]
        case _:
            return node


def mutate(draw: st.DrawFn, container: list[Any], index: int) -> None:
    """Change one thing in a container."""
    paired = isinstance(container, Mapping)
    key, value = container[index] if paired else ("", container[index])

    def put(what: Any) -> None:
        container[index] = (key, what) if paired else what

    match draw(st.sampled_from(["drop", "double", "rename", "replace", "wrap", "move"])):
        case "drop":
            del container[index]
        case "double":
            container.insert(index, tree_copy(container[index]) if not paired else (key, tree_copy(value)))
        case "rename" if paired:
            container[index] = (draw(st.sampled_from(KEYS)), value)
        case "wrap":
            put(draw(st.sampled_from([[value], [value, tree_copy(value)], Mapping([("name", value)])])))
        case "move":
            container.append(container.pop(index))
        case _:
            put(tree_copy(draw(st.sampled_from(STRANGE))))


@many
@given(mutated_trees())
def test_trees(raw: bytes) -> None:
    judged(raw)


# ------------------------------------------------------------------ bytes

PIECES = [
    *(bytes([value]) for value in (*range(33), 0x7F, 0x80, 0xC3, 0xED, 0xF4, 0xFF)),
    *(character.encode() for character in ":-#&*!|>'\"%@`{}[],?~.0\u0085\u00a0\u2028\ufeff\U0001f600"),
    *(text.encode() for text in (": ", "- ", "---\n", "...\n", "\r\n", "\n\n", "<<: ", "&a ", "*a", "!!int ", "%YAML 1.1\n")),
    *(text.encode() for text in ("null", "on", "1e999", ".nan", "9" * 30, "kind: Fleet\n", "\\x", "\\ud800", "  ", "\t")),
]  # fmt: skip


@st.composite
def mutated_bytes(draw: st.DrawFn) -> bytes:
    raw = draw(st.sampled_from(EXAMPLES))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(raw)))
        end = min(len(raw), start + draw(st.sampled_from([0, 0, 1, 1, 2, 7, 40])))
        raw = raw[:start] + draw(st.sampled_from([*PIECES, raw[start:end] * 2, b""])) + raw[end:]
    return raw


@many
@given(mutated_bytes())
def test_bytes(raw: bytes) -> None:
    judged(raw)


# ------------------------------------------------------------------ two faults

several = settings(many, max_examples=max(1, EACH // 3))
Place = tuple[int, ...]
"""Indices from the documents of an example to something in one of them."""
Edit = Callable[[list[Any], int], None]


def within(node: Any, here: Place = ()) -> Iterator[Place]:
    for index, item in enumerate(node):
        yield (*here, index)
        inner = item[1] if isinstance(node, Mapping) else item
        if isinstance(inner, list):
            yield from within(inner, (*here, index))


def container_of(documents: list[Any], place: Place) -> list[Any]:
    node: Any = documents
    for index in place[:-1]:
        node = node[index][1] if isinstance(node, Mapping) else node[index]
    assert isinstance(node, list)
    return node


def replaced(by: Any) -> Edit:
    def edit(container: list[Any], index: int) -> None:
        paired = isinstance(container, Mapping)
        container[index] = (container[index][0], by) if paired else by

    return edit


def misnamed(container: list[Any], index: int) -> None:
    if isinstance(container, Mapping):
        container[index] = (f"no{container[index][0]}", container[index][1])


def repeated(container: list[Any], index: int) -> None:
    if isinstance(container, Mapping):  # at the end, so that no other index changes
        container.append((container[index][0], tree_copy(container[index][1])))


def begins(container: list[Any], index: int) -> bool:
    """Whether something belongs to what says which format it has: the rest of the document depends on it."""
    return isinstance(container, Mapping) and container[index][0] in {"apiVersion", "kind", "type"}


EDITS: dict[str, Edit] = {
    "a number": replaced(10**9),
    "a list": replaced([[]]),
    "a text": replaced("\u00e4\u00f6 \u00fc"),
    "nothing": replaced(None),
    "another number": replaced(Bare("010")),
    "a tag": replaced(Bare("!own 3")),
    "no quotes": replaced(Bare("@x")),
    "a name": misnamed,
    "a key again": repeated,
}
PLACES = [[place for place in within(each) if len(place) > 1] for each in TREES]


def edited(example: int, edits: frozenset[tuple[str, Place]]) -> bytes:
    documents = [tree_copy(each) for each in TREES[example]]
    for name, place in edits:
        EDITS[name](container_of(documents, place), place[-1])
    return ("\n---".join(written(each) for each in documents) + "\n").encode()


@cache
def told(example: int, edits: frozenset[tuple[str, Place]]) -> frozenset[tuple[str, str]]:
    """Return what is said of an edited example, and of which part; lines that messages name move with the edits."""
    try:
        compile_contents([contents_of(edited(example, edits), "f.yaml")])
    except PolicyError as error:
        places = [(fault.line, fault.column) for fault in error.faults]
        assert places == sorted(places)
        return frozenset(
            (each.path, re.sub(r"(line |yaml:)[0-9]+", r"\1N", each.message)) for each in error.faults
        )
    return frozenset()


def path_of(example: int, edit: tuple[str, Place]) -> str:
    """Return the path of an edited place, as faults have it."""
    _, place = edit
    path = ""
    node: Any = TREES[example]
    for depth, index in enumerate(place):
        if depth and isinstance(node, Mapping):
            key = f"no{node[index][0]}" if edit[0] == "a name" and depth == len(place) - 1 else node[index][0]
            path += f".{key}" if path else key
        elif depth:
            path += f"[{index}]"
        node = node[index][1] if isinstance(node, Mapping) else node[index]
    return path


def of_itself(example: int, edit: tuple[str, Place]) -> frozenset[tuple[str, str]]:
    """Return what is said of the edited place itself, and not of others that it no longer fits to."""
    path = path_of(example, edit)
    return frozenset(fault for fault in told(example, frozenset({edit})) if fault[0] in {path, ""})


@several
@given(st.data())
def test_of_one_fault_nothing_else_is_told(data: st.DataObject) -> None:
    example = data.draw(st.integers(0, len(TREES) - 1))
    edit = data.draw(st.sampled_from(sorted(EDITS))), data.draw(st.sampled_from(PLACES[example]))
    for path, message in told(example, frozenset({edit})) - of_itself(example, edit):
        # what a key that isn't known stands for is missing; and in a list that is none, an entry is wrong
        assert "is missing" in message if edit[0] == "a name" else path.startswith(path_of(example, edit))


@st.composite
def two_edits(draw: st.DrawFn) -> tuple[int, tuple[str, Place], tuple[str, Place]]:
    example = draw(st.integers(0, len(TREES) - 1))
    edits = st.tuples(st.sampled_from(sorted(EDITS)), st.sampled_from(PLACES[example]))
    return example, draw(edits), draw(edits)


@several
@given(two_edits())
def test_of_two_faults_each_is_told(drawn: tuple[int, tuple[str, Place], tuple[str, Place]]) -> None:
    example, one, other = drawn
    shorter, longer = sorted((one[1], other[1]), key=len)
    if longer[: len(shorter)] == shorter:
        return  # one lies inside the other
    if any(
        begins(container_of(TREES[example], place), place[-1]) and far[: len(place) - 1] == place[:-1]
        for place, far in ((one[1], other[1]), (other[1], one[1]))
    ):
        return  # without its kind or type nobody knows what the rest should be
    expected = of_itself(example, one) | of_itself(example, other)
    assert told(example, frozenset({one, other})) >= expected


def renamed(prefix: str, raw: bytes) -> Contents:
    """Give all fleets and policies names of their own."""
    return contents_of(re.sub(rb"(?<=name: )", prefix.encode(), raw), f"{prefix}.yaml")


def sayings(files: list[Contents]) -> list[str]:
    try:
        compile_contents(files)
    except PolicyError as error:
        return [str(fault).partition("\n")[0] for fault in error.faults]
    return []


@cache  # and not a constant: reading so many takes seconds, which whoever only collects would wait for
def strangers() -> list[tuple[int, int]]:
    """Examples that can be used together: they claim no model twice, and have one controller at most."""
    unedited = [edited(example, frozenset()) for example in range(len(TREES))]
    firsts, seconds = ([renamed(name, raw) for raw in unedited] for name in "ab")
    return [
        (one, other)
        for one, first in enumerate(firsts)
        for other, second in enumerate(seconds)
        if not sayings([first, second])
    ]


@several
@given(st.data())
def test_faults_in_files_that_have_nothing_to_do_with_each_other_are_told_as_if_alone(
    data: st.DataObject,
) -> None:
    files = []
    for name, example in zip("ab", data.draw(st.sampled_from(strangers())), strict=True):
        edit = data.draw(st.sampled_from(sorted(EDITS))), data.draw(st.sampled_from(PLACES[example]))
        files.append(renamed(name, edited(example, frozenset({edit}))))
    apart, together = [*sayings(files[:1]), *sayings(files[1:])], sayings(files)
    missing = [said for said in apart if ": there is no fleet" in said]
    assert [said for said in together if said not in missing] == [
        said for said in apart if said not in missing
    ]
    assert set(together) <= set(apart), "a fleet that can't be read in one file may be what the other names"


@pytest.mark.parametrize("raw", EXAMPLES)
def test_the_examples_themselves_are_usable_so_that_mutations_mean_something(raw: bytes) -> None:
    assert judged(raw) is not None


@pytest.mark.parametrize("each", TREES)
def test_trees_are_usable_before_they_are_mutated(each: Any) -> None:
    assert judged(("\n---".join(written(document) for document in each) + "\n").encode()) is not None

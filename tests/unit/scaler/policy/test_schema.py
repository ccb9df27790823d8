"""The generated JSON Schema: it is draft-07, complete, fresh, and of one mind with our own validation."""

import copy
import json
import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft7Validator
from pydantic import Field, ValidationError

from scaler.cli import formats
from scaler.cli.formats import FORMATS, POLICIES
from scaler.errors import PolicyError
from scaler.policy import facts
from scaler.policy.base import UNIT, Envelope, Name, PolicyModel, integer
from scaler.policy.document import Path as Place
from scaler.policy.document import dotted, load_documents, parse_documents
from scaler.policy.schema import DIALECT, FILE_NAME, schema_of_all, schema_of_kind
from scaler.policy.source import validate
from scaler.policy.unbuilt import UNBUILT, Unbuilt
from scaler.policy.units import unit_of

FILES = sorted(POLICIES.rglob("*.yaml"))
SCHEMA = schema_of_all(FORMATS)
VALIDATOR = Draft7Validator(SCHEMA)
IN_EDITORS = {
    "markdownDescription",
    "enumDescriptions",
    "markdownEnumDescriptions",
    "patternErrorMessage",
    "defaultSnippets",
}
OURS = {"x-unit", "x-expects", "x-default", facts.NOT_ACTED_ON}


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema inside a schema, with where it stands."""
    yield path, node
    for key in ("items", "additionalProperties", "if", "then"):
        if isinstance(node.get(key), dict):
            yield from nodes(node[key], f"{path}[]" if key == "items" else path)
    for key in ("allOf", "anyOf"):
        for branch in node.get(key, ()):
            yield from nodes(branch, path)
    for group in ("properties", "definitions"):
        for key, inner in node.get(group, {}).items():
            yield from nodes(inner, f"{path}.{key}".lstrip("."))


def fields(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field of every kind, with its path."""
    if "allOf" in node:
        for branch in node["allOf"]:
            yield from fields(branch["then"], path)
        return
    for key, inner in node.get("properties", {}).items():
        yield f"{path}.{key}", inner
        yield from fields(inner, f"{path}.{key}")
    if "items" in node:
        yield from fields(node["items"], f"{path}[]")


FIELDS = {kind: list(fields(node, kind)) for kind, node in SCHEMA["definitions"].items()}
each_kind = pytest.mark.parametrize("kind", FORMATS)


# ------------------------------------------------------------------ the dialect


def test_it_is_valid_draft_07() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == DIALECT
    assert SCHEMA["$id"].endswith(FILE_NAME)


@each_kind
def test_the_schema_of_a_kind_is_valid_by_itself(kind: str) -> None:
    schema = schema_of_kind(kind, FORMATS[kind])
    Draft7Validator.check_schema(schema)
    assert (schema["$schema"], schema["title"]) == (DIALECT, kind)
    assert "$ref" not in json.dumps(schema)


def test_it_uses_no_keyword_beyond_draft_07_and_the_known_annotations() -> None:
    metaschema = set(Draft7Validator.META_SCHEMA["properties"])
    used = {key for _, node in nodes(SCHEMA) for key in node}
    assert used - metaschema <= IN_EDITORS | OURS
    assert used >= IN_EDITORS


def test_what_stands_beside_a_reference_would_be_ignored_so_nothing_does() -> None:
    assert [node for _, node in nodes(SCHEMA) if "$ref" in node and len(node) > 1] == []


def test_every_mapping_refuses_unknown_keys() -> None:
    free = [path for path, node in nodes(SCHEMA["definitions"]) if is_open(node)]
    assert free == []


def is_open(node: dict[str, Any]) -> bool:
    return node.get("type") == "object" and "then" not in node and node.get("additionalProperties") is None


# ------------------------------------------------------------------ completeness


@each_kind
def test_every_field_is_described_and_hover_text_begins_with_that(kind: str) -> None:
    bad = [
        path
        for path, node in FIELDS[kind]
        if not node["description"].endswith(".")
        or not node["markdownDescription"].startswith(node["description"])
    ]
    assert bad == []


def entry(node: dict[str, Any]) -> dict[str, Any]:
    """What stands there, or what each entry of the list is that stands there."""
    inner: dict[str, Any] = node.get("items", node)
    return inner


@each_kind
def test_every_number_has_a_unit(kind: str) -> None:
    numbers = [(path, entry(node)) for path, node in FIELDS[kind] if facts.is_number(entry(node))]
    assert numbers
    assert [path for path, node in numbers if not node.get(UNIT)] == []


@each_kind
def test_no_name_contradicts_its_unit(kind: str) -> None:
    contradictions = []
    for path, node in FIELDS[kind]:
        said, named = entry(node).get(UNIT), unit_of(path.rpartition(".")[2])
        if said and named and not named.startswith("per ") and said != named:
            contradictions.append((path, said))
    assert contradictions == []


@each_kind
def test_every_value_has_an_example_unless_all_values_are_listed(kind: str) -> None:
    leaves = [(path, entry(node)) for path, node in FIELDS[kind] if is_leaf(entry(node))]
    assert leaves
    assert [path for path, node in leaves if not node.get("examples")] == []


def is_leaf(node: dict[str, Any]) -> bool:
    return not facts.is_object(node) and not facts.is_closed(node) and node.get("type") != "object"


@pytest.mark.parametrize(
    ("path", "example"),
    [
        ("Fleet.spec.schedules[].name", "office-hours"),
        ("ScalingPolicy.spec.schedules[].name", "office-hours"),
        ("ScalingPolicy.spec.signals[].name", "gateway"),
        ("ScalingPolicy.spec.signals[].server.sentinelMaster", "mymaster"),
        ("ScalingPolicy.spec.signals[].server.passwordFile", "/etc/emberpool/password"),
        ("ScalingPolicy.spec.signals[].authorization.basic.passwordFile", "/etc/emberpool/password"),
        ("ScalingPolicy.spec.signals[].authorization.bearerTokenFile", "/etc/emberpool/prometheus-token"),
        ("ScalingPolicy.spec.signals[].tls.caFile", "/etc/emberpool/ca.pem"),
    ],
)
def test_an_example_is_one_of_its_own_field(path: str, example: str) -> None:
    found = [node["examples"] for name, node in FIELDS[path.partition(".")[0]] if name == path]
    assert found
    assert all(examples == [example] for examples in found)


def test_the_two_directions_say_each_for_itself_what_their_limits_do() -> None:
    said = {
        path: (node["description"], node["properties"]["policies"]["description"])
        for path, node in FIELDS["Fleet"]
        if "policies" in node.get("properties", {})
    }
    assert set(said) == {"Fleet.spec.scaleUp", "Fleet.spec.scaleDown"}
    assert "added" in said["Fleet.spec.scaleUp"][1]
    assert "deleted" in said["Fleet.spec.scaleDown"][1]
    assert "replenish" not in said["Fleet.spec.scaleDown"][1]


@each_kind
def test_every_value_of_a_closed_set_is_described(kind: str) -> None:
    bad = []
    for path, node in FIELDS[kind]:
        values, docs = entry(node).get("enum", ()), entry(node).get("enumDescriptions", ())
        bad += [f"{path}: {value}" for value, doc in zip_longest(values, docs) if not doc]
    assert bad == []


@each_kind
def test_examples_and_defaults_are_allowed_values(kind: str) -> None:
    checked = 0
    for _, node in FIELDS[kind]:
        for part in (node, entry(node)):
            for value in [*part.get("examples", ()), *([part["default"]] if "default" in part else ())]:
                Draft7Validator(part).validate(value)
                checked += 1
    assert checked


@pytest.mark.parametrize("entry", UNBUILT, ids=lambda entry: f"{entry.kind}:{dotted(entry.path)}")
def test_what_is_not_acted_on_says_so_in_editors(entry: Unbuilt) -> None:
    said = "Not acted on yet:"
    (field,) = (node for path, node in FIELDS[entry.kind] if path == dotted((entry.kind, *entry.path)))
    assert f"**{said}**" in field["markdownDescription"]
    assert entry.instead in field["markdownDescription"]


def test_only_what_is_not_acted_on_says_so() -> None:
    marked = {
        path for node in FIELDS.values() for path, field in node if "Not acted on yet" in json.dumps(field)
    }
    entries = {dotted((entry.kind, *entry.path)) for entry in UNBUILT}
    assert {path for path in marked if not any(entry.startswith(path + ".") for entry in entries)} == entries


@each_kind
def test_no_default_is_one_that_editors_complete_wrongly(kind: str) -> None:
    defaults = [(path, node["default"]) for path, node in FIELDS[kind] if "default" in node]
    assert [
        path for path, default in defaults if default in (None, [], {}) or is_list_of_mappings(default)
    ] == []


def is_list_of_mappings(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_default_that_is_written_out_changes_nothing(file: Path) -> None:
    for document in load_documents([file]):
        model, data = FORMATS[document.data["kind"]], copy.deepcopy(document.data)
        fill(SCHEMA["definitions"][data["kind"]], data)
        assert accepted(model, data) == accepted(model, document.data)


def fill(node: dict[str, Any], data: Any) -> None:
    """Write the defaults of absent keys into data, in mappings that are there and in those that aren't."""
    for branch in node.get("allOf", ()):
        if isinstance(data, dict) and Draft7Validator(branch["if"]).is_valid(data):
            fill(branch["then"], data)
    for item in data if isinstance(data, list) else ():
        fill(node.get("items", {}), item)
    for key, inner in node.get("properties", {}).items():
        if key not in data and "default" in inner:
            data[key] = copy.deepcopy(inner["default"])
        elif key in data:
            fill(inner, data[key])


# ------------------------------------------------------------------ kinds


def errors(data: object) -> list[tuple[str, str]]:
    return [(error.json_path, error.message) for error in VALIDATOR.iter_errors(data)]


FLEET = {
    "apiVersion": "emberpool.dev/v1alpha1",
    "kind": "Fleet",
    "metadata": {"name": "a"},
    "spec": {"maxSeats": 1},
}


def test_a_wrong_value_is_named_with_its_path_and_nothing_else_is() -> None:
    assert errors(FLEET | {"spec": {"maxSeats": "3"}}) == [
        ("$.spec.maxSeats", "'3' is not of type 'integer'")
    ]


@pytest.mark.parametrize("change", [{"kind": "Flet"}, {"kind": None}], ids=str)
def test_of_a_wrong_kind_only_the_kind_is_named(change: dict[str, Any]) -> None:
    assert {path for path, _ in errors(FLEET | change | {"spec": {"nonsense": 1}})} == {"$.kind"}


def test_without_a_kind_only_that_is_named() -> None:
    data = {key: value for key, value in FLEET.items() if key != "kind"}
    assert errors(data) == [("$", "'kind' is a required property")]


def test_each_kind_is_held_to_its_own_schema() -> None:
    ((path, message),) = errors(FLEET | {"kind": "Controller"})
    assert path == "$.spec"
    assert "'maxSeats' was unexpected" in message


SNIPPETS = [(node, snippet) for _, node in nodes(SCHEMA) for snippet in node.get("defaultSnippets", ())]


@pytest.mark.parametrize(
    ("node", "snippet"), [pytest.param(*found, id=found[1]["label"]) for found in SNIPPETS]
)
def test_what_an_editor_offers_for_an_empty_document_or_entry_is_allowed(
    node: dict[str, Any], snippet: dict[str, Any]
) -> None:
    assert snippet["description"]
    Draft7Validator(SCHEMA | node).validate(snippet["body"])


# ------------------------------------------------------------------ our own files, and our own validation


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_document_of_ours_is_accepted(file: Path) -> None:
    for document in load_documents([file]):
        VALIDATOR.validate(document.data)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_document_of_ours_names_the_schema_to_editors(file: Path) -> None:
    documents = re.split(r"^---\n", file.read_text("utf-8"), flags=re.MULTILINE)
    assert len(documents) == len(load_documents([file]))
    for document in documents:
        named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", document)
        assert named
        assert (file.parent / named[1]).resolve() == POLICIES / "schema" / FILE_NAME


def accepted(model: type[Envelope], data: object) -> Envelope | None:
    """What our validation makes of each value by itself; None when it refuses one."""
    try:
        return model.model_validate_json(json.dumps(data), by_alias=True, by_name=False)
    except ValidationError:
        return None


MANY = 300
MUTANTS = (None, True, -1, 0, 7, 1.5, 10**9, "", "x y", "Enforce", "12", [], ["a"], {}, {"a": 1})


def mutated(data: dict[str, Any], mutants: Sequence[object] = MUTANTS) -> list[tuple[Place, Any]]:
    """The ways to change one value, to remove one, and to add an unknown key; of many each third, so that every place has some."""
    found = list(all_mutated(data, mutants))
    return found[:: 3 if len(found) > MANY else 1]


def all_mutated(data: dict[str, Any], mutants: Sequence[object]) -> Iterator[tuple[Place, Any]]:
    for path in places(data, ()):
        for mutant in mutants:
            yield path, changed(data, path, mutant)
        yield path, without(data, path)
        if isinstance(value_at(data, path), dict):
            yield path, changed(data, (*path, "unknown"), 1)


def places(data: object, path: Place) -> Iterator[Place]:
    if path:
        yield path
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


def value_at(data: Any, path: Place) -> Any:
    for part in path:
        data = data[part]
    return data


def changed(data: Any, path: Place, value: object) -> Any:
    """A copy with another value at a place; what isn't on the way there is shared."""
    if not path:
        return value
    fresh = copy.copy(data)
    fresh[path[0]] = changed(data[path[0]], path[1:], value) if len(path) > 1 else value
    return fresh


def without(data: Any, path: Place) -> Any:
    *parent, key = path
    fresh = copy.copy(value_at(data, tuple(parent)))
    del fresh[key]
    return changed(data, tuple(parent), fresh)


@each_kind
def test_whatever_we_accept_it_accepts_and_nearly_all_that_we_refuse_it_refuses(kind: str) -> None:
    (document,) = load_documents([formats.example_file(kind)])
    validator = Draft7Validator(schema_of_kind(kind, FORMATS[kind]))
    wrongly_refused, refused, missed = [], 0, []
    for path, data in mutated(document.data):
        ours, theirs = accepted(FORMATS[kind], data) is not None, validator.is_valid(data)
        if ours and not theirs:
            wrongly_refused.append((path, value_at(data, path)))
        refused += not ours
        if theirs and not ours:
            missed.append(path)
    assert wrongly_refused == []
    assert refused > 100
    assert len(missed) <= refused / 100, missed


def cut(data: Any) -> Any:
    """A copy without the entries of lists that have the same form as earlier ones."""
    if isinstance(data, list):
        forms = {item.get("type", "") if isinstance(item, dict) else "": item for item in reversed(data)}
        return [cut(item) for item in reversed(forms.values())]
    return {key: cut(value) for key, value in data.items()} if isinstance(data, dict) else data


@each_kind
def test_every_fault_of_a_wrong_value_has_its_place_and_a_mend(kind: str) -> None:
    (example,) = load_documents([formats.example_file(kind)])
    refused, bare = 0, []
    for path, data in mutated(cut(example.data), (None, "x y")):
        (document,) = parse_documents(json.dumps(data, indent=1), "f.yaml")
        try:
            validate(FORMATS[kind], document)
        except PolicyError as error:
            refused += len(error.faults)
            bare += [(path, str(fault)) for fault in error.faults if not fault.hint or not fault.path]
    assert refused > 15
    assert bare == []


# ------------------------------------------------------------------ the generator, on a format of its own


class Taste(StrEnum):
    """How it tastes."""

    SWEET = "Sweet"
    """Like sugar, which
    everybody knows."""
    SALTY = "Salty"
    """Like the sea."""


class Round(PolicyModel):
    """A round one."""

    shape: Literal["Round"]
    """Which shape it has."""
    radius_mib: Annotated[int, Field(ge=1)]
    """Half of it."""


class Square(PolicyModel):
    """A square one."""

    shape: Literal["Square"]
    """Which shape it has."""
    side: Annotated[int, integer("crumbs", 1, 9, example=3)] | None = None
    """All of it."""


class Box(PolicyModel):
    """What it is packed in."""

    taste: Taste | None = None
    """How the box tastes."""
    layers: int = 1
    """How many there are."""
    notes: list[str] = Field(default_factory=lambda: ["fragile"])
    """What is written on it."""


class CakeSpec(PolicyModel):
    """What it is made of.

    More is said here.
    """

    box: Box = Box(layers=2)
    """How it is
    packed."""
    name: Name
    """What it is called."""
    pieces: tuple[Annotated[Round | Square, Field(discriminator="shape")], ...] = ()
    """Its pieces."""


class Cake(Envelope):
    """A cake."""

    kind: Literal["Cake"]
    """Which format the document has."""
    spec: CakeSpec
    """What it is made of."""


@cache
def cake() -> dict[str, Any]:
    spec: dict[str, Any] = schema_of_kind("Cake", Cake)["properties"]["spec"]["properties"]
    return spec


def test_a_members_docstring_is_its_description_and_what_may_be_empty_says_so() -> None:
    taste = cake()["box"]["properties"]["taste"]
    assert (taste["type"], taste["enum"]) == (["string", "null"], ["Sweet", "Salty", None])
    assert taste["enumDescriptions"] == [
        "Like sugar, which everybody knows.",
        "Like the sea.",
        "No value.",
    ]
    assert taste["enumDescriptions"] == taste["markdownEnumDescriptions"]


def test_a_default_mapping_is_what_differs_from_its_own_defaults() -> None:
    assert cake()["box"]["default"] == {"layers": 2}


def test_a_default_that_is_made_anew_is_written() -> None:
    assert cake()["box"]["properties"]["notes"]["default"] == ["fragile"]


def test_line_breaks_of_docstrings_are_undone_and_paragraphs_kept() -> None:
    assert cake()["box"]["description"] == "How it is packed."
    whole = schema_of_all({"Cake": Cake})["definitions"]["Cake"]["properties"]["spec"]
    assert whole["description"] == "What it is made of."  # the field's own words win
    assert cake()["name"]["patternErrorMessage"].startswith("Must be a DNS label (")


def test_a_unit_is_said_by_the_field_or_read_off_the_name() -> None:
    round_piece, square_piece = (branch["then"] for branch in cake()["pieces"]["items"]["allOf"])
    assert round_piece["properties"]["radiusMiB"][UNIT] == "MiB"
    assert square_piece["properties"]["side"][UNIT] == "crumbs"
    assert (
        square_piece["properties"]["side"]["markdownDescription"]
        == "All of it.\n\ninteger, 1 to 9 · unit: crumbs"
    )


@pytest.mark.parametrize(
    ("piece", "wrong"),
    [
        pytest.param({"shape": "Round", "radiusMiB": 1}, [], id="right"),
        pytest.param({"shape": "Square", "side": None}, [], id="empty"),
        pytest.param(
            {"shape": "Round", "side": 1},
            ["'radiusMiB' is a required property", "'side' was unexpected"],
            id="other form",
        ),
        pytest.param({"shape": "Rund"}, ["'Rund' is not one of ['Round', 'Square']"], id="unknown form"),
        pytest.param({}, ["'shape' is a required property"], id="no form"),
        pytest.param(None, ["None is not of type 'object'"], id="no mapping"),
    ],
)
def test_forms_are_told_apart_by_their_key(piece: object, wrong: list[str]) -> None:
    found = [error.message for error in Draft7Validator(cake()["pieces"]).iter_errors([piece])]
    assert len(found) == len(wrong)
    assert all(any(part in message for message in found) for part in wrong)


@pytest.mark.parametrize(
    ("key", "unit"),
    [
        ("windowSeconds", "seconds"),
        ("seconds", "seconds"),
        ("p99Milliseconds", "milliseconds"),
        ("memoryMiB", "MiB"),
        ("requestsPerMinute", "per minute"),
        ("thresholdPercent", "percent"),
        ("maxSeats", None),
        ("secondsLeft", None),
    ],
)
def test_the_unit_at_the_end_of_a_name(key: str, unit: str | None) -> None:
    assert unit_of(key) == unit


# ------------------------------------------------------------------ the file


def test_the_file_is_fresh() -> None:
    path = POLICIES / "schema" / FILE_NAME
    assert path.read_text("utf-8") == formats.as_file(SCHEMA), "run: make generate"

"""JSON Schema of the file formats, as editors understand it best.

It comes from the models themselves: a new field is in it without anybody's help, and what an editor shows on hover is
the docstring that stands under the field. The dialect is draft-07, the newest that yaml-language-server knew for years:
editors bring releases of it that are of any age.

**One schema for all kinds.** A file may hold documents of several kinds, and editors hold each of them against the
whole schema. So the schema chooses: for each kind, `if` the document is of it, `then` it must be as that kind's
definition says. `oneOf` with a constant `kind` in each branch accepts the same documents, but a validator can then only
say that none of the branches fits, and yaml-language-server takes the branch that fits best for the one that was meant:
with `kind` missing or misspelt it reports what the document lacks of a kind that nobody asked for. With `if` there is
one error, at `kind`, and the right branch's errors, hover texts and completions as soon as `kind` is there. Entries of
lists that have several forms are told apart by their `type` in the same way.

**No references inside a kind.** In draft-07 whatever stands beside a `$ref` is ignored. Around it, in an `allOf`, it is
valid, but then yaml-language-server shows the definition's description in place of the field's, and completes a key to
an empty line instead of to the mapping's own keys. So every field holds its whole schema.

**No default that editors would complete wrongly.** yaml-language-server completes a key to its default: null to the
text "null", a list of mappings to "[object Object]". So null, an empty list and an empty mapping are left out, since
not to write the key is the same; a list of mappings stands under a key of its own.

Keywords beyond draft-07, which validators ignore: `markdownDescription`, `enumDescriptions`, `markdownEnumDescriptions`
and `patternErrorMessage` are what editors show, `defaultSnippets` what they offer in an empty document or entry;
`x-unit` is a number's unit, `x-expects` a pattern in words, `x-default` a default that is a list of mappings,
`x-not-acted-on` what happens instead of what the key says (`scaler.policy.unbuilt`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from scaler.policy import facts
from scaler.policy.base import EXPECTS, UNIT, Envelope
from scaler.policy.document import Path
from scaler.policy.member_docs import member_docs
from scaler.policy.unbuilt import EACH, UNBUILT, Unbuilt
from scaler.policy.units import unit_of

DIALECT: Final = "http://json-schema.org/draft-07/schema#"
"""The dialect of the schemas."""
FILE_NAME: Final = "emberpool.schema.json"
"""Name of the file with the schema of all kinds."""

_SAME_AS_ABSENT: Final[tuple[object, ...]] = (None, [], {})
_ID: Final = "https://emberpool.dev/schemas/v1alpha1/"

Node = dict[str, Any]
"""A schema, or one inside it."""


def schema_of_all(kinds: Mapping[str, type[Envelope]]) -> Node:
    """Return the schema of documents that are of any of some kinds.

    Args:
        kinds: the models of the kinds, by what stands under `kind`.
    """
    definitions = {kind: _definition(kind, model) for kind, model in kinds.items()}
    branches = {kind: {"$ref": f"#/definitions/{kind}"} for kind in kinds}
    return {
        **_head(FILE_NAME, "Emberpool", f"A document of kind {', '.join(kinds)}."),
        **_chosen_by("kind", definitions, branches),
        "definitions": definitions,
    }


def schema_of_kind(kind: str, model: type[Envelope]) -> Node:
    """Return the schema of documents of one kind."""
    definition = _definition(kind, model)
    return {**_head(f"{kind}.schema.json", kind, definition["description"]), **definition}


def _head(file_name: str, title: str, description: str) -> Node:
    return {"$schema": DIALECT, "$id": _ID + file_name, "title": title, "description": description}


def _definition(kind: str, model: type[Envelope]) -> Node:
    whole = model.model_json_schema(by_alias=True, schema_generator=_Generator)
    definitions = whole.pop("$defs", {})
    written = {"title": kind, **_Writer(definitions).written(whole)}
    for entry in UNBUILT:
        for field in _fields_at(written, entry.path) if entry.kind == kind else ():
            _mark(field, entry)
    return written


def _fields_at(node: Node, path: Path) -> Iterator[Node]:
    """Yield the fields that a path leads to: several where entries of a list have several forms."""
    if not path:
        yield node
        return
    head, rest = path[0], path[1:]
    if head == EACH:
        yield from _fields_at(node["items"], rest)
        return
    for form in (node, *(branch["then"] for branch in node.get("allOf", ()))):
        if head in form.get("properties", {}):
            yield from _fields_at(form["properties"][head], rest)


def _mark(field: Node, entry: Unbuilt) -> None:
    """Say that a key is accepted and not acted on yet."""
    field[facts.NOT_ACTED_ON] = f"Not acted on yet: {entry.instead}."
    field["markdownDescription"] += f"\n\n**Not acted on yet:** {entry.instead}."


def _chosen_by(key: str, variants: Mapping[str, Node], branches: Mapping[str, Node]) -> Node:
    """Return the schema of mappings whose form depends on the value of one key.

    Besides the key it lists what all forms have alike, so that an editor offers it before the form is known.

    Args:
        key: the key that tells the forms apart.
        variants: the schema of each form, by the key's value.
        branches: what to apply for each value: the same schemas, or references to them.
    """
    first = next(iter(variants.values()))["properties"]
    docs = [variant["description"] for variant in variants.values()]
    alike = {
        name: {word: said for word, said in node.items() if word != "examples"}  # hover would show them twice
        for name, node in first.items()
        if all(variant["properties"].get(name) == node for variant in variants.values())
    }
    return {
        "type": "object",
        "properties": {
            **alike,
            key: {
                "description": first[key]["description"],
                "type": "string",
                "enum": list(variants),
                "enumDescriptions": docs,
                "markdownEnumDescriptions": docs,
            },
        },
        "required": [key],
        "allOf": [{"if": _is(key, value), "then": branch} for value, branch in branches.items()],
        "defaultSnippets": [
            {"label": value, "description": doc, "body": _skeleton(variant)}
            for (value, variant), doc in zip(variants.items(), docs, strict=True)
        ],
    }


def _is(key: str, value: str) -> Node:
    """Return the schema of mappings with a value under a key. Without `type` what is no mapping would match, too."""
    return {"type": "object", "properties": {key: {"const": value}}, "required": [key]}


def _skeleton(node: Node) -> Any:  # noqa: ANN401 - a value of a document may be anything
    """Return the smallest value that the schema allows, made of the examples."""
    if "const" in node:
        return node["const"]
    if "enum" in node or "examples" in node:
        return (node["examples"] if "examples" in node else node["enum"])[0]
    if facts.is_object(node):
        return {key: _skeleton(node["properties"][key]) for key in node.get("required", ())}
    if "items" in node:
        return [_skeleton(node["items"])] * node.get("minItems", 0)
    return node.get("minimum", 0) if facts.is_number(node) else ""


class _Generator(GenerateJsonSchema):
    """Says what pydantic itself leaves out: what members of enumerations mean, and defaults that are made anew."""

    def sort(self, value: JsonSchemaValue, parent_key: str | None = None) -> JsonSchemaValue:
        """Keep the order of the models."""
        del parent_key
        return value

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        """Add what each member means."""
        written = super().enum_schema(schema)
        docs = member_docs(schema["cls"])
        return {
            "type": written["type"],
            "enum": written["enum"],
            "enumDescriptions": [_flowing(docs.get(member.name, "")) for member in schema["members"]],
        }

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:  # noqa: ANN401 - as in pydantic
        """Call a default factory, where there is one; none of the formats has one that looks at other fields."""
        make = cast("Callable[[], object] | None", schema.get("default_factory"))
        return super().get_default_value(schema) if make is None else make()

    def encode_default(self, dft: object) -> Any:  # noqa: ANN401 - as in pydantic
        """Write a model as far as it differs from what its own fields default to."""
        if isinstance(dft, BaseModel):
            return dft.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return super().encode_default(dft)


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes pydantic's schema of a model anew, for editors."""

    definitions: Mapping[str, Node]

    def written(self, node: Node) -> Node:
        """Write a schema and all inside it."""
        node = self._resolved(node)
        node.pop("title", None)
        if "description" in node:
            node["description"] = _flowing(node["description"])
        if "discriminator" in node:
            return self._union(node)
        if "properties" in node:
            node["properties"] = {key: self._field(key, field) for key, field in node["properties"].items()}
        for key in ("items", "additionalProperties"):
            if isinstance(node.get(key), dict):
                node[key] = self.written(node[key])
        if "anyOf" in node:
            node["anyOf"] = [self.written(branch) for branch in node["anyOf"]]
            node = _without_null_branch(node)
        if "enumDescriptions" in node:
            node["markdownEnumDescriptions"] = node["enumDescriptions"]
        if "pattern" in node and EXPECTS in node:
            node["patternErrorMessage"] = f"Must be {node[EXPECTS]}."
        return node

    def _resolved(self, node: Node) -> Node:
        """Put the definition in place of a reference; what stands beside it wins."""
        node = dict(node)
        while "$ref" in node:
            name = node.pop("$ref").rpartition("/")[2]
            node = {**self.definitions[name], **node}
        return node

    def _union(self, node: Node) -> Node:
        tags = node.pop("discriminator")
        del node["oneOf"]
        variants = {
            tag: {"title": tag, **self.written({"$ref": ref})} for tag, ref in tags["mapping"].items()
        }
        return {**node, **_chosen_by(tags["propertyName"], variants, variants)}

    def _field(self, key: str, node: Node) -> Node:
        node = self.written(node)
        default = node.get("default")
        if default in _SAME_AS_ABSENT:
            node.pop("default", None)
        elif isinstance(default, list) and any(isinstance(each, dict) for each in default):
            node[facts.LISTED_DEFAULT] = node.pop("default")
        if facts.is_number(node) and UNIT not in node and (unit := unit_of(key)):
            node[UNIT] = unit
        text = node.pop("description", "")
        return {"description": text, "markdownDescription": _hover(text, node), **node}


def _without_null_branch(node: Node) -> Node:
    """Write "this or nothing" as one schema, which editors describe better than a union of two."""
    branches = [branch for branch in node["anyOf"] if branch != {"type": "null"}]
    if len(branches) != 1 or "type" not in branches[0]:
        return node
    (branch,) = branches
    merged = {**branch, **node, "type": [branch["type"], "null"]}
    del merged["anyOf"]
    if "enum" in merged:
        merged["enum"] = [*branch["enum"], None]
        merged["enumDescriptions"] = [*branch.get("enumDescriptions", ()), "No value."]
    return merged


def _hover(description: str, node: Node) -> str:
    """Write what an editor shows of a field: its description, and a line with what it doesn't show by itself."""
    if facts.is_object(node):
        return description
    default = facts.default_in_words(node)
    line = [
        "" if "enum" in node else facts.values_in_words(node),
        f"unit: {node[UNIT]}" if UNIT in node else "",
        f"default: {default}" if default else "",
    ]
    return "\n\n".join(filter(None, (description, " · ".join(filter(None, line)))))


def _flowing(text: str) -> str:
    """Undo the line breaks of a docstring; an empty line still parts paragraphs."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))

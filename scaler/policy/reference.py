"""The reference pages of the file formats, written from the same schema that editors show on hover.

What a field means stands in one place, the docstring under it. This module lays it out: for each kind a table of each
mapping in it, and a whole example. What the first page says before that is `scaler.policy.guide`. Kinds that are looked
up now and then have pages of their own.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Final

from scaler.policy import facts, guide
from scaler.policy.base import DNS_LABEL, UNIT

Node = Mapping[str, Any]
"""A schema as `scaler.policy.schema` writes it."""

HOME: Final = "README.md"
"""The first page, which has all kinds but those of `OWN_PAGES`."""
OWN_PAGES: Final[Mapping[str, str]] = MappingProxyType(
    {"XidTable": "reference/xid-table.md", "DrillScenario": "reference/drill-scenario.md"}
)
"""The pages of the other kinds, by kind, as paths from the first page's folder."""

_SHARED: Final = "Every document"
_COLUMNS: Final = ("Key", "Value", "Unit", "Default", "Meaning")
_MODELINE: Final = re.compile(r"^# yaml-language-server: .*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The table of a mapping with known keys.

    Attributes:
        chapter: the kind that it stands under.
        title: its heading.
        node: the mapping's schema.
        places: where the mapping stands in a document.
    """

    chapter: str
    title: str
    node: Node
    places: list[str] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """What a link inside the page calls it, by GitHub's rule for headings."""
        return "#" + re.sub(r"[^\w\- ]", "", self.title.lower()).replace(" ", "-")


Layout = Mapping[str, Section]
"""The sections of the page in their order, by what tells mappings apart: those with the same keys share a section."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What the pages show beside the tables.

    Attributes:
        files: the texts of the files that the first page lists, by their paths from it.
        examples: the text of the example of each kind.
        shared_fleet: the text of the file that the guide explains.
    """

    files: Mapping[str, str]
    examples: Mapping[str, str]
    shared_fleet: str


def pages(schema: Node, material: Material) -> dict[str, str]:
    """Return the pages as Markdown, by their paths from the first page's folder, given the schema of all kinds."""
    kinds: Mapping[str, Node] = schema["definitions"]
    layout = layout_of(kinds)
    own = {
        path: _own_page(kind, kinds[kind], layout, material)
        for kind, path in OWN_PAGES.items()
        if kind in kinds
    }
    return {HOME: _first_page(schema, material), **own}


def _own_page(kind: str, node: Node, layout: Layout, material: Material) -> str:
    head = [guide.GENERATED, f"# {kind}\n", f"{node['description']}\n", guide.KINDS[kind], guide.OWN_PAGE]
    return "\n".join(
        [*head, *_chapter(kind, layout), f"## {kind}: an example\n", _fenced(material.examples[kind])]
    )


def _first_page(schema: Node, material: Material) -> str:
    kinds: Mapping[str, Node] = schema["definitions"]
    layout = layout_of(kinds)
    parts = [guide.GENERATED, guide.HEAD, _table(("Kind", "Says"), _contents(kinds))]
    parts += [guide.FILES, _table(("File", "What it shows"), _files(material.files))]
    parts += [guide.BEFORE, _fenced(material.shared_fleet), guide.AFTER]
    parts += [f"## {_SHARED}\n", guide.EVERY_DOCUMENT, _fields(_envelope(schema), layout)]
    parts += _chapter(_SHARED, layout)
    for kind, node in ((kind, node) for kind, node in kinds.items() if kind not in OWN_PAGES):
        parts += [f"## {kind}\n", f"{node['description']}\n", guide.KINDS[kind], *_chapter(kind, layout)]
        parts += [f"### {kind}: an example\n", _fenced(material.examples[kind])]
    return "\n".join(parts)


def layout_of(kinds: Mapping[str, Node]) -> Layout:
    """Lay out the mappings with known keys of some kinds, given the kinds' schemas."""
    layout: dict[str, Section] = {}
    for chapter, node in _chapters(kinds):
        for place, mapping in _mappings("", node):
            form = f", type {mapping['title']}" if "title" in mapping else ""
            section = Section(chapter=chapter, title=f"{chapter}: `{place}`{form}", node=mapping)
            layout.setdefault(identity(mapping), section).places.append(place)
    return layout


def _chapters(kinds: Mapping[str, Node]) -> Iterator[tuple[str, Mapping[str, Node]]]:
    """Yield the chapters with their fields: first what documents of all kinds have, then each kind."""
    first = next(iter(kinds.values()))["properties"]
    yield _SHARED, {"metadata": first["metadata"]}
    for kind, node in kinds.items():
        yield kind, node["properties"]


def identity(mapping: Node) -> str:
    """Return what tells a mapping apart from those with other keys, or with keys that mean something else."""
    return json.dumps([mapping.get("title"), mapping["properties"]])


def _mappings(place: str, fields: Mapping[str, Node]) -> Iterator[tuple[str, Node]]:
    """Yield the mappings below some fields with their places, parents first."""
    for key, node in fields.items():
        inner = f"{place}.{key}".lstrip(".") + "[]" * ("items" in node)
        for mapping in forms_of(node):
            yield inner, mapping
            yield from _mappings(inner, mapping["properties"])


def forms_of(node: Node) -> list[Node]:
    """List the mappings that a field takes, itself or as entries of its list: several where entries have several forms."""
    node = node.get("items", node)
    if "allOf" in node:
        return [branch["then"] for branch in node["allOf"]]
    return [node] if "properties" in node else []


# ------------------------------------------------------------------ Markdown


def _contents(kinds: Mapping[str, Node]) -> Iterator[tuple[str, str]]:
    for kind, node in kinds.items():
        yield f"[{kind}]({OWN_PAGES.get(kind, f'#{kind.lower()}')})", str(node["description"])


def _files(files: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for path, text in files.items():
        yield f"[{path}]({path})", summary(text)


def summary(text: str) -> str:
    """Return the first sentence of the comment that a file begins with."""
    comment = takewhile(lambda line: line.startswith("# "), _MODELINE.sub("", text).splitlines())
    sentence = " ".join(line.removeprefix("# ") for line in comment).partition(". ")[0]
    return f"{sentence.rstrip('.:')}."


def _envelope(schema: Node) -> Node:
    """Return what each document begins with, as a mapping."""
    kinds = schema["definitions"]
    first = next(iter(kinds.values()))
    fields = {**first["properties"], "kind": schema["properties"]["kind"]}
    del fields["spec"]
    return {"properties": fields, "required": first["required"]}


def _chapter(chapter: str, layout: Layout) -> Iterator[str]:
    for section in layout.values():
        if section.chapter == chapter:
            yield f"### {section.title}\n"
            others = ", ".join(
                f"`{place}`" for place in dict.fromkeys(section.places) if place not in section.title
            )
            said = " ".join(filter(None, (section.node["description"], _unbuilt(section.node))))
            yield f"{said}{others and f' The same keys: {others}.'}\n"
            yield _fields(section.node, layout)


def _fields(mapping: Node, layout: Layout) -> str:
    required = mapping.get("required", ())
    return _table(
        _COLUMNS,
        (
            (f"`{key}`", _value(node, layout), _unit(node), _default(node, key in required), _meaning(node))
            for key, node in mapping["properties"].items()
        ),
    )


def _value(node: Node, layout: Layout) -> str:
    """Say what may stand there, with links to the sections of mappings."""
    words = facts.values_in_words(node).replace(DNS_LABEL, "a DNS label")  # what that is, the guide says once
    sections = [layout[identity(form)] for form in forms_of(node)]
    if len(sections) == 1:
        name = facts.type_in_words(node)
        return words.replace(name, f"[{name}]({sections[0].anchor})", 1)
    if sections:
        words += ", each one of " + ", ".join(f"[{each.node['title']}]({each.anchor})" for each in sections)
    return words


def _unit(node: Node) -> str:
    return str(node.get("items", node).get(UNIT, ""))


def _default(node: Node, required: bool) -> str:  # noqa: FBT001 - private, one caller
    return "**required**" if required else facts.default_in_words(node)


def _meaning(node: Node) -> str:
    """Give the description, what each of a closed set's values means, and an example."""
    lines = [str(node["description"]), *filter(None, [_unbuilt(node)])]
    docs = dict(zip(node.get("enum", ()), node.get("enumDescriptions", ()), strict=False))
    lines += [f"{facts.as_code(value)}: {doc}" for value, doc in docs.items()]
    for example in node.get("examples", node.get("items", {}).get("examples", ())):
        lines.append(f"Example: {facts.as_code([example] if 'items' in node else example)}")
    return "<br>".join(lines)


def _unbuilt(node: Node) -> str:
    """Say what happens instead of what a key says; nothing where it is acted on."""
    note = str(node.get(facts.NOT_ACTED_ON, ""))
    return f"**{note.replace(':', ':**', 1)}" if note else ""


def _fenced(text: str) -> str:
    return f"```yaml\n{_MODELINE.sub('', text).strip()}\n```\n"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)

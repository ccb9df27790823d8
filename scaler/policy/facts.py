"""What a schema says of a value in a few words: type, limits, unit, default.

Hover text and the reference page take these words from here, so that both say the same.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from scaler.policy.base import EXPECTS
from scaler.policy.visible import UNSEEN, escaped

Node: TypeAlias = Mapping[str, Any]
"""A schema, or one inside it, as `scaler.policy.schema` writes them: without references."""

LISTED_DEFAULT: Final = "x-default"
"""Key in a schema: a default that is a list of mappings, which editors can't complete and people still want to read."""

NOT_ACTED_ON: Final = "x-not-acted-on"
"""Key in a schema: that the key is accepted, and what happens instead of what it says."""

_TYPES: Final[Mapping[str, str]] = {
    "integer": "integer",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "object": "mapping",
}
_PLURALS: Final[Mapping[str, str]] = {
    "integer": "integers",
    "number": "numbers",
    "mapping": "mappings",
}
_PLAIN: Final = re.compile(r"(?!(?:true|false|null)$)[A-Za-z][\w./-]*", re.ASCII | re.IGNORECASE)
"""Text that YAML reads as itself without quotes, in flow style too."""


def types_of(node: Node) -> list[str]:
    """List the JSON types that a value may have; none of its own for a union."""
    types = node.get("type", [])
    return [types] if isinstance(types, str) else list(types)


def is_number(node: Node) -> bool:
    """Whether a value is a number, which has a unit."""
    return not {"integer", "number"}.isdisjoint(types_of(node))


def is_closed(node: Node) -> bool:
    """Whether all values are listed in the schema itself."""
    return "const" in node or "enum" in node or types_of(node) == ["boolean"]


def is_object(node: Node) -> bool:
    """Whether a value is a mapping with known keys."""
    return "properties" in node or "allOf" in node


def values_in_words(node: Node) -> str:
    """Say what may stand there: the values themselves where they are listed, else type and limits.

    Null is named where it differs from leaving the key out.
    """
    limits = limits_in_words(node)
    words = (
        limits
        if "const" in node or "enum" in node
        else ", ".join(filter(None, (type_in_words(node), limits)))
    )
    return f"{words}, or `null`" if "null" in types_of(node) and "default" in node else words


def type_in_words(node: Node) -> str:
    """Name the type of a value as people do."""
    if "anyOf" in node:
        return " or ".join(type_in_words(branch) for branch in node["anyOf"])
    name = next((name for name in types_of(node) if name != "null"), "")
    if name == "array":
        entry = type_in_words(node["items"])
        return f"list of {_PLURALS.get(entry, entry)}"
    if isinstance(values := node.get("additionalProperties"), Mapping):
        return f"mapping to {type_in_words(values)}"
    return _TYPES.get(name, "anything")


def limits_in_words(node: Node) -> str:
    """Say which values of its type are allowed; nothing where all are."""
    if "const" in node:
        return as_code(node["const"])
    if "enum" in node:
        return ", ".join(as_code(choice) for choice in node["enum"] if choice is not None)
    if "array" in types_of(node):
        entries = _between(node.get("minItems"), node.get("maxItems"))
        each = limits_in_words(node["items"])
        return "; ".join(filter(None, (entries, each and f"each {each}")))
    return str(node.get(EXPECTS) or _between(node.get("minimum"), node.get("maximum")))


def _between(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"{low} to {high}"
    if low is not None:
        return f"at least {low}"
    return "" if high is None else f"at most {high}"


def default_in_words(node: Node) -> str:
    """Write a default as it could stand in the file; nothing where there is none."""
    default = node.get("default", node.get(LISTED_DEFAULT))
    return "" if default is None else as_code(default)


def as_code(value: object) -> str:
    """Write a value in YAML's flow style, as Markdown shows code."""
    return f"`{as_yaml(value)}`"


def as_yaml(value: object) -> str:
    """Write a value in YAML's flow style."""
    match value:
        case str():
            if _PLAIN.fullmatch(value):
                return value
            return UNSEEN.sub(lambda found: escaped(found[0]), json.dumps(value, ensure_ascii=False))
        case Mapping():
            return "{" + ", ".join(f"{as_yaml(key)}: {as_yaml(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(as_yaml(item) for item in value) + "]"
        case _:
            return json.dumps(value)

"""What a model's JSON Schema says of one place, in plain words.

The wording of errors comes from the same schema that editors read, so that the two can't drift apart.
"""

import difflib
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from pydantic import BaseModel

from scaler.policy.base import EXPECTS, UNIT
from scaler.policy.document import Path, look_up, show

Schema: TypeAlias = Mapping[str, Any]

_SEXAGESIMAL: Final = re.compile(r"[0-9]{1,9}(:[0-5]?[0-9]){1,5}")
_UNDERSCORED: Final = re.compile(r"[0-9][0-9_]{1,20}")
_BINARY: Final = re.compile(r"0b[01_]*[01]")
"""Numbers in YAML 1.1, and text in YAML 1.2."""
_WITH_UNIT: Final = re.compile(r"[0-9]+(\.[0-9]+)?\s?[A-Za-z%µ]{1,8}")
"""As Kubernetes and Prometheus write quantities and durations."""
_DIGITS: Final = re.compile(r"-?[0-9]+")
_LARGEST_EXACT: Final = 2**53
"""Up to here every integer has a float of its own."""
_NAMES: Final = frozenset({"Emberpool", "Kubernetes", "Prometheus", "Redis"})
"""Words that keep their capital wherever they stand."""
_WORDS_FOR_TRUTH: Final = frozenset({"yes", "no", "on", "off", "y", "n"})


@cache
def schema_of(model: type[BaseModel]) -> Schema:
    """Return the JSON Schema of a model, with the keys of the file."""
    return model.model_json_schema(by_alias=True)


def schema_at(schema: Schema, path: Path, data: object = None) -> Schema:
    """Walk a JSON Schema to what it says of `path`; an empty schema where it says nothing.

    Args:
        schema: the schema of the whole.
        path: where to go.
        data: what stands there in the file: it says which branch of a union is meant.
    """
    definitions = schema.get("$defs", {})
    here = _chosen(_resolved(schema, definitions), definitions, data)
    for part in path:
        data = look_up(data, part)
        for branch in _branches(here):
            child = branch.get("items") if isinstance(part, int) else branch.get("properties", {}).get(part)
            child = child or branch.get("additionalProperties")
            if isinstance(child, Mapping):
                here = _chosen(_resolved(child, definitions), definitions, data)
                break
        else:
            return {}
    return _opened(here, definitions)


def _opened(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Follow the references of a mapping's fields, too."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [_opened(branch, definitions) for branch in schema["anyOf"]]}
    if "properties" not in schema:
        return schema
    fields = {key: _resolved(field, definitions) for key, field in schema["properties"].items()}
    return {**schema, "properties": fields}


def _chosen(schema: Schema, definitions: Mapping[str, Schema], data: object) -> Schema:
    """Return the branch of a union that the data's own tag names; the schema itself without such a tag."""
    tags = schema.get("discriminator")
    if tags is None or not isinstance(data, dict):
        return schema
    reference = tags["mapping"].get(str(data.get(tags["propertyName"])))
    return schema if reference is None else _resolved({"$ref": reference}, definitions)


def _resolved(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Follow references, also those in a union's branches; what stands beside one (a description) wins."""
    if "$ref" in schema:
        schema = {**definitions[str(schema["$ref"]).rpartition("/")[2]], **schema}
    union = schema.get("anyOf") or schema.get("oneOf")
    if union is None:
        return schema
    return {**schema, "anyOf": [_resolved(branch, definitions) for branch in union]}


def _branches(schema: Schema) -> list[Schema]:
    """List what a value may be: the branches of a union without its null, or the schema itself."""
    return [branch for branch in schema.get("anyOf", [schema]) if branch.get("type") != "null"]


def keys_of(schema: Schema) -> list[str]:
    """List the keys that a mapping takes, in each form that it may have."""
    return list(dict.fromkeys(key for branch in _branches(schema) for key in branch.get("properties", ())))


def expectation(schema: Schema) -> str:
    """Say in words what a value must be."""
    if EXPECTS in schema:
        return str(schema[EXPECTS])
    if "const" in schema:
        return show(schema["const"])
    if "enum" in schema:
        return "one of " + ", ".join(str(choice) for choice in schema["enum"])
    if "discriminator" in schema:
        return "a mapping"
    if "anyOf" in schema:
        return " or ".join(expectation(branch) for branch in _branches(schema))
    return _type_in_words(schema)


def _type_in_words(schema: Schema) -> str:
    match schema.get("type"):
        case "integer":
            return "an integer" + _bounds(schema)
        case "number":
            return "a number" + _bounds(schema)
        case "boolean":
            return "true or false"
        case "string":
            return "text" + (" that is not empty" if schema.get("minLength") else "")
        case "array":
            return "a list" + (" with at least one entry" if schema.get("minItems") else "")
        case _:
            return "a mapping"


def _bounds(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" ≥ {low}"
    return f" ≤ {high}" if high is not None else ""


def mend(schema: Schema, value: object) -> str:
    """Say what to do about a wrong value."""
    kinds = {branch.get("type") for branch in _branches(schema)}
    if value is None and "default" in schema:
        return _in_place_of_nothing(schema["default"])
    match value:
        case str():
            found = _instead_of_text(schema, kinds, value)
        case float():
            found = _whole(value) if "integer" in kinds else ""
        case dict() if "array" in kinds:
            found = "begin each entry with a dash and a space"
        case int() if "array" in kinds and _takes(_entry_of(schema), value):
            found = f"write [{json.dumps(value)}]"
        case _:
            found = ""
    if not found and isinstance(value, int | float) and kinds == {"string"}:
        found = "put it into quotes"
    return found or described(schema, value)


def _instead_of_text(schema: Schema, kinds: Collection[object], value: str) -> str:
    """Say what to write instead of a text; empty where nothing can be told from it."""
    if "enum" in schema:
        if (ours := FOREIGN_VALUES.get(value)) in schema["enum"]:
            return f"here that is {ours}"
        if guess := did_you_mean(value, schema["enum"]):
            return guess
    if "array" in kinds and _takes(_entry_of(schema), value):
        return f"write [{json.dumps(value, ensure_ascii=False)}]"
    if "boolean" in kinds and value.lower() in _WORDS_FOR_TRUTH:
        return "YAML 1.2 knows only true and false"
    if "integer" not in kinds:
        return ""
    if _DIGITS.fullmatch(value):
        return "remove the quotes"
    if value.isdecimal():
        return f"write the digits of ASCII: {int(value)}"
    return _number_alone(value, schema)


def _entry_of(schema: Schema) -> Schema:
    """Return what the schema of a list says of an entry."""
    entry: Schema = next((branch["items"] for branch in _branches(schema) if "items" in branch), {})
    return entry


def _whole(value: float) -> str:
    """Say how to write a number that must be whole; empty for one that no integer is near."""
    if not math.isfinite(value) or abs(value) > _LARGEST_EXACT:
        return ""
    low, high = math.floor(value), math.ceil(value)
    return f"write {low}" if low == high else f"write {low} or {high}"


def _in_place_of_nothing(default: object) -> str:
    """Say what to do about a key that has no value and may be left out."""
    plain = isinstance(default, int | str) and not isinstance(default, bool) and default != ""
    return f"write a value, or remove the line{f': the default is {default}' if plain else ''}"


def _keys_of(schema: Schema, value: object) -> str:
    """Say which keys a mapping takes, and below which of them the value that was given for it would be right."""
    mapping = next(branch for branch in _branches(schema) if branch.get("type") == "object")
    if "discriminator" in schema:
        tags = schema["discriminator"]
        return f"a mapping whose {tags['propertyName']} is one of {', '.join(tags['mapping'])}"
    fields, required = mapping.get("properties", {}), mapping.get("required", ())
    if not fields:
        return _first_sentence(schema) or "write its keys, each with a colon and a value"
    known = f"it has the keys {', '.join(f'{key} (required)' if key in required else key for key in fields)}"
    for name, field in fields.items():
        for branch in _branches(field):
            for form, written in ((branch, value), (branch.get("items", {}), [value])):
                if _takes(form, value):
                    return f"write {{{name}: {json.dumps(written, ensure_ascii=False)}}}; {known}"
    return known


def _takes(schema: Schema, value: object) -> bool:
    """Whether a value by itself is right for a schema, as far as this can be told in a few words."""
    match value:
        case bool():
            return schema.get("type") == "boolean"
        case int():
            high = schema.get("maximum", value)
            return schema.get("type") == "integer" and bool(schema.get("minimum", value) <= value <= high)
        case str() if "enum" in schema:
            return value in schema["enum"]
        case str():
            pattern = schema.get("pattern", "")
            return pattern.startswith("^") and re.search(pattern, value) is not None  # others take any text
        case _:
            return False


def _number_alone(value: str, schema: Schema) -> str:
    """Say how to write a number that YAML 1.1 knew in another form, or that came with its unit; empty for other text."""
    digits = value.replace("_", "")
    if _SEXAGESIMAL.fullmatch(value):
        number = 0
        for part in value.split(":"):
            number = number * 60 + int(part)
        return f"YAML 1.2 reads {value} as text: write {number} if that is meant"
    if _UNDERSCORED.fullmatch(value):
        return f"YAML 1.2 reads {value} as text: write {digits}"
    if _BINARY.fullmatch(value):
        return f"YAML 1.2 reads {value} as text: write {int(digits, base=0)}"
    if _WITH_UNIT.fullmatch(value):
        units = [branch[UNIT] for branch in _branches(schema) if UNIT in branch]
        return f"write the number alone; its unit is {units[0]}" if units else "write the number alone"
    return ""


def described(schema: Schema, value: object = None) -> str:
    """Say in a hint what belongs there: the keys of a mapping, what a list, a number or a text is, with an example.

    Args:
        schema: what the schema says of the place.
        value: what was written there.
    """
    if any(branch.get("type") == "object" for branch in _branches(schema)):
        return _keys_of(schema, value)
    sentence = _first_sentence(schema)
    examples = [example for branch in (schema, *_branches(schema)) for example in branch.get("examples", ())]
    return ", ".join(filter(None, (sentence, f"for example {examples[0]}" if examples else "")))


def _first_sentence(schema: Schema) -> str:
    """Take the first sentence of a field's description, as a hint reads: no full stop, a capital for names only."""
    text = " ".join(str(schema.get("description", "")).split())
    sentence = text.partition(". ")[0].rstrip(".")
    word = sentence.partition(" ")[0]
    is_name = len(word) > 1 and (word[1:] != word[1:].lower() or word.removesuffix("'s") in _NAMES)
    return sentence if is_name else sentence[:1].lower() + sentence[1:]


FOREIGN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "minReplicas": "serving.min of a ScalingPolicy (and spare.min of a Fleet)",
        "minReplicaCount": "serving.min of a ScalingPolicy (and spare.min of a Fleet)",
        "maxReplicas": "maxSeats of a Fleet and serving.max of a ScalingPolicy",
        "maxReplicaCount": "maxSeats of a Fleet and serving.max of a ScalingPolicy",
        "idleReplicaCount": "serving.min: 0 of a ScalingPolicy",
        "behavior": "scaleUp and scaleDown of a Fleet",
        "scaleTargetRef": "target of a Fleet",
        "metrics": "signals of a ScalingPolicy",
        "triggers": "signals of a ScalingPolicy",
        "cooldownPeriod": "scaleDown.stabilizationWindowSeconds of a Fleet",
        "pollingInterval": "intervalSeconds or intervalMilliseconds of a signal",
        "targetConcurrency": "targetInFlight of an entry of fleets",
        "replicas": "maxSeats, spare.min and schedules of a Fleet",
    }
)
"""Words of HorizontalPodAutoscaler and KEDA, and what says the same here."""

FOREIGN_VALUES: Final[Mapping[str, str]] = MappingProxyType({"Pods": "Seats"})
"""Values of HorizontalPodAutoscaler's `type` of a policy, and what says the same here."""


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Guess what a misspelt word stands for, as a hint; empty without a good guess."""
    meant = closest(word, known)
    return f"did you mean {meant}?" if meant else ""


def closest(word: object, known: Iterable[str]) -> str:
    """Guess which of some words a misspelt one stands for; empty without a good guess."""
    if not isinstance(word, str):
        return ""
    by_fold = {"".join(letter for letter in choice.lower() if letter.isalnum()): choice for choice in known}
    folded = "".join(letter for letter in word.lower() if letter.isalnum())
    close = difflib.get_close_matches(folded, by_fold, n=1, cutoff=0.6)
    return by_fold[close[0]] if close else ""

"""From documents to checked models: every fault at once, at its line, in plain words.

The models say what a value must be; this module turns what pydantic found into sentences about the file.
"""

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from scaler.errors import PolicyError, PolicyFault
from scaler.policy.base import API_VERSION, MISSHAPEN, Broken, Envelope, PolicyModel
from scaler.policy.document import (
    MAX_FAULTS,
    Document,
    Path,
    dotted,
    load_documents,
    parse_documents,
    show,
)
from scaler.policy.wording import FOREIGN, described, did_you_mean, expectation, mend, schema_at, schema_of

__all__ = ["Document", "Path", "dotted", "load_documents", "model_for", "parse_documents", "show", "validate"]

Model = TypeVar("Model", bound=BaseModel)

_PLAIN_NUMBER: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?")
"""Numbers that everybody reads alike."""
_OLD_OCTAL: Final = re.compile(r"[-+]?0[0-7]+")
"""An octal number in YAML 1.1, and a decimal one in YAML 1.2."""
_CHECKED_BY: Final = MappingProxyType(
    {"DrillScenario": "drill validate"}
    | dict.fromkeys(("Fleet", "ScalingPolicy", "Controller", "XidTable"), "policy validate")
)
"""The command that each kind is checked with: where a kind is given to the other one, its name is the mend."""


def validate(model: type[Model], document: Document) -> Model:
    """Check a document against a model.

    Raises:
        PolicyError: with all faults. Rules over several fields are looked at once every single value is right.
    """
    try:
        checked = model.model_validate_json(json.dumps(document.data), by_alias=True, by_name=False)
    except ValidationError as error:
        found = error.errors(include_url=False)
        faults = [_fault(model, document, details) for details in found if not _follows(details)]
        faults += _ambiguous(document, {fault.path for fault in faults})
        faults.sort(key=lambda fault: (fault.line, fault.column))
        raise PolicyError(tuple(faults[:MAX_FAULTS])) from error
    if ambiguous := tuple(islice(_ambiguous(document, ()), MAX_FAULTS)):
        raise PolicyError(ambiguous)
    broken = tuple(
        document.fault(path + rule.path, rule.message, rule.hint)
        for path, rule in islice(_broken_rules(checked, ()), MAX_FAULTS)
    )
    if broken:
        raise PolicyError(broken)
    return checked


def model_for(kinds: Mapping[str, type[Envelope]], document: Document) -> type[Envelope]:
    """Choose the model that a document's `apiVersion` and `kind` ask for.

    Raises:
        PolicyError: either of them is missing or unknown.
    """
    faults = []
    version, kind = document.data.get("apiVersion"), document.data.get("kind")
    if version != API_VERSION:
        message = _found(API_VERSION, "apiVersion" in document.data, version)
        faults.append(document.fault(("apiVersion",), message, _mend_of_version(version)))
    if not isinstance(kind, str) or kind not in kinds:
        message = _found("one of " + ", ".join(kinds), "kind" in document.data, kind)
        faults.append(document.fault(("kind",), message, _mend_of_kind(kind, kinds)))
    if faults:
        raise PolicyError(tuple(faults))
    return kinds[str(kind)]


def _mend_of_version(version: object) -> str:
    if isinstance(version, str) and version and "emberpool" not in version:
        return "this is no document of Emberpool's: keep it in another file or folder"
    return f"write apiVersion: {API_VERSION}"


def _mend_of_kind(kind: object, kinds: Iterable[str]) -> str:
    if command := _CHECKED_BY.get(str(kind)):
        return f"a {kind} is checked with `emberpool {command} FILE`"
    return did_you_mean(kind, kinds) or "kind says which format the document has"


def _ambiguous(document: Document, told: Container[str]) -> Iterator[PolicyFault]:
    """Yield each number that not every reader of YAML takes for the same one, but for the paths that are told already."""
    for path, value in _numbers(document.data, ()):
        written = document.written(path)
        if written and not _PLAIN_NUMBER.fullmatch(written) and dotted(path) not in told:
            message = f"must be a decimal number without leading zeros, is {_as_read(written, value)}"
            yield document.fault(path, message, _plainly(written, value))


def _numbers(data: object, path: Path) -> Iterator[tuple[Path, int]]:
    match data:
        case dict():
            for key, value in data.items():
                yield from _numbers(value, (*path, key))
        case list():
            for index, item in enumerate(data):
                yield from _numbers(item, (*path, index))
        case int() if not isinstance(data, bool):
            yield path, data
        case _:
            pass


def _plainly(written: str, value: int) -> str:
    """Say how to write a number so that it is one number to everybody."""
    if _OLD_OCTAL.fullmatch(written) and (octal := int(written, base=8)) != value:
        return f"write {value}, or {octal} if the zero was to say octal, as in YAML 1.1"
    return f"write {value}"


def _found(expected: str, present: bool, value: object) -> str:  # noqa: FBT001 - private, two callers
    return f"must be {expected}, is {show(value) if present else 'missing'}"


def _broken_rules(value: object, path: Path) -> Iterator[tuple[Path, Broken]]:
    """Collect the broken rules of a tree of models, parents first."""
    match value:
        case PolicyModel():
            yield from ((path, rule) for rule in value.broken_rules())
            for name, field in type(value).model_fields.items():
                yield from _broken_rules(getattr(value, name), (*path, field.alias or name))
        case Mapping():
            for key, item in value.items():
                yield from _broken_rules(item, (*path, str(key)))
        case list() | tuple():
            for index, item in enumerate(value):
                yield from _broken_rules(item, (*path, index))
        case _:
            pass


# ------------------------------------------------------------------ wording


def _fault(model: type[BaseModel], document: Document, details: ErrorDetails) -> PolicyFault:
    """Say what pydantic found about one place."""
    path = _path_in(document.data, details["loc"])
    if details["type"] == "extra_forbidden":
        known = schema_at(schema_of(model), path[:-1], document.data).get("properties", {})
        foreign = FOREIGN.get(str(path[-1]))
        guess = f"here that is {foreign}" if foreign else did_you_mean(path[-1], known)
        hint = guess or f"known here: {', '.join(known)}"
        line, column = document.key_position(path)
        message = "is not a known key"
        return PolicyFault(
            file=document.file, line=line, column=column, path=dotted(path), message=message, hint=hint
        )
    if details["type"] in {"union_tag_invalid", "union_tag_not_found"} and isinstance(details["input"], dict):
        tags = schema_at(schema_of(model), path)["discriminator"]
        return _unknown_tag(document, (*path, tags["propertyName"]), details["input"], list(tags["mapping"]))
    schema = schema_at(schema_of(model), path, document.data)
    if details["type"] == "missing":
        return document.fault(path, f"is missing: must be {expectation(schema)}", described(schema))
    if details["type"] == MISSHAPEN:
        return document.fault(path, details["ctx"]["message"], details["ctx"]["hint"])
    if details["type"] in {"value_error", "assertion_error"}:
        return document.fault(path, details["msg"].partition(", ")[2] or details["msg"])
    value = details["input"]
    message = f"must be {expectation(schema)}, is {_as_read(document.written(path), value)}"
    return document.fault(path, message, mend(schema, value))


def _as_read(written: str, value: object) -> str:
    """Show a value; a number that YAML 1.1 or its author would read otherwise, in both forms."""
    misleading = isinstance(value, int | float) and written and not _PLAIN_NUMBER.fullmatch(written)
    if misleading and not isinstance(value, bool):
        return f"{written} ({show(value)} in YAML 1.2)"
    return show(value)


def _unknown_tag(
    document: Document, path: Path, found: Mapping[str, object], known: list[str]
) -> PolicyFault:
    """Say that the key by which entries of different forms are told apart is missing or says something unknown."""
    key = str(path[-1])
    message = _found("one of " + ", ".join(known), key in found, found.get(key))
    hint = did_you_mean(found.get(key), known) or f"{key} says which form the entry has"
    return document.fault(path, message, hint)


def _follows(details: ErrorDetails) -> bool:
    """Whether a list counts as too short only because pydantic leaves out its faulty entries."""
    return details["type"] == "too_short" and len(details["input"]) >= details["ctx"]["min_length"]


def _path_in(data: object, location: tuple[str | int, ...]) -> Path:
    """Drop from pydantic's location what names a branch of a union and no place in the data."""
    path: list[str | int] = []
    for depth, part in enumerate(location):
        last = depth == len(location) - 1
        match data, part:
            case dict(), str() if part in data:
                data = data[part]
            case list(), int() if part < len(data):
                data = data[part]
            case dict(), str() if last:
                pass
            case _:
                continue
        path.append(part)
    return tuple(path)

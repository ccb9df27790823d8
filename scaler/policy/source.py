"""From documents to checked models: every fault at once, at its line, in plain words.

The models say what a value must be; this module turns what is wrong with one into sentences about the file.
"""

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, Generic, TypeAlias, TypeVar

from pydantic import ValidationError

from scaler.errors import PolicyError, PolicyFault
from scaler.policy.base import (
    API_VERSION,
    MISSHAPEN,
    Broken,
    Envelope,
    Metadata,
    PolicyModel,
    as_far_as_sound,
    sound_entries,
)
from scaler.policy.document import (
    MAX_FAULTS,
    Document,
    Path,
    dotted,
    load_documents,
    parse_documents,
    show,
)
from scaler.policy.fields import (
    MISSING,
    TAG,
    TOO_MANY,
    UNKNOWN,
    Wrong,
    check_fields,
    is_ambiguous,
    meant_by,
    places_of,
)
from scaler.policy.files import cut_off, in_file_order
from scaler.policy.wording import (
    FOREIGN,
    closest,
    described,
    did_you_mean,
    expectation,
    keys_of,
    mend,
    schema_at,
    schema_of,
)

__all__ = [
    "Document",
    "Examined",
    "Path",
    "Unrecognized",
    "dotted",
    "examine",
    "load_documents",
    "model_for",
    "parse_documents",
    "show",
    "validate",
]

Model = TypeVar("Model", bound=PolicyModel)

Kinds: TypeAlias = Mapping[str, type[PolicyModel]]
"""Kinds of documents that may stand beside each other."""
NO_OTHERS: Final[Kinds] = MappingProxyType({})
_MOST_HOMES: Final = 3
"""Places that a hint names: a key that more mappings take, as `name`, belongs nowhere in particular."""
_INDEX: Final = re.compile(r"\[[0-9]+\]")
_OLD_OCTAL: Final = re.compile(r"[-+]?0[0-7]+")
"""An octal number in YAML 1.1, and a decimal one in YAML 1.2."""
_ELSEWHERE: Final = MappingProxyType(
    {
        "DrillScenario": "a DrillScenario is checked with `emberpool drill validate FILE`",
        "AgentList": "an AgentList is given to `emberpool controller --agents FILE`",
    }
    | {
        kind: f"a {kind} is checked with `emberpool policy validate FILE`"
        for kind in ("Fleet", "ScalingPolicy", "Controller", "XidTable")
    }
)
"""The command that takes each kind: where a kind is given to another one, its name is the mend."""


class Unrecognized(Envelope):
    """A document of a kind that isn't known: only what all kinds have can be checked."""

    spec: Any = None
    """Whatever it says."""


@dataclass(frozen=True, slots=True)
class Examined(Generic[Model]):
    """What a document comes to.

    Attributes:
        model: the model; a partial one if there are faults, `Unrecognized` for a kind that isn't known. None for what is
            no document of these formats, or of another command's.
        faults: all that is wrong with the document by itself, in the order of the file.
    """

    model: Model | Unrecognized | None
    faults: tuple[PolicyFault, ...] = ()


def examine(kinds: Mapping[str, type[Model]], document: Document) -> Examined[Model]:
    """Check a document against the model that its `kind` asks for.

    A kind that is misspelt is taken for the one that was probably meant, and one that is missing for the only one that there
    is, so that the rest of the document is looked at. What is of another project or is checked by another command is not
    looked at any further.
    """
    kind, version = document.data.get("kind"), document.data.get("apiVersion")
    told = tuple(
        each for each in _faults_of_kind(kinds, document) if each.path not in _stood_in_for(document)
    )
    if _is_foreign(version) and not document.doubtful(
        "apiVersion"
    ):  # what its kind should be says nothing more
        return Examined(None, tuple(fault for fault in told if fault.path == document.where(("apiVersion",))))
    if str(kind) not in kinds and str(kind) in _ELSEWHERE:
        return Examined(None, told)
    if name := _kind_meant(kinds, kind):
        model, faults = _examined(kinds[name], document, kinds)
        return Examined(model, _merged(document, told, faults))
    unrecognized, faults = _examined(Unrecognized, document)
    ours = {document.where(("metadata", key)) for model in kinds.values() for key in _own_metadata(model)}
    return Examined(
        unrecognized, _merged(document, told, tuple(fault for fault in faults if fault.path not in ours))
    )


def _stood_in_for(document: Document) -> frozenset[str]:
    """Return the places of those keys that every document has and that are only misspelt in this one."""
    known = tuple(info.alias or name for name, info in Unrecognized.model_fields.items())
    unknown = [key for key in document.data if key not in known]
    meant = meant_by(unknown, known)
    return frozenset(document.where((key,)) for key in meant if key and key not in document.data)


def _kind_meant(kinds: Mapping[str, type[Model]], written: object) -> str:
    """Return the kind that a document is taken for; empty for none."""
    if not isinstance(written, str):
        return next(iter(kinds)) if len(kinds) == 1 else ""
    return written if written in kinds else closest(written, kinds)


def _own_metadata(model: type[PolicyModel]) -> Iterator[str]:
    """Yield the keys that a kind has in its `metadata` and others don't."""
    metadata = model.model_fields["metadata"].annotation
    if isinstance(metadata, type) and issubclass(metadata, PolicyModel):
        yield from (
            info.alias or name
            for name, info in metadata.model_fields.items()
            if name not in Metadata.model_fields
        )


def validate(model: type[Model], document: Document) -> Model:
    """Check a document against a model.

    Raises:
        PolicyError: with all faults.
    """
    checked, faults = _examined(model, document)
    if faults:
        raise PolicyError(faults)
    return checked


def _examined(
    model: type[Model], document: Document, kinds: Kinds = NO_OTHERS
) -> tuple[Model, tuple[PolicyFault, ...]]:
    checked, wrong = _checked(model, document)
    faults = [_fault(model, document, each, kinds) for each in wrong]
    ambiguous = list(islice(_ambiguous(document, {fault.path for fault in faults}), MAX_FAULTS))
    faults += ambiguous
    if faults and not wrong:
        checked, _ = check_fields(model, document.root)
    broken = list(islice(_broken_rules(checked, ()), MAX_FAULTS))
    faults += (document.fault(path + rule.path, rule.message, rule.hint) for path, rule in broken)
    for path, rule in broken:  # whatever else such a value doesn't fit to may follow from it
        checked = checked.without(path + rule.path)
    counted = MAX_FAULTS not in {len(ambiguous), len(broken)}
    return checked, cut_off(in_file_order(faults, [document.file]), counted=counted)


def _checked(model: type[Model], document: Document) -> tuple[Model, list[Wrong]]:
    """Check all single values, as a whole if nothing is wrong, which is faster, and one by one if something is."""
    if document.clean:
        try:
            return model.model_validate_json(json.dumps(document.data), by_alias=True, by_name=False), []
        except ValidationError as error:
            checked, wrong = check_fields(model, document.root)
            if not wrong:
                raise AssertionError(f"nothing is wrong with any field of {document.file}") from error
            return checked, wrong
    return check_fields(model, document.root)


def _merged(
    document: Document, told: tuple[PolicyFault, ...], more: tuple[PolicyFault, ...]
) -> tuple[PolicyFault, ...]:
    """Put faults together; of a place of which something is told already nothing more is said."""
    places = {fault.path for fault in told}
    return in_file_order([*told, *(fault for fault in more if fault.path not in places)], [document.file])


def model_for(kinds: Mapping[str, type[Envelope]], document: Document) -> type[Envelope]:
    """Choose the model that a document's `apiVersion` and `kind` ask for.

    Raises:
        PolicyError: either of them is missing or unknown.
    """
    if faults := _faults_of_kind(kinds, document):
        raise PolicyError(faults)
    return kinds[str(document.data["kind"])]


def _faults_of_kind(kinds: Iterable[str], document: Document) -> tuple[PolicyFault, ...]:
    """Say what is wrong with `apiVersion` and `kind`."""
    faults = []
    version, kind = document.data.get("apiVersion"), document.data.get("kind")
    known = set(kinds)
    if version != API_VERSION and not document.doubtful("apiVersion"):
        message = _found(API_VERSION, "apiVersion" in document.data, version)
        faults.append(document.fault(("apiVersion",), message, _mend_of_version(version)))
    if (not isinstance(kind, str) or kind not in known) and not document.doubtful("kind"):
        message = _found("one of " + ", ".join(kinds), "kind" in document.data, kind)
        faults.append(document.fault(("kind",), message, _mend_of_kind(kind, kinds)))
    return tuple(faults)


def _is_foreign(version: object) -> bool:
    """Whether a version is another project's, and no misspelt one of ours."""
    ours = not isinstance(version, str) or "emberpool" in version or closest(version, [API_VERSION])
    return bool(version) and not ours


def _mend_of_version(version: object) -> str:
    if _is_foreign(version):
        return "this is no document of Emberpool's: keep it in another file or folder"
    return f"write apiVersion: {API_VERSION}"


def _mend_of_kind(kind: object, kinds: Iterable[str]) -> str:
    return _ELSEWHERE.get(str(kind)) or did_you_mean(kind, kinds) or "kind says which format the document has"


def _ambiguous(document: Document, told: Container[str]) -> Iterator[PolicyFault]:
    """Yield each number that not every reader of YAML takes for the same one, but for the paths that are told already."""
    for path, value in _numbers(document.data, ()):
        written = document.written(path)
        if is_ambiguous(value, written) and document.where(path) not in told:
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
    """Collect the broken rules of a tree of models, partial ones too."""
    match value:
        case PolicyModel():
            yield from ((path, rule) for rule in as_far_as_sound(value.broken_rules()))
            for name, field in type(value).model_fields.items():
                if name in value.__dict__:
                    yield from _broken_rules(value.__dict__[name], (*path, field.alias or name))
        case Mapping():
            for key, item in value.items():
                yield from _broken_rules(item, (*path, str(key)))
        case list() | tuple():
            for index, item in sound_entries(value):
                yield from _broken_rules(item, (*path, index))
        case _:
            pass


# ------------------------------------------------------------------ wording


def _fault(model: type[PolicyModel], document: Document, wrong: Wrong, kinds: Kinds) -> PolicyFault:
    """Say what is wrong at one place."""
    path, value = wrong.path, wrong.value
    if wrong.type == UNKNOWN:
        return _unknown_key(model, document, path, kinds)
    if wrong.type == TAG:
        return _unknown_tag(document, wrong)
    schema = schema_at(schema_of(model), path, document.data)
    if wrong.type == MISSING:
        return document.fault(path, f"is missing: must be {expectation(schema)}", described(schema))
    if wrong.type == MISSHAPEN:
        return document.fault(path, wrong.context["message"], wrong.context["hint"])
    if wrong.type == TOO_MANY:
        count = len(value) if isinstance(value, list) else 0
        message = f"has {count} entries, and may have {wrong.context['most']}"
        return document.fault(path, message, described(schema))
    message = f"must be {expectation(schema)}, is {_as_read(document.written(path), value)}"
    return document.fault(path, message, mend(schema, value))


def _unknown_key(model: type[PolicyModel], document: Document, path: Path, kinds: Kinds) -> PolicyFault:
    known = keys_of(schema_at(schema_of(model), path[:-1], document.data))
    key = str(path[-1])
    foreign = FOREIGN.get(key)
    guess = f"here that is {foreign}" if foreign else did_you_mean(key, known)
    hint = guess or _belongs(model, kinds, path) or f"known here: {', '.join(known)}"
    return document.key_fault(path, "is not a known key", hint)


def _belongs(model: type[PolicyModel], kinds: Kinds, path: Path) -> str:
    """Say where else a key is known: in the same kind of document, or in another one; empty for nowhere, and for too many places."""
    key, here = str(path[-1]), _INDEX.sub("[]", dotted(path[:-1]))
    own = _homes(model, key)
    if here in own:  # another form of what stands here takes it
        return ""
    named = [f"{place}.{key}" for place in own] or [
        f"{place}.{key} of a {kind}"
        for kind, other in kinds.items()
        if other is not model
        for place in _homes(other, key)
    ]
    return f"it belongs elsewhere: {' or '.join(named)}" if 0 < len(named) <= _MOST_HOMES else ""


def _homes(model: type[PolicyModel], key: str) -> list[str]:
    """List the mappings below the root of a document that take a key."""
    return list(dict.fromkeys(place for name, place in places_of(model) if name == key and place))


def _as_read(written: str, value: object) -> str:
    """Show a value; a number that YAML 1.1 or its author would read otherwise, in both forms."""
    return f"{written} ({show(value)} in YAML 1.2)" if is_ambiguous(value, written) else show(value)


def _unknown_tag(document: Document, wrong: Wrong) -> PolicyFault:
    """Say that the key by which entries of different forms are told apart is missing or says something unknown."""
    known = wrong.context["known"]
    message = _found("one of " + ", ".join(known), wrong.context["written"], wrong.value)
    hint = did_you_mean(wrong.value, known) or f"{wrong.path[-1]} says which form the entry has"
    return document.fault(wrong.path, message, hint)

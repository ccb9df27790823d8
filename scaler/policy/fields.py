"""A document checked field by field, so that what is wrong with one field says nothing of the others.

Pydantic checks a model as a whole and gives nothing for one with an error in it, and what it doesn't look at behind that
error stays unsaid. Here each field that holds a plain value is checked by pydantic alone; how models and lists hold
fields is walked through by hand. What comes out is all that is wrong, and a partial model of all that is right.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, cast, get_args, get_origin

from annotated_types import MaxLen, MinLen
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from scaler.policy.base import HOLE, Hole, PolicyModel
from scaler.policy.document import Path
from scaler.policy.wording import FOREIGN, closest
from scaler.policy.yaml_reader import Entry, Node

MISSING: Final = "missing"
UNKNOWN: Final = "extra_forbidden"
"""Pydantic's own names of what can be wrong with a field as such."""
TAG: Final = "unknown tag"
TOO_FEW: Final = "too few entries"
TOO_MANY: Final = "too many entries"

_STRICT: Final = ConfigDict(strict=True)
_PLAIN_NUMBER: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?")
"""Numbers that everybody reads alike."""

Model = TypeVar("Model", bound=PolicyModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """What is wrong at one place.

    Attributes:
        path: the place.
        type: `MISSING`, `UNKNOWN`, `TAG`, `TOO_FEW`, `TOO_MANY`, or the type of pydantic's error.
        value: what stands there.
        context: pydantic's context of the error; for `TOO_MANY` the `most` there may be, for `TAG` those `known`.
    """

    path: Path
    type: str
    value: object = None
    context: Mapping[str, Any] = field(default_factory=dict)


def check_fields(model: type[Model], root: Node) -> tuple[Model, list[Wrong]]:
    """Check each field of a document by itself.

    Args:
        model: what it should be.
        root: the document, a mapping.

    Returns:
        A partial model of what is right, and all that is wrong, in no order.
    """
    walk = _Walk()
    found = walk.model(model, root, ())
    return cast("Model", found), walk.wrong


def is_ambiguous(value: object, written: str) -> bool:
    """Whether a value is a number that not every reader of YAML takes for the same one, as it is written."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and bool(written) and not _PLAIN_NUMBER.fullmatch(written)


@dataclass(frozen=True)
class _Form:
    """What a value must be.

    Attributes:
        annotation: the type, with all that narrows it down.
        optional: null is right, too.
        model: the model that it is; None for something else.
        tag: the key that says which of `models` it is; empty where there is no choice.
        models: those models by the tag's value.
        entry: what each entry of a list must be; None for what is no list.
        least, most: entries that a list must and may have.
    """

    annotation: Any
    optional: bool = False
    model: type[PolicyModel] | None = None
    tag: str = ""
    models: Mapping[str, type[PolicyModel]] = field(default_factory=dict)
    entry: "_Form | None" = None
    least: int = 0
    most: int | None = None

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """What checks a plain value."""
        return TypeAdapter(self.annotation, config=_STRICT)


def _form(annotation: Any, metadata: Sequence[Any] = ()) -> _Form:  # noqa: ANN401 - a type may be written in many ways
    """Read a field's annotation."""
    bare, narrowed, optional = annotation, list(metadata), False
    while True:
        if get_origin(bare) is Annotated:
            bare, *more = get_args(bare)
            narrowed = [*more, *narrowed]
        elif get_origin(bare) in {Union, UnionType} and NoneType in get_args(bare):
            rest = [each for each in get_args(bare) if each is not NoneType]
            bare, optional = Union[tuple(rest)], True  # noqa: UP007 - the members are known at run time only
        else:
            break
    flat = list(_flattened(narrowed))
    tag = next(
        (each.discriminator for each in narrowed if isinstance(each, FieldInfo) and each.discriminator), ""
    )
    if tag:
        models = {_literal(each, str(tag)): each for each in get_args(bare)}
        return _Form(annotation, optional, tag=str(tag), models=models)
    if isinstance(bare, type) and issubclass(bare, PolicyModel):
        return _Form(annotation, optional, model=bare)
    if get_origin(bare) in {tuple, list}:
        least = max((each.min_length for each in flat if isinstance(each, MinLen)), default=0)
        most = min((each.max_length for each in flat if isinstance(each, MaxLen)), default=None)
        return _Form(annotation, optional, entry=_form(get_args(bare)[0]), least=least, most=most)
    return _Form(Annotated[bare, *narrowed] if narrowed else bare, optional)


def _flattened(metadata: Sequence[Any]) -> Iterator[Any]:
    for each in metadata:
        yield from each.metadata if isinstance(each, FieldInfo) else (each,)


def _literal(model: type[PolicyModel], name: str) -> str:
    """Return the one value that a field of a model may have."""
    (value,) = get_args(model.model_fields[name].annotation)
    return str(value)


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a model: its name, what pydantic knows of it, and what its value must be."""

    name: str
    info: FieldInfo
    form: _Form


@cache
def _fields_of(model: type[PolicyModel]) -> Mapping[str, _Field]:
    """Return a model's fields by their keys in a file."""
    return {
        info.alias or name: _Field(name, info, _form(info.annotation, info.metadata))
        for name, info in model.model_fields.items()
    }


def places_of(model: type[PolicyModel], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each key of a model and of the mappings below it, with the place of the mapping that takes it.

    Args:
        model: the model.
        path: where it stands itself; lists on the way are written as `fleets[]`.
    """
    for key, each in _fields_of(model).items():
        yield key, path
        inner, below = each.form, f"{path}.{key}" if path else key
        while inner.entry is not None:
            inner, below = inner.entry, f"{below}[]"
        forms = inner.models.values() if inner.model is None else (inner.model,)
        for form in forms:
            yield from places_of(form, below)


def meant_by(unknown: Iterable[str], fields: Iterable[str]) -> frozenset[str]:
    """Return the keys for which unknown ones stand: these are left out, and nothing else is said of them."""
    known = tuple(fields)
    return frozenset(closest(key, known) for key in unknown if key not in FOREIGN)


class _Walk:
    """Goes through a document.

    Attributes:
        wrong: what is wrong so far.
    """

    def __init__(self) -> None:
        self.wrong: list[Wrong] = []

    def model(self, model: type[PolicyModel], node: Node, path: Path) -> PolicyModel:
        """Check a mapping that is to become a model."""
        entries: Mapping[str, Entry] = node.value
        fields = _fields_of(model)
        unknown = [key for key in entries if key not in fields]
        for key in unknown:
            self._say(UNKNOWN, (*path, key), entries[key].node)
        meant = meant_by(unknown, fields)
        sound: dict[str, Any] = {}
        for key, each in fields.items():
            if key in entries:
                value = self._entry(each.form, entries[key], (*path, key))
            elif node.doubtful or (each.info.is_required() and key in meant):
                continue
            elif each.info.is_required():
                self.wrong.append(Wrong(path=(*path, key), type=MISSING))
                continue
            else:
                value = HOLE if key in meant else each.info.get_default(call_default_factory=True)
            if not isinstance(value, Hole):
                sound[each.name] = value
        return model.partial(sound, {each.name for key, each in fields.items() if key in entries})

    def _entry(self, form: _Form, entry: Entry, path: Path) -> Any:  # noqa: ANN401 - a YAML value may be anything
        value = self._value(form, entry.node, path)
        return HOLE if entry.repeated else value

    def _value(self, form: _Form, node: Node, path: Path) -> Any:  # noqa: ANN401 - as above
        """Check a value; return it, or `HOLE`."""
        if node.value is None and form.optional and not node.doubtful:
            return None
        if form.model is not None or form.tag:
            return self._mapping(form, node, path)
        if form.entry is not None:
            return self._list(form, form.entry, node, path)
        return self._plain(form, node, path)

    def _mapping(self, form: _Form, node: Node, path: Path) -> Any:  # noqa: ANN401 - as above
        if not isinstance(node.value, dict):
            return self._say("model_type", path, node)
        if form.model is not None:
            return self.model(form.model, node, path)
        tag = node.value.get(form.tag)
        said = None if tag is None else tag.node.value
        if isinstance(said, str) and said in form.models:
            return self.model(form.models[said], node, path)
        doubtful = node.doubtful if tag is None else tag.node.doubtful
        if not doubtful:
            known = {"known": tuple(form.models), "written": tag is not None}
            self.wrong.append(Wrong(path=(*path, form.tag), type=TAG, value=said, context=known))
        return self._of_any_form(form, node, path)

    def _of_any_form(self, form: _Form, node: Node, path: Path) -> PolicyModel:
        """Check what is the same in each of the forms that a mapping may have; which one it has isn't known."""
        models = list(form.models.values())
        sound = {}
        for key, entry in node.value.items():
            fields = [_fields_of(model)[key] for model in models if key in _fields_of(model)]
            if key != form.tag and fields and all(_alike(each, fields[0]) for each in fields):
                value = self._entry(fields[0].form, entry, (*path, key))
                if not isinstance(value, Hole):
                    sound[fields[0].name] = value
        common = next(each for each in models[0].__mro__ if all(issubclass(model, each) for model in models))
        assert issubclass(common, PolicyModel)
        shared = {name: value for name, value in sound.items() if name in common.model_fields}
        return common.partial(shared, shared.keys())

    def _list(self, form: _Form, of: _Form, node: Node, path: Path) -> Any:  # noqa: ANN401 - as above
        if not isinstance(node.value, list):
            return self._say("list_type", path, node)
        count = len(node.value)
        if count < form.least:
            return self._say(TOO_FEW, path, node)
        entries = tuple(self._value(of, each, (*path, index)) for index, each in enumerate(node.value))
        if form.most is not None and count > form.most:
            return self._say(TOO_MANY, path, node, {"most": form.most})
        return entries

    def _plain(self, form: _Form, node: Node, path: Path) -> Any:  # noqa: ANN401 - as above
        if node.doubtful:
            return HOLE
        try:
            value = form.adapter.validate_json(json.dumps(node.plain()))
            return HOLE if is_ambiguous(node.value, node.text) else value
        except ValidationError as error:
            for details in error.errors(include_url=False):
                inner = (*path, *details["loc"]) if isinstance(node.value, dict | list) else path
                self.wrong.append(
                    Wrong(
                        path=inner,
                        type=details["type"],
                        value=details["input"],
                        context=details.get("ctx", {}),
                    )
                )
            return HOLE

    def _say(self, kind: str, path: Path, node: Node, context: Mapping[str, Any] | None = None) -> Hole:
        """Note what is wrong with a value, unless something was said of it when it was read."""
        if not node.doubtful or kind is UNKNOWN:
            self.wrong.append(Wrong(path=path, type=kind, value=node.plain(), context=context or {}))
        return HOLE


def _alike(one: _Field, other: _Field) -> bool:
    """Whether two fields of different models take the same values."""
    return (one.info.annotation, one.info.metadata) == (other.info.annotation, other.info.metadata)

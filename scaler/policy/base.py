"""What every model of a file format is made from: strict, frozen, no unknown keys, lowerCamelCase outside.

A model may be *partial*: made from a document in which something is wrong, with nothing in place of what is. Whoever reads
a field that isn't there gets `Unsound`, and stops. So a rule over several fields is looked at whenever those that it reads
are right, whatever else is wrong, and nothing has to say which those are.
"""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn, Self, TypeAlias, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from scaler.policy.document import Path

API_VERSION: Final = "emberpool.dev/v1alpha1"
"""The one version of the formats so far."""

EXPECTS: Final = "x-expects"
"""Key in a field's JSON Schema: what a value must be, in words, where the schema's own terms would read badly."""
MISSHAPEN: Final = "misshapen"
"""Type of pydantic's error for a text that `form` refuses; its context has `message` and `hint`."""
DNS_LABEL: Final = "a DNS label (lower-case letters, digits and -, begins and ends with a letter or digit, at most 63 characters)"
"""What a name must be."""
UNIT: Final = "x-unit"
"""Key in a field's JSON Schema: what one of the number is."""


def integer(unit: str, least: int, most: int, *, example: int) -> Any:  # noqa: ANN401 - as pydantic's own Field
    """Describe a field that is a whole number of something.

    Args:
        unit: what one of it is, in the plural.
        least: smallest value.
        most: largest value.
        example: a sensible value.
    """
    return Field(ge=least, le=most, examples=[example], json_schema_extra={UNIT: unit})


def text(expects: str, *, pattern: str, longest: int, example: str) -> Any:  # noqa: ANN401 - as above
    """Describe a field that is text of a certain form.

    Args:
        expects: what it must be, in words.
        pattern: the same as a regular expression.
        longest: characters that it has at most.
        example: a sensible value.
    """
    return Field(
        pattern=pattern, max_length=longest, examples=[example], json_schema_extra={EXPECTS: expects}
    )


Misshapen: TypeAlias = tuple[str, str]
"""What is wrong with a text, as a sentence goes on after its place, and the mend."""


def form(problem: Callable[[str], Misshapen | None]) -> BeforeValidator:
    """Describe a text whose form a pattern can't say, or can't say well: what is wrong, and the mend for just that.

    Args:
        problem: says what is wrong with a text; None for one that is right. The field's pattern is looked at after it.
    """

    def checked(value: object) -> object:
        if isinstance(value, str) and (found := problem(value)) is not None:
            message, hint = found
            raise PydanticCustomError(MISSHAPEN, "{message}", {"message": message, "hint": hint})
        return value

    return BeforeValidator(checked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A rule over several fields that the values break.

    Attributes:
        path: the place to point at, from the model that has the rule, in the keys of the file.
        message: what is wrong, with the numbers.
        hint: what to do about it; may be empty.
    """

    path: Path
    message: str
    hint: str = ""


def key(name: str) -> str:
    """Return the key in a file for a field's name: lowerCamelCase, with units of memory as they are written."""
    return to_camel(name).replace("Mib", "MiB")


class Unsound(Exception):
    """What was read of a partial model is wrong itself, or missing: that has been said, and nothing follows from it."""


class Hole:
    """Stands in a list for an entry that is wrong: whatever is done with it but asking for its type is `Unsound`."""

    __slots__ = ()

    def _unsound(self, *_: object) -> NoReturn:
        raise Unsound

    __getattr__ = __bool__ = __eq__ = __hash__ = __iter__ = __len__ = __getitem__ = _unsound
    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __str__ = __format__ = __int__ = _unsound

    def __repr__(self) -> str:
        return "HOLE"


HOLE: Final = Hole()
"""The one hole that there is."""

Said = TypeVar("Said")


def as_far_as_sound(*rules: Iterable[Said]) -> Iterator[Said]:
    """Yield what rules say, each up to where it reads something that is wrong itself."""
    for rule in rules:
        with suppress(Unsound):
            yield from rule


def sound_entries(entries: Iterable[Said]) -> Iterator[tuple[int, Said]]:
    """Yield the entries of a list that aren't wrong as a whole, with their index."""
    return ((index, entry) for index, entry in enumerate(entries) if not isinstance(entry, Hole))


class PolicyModel(BaseModel):
    """Base of all models of file formats.

    Values are checked strictly (no text for numbers, no numbers for text), instances are frozen, unknown keys are
    refused, and the docstring under a field is its description in errors and in the JSON Schema.
    """

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        alias_generator=key,
        validate_by_alias=True,
        validate_by_name=True,
        use_attribute_docstrings=True,
    )

    def broken_rules(self) -> Iterator[Broken]:
        """Yield each rule over several fields that this model's values break.

        `scaler.policy.source.validate` asks every model of a tree, partial ones too. Rules that shall not keep each other
        from being looked at are put together with `as_far_as_sound`.
        """
        yield from ()

    def given(self, name: str) -> bool:
        """Whether a field has what somebody wrote, and not its default."""
        return name in self.model_fields_set

    @classmethod
    def partial(cls, sound: dict[str, Any], given: AbstractSet[str]) -> Self:
        """Make a model of those fields alone that are right, defaults among them.

        Args:
            sound: their values by name, which aren't checked again.
            given: the fields that somebody wrote, others among them.
        """
        model = cls.model_construct(set(given & sound.keys()), **sound)
        for name in cls.model_fields.keys() - sound.keys():
            model.__dict__.pop(name, None)
        return cast("Self", model)

    def without(self, path: Path) -> Self:
        """Return a partial model that lacks what stands at a place in it, in the keys of the file.

        A place that isn't there, or that is the model itself, changes nothing.
        """
        name = next((name for name, info in type(self).model_fields.items() if path[:1] == (info.alias,)), "")
        if name not in self.__dict__:
            return self
        rest = {each: value for each, value in self.__dict__.items() if each != name}
        inner = _without(self.__dict__[name], path[1:])
        sound = rest if isinstance(inner, Hole) else {**rest, name: inner}
        return type(self).partial(sound, self.model_fields_set)

    if not TYPE_CHECKING:  # for mypy only the fields are attributes

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as pydantic's own
            """Refuse to go on without a field that a partial model lacks."""
            if name in type(self).model_fields:
                raise Unsound(name)
            return super().__getattr__(name)


def _without(value: Any, path: Path) -> Any:  # noqa: ANN401 - a field may hold anything
    """Return a field's value without what stands at a place in it; `HOLE` if that is the value itself."""
    match value, path:
        case _, ():
            return HOLE
        case PolicyModel(), _:
            return value.without(path)
        case tuple(), (int() as index, *rest) if index < len(value):
            return (*value[:index], _without(value[index], tuple(rest)), *value[index + 1 :])
        case _:
            return value


def label(example: str) -> Any:  # noqa: ANN401 - as above
    """Describe a field that is a name as Kubernetes takes it: it becomes part of labels, pod names and host names."""
    return text(DNS_LABEL, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", longest=63, example=example)


Name = Annotated[str, label("llama-8b")]
"""Name of an object, or one that refers to it."""


class Metadata(PolicyModel):
    """Which object this is."""

    name: Name
    """Name of the object, unique among the objects of its kind. It becomes part of label keys and pod names."""
    namespace: Name = "default"
    """Kubernetes namespace of its pods. Without a cluster it is ignored. The default is Kubernetes' own."""


class Envelope(PolicyModel):
    """What every document begins with; a format adds `kind` as a literal of its own and `spec`."""

    api_version: Literal["emberpool.dev/v1alpha1"]
    """Version of the format."""
    kind: str
    """Which format the document has."""
    metadata: Metadata
    """Which object this is."""

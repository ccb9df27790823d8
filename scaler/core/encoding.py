"""The law's own values as JSON and back, by their type hints.

For what a program writes for itself to read again: memory and specs in the ledger. A field that is added to one of these
values is written and read without a word about it here. Named tuples become lists, dataclasses mappings with
lowerCamelCase keys. JSON has no infinity and no NaN, so a number that is not finite becomes its name as text.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, NewType, TypeVar, cast

Value = TypeVar("Value")
Convert = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Codec:
    encode: Convert
    decode: Convert


def encode(value: object) -> Any:  # noqa: ANN401 - JSON may be anything
    """Return a dataclass of the law as JSON."""
    hint: Any = type(value)
    return _codec(hint).encode(value)


def decode(kind: type[Value], data: object) -> Value:
    """Read a value back that `encode` has written. Unknown keys are ignored, missing ones take their default.

    Args:
        kind: its type.
        data: the JSON.

    Raises:
        ValueError: the data aren't what `encode` writes for such a value.
    """
    hint: Any = kind
    try:
        return cast("Value", _codec(hint).decode(data))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a {kind.__name__}: {error!r}") from error


@cache
def _codec(hint: Any) -> _Codec:  # noqa: ANN401 - type hints have no type in common
    if isinstance(hint, NewType):
        return _codec(hint.__supertype__)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return _optional(_codec(next(part for part in arguments if part is not types.NoneType)))
    if origin is tuple:
        return _items(_codec(arguments[0]))
    if origin is Mapping:
        return _entries(_codec(arguments[1]))
    if dataclasses.is_dataclass(hint):
        return _dataclass(cast("type", hint))
    if issubclass(hint, tuple):
        return _named_tuple(hint)
    return _scalar(hint)


def _scalar(kind: type) -> _Codec:
    if kind is float:
        return _Codec(_finite, float)
    if issubclass(kind, StrEnum):
        return _Codec(str, kind)
    if kind in {bool, int, str}:
        return _Codec(_itself, _of(kind))
    raise TypeError(f"{kind} has no JSON form here")


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else repr(value)


def _itself(value: object) -> object:
    return value


def _of(kind: type) -> Convert:
    def check(data: object) -> object:
        if type(data) is not kind:
            raise TypeError(f"{data!r} is no {kind.__name__}")
        return data

    return check


def _optional(inner: _Codec) -> _Codec:
    return _Codec(
        lambda value: None if value is None else inner.encode(value),
        lambda data: None if data is None else inner.decode(data),
    )


def _items(inner: _Codec) -> _Codec:
    return _Codec(
        lambda value: [inner.encode(item) for item in value],
        lambda data: tuple(inner.decode(item) for item in data),
    )


def _entries(inner: _Codec) -> _Codec:
    return _Codec(
        lambda value: {key: inner.encode(item) for key, item in value.items()},
        lambda data: {str(key): inner.decode(item) for key, item in data.items()},
    )


def _named_tuple(kind: type) -> _Codec:
    hints = list(typing.get_type_hints(kind).values())
    parts = [_codec(hint) for hint in hints]

    def encode_parts(value: tuple[Any, ...]) -> list[Any]:
        return [part.encode(item) for part, item in zip(parts, value, strict=True)]

    def encode_numbers(value: tuple[Any, ...]) -> list[Any]:
        """Do the same for numbers alone, of which a large memory has tens of thousands."""
        return list(value) if all(map(math.isfinite, value)) else encode_parts(value)

    fewest = len(parts) - len(getattr(kind, "_field_defaults", ()))

    def decode_parts(data: object) -> object:
        """Read the parts; those at the end that an older version didn't write take their default."""
        if not isinstance(data, list) or not fewest <= len(data) <= len(parts):
            raise TypeError(f"{data!r} is no {kind.__name__}")
        return kind(*(part.decode(item) for part, item in zip(parts, data, strict=False)))

    return _Codec(encode_numbers if set(hints) <= {int, float} else encode_parts, decode_parts)


def _dataclass(kind: type) -> _Codec:
    hints = typing.get_type_hints(kind)
    fields = [
        (field.name, _camel(field.name), _codec(hints[field.name]))
        for field in dataclasses.fields(kind)
        if field.init  # another is worked out from these
    ]

    def decode_fields(data: object) -> object:
        if not isinstance(data, Mapping):
            raise TypeError(f"{data!r} is no {kind.__name__}")
        return kind(**{name: inner.decode(data[key]) for name, key, inner in fields if key in data})

    return _Codec(
        lambda value: {key: inner.encode(getattr(value, name)) for name, key, inner in fields}, decode_fields
    )


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
